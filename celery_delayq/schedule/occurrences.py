"""The next occurrence of an entry, and the occurrences that were missed. Pure functions of schedule and time.

Times are unix times in ms. Every occurrence is counted from the previous one, and not from the moment of the
computation. So intervals do not drift, and all planners find the same occurrence.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, time, timedelta, timezone, tzinfo
from typing import Any

from celery.schedules import BaseSchedule, crontab, schedule, solar

from celery_delayq.basics.times import EPOCH
from celery_delayq.schedule.wallclock import Fields, next_match

_MS = timedelta(milliseconds=1)
_DAY, _HOUR, _MINUTE, _SECOND = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)

#: Latest possible occurrence, unix time in ms: the year 9000. A delay can still be added to it.
LATEST_MS = (datetime(9000, 1, 1, tzinfo=timezone.utc) - EPOCH) // _MS

#: Longest interval and longest delay, in seconds: some 300 years.
LONGEST_S = 10_000_000_000

_MINUTE_MS, _HOUR_MS = 60_000, 3_600_000

#: First span in which to look for missed occurrences, in ms. It is doubled until it contains enough of them.
_FIRST_SPAN_MS = _HOUR_MS

#: Maximum number of steps in the search for missed occurrences.
_MOST_STEPS = 100_000


def to_ms(when: datetime) -> int:
    """Return an aware datetime as unix time in ms, rounded up."""
    return -((EPOCH - when) // _MS)


def to_datetime(ms: int, zone: tzinfo = timezone.utc) -> datetime:
    """Return unix time in ms as an aware datetime."""
    return (EPOCH + ms * _MS).astimezone(zone)


def is_asked(given: BaseSchedule) -> bool:
    """Return whether a schedule decides for itself, at run time, whether it is due.

    This is the case if a user's class overrides `is_due`, because the result may depend on anything.
    """
    return type(given).is_due not in (crontab.is_due, schedule.is_due, solar.is_due)


def reads_clock(given: BaseSchedule) -> bool:
    """Return whether the times of a schedule depend on its time zone; of a user's class, that is not known."""
    return not (type(given) is solar or (type(given) is schedule and not given.relative))


def next_after(given: BaseSchedule, last_ms: int, zone: tzinfo | None = None) -> int | None:
    """Return the first occurrence later than `last_ms`, or None if there is none.

    Args:
        given: a schedule, but not one that `is_asked`.
        last_ms: an occurrence, or the start; unix time in ms.
        zone: time zone of a crontab and of a `relative` interval; by default the app's time zone.
    """
    zone = zone or given.tz
    if _is_plain(given, schedule):
        if not given.relative:
            return last_ms + interval_ms(given)
        rounded_ms = to_ms(_rounded_down(to_datetime(last_ms, zone), given.run_every))
        return rounded_ms if rounded_ms > last_ms else last_ms + interval_ms(given)
    if _is_plain(given, crontab):
        match = next_match(fields_of(given), to_datetime(last_ms), zone)
        return None if match is None else to_ms(match)
    # Solar events and users' classes: ask them as if it were the time of the last occurrence.
    last = to_datetime(last_ms, zone)
    found = to_datetime(last_ms) + _wait(given, last, last)
    then = found.astimezone(zone)
    if then.utcoffset() != last.utcoffset():
        # A class that subtracts two local times, as Celery 5.6's solar does, is wrong by the jump of the clock between
        # them. Ask again at that time, as beat does.
        found += _wait(given, last, then)
    return max(to_ms(found), last_ms + 1)


def _wait(given: BaseSchedule, last: datetime, now: datetime) -> timedelta:
    frozen = copy.copy(given)
    frozen.nowfun = lambda: now
    wait: timedelta = frozen.remaining_estimate(last)
    return wait


def _rounded_down(last: datetime, every: timedelta) -> datetime:
    """Return the time that is an interval after `last`, rounded down to a full day, hour, minute or second.

    Days are those of the calendar. Shorter intervals are elapsed time, and only UTC has that: local time plus an
    interval is a time on the wall.

    Source: Celery 5.7 `celery.utils.time.remaining`. Celery 5.6 is wrong near a jump of the clock.
    """
    if every >= _DAY:
        day = (last.replace(tzinfo=None) + every).date()
        return datetime.combine(day, time(), last.tzinfo)
    unit = next((unit for unit in (_HOUR, _MINUTE) if every >= unit), _SECOND)
    found = last.astimezone(timezone.utc) + every - unit
    while True:  # a jump by half an hour may pass a full hour
        found += unit - _beyond(found.astimezone(last.tzinfo), unit)
        if not _beyond(found.astimezone(last.tzinfo), unit):
            return found


def _beyond(local: datetime, unit: timedelta) -> timedelta:
    """Return how long ago the clock showed a full hour, minute or second."""
    return timedelta(minutes=local.minute, seconds=local.second, microseconds=local.microsecond) % unit


def _is_plain(given: BaseSchedule, kind: type) -> bool:
    """Return whether a schedule is of this class, or of a subclass that does not change its times."""
    if type(given) is kind or not isinstance(given, kind):
        return type(given) is kind
    names = ("remaining_estimate", "remaining_delta", "is_due")
    return all(getattr(type(given), name, None) is getattr(kind, name, None) for name in names)


def interval_ms(given: schedule) -> int:
    """Return the interval of a schedule in ms, at least 1."""
    every_ms: int = max(1, round(given.run_every.total_seconds() * 1000))
    return every_ms


def usual_interval_ms(given: BaseSchedule) -> int:
    """Return the approximate interval of a schedule, in ms. Very cheap; never fails."""
    if isinstance(given, schedule):
        try:
            return interval_ms(given)
        except Exception:  # a user's class that computes its interval
            return _HOUR_MS
    if not isinstance(given, crontab):
        return _HOUR_MS
    part = (len(given.minute) / 60 * len(given.hour) / 24 * len(given.day_of_week) / 7) * (
        len(given.day_of_month) / 31 * len(given.month_of_year) / 12
    )
    return round(_MINUTE_MS / part)


def fields_of(given: crontab) -> Fields:
    """Return the fields that a crontab matches."""
    return Fields(
        sorted(given.minute),
        sorted(given.hour),
        sorted(given.day_of_month),
        sorted(given.month_of_year),
        frozenset(given.day_of_week),
    )


@dataclass(frozen=True, slots=True)
class Times:
    """The occurrences of an entry.

    Attributes:
        schedule: its schedule, but not one that `is_asked`.
        start_ms: no run before this time; the first run of an interval.
        end_ms: no run after this time.
        zone: time zone of its crontab.
    """

    schedule: BaseSchedule
    start_ms: int | None = None
    end_ms: int | None = None
    zone: tzinfo | None = None

    @property
    def _interval_ms(self) -> int | None:
        """The time from each occurrence to the next, if that is always the same."""
        given = self.schedule
        return interval_ms(given) if _is_plain(given, schedule) and not given.relative else None

    def first(self, since_ms: int) -> int | None:
        """Return the first occurrence since `since_ms`."""
        if self.start_ms is None or self.start_ms <= since_ms:
            return self.after(since_ms)
        return self.after(self.start_ms - 1) if self._interval_ms is None else self._until_end(self.start_ms)

    def after(self, last_ms: int) -> int | None:
        """Return the occurrence after another one; None after the last one."""
        return self._until_end(next_after(self.schedule, last_ms, self.zone))

    def after_now(self, last_ms: int, now_ms: int) -> int | None:
        """Return the first occurrence later than `now_ms`, counted from an earlier occurrence."""
        every = self._interval_ms
        if every is None or last_ms >= now_ms:
            return self.after(max(last_ms, now_ms))
        return self._until_end(last_ms + every * ((now_ms - last_ms) // every + 1))

    def missed(self, last_ms: int, now_ms: int, most: int) -> list[int]:
        """Return the latest `most` occurrences after `last_ms` and up to now, in ascending order."""
        if most < 1:
            return []
        if every := self._interval_ms:
            count = self.count_missed(last_ms, now_ms, most)
            return list(range(last_ms + every * (max(0, count - most) + 1), last_ms + every * count + 1, every))
        span = _FIRST_SPAN_MS
        while True:
            begin = max(last_ms, now_ms - span)
            found = deque(self._between(begin, now_ms), maxlen=most)
            if begin == last_ms or len(found) == most:
                return list(found)
            span *= 2

    def count_missed(self, last_ms: int, now_ms: int, most: int) -> int:
        """Return how many occurrences are after `last_ms` and up to now; at most `most` if it has to try each."""
        if every := self._interval_ms:
            return max(0, (min(now_ms, self.end_ms or now_ms) - last_ms) // every)
        return len(self.missed(last_ms, now_ms, most))

    def _between(self, last_ms: int, now_ms: int) -> Iterator[int]:
        at = self.after(last_ms)
        for _ in range(_MOST_STEPS):
            if at is None or at > now_ms:
                return
            yield at
            at = self.after(at)

    def _until_end(self, at_ms: int | None) -> int | None:
        return None if at_ms is None or at_ms > min(LATEST_MS, self.end_ms or LATEST_MS) else at_ms


def jitter_ms(entry: str, at_ms: int, most_ms: int) -> int:
    """Return the delay of an occurrence, 0 to `most_ms`: evenly distributed, and the same for all planners."""
    if not most_ms:
        return 0
    digest = hashlib.blake2b(f"{entry}\0{at_ms}".encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return math.floor(int.from_bytes(digest, "big") / 2**64 * (most_ms + 1))


def ask(given: Any, last_ms: int, now_ms: int) -> tuple[bool, float]:
    """Ask a schedule that decides for itself. Return whether it is due, and the seconds until the next question.

    Its `now` is the server's time, unless it has its own `nowfun`.
    """
    if given.nowfun is None:
        given = copy.copy(given)
        given.nowfun = lambda: to_datetime(now_ms, given.tz)
    due, again_s = given.is_due(to_datetime(last_ms))
    return bool(due), float(again_s) if again_s is not None else math.inf
