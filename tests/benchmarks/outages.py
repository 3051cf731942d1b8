"""Outages: what a worker does with the queues of other nodes while one is dead or hangs, and how soon it is back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from celery import Celery

from tests.benchmarks.figures import OURS, Target
from tests.benchmarks.report import Report
from tests.benchmarks.worker import BenchWorker
from tests.redis_cluster.servers import Cluster, ClusterNode, cluster
from tests.support import wait_until

QUEUES = tuple(f"q{number}" for number in range(6))

_POOLS = ("prefork", "solo", "threads")
_ENDS = {"dies": ClusterNode.kill, "hangs": ClusterNode.suspend}

#: The others take a node for dead after that, in ms, and vote.
_SETTINGS = ("--cluster-node-timeout", "3000")

#: Immediate tasks that are published to each queue, a second; so many delayed ones, too.
_RATE = 15

_COUNTDOWN_S = 0.3

#: Numbers of delayed tasks begin here; number of the task that waits when a replica has taken over.
_DELAYED, _FIRST = 10, 100

_SETTLED_S = 3.0

_KEPT, _BACK = Target(99, at_most=False), Target(2)


@dataclass(frozen=True)
class Outage:
    """What happened.

    Attributes:
        kept: runs of tasks of the other nodes' queues, from the fault until a replica took over, beside the time
            before; in percent.
        pause_s: the longest time without one.
        back_s: from when the replica took over to the first run of a task of its queues.
    """

    kept: float
    pause_s: float
    back_s: float


def report_outages(report: Report, seconds: float) -> None:
    """Measure each kind with each pool.

    Args:
        report: gets the figures.
        seconds: how long to measure before and after the outage.
    """
    for how in _ENDS:
        kept = report.figure(f"a master {how}: runs of the other nodes' queues, of those before", "%", target=_KEPT)
        pause = report.figure(f"a master {how}: longest time without one", "s")
        back = report.figure(f"a master {how}: from the promotion to the first run", "s", target=_BACK)
        for pool in _POOLS:
            with cluster(3, replicas=1, settings=_SETTINGS) as nodes:
                found = measure(nodes, pool, how, seconds)
            kept.add(OURS, found.kept)
            pause.add(OURS, found.pause_s)
            back.add(OURS, found.back_s)
    report.notes.append(f"a sample for each pool: {', '.join(_POOLS)}; the master has the registry of delayed queues")


def measure(nodes: Cluster, pool: str, how: str, seconds: float) -> Outage:
    """Keep all queues of a worker busy, and end a master of a cluster with replicas."""
    victim = nodes.owner("delayq:queues")
    others = {number for number, queue in enumerate(QUEUES) if nodes.owner(queue) is not victim}
    lost = next(queue for queue in QUEUES if nodes.owner(queue) is victim)
    (replica,) = nodes.replicas_of(victim)
    worker = BenchWorker(OURS, nodes.nodes[0].port, pool, broker=nodes.url(3), queues=QUEUES)
    with worker:
        worker.wait_until_ready()
        message = _message(worker.app, nodes)
        with _published(worker.app):
            time.sleep(_SETTLED_S)
            begin = time.time()
            time.sleep(seconds)
            fault = time.time()
            _ENDS[how](victim)
            wait_until(lambda: replica.client.info("replication")["role"] == "master", "a replica takes over")
            promoted = time.time()
            replica.client.lpush(lost, message)
            with suppress(AssertionError):
                wait_until(lambda: any(run.number == _FIRST for run in worker.runs()), "it has run", 30)
        runs = worker.runs()
    times = sorted(run.ran_at for run in runs if run.number % _DELAYED in others and begin <= run.ran_at < promoted)
    before = sum(at < fault for at in times) / (fault - begin)
    during = sum(at >= fault for at in times) / (promoted - fault)
    marks = [fault, *(at for at in times if at >= fault), promoted]
    pause_s = max(then - at for at, then in pairwise(marks))
    back = min((run.ran_at for run in runs if run.number == _FIRST), default=float("inf"))
    return Outage(100 * during / before, pause_s, back - promoted)


def _message(app: Celery, nodes: Cluster) -> Any:
    """Return a message that runs the task with the number `_FIRST`, as Celery made it."""
    app.tasks["note"].apply_async((_FIRST,), queue="template")
    return nodes.owner("template").client.rpop("template")


@contextmanager
def _published(app: Celery, queues: Sequence[str] = QUEUES) -> Iterator[None]:
    """Publish to all queues while the block lasts.

    In threads, each with a connection of its own, so that no queue waits for another one's node.
    """
    stop = threading.Event()
    with ExitStack() as stack:
        for number, queue in enumerate(queues):
            for countdown_s in (None, _COUNTDOWN_S):
                producer = stack.enter_context(app.connection_for_write()).Producer()
                note = partial(
                    app.tasks["note"].apply_async,
                    queue=queue,
                    countdown=countdown_s,
                    producer=producer,
                    retry=False,
                )
                value = number + (_DELAYED if countdown_s else 0)
                threading.Thread(target=_publish, args=(stop, note, value), daemon=True).start()
        stack.callback(stop.set)
        yield


def _publish(stop: threading.Event, note: Any, number: int) -> None:
    begin = time.monotonic()
    while not stop.wait(max(0.0, begin - time.monotonic())):
        with suppress(Exception):  # the node is away
            note((number,))
        begin = max(begin + 1 / _RATE, time.monotonic() - 1 / _RATE)  # it does not make up for what it missed
