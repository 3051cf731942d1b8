"""When a crontab runs, with the real time zones: each expectation is written in local time and offset."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.schedule.occurrences import Times, fields_of, next_after, to_ms
from celery_delayq.schedule.wallclock import next_match
from tests.work import calls_in

BERLIN, NEW_YORK, LORD_HOWE, APIA = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"


def times(expression: str, zone: str, after: str, count: int) -> list[str]:
    """Return the next times of a crontab expression, in local time."""
    fields, tz = fields_of(crontab.from_string(expression)), ZoneInfo(zone)
    moment = datetime.fromisoformat(after).replace(tzinfo=tz)
    found = []
    for _ in range(count):
        match = next_match(fields, moment, tz)
        assert match is not None
        found.append(match.astimezone(tz).isoformat(timespec="minutes"))
        moment = match
    return found


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    [
        # A daily task at a time that does not exist runs that much later.
        (
            "30 2 * * *",
            BERLIN,
            "2027-03-27T03:00",
            ["2027-03-28T03:30+02:00", "2027-03-29T02:30+02:00"],
        ),
        (
            "30 2 * * *",
            NEW_YORK,
            "2027-03-13T03:00",
            ["2027-03-14T03:30-04:00", "2027-03-15T02:30-04:00"],
        ),
        ("15 2 * * *", LORD_HOWE, "2027-10-02T03:00", ["2027-10-03T02:45+11:00", "2027-10-04T02:15+11:00"]),
        # Of a time that exists twice, the first counts.
        (
            "30 2 * * *",
            BERLIN,
            "2027-10-30T03:00",
            ["2027-10-31T02:30+02:00", "2027-11-01T02:30+01:00"],
        ),
        (
            "30 1 * * *",
            NEW_YORK,
            "2027-11-06T03:00",
            ["2027-11-07T01:30-04:00", "2027-11-08T01:30-05:00"],
        ),
        ("45 1 * * *", LORD_HOWE, "2027-04-03T03:00", ["2027-04-04T01:45+11:00", "2027-04-05T01:45+10:30"]),
        # What runs every hour runs after each hour that passes: none twice in spring, both in autumn.
        (
            "30 * * * *",
            BERLIN,
            "2027-03-28T01:00",
            ["2027-03-28T01:30+01:00", "2027-03-28T03:30+02:00", "2027-03-28T04:30+02:00"],
        ),
        (
            "30 * * * *",
            BERLIN,
            "2027-10-31T01:00",
            ["2027-10-31T01:30+02:00", "2027-10-31T02:30+02:00", "2027-10-31T02:30+01:00", "2027-10-31T03:30+01:00"],
        ),
        (
            "*/15 * * * *",
            LORD_HOWE,
            "2027-04-04T01:35",
            ["2027-04-04T01:45+11:00", "2027-04-04T01:30+10:30", "2027-04-04T01:45+10:30", "2027-04-04T02:00+10:30"],
        ),
        # Several runs in the hour that does not exist are all made, and none twice.
        (
            "0,30 2,3 * * *",
            BERLIN,
            "2027-03-28T00:00",
            ["2027-03-28T03:00+02:00", "2027-03-28T03:30+02:00", "2027-03-29T02:00+02:00"],
        ),
        # Samoa left out 30 December 2011 altogether.
        ("0 12 * * *", APIA, "2011-12-29T13:00", ["2011-12-31T12:00+14:00", "2012-01-01T12:00+14:00"]),
        # No change of the clock at all.
        ("*/20 9-10 * * 1-5", BERLIN, "2027-06-11T10:30", ["2027-06-11T10:40+02:00", "2027-06-14T09:00+02:00"]),
        ("0 0 29 2 *", "UTC", "2027-01-01T00:00", ["2028-02-29T00:00+00:00", "2032-02-29T00:00+00:00"]),
        ("0 0 29 2 1", "UTC", "2027-01-01T00:00", ["2044-02-29T00:00+00:00"]),
    ],
)
def test_times(expression: str, zone: str, after: str, expected: list[str]) -> None:
    assert times(expression, zone, after, len(expected)) == expected


numbers = {
    "minute": st.sets(st.integers(0, 59), min_size=1, max_size=4),
    "hour": st.one_of(st.just(set(range(24))), st.sets(st.integers(0, 23), min_size=1, max_size=4)),
    "day_of_week": st.one_of(st.just("*"), st.sets(st.integers(0, 6), min_size=1)),
}
moments = st.integers(1_767_225_600, 1_893_456_000)


@given(
    st.builds(crontab, **numbers),
    moments,
    st.sampled_from([BERLIN, NEW_YORK, LORD_HOWE, "Asia/Kathmandu", "America/Sao_Paulo", "Africa/Casablanca"]),
)
def test_every_time_is_later_matches_and_none_is_left_out(schedule: crontab, start: int, zone: str) -> None:
    """Compared with a search minute by minute, which knows nothing of zones but what they say a time is."""
    fields, tz = fields_of(schedule), ZoneInfo(zone)
    after = datetime.fromtimestamp(start, timezone.utc)
    found = next_match(fields, after, tz)
    assert found is not None
    assert found > after
    local = found.astimezone(tz)
    first = local.fold == 0 or fields.every_hour
    exact = local.minute in fields.minutes and local.hour in fields.hours and fields.matches_day(local.date())
    jumped = (local - timedelta(days=1)).utcoffset() != local.utcoffset()
    assert (exact and first) or jumped
    minute = after.replace(second=0) + timedelta(minutes=1)
    for _ in range(36 * 60):
        if minute >= found:
            break
        wall = minute.astimezone(tz)
        assert not (
            wall.minute in fields.minutes
            and wall.hour in fields.hours
            and fields.matches_day(wall.date())
            and (wall.fold == 0 or fields.every_hour)
        ), f"{wall} was left out"
        minute += timedelta(minutes=1)


CHANGES = {
    "spring": datetime(2027, 3, 28, 1, tzinfo=timezone.utc),
    "autumn": datetime(2027, 10, 31, 1, tzinfo=timezone.utc),
}


class TestWorkNearAChange:
    """What a planner does for a crontab in the night of a change, compared with four weeks before."""

    @pytest.mark.parametrize("change", CHANGES)
    @pytest.mark.parametrize(
        "expression",
        ["* * * * *", "*/5 8-17 * * 1-5", "30 * * * *", "30 2 * * *", "0 4 * * *", "0 9 * * 1", "0 0 1 * *"],
    )
    def test_the_next_time_takes_at_most_five_times_as_much(self, expression: str, change: str) -> None:
        schedule, zone = crontab.from_string(expression), ZoneInfo(BERLIN)
        for minutes in range(-36 * 60, 36 * 60, 131):
            near_ms = to_ms(CHANGES[change] + timedelta(minutes=minutes))
            usual_ms = near_ms - 4 * 7 * 86_400_000
            near, usual = (calls_in(next_after, schedule, at_ms, zone) for at_ms in (near_ms, usual_ms))
            assert near <= 5 * usual, f"{near} instead of {usual} calls"

    @pytest.mark.parametrize("change", CHANGES)
    def test_the_missed_ones_of_an_hour(self, change: str) -> None:
        times = Times(crontab(), zone=ZoneInfo(BERLIN))
        near_ms, hour_ms, usual_ms = to_ms(CHANGES[change]), 3_600_000, 4 * 7 * 86_400_000
        near = calls_in(times.missed, near_ms - hour_ms, near_ms, 100)
        usual = calls_in(times.missed, near_ms - hour_ms - usual_ms, near_ms - usual_ms, 100)
        assert near <= 5 * usual
