"""When a message is due: reads the eta of a Celery task message."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any

from dateutil.parser import isoparse

from celery_delayq.basics.errors import InvalidEta
from celery_delayq.basics.times import EPOCH

_MICROSECOND = timedelta(microseconds=1)
#: Texts as `isoformat()` writes them.
_LIKE_ISOFORMAT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{6})?([+-][0-9]{2}:[0-5][0-9])?"
).fullmatch


def due_ms_of(message: Mapping[str, Any]) -> int | None:
    """Return when a message is due, unix time in ms rounded up; None if it is due now.

    Only messages of Celery's protocol 2 have an eta in their headers; all others are due now.

    Raises:
        InvalidEta: the eta is not a time.
    """
    due_ms = eta_ms_of(message)
    return due_ms if due_ms is not None and due_ms > time.time() * 1000 else None


def eta_ms_of(message: Mapping[str, Any]) -> int | None:
    """Return the eta of a message, past or future, as unix time in ms rounded up; None if it has no eta.

    Raises:
        InvalidEta: the eta is not a time.
    """
    headers = message.get("headers") or {}
    eta = headers.get("eta")
    if not eta or "task" not in headers or "id" not in headers:
        return None
    return parse_eta(eta, headers["task"])


def seconds_until(due_ms: float, loop: Any, others: Iterable[Any] = ()) -> float:
    """Return the seconds until a time (unix, in ms) by the server's clock; negative if it is past.

    If the server's time is not known yet, that of other nodes of the cluster is used, or else this process's own clock,
    which may be wrong.

    Args:
        due_ms: the time.
        loop: the `TransferLoop` of the connection, which knows the server's time; None if there is none.
        others: the loops of other nodes.
    """
    for known in (loop, *others):
        left_s = -math.inf if known is None else float(known.seconds_until_past(due_ms))
        if left_s != -math.inf:
            return left_s
    return due_ms / 1000 - time.time()


def parse_eta(eta: object, task: str) -> int:
    """Return an eta as unix time in ms, rounded up so that nothing runs early.

    A naive eta is taken as UTC, as in a Celery worker.

    Source: Celery 5.7 `celery.worker.request.Request` (`maybe_iso8601`, then `maybe_make_aware`).

    Raises:
        InvalidEta: `eta` is not an ISO 8601 time, or is out of the range of datetime.
    """
    try:
        when = _parse(eta)
        if when.tzinfo is None:
            when = when.replace(tzinfo=timezone.utc)
        return -((EPOCH - when) // _MICROSECOND // 1000)
    except (ValueError, TypeError, OverflowError) as exc:
        raise InvalidEta(
            f"the eta of task {task} must be a datetime, or a string such as '2030-12-31T23:59:00+00:00', not {eta!r}"
        ) from exc


def _parse(eta: object) -> datetime:
    if isinstance(eta, datetime):
        return eta
    if not isinstance(eta, str):
        raise TypeError(type(eta).__name__)
    if _LIKE_ISOFORMAT(eta):  # other texts mean something to `fromisoformat` that a worker refuses
        with suppress(ValueError):  # an hour of 24
            return datetime.fromisoformat(eta)  # much faster than `isoparse`
    return isoparse(eta)
