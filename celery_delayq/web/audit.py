"""Audit: a line in the log for each change: who, what, of which tasks, and how many."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from celery_delayq.basics.text import visible
from celery_delayq.web.request import Request

logger = logging.getLogger(__name__)

#: The most characters of one value.
_MOST = 500


@dataclass(frozen=True)
class Change:
    """A change that somebody has made.

    Attributes:
        action: name of the action, see `access.ACTIONS`.
        what: ids, a filter, or a name, of any length and with any characters; empty if it was broken off.
        changed: how many were changed.
        missed: how many were not, because they were not there any more.
        error: why it was broken off: a part of it may have been made. None if it was not.
    """

    action: str
    what: str = ""
    changed: int = 0
    missed: int = 0
    error: str | None = None

    @property
    def result(self) -> str:
        """What came of it, in words."""
        if self.error is not None:
            return f"{self.action} was broken off, a part may be done: {self.error}"
        return f"{self.action}: {self.changed} done, {self.missed} not"


#: Is called after each change, with the request and the change, to record it elsewhere.
OnChange = Callable[[Request, Change], None]


def record(user: str | None, request: Request, on_change: OnChange | None, change: Change) -> None:
    """Write a line: at level INFO, or at level WARNING if the change was broken off.

    Args:
        user: who; None if nobody knows.
        request: the request.
        on_change: is told about the change, too; what it raises is logged, since the change was made.
        change: the change.
    """
    who = change.action, _short(user or "-"), _short(request.remote or "-")
    if change.error is None:
        counts = change.changed, change.missed
        logger.info("%s by %s from %s: %s: %d done, %d not", *who, _short(change.what), *counts)
    else:
        logger.warning("%s by %s from %s was broken off, a part may be done: %s", *who, _short(change.error))
    if on_change is None:
        return
    try:
        on_change(request, change)
    except Exception:
        logger.exception("Cannot record a change elsewhere")


def _short(text: str) -> str:
    return visible(text if len(text) <= _MOST else f"{text[: _MOST - 1]}…")
