"""Fleet: what transfer loops send, with one loop and with many, and what it costs when the punctual one is killed."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from celery_delayq import DelayedQueue
from celery_delayq.basics.times import to_datetime
from examples.private_redis import PrivateRedis
from tests.benchmarks.figures import OURS, Target, percentile
from tests.benchmarks.filling import PAYLOAD_BYTES
from tests.benchmarks.loops import Fleet, LoneLoop
from tests.benchmarks.report import Report
from tests.benchmarks.scale import SEED, Scale
from tests.support import wait_until

_FIRST_DUE_S = 2.0

#: Around the death of the punctual loop: this often a message is due, so long before and so long after.
_EVERY_MS, _BEFORE_S, _AFTER_S = 5, 1.0, 1.0

#: After so many seconds all loops have begun what they do periodically.
_SETTLED_S = 3.0

_SINGLE = f"{OURS}, 1 loop"


def run(scale: Scale) -> Report:
    report = Report(f"fleet: commands that transfer loops send for messages due over {scale.fleet_s:g} s")
    one, *many = scale.loops
    found = {loops: _loops(loops, scale) for loops in scale.loops}
    for loops in many:
        for count in scale.fleet_messages:
            name = f"{loops} loops, {count:,} messages"
            caused = report.figure(f"{name}: a message", "commands", baseline=_SINGLE, target=Target(1.2, ratio=True))
            looks = report.figure(f"{name}: periodic looks, a loop", "commands/s", baseline=_SINGLE)
            for variant, size in ((_SINGLE, one), (OURS, loops)):
                a_message, a_second = found[size].transferring[count]
                caused.add(variant, a_message)
                looks.add(variant, a_second)
    for loops in scale.loops:
        report.figure(f"{loops} loops, idle: all of them", "commands/s").add(OURS, found[loops].idle)
    for loops in many:
        late = _takeover(loops)
        for words, percent in {"p50": 50, "p99": 99, "max": 100}.items():
            figure = report.figure(f"{loops} loops, the punctual one is killed: lateness {words}", "ms")
            figure.add(OURS, percentile(late, percent))
    report.notes += [
        "Loops are threads of one process, without Celery around them; one of them is punctual. Commands are counted "
        "where they are sent; those of subscriptions (one PING a loop in 5 s at most) are not.",
        f"Killed: the punctual loop is a process that gets SIGKILL; lateness is that of the messages due within "
        f"{_AFTER_S:g} s after it, from due time to a consumer that waits for them.",
    ]
    return report


@dataclass(frozen=True)
class _Sent:
    """What a fleet of one size sends.

    Attributes:
        idle: commands a second of all loops while nothing is due.
        transferring: by number of messages: commands a message that messages cause, and commands a second and loop of
            periodic looks.
    """

    idle: float
    transferring: dict[int, tuple[float, float]]


def _loops(loops: int, scale: Scale) -> _Sent:
    with PrivateRedis() as server, server.client() as client:
        queue = DelayedQueue(client, "celery")
        queue.offer(bytes(PAYLOAD_BYTES), countdown=3600)
        with Fleet(server.port, loops) as fleet:
            time.sleep(_SETTLED_S)
            idle = _idle(fleet, scale.idle_s)
            queue.offer(bytes(PAYLOAD_BYTES), countdown=0)
            wait_until(lambda: fleet.moved, "one of them is the punctual one")
            counts = scale.fleet_messages
            return _Sent(idle, {count: _transferring(queue, fleet, loops, count, scale.fleet_s) for count in counts})


def _idle(fleet: Fleet, seconds: float) -> float:
    fleet.forget()
    time.sleep(seconds)
    return (fleet.commands.total("look") + fleet.commands.total("message")) / seconds


def _transferring(queue: DelayedQueue, fleet: Fleet, loops: int, count: int, span_s: float) -> tuple[float, float]:
    rng = random.Random(SEED)
    fleet.forget()
    begin = time.monotonic()
    first_due_ms = int((time.time() + _FIRST_DUE_S) * 1000)
    for _ in range(count):
        due_ms = first_due_ms + rng.randrange(int(span_s * 1000))
        queue.offer(bytes(PAYLOAD_BYTES), eta=to_datetime(due_ms))
    wait_until(lambda: fleet.moved == count, "all are moved", _FIRST_DUE_S + span_s + 10)
    seconds, commands = time.monotonic() - begin, fleet.commands
    return commands.total("message") / count, commands.total("look") / loops / seconds


def _takeover(loops: int) -> list[float]:
    """Kill the punctual one of some loops; return how late in ms each message was that was due soon after."""
    with PrivateRedis() as server, server.client() as client:
        queue = DelayedQueue(client, "celery")
        queue.register()
        with LoneLoop(server.port) as punctual:
            wait_until(lambda: _is_punctual(queue, punctual), "it is the punctual one")
            with Fleet(server.port, loops - 1):
                return _lateness_around_death(queue, punctual)


def _is_punctual(queue: DelayedQueue, loop: LoneLoop) -> bool:
    queue.offer(b"0", countdown=0)
    found = queue.client.get(queue.keys.transferrer)
    return isinstance(found, bytes) and found.decode().endswith(f":{loop.id}")


def _lateness_around_death(queue: DelayedQueue, punctual: LoneLoop) -> list[float]:
    first_due_ms = int((time.time() + _FIRST_DUE_S) * 1000)
    killed_at_ms = first_due_ms + _BEFORE_S * 1000
    for due_ms in range(first_due_ms, int(killed_at_ms + _AFTER_S * 1000), _EVERY_MS):
        queue.offer(str(due_ms).encode(), eta=to_datetime(due_ms))
    late: list[float] = []
    killed = False
    while not killed or queue.size() or queue.client.llen(queue.name):
        if not killed and time.time() * 1000 >= killed_at_ms:
            punctual.kill()
            killed = True
        taken = queue.client.brpop([queue.name], timeout=0.05)
        if taken:
            due_ms = int(taken[1])
            if due_ms >= killed_at_ms:
                late.append(time.time() * 1000 - due_ms)
    return late
