"""Schedules other than crontabs where the clock jumps: elapsed time is elapsed time in every zone."""

from __future__ import annotations

from datetime import datetime, time, timedelta, timezone, tzinfo
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import schedule, solar
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.schedule.occurrences import Times, next_after, to_datetime, to_ms

APP = Celery("shop", set_as_current=False)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)

#: With whole hours, half an hour, midnights that do not exist, two changes for Ramadan, odd offsets, and none.
ZONES = [
    *("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Havana", "Asia/Beirut", "Africa/Cairo"),
    *("Africa/Casablanca", "Asia/Kathmandu", "Pacific/Apia", "UTC"),
]

zones = st.sampled_from(ZONES).map(ZoneInfo)


def hours_of_changes(zone: tzinfo, first: datetime, last: datetime, step: timedelta = DAY) -> list[datetime]:
    """Return when the clock of a zone jumps, in UTC, to the hour."""
    steps = (first + at * step for at in range(int((last - first) / step)))
    found = [at for at in steps if at.astimezone(zone).utcoffset() != (at + step).astimezone(zone).utcoffset()]
    return found if step == HOUR else [at for day in found for at in hours_of_changes(zone, day, day + step, HOUR)]


CHANGES = {
    name: hours_of_changes(
        ZoneInfo(name), datetime(2026, 1, 1, tzinfo=timezone.utc), datetime(2028, 1, 1, tzinfo=timezone.utc)
    )
    for name in ZONES
}


@st.composite
def near_a_change(draw: st.DrawFn) -> tuple[int, tzinfo]:
    """A time, mostly in the days about a change of the clock."""
    name = draw(st.sampled_from(ZONES))
    change = draw(st.sampled_from([*CHANGES[name], datetime(2027, 6, 1, tzinfo=timezone.utc)]))
    seconds = draw(st.integers(-3 * 86_400, 3 * 86_400))
    return to_ms(change + timedelta(seconds=seconds)), ZoneInfo(name)


def relative(every: timedelta) -> schedule:
    return schedule(every, relative=True, app=APP)


def chain(one: schedule | solar, at_ms: int, zone: tzinfo, count: int) -> list[datetime]:
    """Return the next times of a schedule, each after the one before, on the clock of a zone."""
    found = []
    for _ in range(count):
        following = next_after(one, at_ms, zone)
        assert following is not None
        assert following > at_ms
        at_ms = following
        found.append(to_datetime(at_ms, zone))
    return found


def elapsed(first: datetime, second: datetime) -> timedelta:
    return second.astimezone(timezone.utc) - first.astimezone(timezone.utc)


class TestRelativeIntervals:
    @pytest.mark.parametrize(
        ("hours", "after", "expected"),
        [
            (
                24,
                "2027-10-30T12:00+02:00",
                ["2027-10-31T00:00+02:00", "2027-11-01T00:00+01:00", "2027-11-02T00:00+01:00"],
            ),
            (24, "2027-03-27T12:00+01:00", ["2027-03-28T00:00+01:00", "2027-03-29T00:00+02:00"]),
            (
                1,
                "2027-10-31T01:00+02:00",
                ["2027-10-31T02:00+02:00", "2027-10-31T02:00+01:00", "2027-10-31T03:00+01:00"],
            ),
            (1, "2027-03-28T01:00+01:00", ["2027-03-28T03:00+02:00", "2027-03-28T04:00+02:00"]),
            (
                0.5,
                "2027-10-31T02:00+02:00",
                ["2027-10-31T02:30+02:00", "2027-10-31T02:00+01:00", "2027-10-31T02:30+01:00"],
            ),
            (0.5, "2027-03-28T01:00+01:00", ["2027-03-28T01:30+01:00", "2027-03-28T03:00+02:00"]),
        ],
    )
    def test_berlin(self, hours: float, after: str, expected: list[str]) -> None:
        start_ms = to_ms(datetime.fromisoformat(after))
        found = chain(relative(hours * HOUR), start_ms, ZoneInfo("Europe/Berlin"), len(expected))
        assert [one.isoformat(timespec="minutes") for one in found] == expected

    @given(near_a_change())
    def test_a_daily_one_runs_once_a_day_as_the_day_begins(self, start: tuple[int, tzinfo]) -> None:
        found = chain(relative(DAY), *start, 6)
        for before, after in pairwise(found):
            assert after.date() - before.date() == DAY
        for one in found:
            begins = datetime.combine(one.date(), time(), one.tzinfo)
            assert elapsed(begins, one) == timedelta(0)

    @given(near_a_change(), st.sampled_from([1, 2, 5, 10, 15, 20, 30, 60, 120, 360]))
    def test_a_shorter_one_is_elapsed_time_on_the_full_unit(self, start: tuple[int, tzinfo], minutes: int) -> None:
        every = timedelta(minutes=minutes)
        found = chain(relative(every), *start, 60)
        jumps_by_half_an_hour = str(start[1]) == "Australia/Lord_Howe"
        off = HOUR / 2 if jumps_by_half_an_hour and minutes >= 60 else timedelta(0)
        for one in found:
            assert (one.second, one.microsecond) == (0, 0)
            assert minutes < 60 or one.minute == 0
        for before, after in pairwise(found):
            assert every - off <= elapsed(before, after) <= every + off

    @given(near_a_change(), st.sampled_from([24.0, 1.0, 0.5, 0.25]))
    def test_missed_ones_are_those_that_would_have_been(self, start: tuple[int, tzinfo], hours: float) -> None:
        start_ms, zone = start
        expected = [to_ms(one) for one in chain(relative(hours * HOUR), start_ms, zone, 50)]
        times = Times(relative(hours * HOUR), zone=zone)
        assert times.missed(start_ms, expected[-1], 20) == expected[-20:]


class OnTheWall(schedule):
    """Runs at 06:00, and subtracts local times, as many classes do."""

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        next_day = last_run_at.date() if last_run_at.hour < 6 else last_run_at.date() + DAY
        return datetime.combine(next_day, time(6), last_run_at.tzinfo) - self.now()


class TestOtherSchedules:
    @given(near_a_change(), st.integers(1, 10**9))
    def test_an_interval_is_elapsed_time(self, start: tuple[int, tzinfo], every_ms: int) -> None:
        start_ms, zone = start
        every = schedule(timedelta(milliseconds=every_ms), app=APP)
        assert next_after(every, start_ms, zone) == start_ms + every_ms

    @given(near_a_change(), st.sampled_from(["sunrise", "sunset", "solar_noon"]))
    def test_the_sun_has_no_time_zone(self, start: tuple[int, tzinfo], event: str) -> None:
        pytest.importorskip("ephem")
        start_ms, zone = start
        one = solar(event, 52.5, 13.4, app=APP)
        assert next_after(one, start_ms, zone) == next_after(one, start_ms, timezone.utc)

    @given(near_a_change())
    def test_a_class_of_the_users_that_subtracts_local_times_is_on_time(self, start: tuple[int, tzinfo]) -> None:
        for one in chain(OnTheWall(60, app=APP), *start, 6):
            assert (one.hour, one.minute) == (6, 0)
