"""Audit: a line in the log for each change: who, what, of which tasks, and how many."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from celery_delayq.escapes import visible

logger = logging.getLogger(__name__)

#: The most characters of one value.
_MOST = 500


@dataclass(frozen=True)
class Audit:
    """Writes lines for one request.

    Attributes:
        user: who; None if nobody knows.
        remote: from which address.
    """

    user: str | None
    remote: str | None

    def record(self, action: str, what: str, changed: int, missed: int = 0) -> None:
        """Write a line, at level INFO.

        Args:
            action: name of the action, see `access.ACTIONS`.
            what: ids, a filter, or a name.
            changed: how many were changed.
            missed: how many were not, because they were not there any more.
        """
        logger.info(
            "%s by %s from %s: %s: %d done, %d not",
            action,
            _short(self.user or "-"),
            _short(self.remote or "-"),
            _short(what),
            changed,
            missed,
        )

    def fail(self, action: str, error: Exception) -> None:
        """Write a line, at level WARNING, about a change that was broken off: a part of it may have been made."""
        logger.warning(
            "%s by %s from %s was broken off, a part may be done: %s",
            action,
            _short(self.user or "-"),
            _short(self.remote or "-"),
            _short(str(error)),
        )


def _short(text: str) -> str:
    return visible(text if len(text) <= _MOST else f"{text[: _MOST - 1]}…")
