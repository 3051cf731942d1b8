"""Recorder: what a process counts. Its methods are the callbacks of the rooms below."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from celery_delayq.basics.times import AFTER_9999_MS
from celery_delayq.fetching.held import DEAD_LETTERS
from celery_delayq.metrics.counters import Counters
from celery_delayq.metrics.histograms import fields_of
from celery_delayq.queue.connections import process_of
from celery_delayq.queue.dead_letters import NOT_AN_ENTRY
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.scripts import Transferred
from celery_delayq.transport import Transport
from celery_delayq.transport.eta import seconds_until
from celery_delayq.transport.messages import DUE_PROPERTY

#: Names of what is counted, besides those of `fetching.held`. The name of a histogram or an entry follows a colon.
TRANSFERRED, TRANSFER_LATENESS, START_LATENESS = "transferred", "transfer_lateness", "start_lateness"
PUNCTUAL_WORKER_CHANGES, MISSED_RUNS = "punctual_worker_changes", "missed_runs:"


class Recorder:
    """Counts what happens in one process.

    Every method may be called in any thread, takes some microseconds at most, and raises nothing.

    Args:
        counters: where.
    """

    def __init__(self, counters: Counters) -> None:
        self.counters = counters

    def on_pass(self, queue: DelayedQueue, done: Transferred) -> None:
        """Count what a transfer moved, see `TransferLoop`."""
        name, add = queue.name, self.counters.add
        if done.moved:
            add(name, TRANSFERRED, done.moved)
        for due_ms, number in done.parts:
            self._add_lateness(name, TRANSFER_LATENESS, (done.now_us / 1000 - due_ms) / 1000, number)
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
        self.counters.add(name, MISSED_RUNS + entry, number)

    def _on_begin(self, name: str, due_ms: int, loop: Any, loops: Sequence[Any], began_at: float) -> None:
        # A child process says when it began, by the clock that all processes of the machine share.
        since_s = max(0.0, time.monotonic() - began_at)
        self._add_lateness(name, START_LATENESS, -seconds_until(due_ms, loop, loops) - since_s)

    def _add_lateness(self, name: str, histogram: str, lateness_s: float, number: int = 1) -> None:
        bucket, total, lateness_us = fields_of(histogram, lateness_s)
        self.counters.add(name, bucket, number)
        if lateness_us:
            self.counters.add(name, total, lateness_us * number)
