"""Fleet: how many Redis commands a delayed message costs, with one transfer loop and with many."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import Any

import redis

from celery_delayq import DelayedQueue
from celery_delayq.scripts import Transferred
from celery_delayq.transfer import TransferLoop
from examples.private_redis import PrivateRedis
from tests.benchmarks.figures import OURS, Target
from tests.benchmarks.filling import PAYLOAD_BYTES
from tests.benchmarks.report import Report
from tests.benchmarks.scale import SEED, Scale
from tests.support import wait_until

#: The messages become due over this time: several periodic looks (5 s) long.
_SPAN_S = 20.0
_FIRST_DUE_S = 2.0

#: What a periodic look begins with: the registry of queues is read.
_LOOK = "SMEMBERS"
_SCRIPT = ("EVALSHA", "EVAL")


class _Counter:
    """Counts the commands that all loops send; safe in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.by_loop: dict[str, Counter[str]] = {}

    def count(self, loop: str, kind: str) -> None:
        with self._lock:
            self.by_loop.setdefault(loop, Counter())[kind] += 1

    def total(self, kind: str) -> int:
        return sum(counted[kind] for counted in self.by_loop.values())


class _CountingRedis(redis.Redis):
    """The client of one loop; it tells commands of a periodic look from those that messages cause.

    A look reads the registry, and perhaps asks whether there is something; with one queue, the script call after
    that belongs to it.
    """

    def __init__(self, counter: _Counter, loop: str, port: int) -> None:
        super().__init__(host="127.0.0.1", port=port)
        self._counter = counter
        self._loop = loop
        self._looking = False

    def execute_command(self, *args: Any, **options: Any) -> Any:
        self._looking = self._looking or args[0] == _LOOK
        self._counter.count(self._loop, "look" if self._looking else "message")
        if args[0] in _SCRIPT:
            self._looking = False
        return super().execute_command(*args, **options)


def run(scale: Scale) -> Report:
    report = Report(f"fleet: commands that transfer loops send for messages due over {_SPAN_S:g} s")
    single, fleet = f"{OURS}, 1 loop", OURS
    for count in scale.fleet_messages:
        caused = report.figure(
            f"{count:,} messages: a message",
            "commands",
            baseline=single,
            target=Target(1.2, ratio=True),
        )
        looks = report.figure(f"{count:,} messages: periodic looks, a loop", "commands/s", baseline=single)
        for variant, loops in ((single, 1), (fleet, scale.loops)):
            counter, seconds = _measure(loops, count)
            caused.add(variant, counter.total("message") / count)
            looks.add(variant, counter.total("look") / loops / seconds)
    report.notes.append(
        f"{fleet}: {scale.loops} loops, of which one is punctual. Counted where they are sent; the commands "
        "of subscriptions (one PING a loop in 5 s at most) are not."
    )
    return report


def _measure(loops: int, count: int) -> tuple[_Counter, float]:
    """Let loops transfer messages; return what they sent from the time all were connected, and how long that was."""
    rng = random.Random(SEED)
    counter = _Counter()
    moved: Counter[str] = Counter()
    with PrivateRedis() as server, server.client() as client:
        queue = DelayedQueue(client, "celery")
        queue.register()
        started: set[str] = set()

        def on_pass(name: str, seen: Transferred) -> None:
            started.add(name)
            if seen.moved:
                moved[name] += seen.moved

        fleet = [
            TransferLoop(
                lambda name=name: _CountingRedis(counter, name, server.port),  # type: ignore[misc]
                on_pass=lambda _, seen, name=name: on_pass(name, seen),  # type: ignore[misc]
                id=name,
            )
            for name in (f"loop-{number}" for number in range(loops))
        ]
        for loop in fleet:
            loop.start()
        try:
            wait_until(lambda: len(started) == loops, "all loops had a first look")
            queue.offer(bytes(PAYLOAD_BYTES), delay_s=0)
            wait_until(lambda: moved, "one of them is the punctual one")
            moved.clear()
            counter.by_loop.clear()
            begin = time.monotonic()
            first_due_ms = int((time.time() + _FIRST_DUE_S) * 1000)
            for _ in range(count):
                due_ms = first_due_ms + rng.randrange(int(_SPAN_S * 1000))
                queue.offer(bytes(PAYLOAD_BYTES), due_ms=due_ms)
            wait_until(lambda: sum(moved.values()) == count, "all are moved", _FIRST_DUE_S + _SPAN_S + 10)
            return counter, time.monotonic() - begin
        finally:
            for loop in fleet:
                loop.stop()
