"""PlannerLoop: the thread in which a planner runs, with connections of its own.

It sleeps on its subscription until the next entry goes on; a change of an entry wakes it, and so does `stop`. Every
few seconds it says that it lives, and finds out whether it missed changes. When the connection is lost, it connects
anew and reads everything again; occurrences that were planned run meanwhile.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from logging import getLogger
from typing import Any, Protocol

from redis import exceptions

from celery_delayq.connections import LoopThread
from celery_delayq.schedule.moves import TOLERATED_MS
from celery_delayq.schedule.store import ScheduleStore

logger = getLogger(__name__)

#: How often a loop says that it lives, and looks for changes, in seconds.
LOOK_S = 5.0

#: Longest single wait on the subscription, so that its health is checked.
_LONGEST_WAIT_S = LOOK_S

#: Changes that are noticed at once, before what is due goes on.
_MOST_CHANGES = 500


class Plans(Protocol):
    """What a loop runs, see `Planner`."""

    @property
    def is_up_to_date(self) -> bool:
        """Whether all that was overdue has gone on."""

    def begin_reading(self) -> None:
        """Begin to read everything."""

    def look(self) -> None:
        """Look for missed changes."""

    def on_changes(self, changes: Iterable[tuple[int, str]]) -> None:
        """Take notice of changes."""

    def run_due(self) -> int:
        """Let entries go on."""

    def seconds_until_next(self) -> float | None:
        """Return when an entry goes on."""


class PlannerLoop(LoopThread):
    """Runs a planner in a daemon thread until `stop()`, see `LoopThread`.

    Args:
        connect: called for every (re)connection; returns a context manager that gives a store on connections of its
            own, and what makes a planner on them, and closes them.
    """

    def __init__(self, connect: Callable[[], Any]) -> None:
        super().__init__("delayq-planner", logger, "Planning of periodic tasks", "What is planned runs")
        self._connect = connect
        self._has_planned = threading.Event()

    def wait_until_planned(self, timeout_s: float) -> bool:
        """Wait until all entries whose time had come when the loop began have gone on. Returns whether they have.

        Entries that are new may not be planned by then. Where no message is overdue, there is nothing to wait for.
        """
        return self._has_planned.wait(timeout_s)

    def run(self) -> None:
        """Plan until `stop()` is called. Never raises for what happens to the server or the network."""
        while not self._stopping:
            try:
                with self._connect() as (store, make_planner), closing(store.client.pubsub()) as self._pubsub:
                    self._serve(store, make_planner)
            except Exception as exc:
                if not self._stopping:
                    self._outage.begins(exc)

    def _serve(self, store: ScheduleStore, make_planner: Callable[[], Plans]) -> None:
        self._pubsub.subscribe(store.keys.channel)
        while not self._stopping and self._pubsub.get_message(timeout=_LONGEST_WAIT_S) is None:
            pass
        if not store.has_overdue(store.queues(), store.now_ms() - TOLERATED_MS):
            self._has_planned.set()
        planner = make_planner()
        # Only now: what changes after this is announced.
        planner.begin_reading()
        next_look = time.monotonic() + LOOK_S
        while not self._stopping:
            is_busy = planner.run_due() > 0
            if planner.is_up_to_date:
                self._has_planned.set()
            wait_s = 0.0
            if not is_busy:
                self._outage.ends()
                wait_s = min(max(0.0, next_look - time.monotonic()), _LONGEST_WAIT_S)
                until_next_s = planner.seconds_until_next()
                wait_s = wait_s if until_next_s is None else min(wait_s, max(0.0, until_next_s))
            self._listen(planner, wait_s)
            if time.monotonic() >= next_look and not self._stopping:
                if self._pubsub.health_check_response_counter >= 2:
                    raise exceptions.ConnectionError("the subscription does not answer")
                planner.look()
                next_look = time.monotonic() + LOOK_S * random.uniform(0.8, 1)

    def _listen(self, planner: Plans, wait_s: float) -> None:
        message = self._pubsub.get_message(timeout=wait_s)
        changes: list[tuple[int, str]] = []
        while message is not None:
            if message["type"] == "message":
                data = message["data"]
                first, _, names = (data if isinstance(data, bytes) else data.encode()).partition(b":")
                with suppress(ValueError):  # what something else published, or a name that is no text
                    changes += [(int(first) + at, str(name)) for at, name in enumerate(json.loads(names))]
            message = self._pubsub.get_message(timeout=0) if len(changes) < _MOST_CHANGES else None
        if changes and not self._stopping:
            planner.on_changes(changes)
