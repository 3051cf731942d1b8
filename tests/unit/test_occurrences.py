"""Occurrences: counted from the one before, without drift, the same for every planner."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab, schedule, solar
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.schedule import occurrences
from celery_delayq.schedule.occurrences import Times, to_datetime, to_ms

APP = Celery("shop", set_as_current=False)
NOW = to_ms(datetime(2027, 6, 1, 12, tzinfo=timezone.utc))
HOUR = 3_600_000

times = st.integers(NOW - 10**10, NOW + 10**10)
schedules = st.one_of(
    st.builds(lambda s: schedule(timedelta(milliseconds=s), app=APP), st.integers(1, 10**9)),
    st.builds(lambda s: schedule(timedelta(seconds=s), relative=True, app=APP), st.integers(1, 10**6)),
    st.builds(
        lambda minute, hour: crontab(minute, hour, app=APP),
        st.sets(st.integers(0, 59), min_size=1),
        st.sets(st.integers(0, 23), min_size=1),
    ),
)


class Odd(schedule):
    """Runs at odd seconds; says so as Celery's own classes do."""

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        last = last_run_at.replace(microsecond=0)
        then = last + timedelta(seconds=2 if last.second % 2 else 1)
        return then - self.now()


class Asked(schedule):
    """Decides when it is asked."""

    def is_due(self, last_run_at: datetime) -> tuple[bool, float]:
        return self.now() - last_run_at > timedelta(seconds=5), 1.5


@given(schedules, times)
def test_the_next_is_later(one: Any, last_ms: int) -> None:
    found = occurrences.next_after(one, last_ms)
    assert found is not None
    assert found > last_ms


@given(st.integers(1, 10**7), times, st.integers(1, 1000))
def test_intervals_do_not_drift(every_ms: int, start_ms: int, count: int) -> None:
    one = schedule(timedelta(milliseconds=every_ms), app=APP)
    at_ms = start_ms
    for _ in range(count):
        at_ms = occurrences.next_after(one, at_ms) or 0
    assert at_ms == start_ms + count * every_ms
    later = at_ms + every_ms * count // 3
    found = Times(one).after_now(start_ms, later)
    assert found is not None
    assert (found - start_ms) % every_ms == 0
    assert later < found <= later + every_ms


@given(schedules, times, st.integers(0, 3 * 10**8), st.integers(1, 5))
def test_of_what_was_missed_the_latest_count(one: Any, last_ms: int, span_ms: int, most: int) -> None:
    found = Times(one).missed(last_ms, last_ms + span_ms, most)
    assert len(found) <= most
    assert found == sorted(set(found))
    assert all(last_ms < at <= last_ms + span_ms for at in found)
    if found:
        following = occurrences.next_after(one, found[-1])
        assert following is not None
        assert following > last_ms + span_ms


@given(
    every_ms=st.integers(1, 10_000), last_ms=st.integers(0, 10**6), span_ms=st.integers(-5, 10**5), end=st.booleans()
)
def test_missed_intervals_are_counted_without_trying_each(every_ms: int, last_ms: int, span_ms: int, end: bool) -> None:
    every, now_ms = schedule(timedelta(milliseconds=every_ms), app=APP), last_ms + span_ms
    times = Times(every, end_ms=last_ms + 5_000 if end else None)
    tried = len(times.missed(last_ms, now_ms, 10**6))
    assert times.count_missed(last_ms, now_ms, 1) == tried


def test_missed_times_of_a_crontab_are_counted_up_to_a_limit() -> None:
    every_minute = crontab(app=APP)
    assert Times(every_minute).count_missed(NOW, NOW + HOUR, 100) == 60
    assert Times(every_minute).count_missed(NOW, NOW + 48 * HOUR, 100) == 100


def test_a_relative_interval_is_rounded_to_its_unit() -> None:
    hourly = schedule(timedelta(hours=1), relative=True, app=APP)
    assert occurrences.next_after(hourly, NOW + 17 * 60_000) == NOW + HOUR
    daily = schedule(timedelta(days=1), relative=True, app=APP)
    midnight = occurrences.next_after(daily, NOW, ZoneInfo("Europe/Berlin"))
    assert to_datetime(midnight or 0, ZoneInfo("Europe/Berlin")).isoformat() == "2027-06-02T00:00:00+02:00"


def test_a_crontab_reads_the_clock_of_its_zone_or_else_of_the_app() -> None:
    at_four = crontab("0", "4", app=Celery("moscow", set_as_current=False))
    at_four.app.conf.timezone = "Europe/Moscow"
    assert to_datetime(occurrences.next_after(at_four, NOW) or 0).isoformat() == "2027-06-02T01:00:00+00:00"
    in_berlin = occurrences.next_after(at_four, NOW, ZoneInfo("Europe/Berlin"))
    assert to_datetime(in_berlin or 0).isoformat() == "2027-06-02T02:00:00+00:00"


def test_a_class_of_the_users_says_itself_when() -> None:
    assert occurrences.next_after(Odd(1, app=APP), NOW) == NOW + 1000
    assert occurrences.next_after(Odd(1, app=APP), NOW + 1000) == NOW + 3000


def test_a_class_that_overrides_is_due_is_asked() -> None:
    assert occurrences.is_asked(Asked(1, app=APP))
    assert not occurrences.is_asked(Odd(1, app=APP))
    assert occurrences.ask(Asked(1, app=APP), NOW, NOW + 1000) == (False, 1.5)
    assert occurrences.ask(Asked(1, app=APP), NOW, NOW + 6000) == (True, 1.5)


def test_solar_events_follow_each_other() -> None:
    pytest.importorskip("ephem")
    sunset = solar("sunset", 52.5, 13.4, app=APP)
    first = occurrences.next_after(sunset, NOW) or 0
    second = occurrences.next_after(sunset, first) or 0
    assert to_datetime(first).strftime("%Y-%m-%d %H") == "2027-06-01 19"
    assert 23 * HOUR < second - first < 25 * HOUR


def test_how_often_a_schedule_usually_runs_is_known_of_any() -> None:
    """Planners plan first what runs most often."""
    pytest.importorskip("ephem")
    usual = occurrences.usual_interval_ms
    assert usual(schedule(timedelta(seconds=7), app=APP)) == 7000
    assert usual(crontab("*/5", app=APP)) == 5 * 60_000
    assert usual(crontab("0", "4", app=APP)) == 24 * HOUR
    assert usual(crontab("0", "4", day_of_week="1", app=APP)) == 7 * 24 * HOUR
    assert usual(solar("sunset", 52.5, 13.4, app=APP)) == HOUR


class TestWindow:
    every_hour = schedule(timedelta(hours=1), app=APP)

    def test_an_interval_begins_at_its_start(self) -> None:
        times = Times(self.every_hour, start_ms=NOW + 7)
        assert times.first(NOW) == NOW + 7
        assert times.after(NOW + 7) == NOW + 7 + HOUR

    def test_a_crontab_may_run_at_its_start(self) -> None:
        assert Times(crontab("0", app=APP), start_ms=NOW).first(NOW - HOUR * 5) == NOW

    def test_a_start_in_the_past_says_nothing(self) -> None:
        assert Times(self.every_hour, start_ms=NOW - 1).first(NOW) == NOW + HOUR

    @pytest.mark.parametrize(("end_ms", "expected"), [(NOW + HOUR, NOW + HOUR), (NOW + HOUR - 1, None)])
    def test_nothing_runs_after_the_end(self, end_ms: int, expected: int | None) -> None:
        assert Times(self.every_hour, end_ms=end_ms).first(NOW) == expected


@given(st.text(), times, st.integers(0, 10**6))
def test_jitter_is_the_same_for_every_planner(entry: str, at_ms: int, most_ms: int) -> None:
    jitter = occurrences.jitter_ms(entry, at_ms, most_ms)
    assert 0 <= jitter <= most_ms
    assert jitter == occurrences.jitter_ms(entry, at_ms, most_ms)


def test_jitter_is_spread() -> None:
    found = [occurrences.jitter_ms("e", at_ms, 100) for at_ms in range(2000)]
    assert set(found) == set(range(101))
