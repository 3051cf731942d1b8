"""Planners with much to do: what they do first, and what that costs."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest

from celery_delayq.queue.call import load
from tests.planner.conftest import Stage, run, run_until, started
from tests.state import calls
from tests.support import wait_until

pytestmark = pytest.mark.on_cluster


class TestOrder:
    """What has to be planned soonest is planned first."""

    def test_an_entry_of_each_second_before_those_of_each_minute(self, stage: Stage) -> None:
        entries: dict[str, Any] = {f"minute {n}": 60 for n in range(300)}
        started(stage, {**entries, "often": 1})
        before = stage.state("often")
        assert before is not None
        for name in entries:
            stage.set_back(name, 60_000, transferred=True)
        stage.set_back("often", 1000, transferred=True)
        stage.attended_for(600_000)
        planner = stage.planner({**entries, "often": 1})
        planner.read()
        wait_until(lambda: stage.store.now_ms() > (before.at_ms or 0) + 100, "those that another one planned are its")
        planner.run_due()
        after = stage.state("often")
        assert after is not None
        assert after.runs == 1
        assert sum((stage.state(name) or 0).runs for name in entries) < 300  # type: ignore[union-attr]

    def test_what_is_known_goes_on_while_everything_is_read_again(self, stage: Stage) -> None:
        planner = started(stage, {**{f"hour {n}": 3600 for n in range(2500)}, "often": 0.5})
        before = stage.state("often")
        assert before is not None
        wait_until(lambda: stage.store.now_ms() > (before.at_ms or 0), "its time has come")
        planner.begin_reading()
        planner.run_due()
        assert not planner.is_up_to_date
        after = stage.state("often")
        assert after is not None
        assert after.last_ms == before.at_ms

    def test_several_planners_share_new_entries(self, stage: Stage) -> None:
        entries = {f"e{n}": 3600 for n in range(1000)}
        planners = [stage.planner(entries) for _ in range(3)]
        for planner in planners:
            planner.read()
        while sum(planner.run_due() for planner in planners):
            pass
        assert stage.built == 1000


class TestCost:
    def test_of_a_new_entry(self, stage: Stage) -> None:
        """One script plans it; all else is done for many at once."""
        planner = stage.planner({f"e{n}": "0 4 * * *" for n in range(1000)})
        stage.client.script_load(load("plan").text)  # or a hundred calls are made again
        stage.client.config_resetstat()
        planner.read()
        run(planner)
        assert calls(stage.client, "evalsha") < 1050
        assert calls(stage.client, "hmget") + calls(stage.client, "hscan") < 60

    @pytest.mark.thorough
    def test_of_an_occurrence(self, stage: Stage) -> None:
        """One script, and nothing is read."""
        planner = started(stage, {f"e{n}": 5.0 for n in range(500)})
        wait_until(lambda: (planner.seconds_until_next() or 0) < -0.01, "their time has come")
        stage.client.config_resetstat()
        while planner.run_due():
            pass
        assert 500 <= calls(stage.client, "evalsha") < 520
        assert calls(stage.client, "hmget") == 0

    def test_of_changes(self, stage: Stage) -> None:
        """However many there are at once, they are read together."""
        planner = started(stage)
        for n in range(400):
            stage.add(f"e{n}", 3600)
        stage.client.config_resetstat()
        planner.on_changes([(n + 1, f"e{n}") for n in range(400)])
        assert calls(stage.client, "hmget") < 10
        run(planner)
        assert stage.queue().size() == 400

    @pytest.mark.thorough
    def test_memory(self, stage: Stage) -> None:
        """Of crontabs that say the same there is one; messages and definitions as data are not kept."""
        for n in range(2000):
            stage.add(f"e{n}", f"{n % 60} 4 * * *")
        planner = stage.planner()
        gc.collect()
        tracemalloc.start()
        try:
            planner.read()
            run(planner)
            gc.collect()
            used, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert used / 2000 < 1500


def test_entries_that_are_new_do_not_hold_up_the_others(stage: Stage) -> None:
    planner = started(stage, {"often": 0.5})
    for n in range(300):
        stage.add(f"e{n}", 3600)
    run(planner)
    planner.read()
    before = stage.state("often")
    assert before is not None
    wait_until(lambda: stage.store.now_ms() > (before.at_ms or 0), "its time has come")
    planner.run_due()
    after = stage.state("often")
    assert after is not None
    assert after.last_ms == before.at_ms
    assert stage.queue().size() < 300
    run_until(lambda: stage.queue().size() > 300, "all are planned", planner)


@pytest.mark.thorough
def test_ten_thousand_entries_each_have_one_occurrence(stage: Stage) -> None:
    entries = {f"e{n}": {"schedule": 3600, "args": [n]} for n in range(10_000)}
    first, second = stage.planner(entries), stage.planner(entries)
    first.read()
    second.read()
    while first.run_due() + second.run_due():
        pass
    found = [entry.payload for entry in stage.queue().page(limit=1000)]
    assert len(found) == 1000
    assert stage.built == 10_000
    assert stage.queue().size() == 10_000
    assert len({name for page in stage.store.names("celery") for name in page}) == 10_000
