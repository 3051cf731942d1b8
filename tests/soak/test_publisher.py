"""The publisher of the soak test: how fast it publishes."""

from __future__ import annotations

import pytest

from tests.soak.publisher import Pace


def test_it_publishes_in_bursts_at_a_steady_rate() -> None:
    pace = Pace(20, 100.0)
    assert [pace.next(100.0) for _ in range(6)] == pytest.approx([100.0, 100.0, 100.1, 100.1, 100.2, 100.2])


def test_it_makes_up_for_a_second_of_what_it_missed() -> None:
    pace = Pace(20, 100.0)
    pace.next(100.0)
    now_s = 160.0
    made_up = 0
    while pace.next(now_s) <= now_s:
        made_up += 1
    assert made_up == pytest.approx(20, abs=2)
    later = [pace.next(now_s) for _ in range(4)]
    assert later[2:] == pytest.approx([at_s + 0.1 for at_s in later[:2]])
