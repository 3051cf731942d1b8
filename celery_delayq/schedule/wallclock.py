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

#: How far ahead to look for a match near a jump of the clock. No clock jumps twice within this time.
_SOON = 8 * _DAY


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
    while True:
        local = after.astimezone(zone)
        wall = _next_wall(fields, local.replace(tzinfo=None))
        if wall is None:
            return None
        if _is_quiet(local, wall, zone):
            return wall.replace(tzinfo=zone).astimezone(timezone.utc)
        found = _soon(fields, after, wall, zone)
        if found is not None:
            return found
        # Nothing matches until shortly before that wall time, whatever the clock does in between.
        after = max(after + _SOON - _TICK, wall.replace(tzinfo=timezone.utc) - 2 * _SOON)


def _is_quiet(local: datetime, wall: datetime, zone: tzinfo) -> bool:
    """Return whether the clock does not jump near or between two times."""
    start, end = local - _DAY, (wall + _DAY).replace(tzinfo=zone)
    if end - start > timedelta(days=20):  # the clock may have jumped twice
        near = (local + _DAY, (wall - _DAY).replace(tzinfo=zone))
        return start.utcoffset() == near[0].utcoffset() and near[1].utcoffset() == end.utcoffset()
    return start.utcoffset() == end.utcoffset()


def _soon(fields: Fields, after: datetime, wall: datetime, zone: tzinfo) -> datetime | None:
    """Return the first match in the days after a time in UTC. The clock jumps at most once in these days.

    Args:
        fields: fields of the crontab.
        after: an aware datetime in UTC.
        wall: the first match if the clock did not jump; naive.
        zone: the time zone whose wall clock the crontab uses.
    """
    end = after + _SOON
    before, afterwards = _offset(after - _DAY, zone), _offset(end, zone)
    ahead, back = max(afterwards - before, _NONE), max(before - afterwards, _NONE)
    # A jump shifts times only by its own length, and usually no match is that near.
    width = ahead + back
    unmoved = wall.replace(tzinfo=timezone.utc)
    first, last = after - width, min(end, unmoved - min(before, afterwards) + width)
    early, late = _offset(first, zone), _offset(last, zone)
    nearest = unmoved - max(before, afterwards) - width
    if early == late or (_offset(after + width, zone) == early and _offset(nearest, zone) == late):
        return unmoved - late if unmoved - late < end else None
    jump = _jump(first, last, zone)
    # Skipped times are read on the old clock. Repeated times count once, unless the crontab matches every hour.
    again = jump if fields.every_hour else jump + back
    found = [
        _match_between(fields, after + _TICK, min(jump + ahead, end), before),
        _match_between(fields, max(again, after + _TICK), end, afterwards),
    ]
    return min((match for match in found if match is not None), default=None)


def _offset(moment: datetime, zone: tzinfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or _NONE


def _jump(start: datetime, end: datetime, zone: tzinfo) -> datetime:
    """Return when the clock jumps between two times in UTC, to the minute: no clock jumps within a minute."""
    before = _offset(start, zone)
    while end - start > _MINUTE:
        middle = start + (end - start) // 2
        if _offset(middle, zone) == before:
            start = middle
        else:
            end = middle
    return end.replace(second=0, microsecond=0)


def _match_between(fields: Fields, first: datetime, end: datetime, offset: timedelta) -> datetime | None:
    """Return the first match from `first` (included) to `end` (excluded), both in UTC, on a clock without jumps."""
    if first >= end:
        return None
    wall = _next_wall(fields, (first + offset).replace(tzinfo=None) - _TICK)
    match = None if wall is None else wall.replace(tzinfo=timezone.utc) - offset
    return match if match is not None and match < end else None


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
