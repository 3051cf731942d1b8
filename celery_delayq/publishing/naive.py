"""Warns of an eta without a time zone, where it probably means another time than Celery takes it for."""

from __future__ import annotations

import inspect
import warnings
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from celery_delayq.basics.errors import NaiveEtaWarning
from celery_delayq.basics.times import shown_span

#: Packages between the caller, whose line is shown, and this module.
_BETWEEN = {"celery", "celery_delayq", "contextlib", "kombu"}

_warned = False


def warn_of_naive(eta: object, app: Any) -> None:
    """Warn, once in this process, of a naive eta, if the local time or the app's `timezone` is not UTC then.

    Where the warning is an error, it is raised each time.

    It may well be meant in UTC, as with `datetime.utcnow()`. But `datetime.now()` is the likelier mistake, and it waits
    for hours, or not at all. It is a warning of Python, not a line in a log: it is about a line of code, which it
    shows, also where nobody has set up logging, and tests can make it an error.

    Source: Celery 5.7 `celery.worker.request.Request`: a naive eta is UTC, whatever `timezone` and `enable_utc` are.

    Args:
        eta: what was given as eta; all else than a naive datetime is left alone.
        app: the Celery app.
    """
    global _warned
    if _warned or not isinstance(eta, datetime) or eta.tzinfo is not None:
        return
    offset, whose = _local_offset(eta), "local time"
    if not offset:
        offset, whose = eta.replace(tzinfo=app.timezone).utcoffset(), f"{app.timezone}, the app's timezone"
    if not offset:
        return
    side = "later" if offset > timedelta(0) else "earlier"
    warnings.warn(
        f"the eta {eta.isoformat()} has no time zone, so Celery takes it as UTC: {shown_span(abs(offset))} {side} than "
        f"{whose}. Give it one, as in datetime.now(timezone.utc), or use a countdown. This is said once.",
        NaiveEtaWarning,
        stacklevel=_level_of_caller(),
    )
    _warned = True


def _local_offset(eta: datetime) -> timedelta | None:
    """Return how far this machine's clock on the wall is ahead of UTC then; None if it cannot tell."""
    with suppress(OverflowError, OSError, ValueError):  # times that the platform does not know
        return eta.astimezone().utcoffset()
    return None


def _level_of_caller() -> int:
    """Return the `stacklevel` of the first frame of somebody else, for a call of `warnings.warn` by the caller."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _BETWEEN:
        frame, level = frame.f_back, level + 1
    return level
