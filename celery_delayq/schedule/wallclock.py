"""The next time a crontab matches, on the wall clock of a time zone, across changes of daylight saving.

Two rules say what happens where the wall clock jumps:

- A time that does not exist is taken as that much later: 02:30 on the day on which 02:00 becomes 03:00 is 03:30. So a
  daily task runs that day too. Where that coincides with another run, there is one run.
- Of a time that exists twice, the first counts; except where the crontab matches every hour: then it is meant by
  elapsed time, and both count.

Celery's own `crontab.remaining_estimate` is not used: what it does there differs between 5.6 and 5.7.
"""

from __future__ import annotations

import calendar
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone, tzinfo

#: How far ahead a match is looked for: 29 February on a given weekday comes at least every 40 years.
_LONGEST_SEARCH_YEARS = 41

_MINUTE, _DAY = timedelta(minutes=1), timedelta(days=1)


@dataclass(frozen=True)
class Fields:
    """What a crontab matches, each sorted: minutes, hours, days of the month, months, and weekdays (Sunday is 0)."""

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
        """Return whether the crontab matches at some time of a day."""
        return day.month in self.months and day.day in self.days and day.isoweekday() % 7 in self.weekdays


def next_match(fields: Fields, after: datetime, zone: tzinfo) -> datetime | None:
    """Return the first time later than `after` that a crontab matches, in UTC; None if there is none.

    Args:
        fields: of the crontab.
        after: an aware datetime.
        zone: whose wall clock the crontab reads.
    """
    local = after.astimezone(zone)
    wall = _next_wall(fields, local.replace(tzinfo=None))
    if wall is not None and _is_quiet(local, wall, zone):
        return wall.replace(tzinfo=zone).astimezone(timezone.utc)
    return _careful(fields, after.astimezone(timezone.utc), local.date(), zone)


def _is_quiet(local: datetime, wall: datetime, zone: tzinfo) -> bool:
    """Return whether the clock does not jump around and between two times."""
    start, end = local - _DAY, (wall + _DAY).replace(tzinfo=zone)
    if end - start > timedelta(days=20):  # it may have jumped twice
        near = (local + _DAY, (wall - _DAY).replace(tzinfo=zone))
        return start.utcoffset() == near[0].utcoffset() and near[1].utcoffset() == end.utcoffset()
    return start.utcoffset() == end.utcoffset()


def _next_wall(fields: Fields, after: datetime) -> datetime | None:
    """Return the first match later than `after`, both naive, as if the wall clock never jumped."""
    first = (after + _MINUTE).replace(second=0, microsecond=0)
    if fields.matches_day(first.date()):
        found = _time_of_day(fields, first.hour, first.minute)
        if found is not None:
            return datetime.combine(first.date(), found)
    day = next(_days(fields, first.date() + _DAY), None)
    return None if day is None else datetime.combine(day, time(fields.hours[0], fields.minutes[0]))


def _time_of_day(fields: Fields, hour: int, minute: int) -> time | None:
    """Return the first match of a day, at this time or later."""
    at = bisect_left(fields.hours, hour)
    if at < len(fields.hours) and fields.hours[at] == hour:
        within = bisect_left(fields.minutes, minute)
        if within < len(fields.minutes):
            return time(hour, fields.minutes[within])
        at = bisect_right(fields.hours, hour)
    return time(fields.hours[at], fields.minutes[0]) if at < len(fields.hours) else None


def _days(fields: Fields, first: date) -> Iterator[date]:
    """Yield the days that match, from `first` on."""
    for year in range(first.year, min(first.year + _LONGEST_SEARCH_YEARS, 9998)):
        for month in fields.months:
            if (year, month) < (first.year, first.month):
                continue
            last = calendar.monthrange(year, month)[1]
            for number in fields.days:
                if number <= last:
                    day = date(year, month, number)
                    if day >= first and day.isoweekday() % 7 in fields.weekdays:
                        yield day


def _careful(fields: Fields, after: datetime, today: date, zone: tzinfo) -> datetime | None:
    """Return the first match by looking at each time of the days around."""
    found: datetime | None = None
    # A time of one day may be moved to the next.
    for day in _days(fields, today - _DAY):
        if found is not None and day > found.astimezone(zone).date():
            break
        later = (moment for moment in _moments(fields, day, zone) if moment > after)
        found = min((*later, *([found] if found else [])), default=None)
    return found


def _moments(fields: Fields, day: date, zone: tzinfo) -> Iterator[datetime]:
    """Yield all matches of a day in UTC, in no order."""
    for hour in fields.hours:
        for minute in fields.minutes:
            local = datetime.combine(day, time(hour, minute), zone)
            # Python takes a time that does not exist with the offset before the jump, which is our first rule.
            yield local.astimezone(timezone.utc)
            if fields.every_hour:
                again = local.replace(fold=1)
                exists = again.astimezone(timezone.utc).astimezone(zone).replace(tzinfo=None, fold=0)
                if exists == local.replace(tzinfo=None):
                    yield again.astimezone(timezone.utc)
