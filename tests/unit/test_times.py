"""Times as people give them."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.basics.times import aware, due_at, to_datetime, to_ms, to_timedelta
from celery_delayq.transport.eta import parse_eta

UTC = timezone.utc
TOKYO = timezone(timedelta(hours=9))


@pytest.mark.parametrize(
    ("when", "ms"),
    [
        (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), 1000),
        (datetime(1970, 1, 1, 9, 0, 1, tzinfo=TOKYO), 1000),
        (datetime(1970, 1, 1, 0, 0, 1), 1000),  # noqa: DTZ001
        (datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC), 1),
        (1, 1000),
        (1.0005, 1001),
        (-5, 0),
        (datetime(1960, 1, 1, tzinfo=UTC), 0),
        (datetime.max.replace(tzinfo=UTC), 253402300799999),
    ],
)
def test_a_time_in_ms(when: Any, ms: int) -> None:
    assert to_ms(when, "when") == ms


@pytest.mark.parametrize("when", ["2030-01-01", b"1", True, timedelta(1), [1], 1j])
def test_what_is_no_time(when: Any) -> None:
    with pytest.raises(TypeError, match="due_after must be a datetime, or unix time in seconds, not"):
        to_ms(when, "due_after")


@pytest.mark.parametrize("when", [math.nan, math.inf, -math.inf, 1e300, 10**400, 253402300800])
def test_a_number_that_is_no_time(when: float) -> None:
    with pytest.raises(ValueError, match="due_after must be a datetime, or unix time in seconds, not"):
        to_ms(when, "due_after")


def test_a_time_whose_year_is_10000_in_utc() -> None:
    with pytest.raises(ValueError, match="eta must be before the year 10000 in UTC"):
        aware(datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-12))), "eta")


_FIRST, _LAST = datetime(1971, 1, 1), datetime(9999, 12, 30)  # noqa: DTZ001


@given(st.datetimes(timezones=st.none() | st.timezones(), min_value=_FIRST, max_value=_LAST))
def test_a_time_is_that_of_a_published_eta(when: datetime) -> None:
    """A task is due then, whether the eta was given to apply_async or to reschedule."""
    assert to_ms(when, "eta") == parse_eta(when.isoformat(), "task")
    assert to_ms(aware(when, "eta"), "eta") == to_ms(when, "eta")


class TestDueAt:
    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ({"countdown": 1}, "1970-01-01T00:00:06+00:00"),
            ({"countdown": 0.25}, "1970-01-01T00:00:05.250000+00:00"),
            ({"countdown": timedelta(hours=1, milliseconds=1)}, "1970-01-01T01:00:05.001000+00:00"),
            ({"countdown": timedelta.min}, "1970-01-01T00:00:00+00:00"),
            ({"countdown": -3}, "1970-01-01T00:00:02+00:00"),
            ({"countdown": -1e18}, "1970-01-01T00:00:00+00:00"),
            ({"eta": 7}, "1970-01-01T00:00:07+00:00"),
            ({"eta": datetime(2030, 1, 1, tzinfo=TOKYO)}, "2030-01-01T00:00:00+09:00"),
        ],
    )
    def test_is(self, given: dict[str, Any], expected: str) -> None:
        assert due_at(5000, **given).isoformat() == expected

    @pytest.mark.parametrize("given", [{}, {"countdown": 1, "eta": 1}])
    def test_takes_one_of_two(self, given: dict[str, Any]) -> None:
        with pytest.raises(TypeError, match="either countdown or eta"):
            due_at(5000, **given)

    @pytest.mark.parametrize("countdown", ["5", True])
    def test_no_number(self, countdown: Any) -> None:
        with pytest.raises(TypeError, match="countdown must be a number of seconds, or a timedelta, not"):
            due_at(5000, countdown=countdown)

    @pytest.mark.parametrize("countdown", [math.nan, math.inf, 1e15, 1e300, timedelta.max])
    def test_out_of_range(self, countdown: float | timedelta) -> None:
        with pytest.raises(ValueError, match="countdown must"):
            due_at(5000, countdown=countdown)


@given(st.integers())
def test_whatever_redis_holds_can_be_shown(ms: int) -> None:
    assert to_datetime(ms).tzinfo is UTC
    assert isinstance(to_timedelta(ms), timedelta)


@given(st.integers(-(2**45), 2**45))
def test_ms_survive(ms: int) -> None:
    assert to_timedelta(ms) / timedelta(milliseconds=1) == ms
    if ms >= 0:
        assert to_ms(to_datetime(ms), "when") == ms
