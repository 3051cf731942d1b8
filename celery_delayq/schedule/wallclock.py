"""The next time that a crontab matches on the wall clock of a time zone, across daylight saving changes.

Two rules apply when the wall clock jumps:

- A time that does not exist is shifted by the length of the jump: 02:30 becomes 03:30 on the day on which 02:00 becomes
  03:00. So a daily task also runs on that day. If the shifted run coincides with another one, there is one run.
- If a time exists twice, the first one counts. But a crontab that matches every hour is meant by elapsed time, so both
  count.

Celery's own `crontab.remaining_estimate` is not used, because it handles jumps differently in 5.6 and 5.7.
"""

from __future__ import annotations

import calendar
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone, tzinfo

#: How far ahead to look for a match. 29 February on a given weekday comes at least every 40 years.
_LONGEST_SEARCH_YEARS = 41

_NONE, _TICK = timedelta(), timedelta(microseconds=1)
_MINUTE, _DAY = timedelta(minutes=1), timedelta(days=1)


@dataclass(frozen=True)
class Fields:
    """The values that a crontab matches, sorted: minutes, hours, days of the month, months, weekdays (Sunday is 0)."""

    minutes: Sequence[int]
    hours: Sequence[int]
    days: Sequence[int]
    months: Sequence[int]
    weekdays: frozenset[int]

    @property
    def every_hour(self) -> bool:
        """Whether the crontab is meant by elapsed time."""
        return len(self.hours) == 24

    def matches_day(self, day: date) -> bool:
        """Return whether the crontab matches at some time on this day."""
        return day.month in self.months and day.day in self.days and day.isoweekday() % 7 in self.weekdays


def next_match(fields: Fields, after: datetime, zone: tzinfo) -> datetime | None:
    """Return the first time later than `after` that a crontab matches, in UTC; None if there is none.

    Near a jump of the clock, it takes a few times longer than usual.

    Args:
        fields: fields of the crontab.
        after: an aware datetime.
        zone: the time zone whose wall clock the crontab uses.
    """
    after = after.astimezone(timezone.utc)
    found = _first(fields, after, zone)
    if found is None or found - after <= _DAY:
        return found
    # If the clock skips that time, it may show another one before.
    return _first(fields, found - _DAY, zone)


def _first(fields: Fields, after: datetime, zone: tzinfo) -> datetime | None:
    """Return the first match later than a time in UTC, except for what a jump more than a day later changes.

    A jump shifts matches only by its own length. So the first one is the first by the old or by the new clock.
    """
    offsets = {(after + span).astimezone(zone).utcoffset() or _NONE for span in (-_DAY, _DAY)}
    found = (_first_since(fields, after, (after + offset).replace(tzinfo=None), zone) for offset in offsets)
    return min((match for match in found if match is not None), default=None)


def _first_since(fields: Fields, after: datetime, wall: datetime, zone: tzinfo) -> datetime | None:
    """Return the first match later than a time in UTC of those that come after a naive time on the clock."""
    following = _next_wall(fields, wall)
    while following is not None:
        # If the clock skips that time, the first of these is shifted by the length of the jump.
        first, again = (following.replace(tzinfo=zone, fold=fold).astimezone(timezone.utc) for fold in (0, 1))
        if first > after:
            return first
        if fields.every_hour and again > after:
            return again
        if first == again:  # the clock shows `after` later, and nothing in between matches after it
            following = after.replace(tzinfo=None) + (following - first.replace(tzinfo=None))
        following = _next_wall(fields, following)
    return None


def _next_wall(fields: Fields, after: datetime) -> datetime | None:
    """Return the first match later than `after`, as if the wall clock never jumped. Both times are naive."""
    first = (after + _MINUTE).replace(second=0, microsecond=0)
    if fields.matches_day(first.date()):
        found = _time_of_day(fields, first.hour, first.minute)
        if found is not None:
            return datetime.combine(first.date(), found)
    day = next(_days(fields, first.date() + _DAY), None)
    return None if day is None else datetime.combine(day, time(fields.hours[0], fields.minutes[0]))


def _time_of_day(fields: Fields, hour: int, minute: int) -> time | None:
    """Return the first match on a day, at this time or later."""
    at = bisect_left(fields.hours, hour)
    if at < len(fields.hours) and fields.hours[at] == hour:
        within = bisect_left(fields.minutes, minute)
        if within < len(fields.minutes):
            return time(hour, fields.minutes[within])
        at = bisect_right(fields.hours, hour)
    return time(fields.hours[at], fields.minutes[0]) if at < len(fields.hours) else None


def _days(fields: Fields, first: date) -> Iterator[date]:
    """Yield the matching days, starting at `first`."""
    for year in range(first.year, min(first.year + _LONGEST_SEARCH_YEARS, 9998)):
        for month in fields.months:
            if (year, month) < (first.year, first.month):
                continue
            last = calendar.monthrange(year, month)[1]
            is_first = (year, month) == (first.year, first.month)
            for number in fields.days[bisect_left(fields.days, first.day) if is_first else 0 :]:
                if number <= last:
                    day = date(year, month, number)
                    if day.isoweekday() % 7 in fields.weekdays:
                        yield day
