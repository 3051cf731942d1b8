"""Recorder: what a process counts, and what of it is already in Redis."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from celery_delayq.basics.native import native_ident
from celery_delayq.basics.times import AFTER_9999_MS
from celery_delayq.fetching.held import DEAD_LETTERS
from celery_delayq.queue.connections import process_of
from celery_delayq.queue.dead_letter import NOT_AN_ENTRY
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.histograms import START_LATENESS, TRANSFER_LATENESS, TRANSFERRED, fields_of
from celery_delayq.queue.scripts import Transferred
from celery_delayq.transport import Transport
from celery_delayq.transport.eta import seconds_until
from celery_delayq.transport.messages import DUE_PROPERTY

#: Names of what is counted, besides those of `fetching.held` and `histograms`. The name of an entry follows a colon.
PUNCTUAL_WORKER_CHANGES, MISSED_RUNS = "punctual_worker_changes", "missed_runs:"


class Recorder:
    """Counts what happens in one process: numbers that only grow, by list and by what was counted.

    The methods that begin with `on_` are the callbacks of the rooms below. They and `add` take some microseconds at
    most, and raise nothing.

    Any thread may count, without a lock: each thread of the system has numbers of its own, which nobody else changes.
    Greenlets of one thread share them, and none is interrupted while it counts.
    """

    def __init__(self) -> None:
        #: Thread -> list and what -> number. A thread that ends leaves its numbers to the next one with its identifier.
        self._of_threads: dict[int, dict[tuple[str, str], int]] = {}
        #: List -> what -> what was settled.
        self._settled: dict[str, Counter[str]] = {}

    def add(self, name: str, what: str, number: int = 1) -> None:
        """Count something that happened to a list."""
        thread = native_ident()
        numbers = self._of_threads.get(thread)
        if numbers is None:
            numbers = self._of_threads[thread] = {}
        key = name, what
        numbers[key] = numbers.get(key, 0) + number

    def pending(self) -> dict[str, dict[str, int]]:
        """Return what was counted and not settled yet: list -> what -> number."""
        sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for numbers in list(self._of_threads.values()):
            for (name, what), number in numbers.copy().items():
                sums[name][what] += number
        # Copies: other threads may be settling what they have added to other lists.
        rest = {name: numbers - Counter(dict(self._settled.get(name, ()))) for name, numbers in sums.items()}
        return {name: dict(numbers) for name, numbers in rest.items() if numbers}

    def settle(self, name: str, numbers: Mapping[str, int]) -> None:
        """Record that numbers of a list need no longer be added anywhere. For one thread at a time for each list."""
        self._settled.setdefault(name, Counter()).update(numbers)

    def on_pass(self, queue: DelayedQueue, done: Transferred) -> None:
        """Count what a transfer moved, see `TransferLoop`."""
        name, add = queue.name, self.add
        if done.moved:
            add(name, TRANSFERRED, done.moved)
        for due, number in done.parts:
            self._add_lateness(name, TRANSFER_LATENESS, (done.now - due).total_seconds(), number)
        if done.dead:
            add(name, DEAD_LETTERS + NOT_AN_ENTRY, done.dead)
        if process_of(done.former) != process_of(done.punctual):  # a new connection is no change
            add(name, PUNCTUAL_WORKER_CHANGES)

    def on_hand_over(self, message: Any) -> Callable[[float], None] | None:
        """Return what counts how late a task begins; None if its message was not delayed. See `Handover`."""
        due_ms = (message.properties or {}).get(DUE_PROPERTY)
        transport = getattr(message.channel, "connection", None)
        # Anybody may have written the message, and an error here would be one of its task.
        if type(due_ms) is not int or not 0 <= due_ms < AFTER_9999_MS or not isinstance(transport, Transport):
            return None
        held = transport.stations.held(message.delivery_tag)
        if held is None:
            return None
        return partial(self._on_begin, held.name, due_ms, transport.loops.of(held.name), transport.loops.all)

    def on_missed(self, name: str, entry: str, number: int) -> None:
        """Count the missed runs of a periodic entry, see `Planner`."""
        self.add(name, MISSED_RUNS + entry, number)

    def _on_begin(self, name: str, due_ms: int, loop: Any, loops: Sequence[Any], began_at: float) -> None:
        # A child process says when it began, by the clock that all processes of the machine share.
        since_s = max(0.0, time.monotonic() - began_at)
        self._add_lateness(name, START_LATENESS, -seconds_until(due_ms, loop, loops) - since_s)

    def _add_lateness(self, name: str, histogram: str, lateness_s: float, number: int = 1) -> None:
        bucket, total, lateness_us = fields_of(histogram, lateness_s)
        self.add(name, bucket, number)
        if lateness_us:
            self.add(name, total, lateness_us * number)
