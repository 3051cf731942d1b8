"""PlannerLoop: the thread in which a planner runs, with connections of its own.

It sleeps on its subscription until the next entry goes on; a change of an entry wakes it, and so does `stop`. Every
few seconds it says that it lives, and finds out whether it missed changes. When the connection is lost, it connects
anew and reads everything again; occurrences that were planned run meanwhile.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from logging import getLogger
from typing import Any, Protocol

from redis import exceptions

from celery_delayq.connections import LoopThread
from celery_delayq.schedule.store import ScheduleStore

logger = getLogger(__name__)

#: How often a loop says that it lives, and looks for changes, in seconds.
LOOK_S = 5.0

#: Longest single wait on the subscription, so that its health is checked.
_LONGEST_WAIT_S = LOOK_S

#: Changes at once above which everything is read again instead of each by itself.
_MANY_CHANGES = 500


class Plans(Protocol):
    """What a loop runs, see `Planner`."""

    def look(self) -> None:
        """Look for missed changes."""

    def read(self) -> None:
        """Read everything."""

    def on_change(self, number: int, name: str) -> None:
        """Take notice of a change."""

    def run_due(self) -> int:
        """Let entries go on."""

    def seconds_until_next(self) -> float | None:
        """Return when an entry goes on."""


class PlannerLoop(LoopThread):
    """Runs a planner in a daemon thread until `stop()`, see `LoopThread`.

    Args:
        connect: called for every (re)connection; returns a context manager that gives a store and a planner on
            connections of its own, and closes them.
    """

    def __init__(self, connect: Callable[[], Any]) -> None:
        super().__init__("delayq-planner", logger, "Planning of periodic tasks", "What is planned runs")
        self._connect = connect
        self._has_planned = threading.Event()

    def wait_until_planned(self, timeout_s: float) -> bool:
        """Wait until all entries whose time has come have gone on once. Returns whether they have."""
        return self._has_planned.wait(timeout_s)

    def run(self) -> None:
        """Plan until `stop()` is called. Never raises for what happens to the server or the network."""
        while not self._stopping:
            try:
                with self._connect() as (store, planner), closing(store.client.pubsub()) as self._pubsub:
                    self._serve(store, planner)
            except Exception as exc:
                if not self._stopping:
                    self._outage.begins(exc)

    def _serve(self, store: ScheduleStore, planner: Plans) -> None:
        self._pubsub.subscribe(store.keys.channel)
        while not self._stopping and self._pubsub.get_message(timeout=_LONGEST_WAIT_S) is None:
            pass
        # Only now: what changes after this is announced.
        planner.read()
        next_look = time.monotonic() + LOOK_S
        while not self._stopping:
            if not planner.run_due():
                self._has_planned.set()
                self._outage.ends()
                wait_s = min(max(0.0, next_look - time.monotonic()), _LONGEST_WAIT_S)
                until_next_s = planner.seconds_until_next()
                self._listen(planner, wait_s if until_next_s is None else min(wait_s, max(0.0, until_next_s)))
            else:
                self._listen(planner, 0)
            if time.monotonic() >= next_look and not self._stopping:
                if self._pubsub.health_check_response_counter >= 2:
                    raise exceptions.ConnectionError("the subscription does not answer")
                planner.look()
                next_look = time.monotonic() + LOOK_S * random.uniform(0.8, 1)

    def _listen(self, planner: Plans, wait_s: float) -> None:
        message = self._pubsub.get_message(timeout=wait_s)
        changes: dict[str, int] = {}
        while message is not None:
            if message["type"] == "message":
                data = message["data"]
                text = data.decode("utf-8", "surrogateescape") if isinstance(data, bytes) else data
                number, _, name = text.partition(":")
                with suppress(ValueError):
                    if len(changes) < _MANY_CHANGES:
                        planner.on_change(int(number), name)
                    changes[name] = int(number)
            message = self._pubsub.get_message(timeout=0)
        if len(changes) >= _MANY_CHANGES and not self._stopping:
            planner.look()
