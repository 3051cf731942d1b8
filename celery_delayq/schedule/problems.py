"""Problems: why entries cannot be planned, as `delayq.schedule` and the log say it."""

from __future__ import annotations

from collections.abc import Container
from contextlib import suppress
from logging import getLogger

from redis.exceptions import ResponseError

from celery_delayq.queue.connections import refusals
from celery_delayq.schedule.store import ScheduleStore

logger = getLogger(__name__)


class Problems:
    """The errors of entries. Each process logs an error once, also if it is stored already. For one thread at a time.

    Args:
        store: store of the schedule.
        is_back: whether this process had a planner before, which has logged the errors that are stored.
    """

    def __init__(self, store: ScheduleStore, *, is_back: bool = False) -> None:
        self._store = store
        #: Name -> error, as stored, and as logged by this process.
        self._stored: dict[str, str] = {}
        self._logged: dict[str, str] | None = None if is_back else {}

    def read(self) -> None:
        """Read the stored errors."""
        try:
            self._stored = self._store.errors()
        except ResponseError as exc:
            logger.error("Cannot read the errors of periodic tasks: %s", exc)
            self._stored = {}
        if self._logged is None:
            self._logged = dict(self._stored)

    def forget_except(self, names: Container[str]) -> None:
        """Forget the errors of all other entries."""
        for name in [name for name in self._stored if name not in names]:
            self.note(name, None)

    def note(self, name: str, error: str | None, cause: object = None) -> None:
        """Store and log the error of an entry.

        Args:
            name: name of the entry.
            error: what to show; None if all is well again.
            cause: the exception, if the server refuses something for now: that is said once for all entries.
        """
        logged = {} if self._logged is None else self._logged
        if error is None:
            logged.pop(name, None)
        elif logged.get(name) != error and not refusals.note(cause, logger):
            logger.error("Cannot plan periodic task %r: %s", name, error)
            logged[name] = error
        if self._stored.get(name) == error:
            return
        # If the server is out of memory, entries that are already planned must still run. The error is stored later.
        with suppress(ResponseError):
            self._store.set_error(name, error)
            if error is None:
                del self._stored[name]
            else:
                self._stored[name] = error
