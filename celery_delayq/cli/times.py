"""Times on the command line: parsing and formatting."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import click

from celery_delayq.basics.times import parse_span, parse_time, to_datetime
from celery_delayq.basics.times import shown_span as shown_span
from celery_delayq.cli.command import Parsed

#: A span of time, such as `90` (seconds), `90s`, `1h30m` or `2d`. Converts to a timedelta.
SPAN = Parsed("span", parse_span, "a span of time: write seconds, or 90s, 30m, 2h, 1h30m, 7d")

#: A time in ISO 8601 (UTC unless it has a zone), or relative to now: `+30m`, `2h`, `-15m`. Converts to an aware
#: datetime, or to a timedelta; see `at`.
WHEN = Parsed("time", parse_time, "a time: write it as 2030-12-31T23:59:00+01:00, or relative to now as +30m, 2h, -15m")


def at(when: datetime | timedelta | None, now_ms: int) -> datetime | None:
    """Return the time that an option stands for; None for None.

    Args:
        when: result of `WHEN`.
        now_ms: the server's time, unix time in ms.

    Raises:
        click.UsageError: the time is before the year 1 or after the year 9999.
    """
    if not isinstance(when, timedelta):
        return when
    try:
        return to_datetime(now_ms) + when
    except OverflowError as exc:
        raise click.UsageError("the time must be in the years 1 to 9999") from exc


def shown(when: datetime | None, *, short: bool = False) -> str:
    """Return a time as text, in UTC, to the second. The short form has no year and no seconds."""
    if when is None:
        return "-"
    return when.astimezone(timezone.utc).strftime("%m-%d %H:%M" if short else "%Y-%m-%d %H:%M:%S")
