"""Times as people give them, and as they are stored: unix time in ms, rounded up so that nothing runs early."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta, timezone

#: A time as the API takes it: a datetime, or unix time in seconds. A naive datetime is in UTC, as Celery's workers
#: take a naive eta.
Time = datetime | int | float

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)
_FIRST_MS = (datetime.min.replace(tzinfo=timezone.utc) - _EPOCH) // _MILLISECOND
_LAST_MS = (datetime.max.replace(tzinfo=timezone.utc) - _EPOCH) // _MILLISECOND


def aware(when: Time, name: str) -> datetime:
    """Return a time as an aware datetime.

    Args:
        when: a datetime, or unix time in seconds.
        name: of the argument, for errors.

    Raises:
        TypeError: neither.
        ValueError: a number that no datetime can have, or a time beyond the year 9999 in UTC.
    """
    if isinstance(when, datetime):
        when = when if when.tzinfo else when.replace(tzinfo=timezone.utc)
        if (when - _EPOCH) // _MILLISECOND > _LAST_MS:
            raise ValueError(f"{name} must be before the year 10000 in UTC, not {when.isoformat()}")
        return when
    wanted = "a datetime, or unix time in seconds"
    try:
        return _EPOCH + timedelta(seconds=seconds(when, name, wanted))
    except OverflowError as exc:
        raise ValueError(f"{name} must be {wanted}, not {when!r}") from exc


def to_ms(when: Time, name: str) -> int:
    """Return a time as unix time in ms; 0 for all before 1970. Takes and raises what `aware` does."""
    return max(0, -((_EPOCH - aware(when, name)) // _MILLISECOND))


def due_at(now_ms: int, *, countdown: float | None = None, eta: Time | None = None) -> datetime:
    """Return when something is due, given as `apply_async` takes it.

    Args:
        now_ms: from when a countdown counts, unix time in ms.
        countdown: in seconds; negative for now.
        eta: the time itself.

    Raises:
        TypeError: not exactly one of the two, or one that is neither number nor time.
        ValueError: a time after the year 9999, or that is no number.
    """
    if (countdown is None) == (eta is None):
        raise TypeError("give either a countdown or an eta")
    if eta is not None:
        return aware(eta, "eta")
    try:
        # Longer ago than 1970 is no earlier than now.
        return to_datetime(now_ms) + timedelta(seconds=max(seconds(countdown, "countdown"), -now_ms / 1000))
    except OverflowError as exc:
        raise ValueError(f"countdown must end before the year 10000: {countdown!r}") from exc


def seconds(value: object, name: str, wanted: str = "a number of seconds") -> float:
    """Return a finite number.

    Raises:
        TypeError: no number.
        ValueError: infinite, or not a number.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be {wanted}, not {value!r}")
    if not abs(value) <= sys.float_info.max:  # infinite, not a number, or a whole number that no float can have
        raise ValueError(f"{name} must be {wanted}, not {value!r}")
    return value


def to_datetime(ms: int) -> datetime:
    """Return unix time in ms as an aware datetime in UTC; the nearest there is if it is out of their range."""
    return _EPOCH + max(_FIRST_MS, min(ms, _LAST_MS)) * _MILLISECOND


def to_timedelta(ms: int) -> timedelta:
    """Return a span in ms; about 8,000 years if it is longer."""
    return max(-_LAST_MS, min(ms, _LAST_MS)) * _MILLISECOND
