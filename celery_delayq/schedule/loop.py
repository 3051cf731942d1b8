"""PlannerLoop: the thread that runs a planner, with its own connections.

The thread sleeps on its subscription until the next entry is ready. A change of an entry wakes it, and so does `stop`.
Every few seconds it gives a sign of life and checks for missed changes. If the connection is lost, it reconnects and
reads everything again. Occurrences that are already planned still run in the meantime.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from logging import getLogger
from typing import Any

import redis
from redis import exceptions

from celery_delayq.basics.descriptors import interrupt
from celery_delayq.queue.connections import Outage
from celery_delayq.schedule.planner import Planner
from celery_delayq.schedule.store import ScheduleStore
from celery_delayq.schedule.transitions import TOLERATED_MS

logger = getLogger(__name__)

#: How often a loop gives a sign of life and checks the connection, and whether it missed changes, in seconds.
_LOOK_S = 5.0

#: Maximum number of changes that are processed before due entries get their turn.
_MOST_CHANGES = 500


class PlannerLoop:
    """Runs a planner in a daemon thread until `stop()`.

    Args:
        connect: called for every (re)connection. Returns a context manager that yields a store with its own
            connections and a factory of planners, and that closes the connections.
        chores: called at each look, and at the end, with the client of the store; see `TransferLoop`.
        is_awaited: whether transfers wait until this has planned, even if it cannot connect.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        chores: Callable[[redis.Redis], None] = lambda client: None,
        *,
        is_awaited: bool = True,
    ) -> None:
        me = weakref.ref(self)  # this must not wait for the garbage collector: it has descriptors
        self._outage = Outage(
            logger,
            "Planning of periodic tasks",
            "Occurrences that are already planned still run",
            lambda: (loop := me()) is None or loop.is_stopping,
        )
        self._connect = connect
        self._is_awaited = is_awaited
        self._chores = chores
        #: The subscription, a `redis.client.PubSub`, and the server that has it; None before the first connection.
        self._pubsub: Any = None
        self._server = ""
        self._has_planned = threading.Event()
        #: Whether the loop ends, or has ended.
        self.is_stopping = False
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def start(self) -> None:
        """Begin to plan; call this once."""
        self._thread = threading.Thread(target=self._run, name="delayq-planner", daemon=True)
        Context().run(self._thread.start)  # a Python without GIL would give it the `timeout` of the call that starts it

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the loop, and wait at most so many seconds. Safe in any thread and signal handler.

        In a forked child, it does nothing.
        """
        if os.getpid() != self._pid:
            return
        self.is_stopping = True
        interrupt(getattr(getattr(self._pubsub, "connection", None), "_sock", None))
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def is_alive(self) -> bool:
        """Return whether it plans, or tries to."""
        return self._thread is not None and self._thread.is_alive()

    def wait_until_planned(self, timeout_s: float) -> bool:
        """Wait until all entries that were overdue when the loop started are processed. Return whether they are.

        New entries may not be planned by then. If no message is overdue, this returns at once; also after an error if
        nothing waits for this.
        """
        return self._has_planned.is_set() or (timeout_s > 0 and self._has_planned.wait(timeout_s))

    # -- its own thread

    def _run(self) -> None:
        while not self.is_stopping:
            try:
                with self._connect() as (store, make_planner):
                    try:
                        self._serve(store, make_planner)
                        self._chores(store.client)
                    finally:
                        self._unsubscribe()
            except Exception as exc:
                if not self._is_awaited:
                    self._has_planned.set()
                if not self.is_stopping:
                    self._outage.begins(exc)

    def _subscribe(self, store: ScheduleStore) -> None:
        """Subscribe at the server that has the periodic tasks; it also counts who is subscribed."""
        self._unsubscribe()
        self._server = store.server()
        self._pubsub = store.pubsub()
        self._pubsub.subscribe(store.keys.channel)
        while not self.is_stopping and self._pubsub.get_message(timeout=_LOOK_S) is None:
            pass

    def _unsubscribe(self) -> None:
        if self._pubsub is not None:
            self._pubsub.close()

    def _serve(self, store: ScheduleStore, make_planner: Callable[[], Planner]) -> None:
        self._subscribe(store)
        if not store.has_overdue(store.queues(), store.now_ms() - TOLERATED_MS):
            self._has_planned.set()
        planner = make_planner()
        # Read only now: later changes will be announced on the subscription.
        planner.begin_reading()
        next_look = time.monotonic() + _LOOK_S
        while not self.is_stopping:
            is_busy = planner.run_due() > 0
            if planner.is_up_to_date:
                self._has_planned.set()
            wait_s = 0.0
            if not is_busy:
                self._outage.ends()
                until_next_s = planner.seconds_until_next()
                until_look_s = next_look - time.monotonic()
                wait_s = max(0.0, until_look_s if until_next_s is None else min(until_look_s, until_next_s))
            self._listen(planner, wait_s)
            if time.monotonic() >= next_look and not self.is_stopping:
                if self._pubsub.health_check_response_counter >= 2:
                    raise exceptions.ConnectionError("Redis did not answer on the subscription")
                planner.look()
                self._chores(store.client)
                if store.server() != self._server:  # a failover, or the slot moved
                    self._subscribe(store)
                    planner.begin_reading()
                next_look = time.monotonic() + _LOOK_S * random.uniform(0.8, 1)

    def _listen(self, planner: Planner, wait_s: float) -> None:
        message = self._pubsub.get_message(timeout=wait_s)
        changes: list[tuple[int, str]] = []
        while message is not None:
            if message["type"] == "message":
                data = message["data"]
                first, _, names = (data if isinstance(data, bytes) else data.encode()).partition(b":")
                with suppress(ValueError):  # another program published this, or the name is not valid text
                    changes += [(int(first) + at, str(name)) for at, name in enumerate(json.loads(names))]
            message = self._pubsub.get_message(timeout=0) if len(changes) < _MOST_CHANGES else None
        if changes and not self.is_stopping:
            planner.on_changes(changes)
