"""Times on the command line: parsing and formatting."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Any

import click
from dateutil.parser import isoparse

from celery_delayq.times import to_datetime

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PART = r"(\d+(?:\.\d+)?)(ms|[smhdw])"
_SPAN = re.compile(rf"([+-]?)((?:{_PART})+)")

#: A time must start with a full date: isoparse alone would read "1700" as a year.
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


class Span(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3
    """A span of time, such as `90` (seconds), `90s`, `1h30m` or `2d`. Converts to a timedelta."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """See `click.ParamType`."""
        if isinstance(value, timedelta):
            return value
        try:
            found = _span(value)
            return timedelta(seconds=float(value)) if found is None else found
        except (ValueError, OverflowError):
            self.fail(
                f"cannot parse {value!r} as a span of time: write seconds, or 90s, 30m, 2h, 1h30m, 7d", param, ctx
            )


class When(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3
    """A time in ISO 8601 (UTC unless it has a zone), or relative to now: `+30m`, `2h`, `-15m`.

    Converts to an aware datetime, or to a timedelta; see `at`.
    """

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime | timedelta:
        """See `click.ParamType`."""
        if isinstance(value, (datetime, timedelta)):
            return value
        try:
            if (span := _span(value)) is not None:
                return span
            if _DATE.match(value):
                when = isoparse(value)
                return when if when.tzinfo else when.replace(tzinfo=timezone.utc)
            raise ValueError(value)
        except (ValueError, OverflowError):
            advice = "write it as 2030-12-31T23:59:00+01:00, or relative to now as +30m, 2h, -15m"
            self.fail(f"cannot parse {value!r} as a time: {advice}", param, ctx)


def _span(text: str) -> timedelta | None:
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        return None
    span = timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in re.findall(_PART, found[2])))
    return -span if found[1] == "-" else span


def at(when: datetime | timedelta | None, now_ms: int) -> datetime | None:
    """Return the time that an option stands for; None for None.

    Args:
        when: result of `When`.
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


def shown_span(span: timedelta) -> str:
    """Return a span as text, in its two largest units: `2d 3h`, `29m 59s`, `-3s`."""
    seconds = int(abs(span).total_seconds())
    sign = "-" if span < timedelta(0) and seconds else ""
    parts = []
    for unit in ("d", "h", "m", "s"):
        number, seconds = divmod(seconds, int(_UNITS[unit]))
        parts.append((number, unit))
    first = next((index for index, (number, _) in enumerate(parts) if number), len(parts) - 1)
    return sign + " ".join(f"{number}{unit}" for number, unit in parts[first : first + 2])
