"""Conversion of times: from the API's types to unix time in ms, rounded up so that no task runs early; and of text."""

from __future__ import annotations

import re
import sys
from datetime import datetime, timedelta, timezone

from dateutil.parser import isoparse

#: A time in the API: a datetime, or unix time in seconds. A naive datetime is taken as UTC, as Celery's workers take a
#: naive eta.
Time = datetime | int | float

#: A span in the API: a timedelta, or seconds.
Span = timedelta | int | float

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)
_FIRST_MS = (datetime.min.replace(tzinfo=timezone.utc) - EPOCH) // _MILLISECOND
_LAST_MS = (datetime.max.replace(tzinfo=timezone.utc) - EPOCH) // _MILLISECOND

#: The first time that no datetime has, unix time in ms. Nothing of this package is due then.
AFTER_9999_MS = _LAST_MS + 1


def aware(when: Time, name: str) -> datetime:
    """Return a time as an aware datetime.

    Args:
        when: a datetime, or unix time in seconds.
        name: name of the argument, for error messages.

    Raises:
        TypeError: `when` is neither a datetime nor a number.
        ValueError: the number is not a time that a datetime can hold, or the time is after the year 9999 in UTC.
    """
    if isinstance(when, datetime):
        when = when if when.tzinfo else when.replace(tzinfo=timezone.utc)
        if (when - EPOCH) // _MILLISECOND > _LAST_MS:
            raise ValueError(f"{name} must be before the year 10000 in UTC, not {when.isoformat()}")
        return when
    wanted = "a datetime, or unix time in seconds"
    try:
        return EPOCH + timedelta(seconds=seconds(when, name, wanted))
    except OverflowError as exc:
        raise ValueError(f"{name} must be {wanted}, not {when!r}") from exc


def to_ms(when: Time, name: str) -> int:
    """Return a time as unix time in ms; 0 for all times before 1970. Arguments and errors are those of `aware`.

    The last millisecond that a datetime has is not rounded up: `to_datetime` would not give that back.
    """
    return max(0, min(-((EPOCH - aware(when, name)) // _MILLISECOND), _LAST_MS))


def span_s(span: object, name: str) -> float:
    """Return a span in seconds.

    Raises:
        TypeError: it is neither a timedelta nor a number.
        ValueError: it is infinite or NaN.
    """
    wanted = "a number of seconds, or a timedelta"
    return span.total_seconds() if isinstance(span, timedelta) else seconds(span, name, wanted)


def due_at(now_ms: int, *, countdown: Span | None = None, eta: Time | None = None) -> datetime:
    """Return the due time for a countdown or an eta, as `apply_async` takes them.

    Args:
        now_ms: start of the countdown, unix time in ms.
        countdown: a timedelta, or seconds; a negative one means now.
        eta: the due time.

    Raises:
        TypeError: not exactly one of the two was given, or it has the wrong type.
        ValueError: the time is after the year 9999, or not a number.
    """
    if (countdown is None) == (eta is None):
        raise TypeError("give either countdown or eta")
    if eta is not None:
        return aware(eta, "eta")
    countdown_s = span_s(countdown, "countdown")
    try:
        # Times before 1970 count as 1970: all of the past means now.
        return to_datetime(now_ms) + timedelta(seconds=max(countdown_s, -now_ms / 1000))
    except OverflowError as exc:
        raise ValueError(f"countdown must end before the year 10000, not {countdown_s!r} seconds from now") from exc


def seconds(value: object, name: str, wanted: str = "a number of seconds") -> float:
    """Return a finite number.

    Raises:
        TypeError: the value is not a number.
        ValueError: the value is infinite or NaN.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be {wanted}, not {value!r}")
    if not abs(value) <= sys.float_info.max:  # infinite, not a number, or a whole number that no float can have
        raise ValueError(f"{name} must be {wanted}, not {value!r}")
    return value


def to_datetime(ms: int) -> datetime:
    """Return unix time in ms as an aware datetime in UTC. Out-of-range times become the nearest datetime."""
    return EPOCH + max(_FIRST_MS, min(ms, _LAST_MS)) * _MILLISECOND


def to_timedelta(ms: int) -> timedelta:
    """Return a span in ms as a timedelta. Longer spans become about 8,000 years."""
    return max(-_LAST_MS, min(ms, _LAST_MS)) * _MILLISECOND


# -- text

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PART = r"(\d+(?:\.\d+)?)(ms|[smhdw])"
_SPAN = re.compile(rf"([+-]?)((?:{_PART})+)")

#: A time must start with a full date: isoparse alone would read "1700" as a year.
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


def parse_span(text: str) -> timedelta:
    """Return the span of a text such as `90` (seconds), `90s`, `1h30m` or `2d`.

    Raises:
        OverflowError: it is longer than a timedelta can be.
        ValueError: it is not a span.
    """
    found = _span(text)
    return timedelta(seconds=float(text)) if found is None else found


def parse_time(text: str) -> datetime | timedelta:
    """Return the time of a text in ISO 8601 (UTC unless it has a zone), or relative to now: `+30m`, `2h`, `-15m`.

    Returns:
        An aware datetime, or a timedelta.

    Raises:
        OverflowError: it is longer than a timedelta can be.
        ValueError: it is not a time.
    """
    if (span := _span(text)) is not None:
        return span
    if _DATE.match(text):
        when = isoparse(text)
        return when if when.tzinfo else when.replace(tzinfo=timezone.utc)
    raise ValueError(text)


def _span(text: str) -> timedelta | None:
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        return None
    span = timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in re.findall(_PART, found[2])))
    return -span if found[1] == "-" else span


def shown_span(span: timedelta, units: int = 2) -> str:
    """Return a span as text, in its largest units, two by default: `2d 3h`, `29m 59s`, `-3s`, `1h`."""
    seconds = int(abs(span).total_seconds())
    sign = "-" if span < timedelta(0) and seconds else ""
    parts = []
    for unit in ("d", "h", "m", "s"):
        number, seconds = divmod(seconds, int(_UNITS[unit]))
        parts.append((number, unit))
    first = next((index for index, (number, _) in enumerate(parts) if number), len(parts) - 1)
    return sign + (" ".join(f"{number}{unit}" for number, unit in parts[first : first + units] if number) or "0s")
