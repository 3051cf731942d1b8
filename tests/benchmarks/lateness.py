"""Lateness of execution: how long after its eta a task begins to run."""

from __future__ import annotations

import random
import time

from examples.private_redis import PrivateRedis
from tests.benchmarks.figures import OURS, STOCK, Target, in_turns, percentile
from tests.benchmarks.report import Report
from tests.benchmarks.scale import SEED, Scale
from tests.benchmarks.worker import BenchWorker, Run

_SHORTEST_COUNTDOWN_S = 0.5

#: How long after the last eta a task counts as lost, in seconds.
_LOST_AFTER_S = 10.0


def run(scale: Scale) -> Report:
    report = Report(
        f"lateness of execution: {scale.tasks:,} tasks with countdowns of {_SHORTEST_COUNTDOWN_S} to "
        f"{scale.longest_countdown_s:g} s, one prefork worker with 2 processes"
    )
    with PrivateRedis() as server:
        results = in_turns(
            scale.rounds,
            {name: lambda name=name: _measure(server, name, scale) for name in (STOCK, OURS)},
        )
    p50 = report.figure("p50", "ms", target=Target(1.5, ratio=True))
    p95 = report.figure("p95", "ms")
    p99 = report.figure("p99", "ms", target=Target(1.5, ratio=True))
    longest = report.figure("max", "ms")
    early = report.figure("early", "tasks", target=Target(0))
    lost = report.figure("lost", "tasks", target=Target(0))
    twice = report.figure("twice", "tasks", target=Target(0))
    for variant, turns in results.items():
        for runs in turns:
            late = [one.lateness_ms for one in runs]
            for figure, percent in ((p50, 50), (p95, 95), (p99, 99), (longest, 100)):
                figure.add(variant, percentile(late, percent))
            different = len({one.number for one in runs})
            early.add(variant, sum(value < 0 for value in late))
            lost.add(variant, scale.tasks - different)
            twice.add(variant, len(runs) - different)
    report.notes.append(
        "Lateness: the time in the task minus its exact eta. On a shared machine look at the steal time, too: "
        "it is what makes long tails."
    )
    return report


def _measure(server: PrivateRedis, variant: str, scale: Scale) -> list[Run]:
    rng = random.Random(SEED)
    countdowns = [rng.uniform(_SHORTEST_COUNTDOWN_S, scale.longest_countdown_s) for _ in range(scale.tasks)]
    with server.client() as client:
        client.flushall()
    with BenchWorker(variant, server.port) as worker:
        before = worker.count()
        for number, countdown_s in enumerate(countdowns):
            worker.publish(number, countdown_s)
        deadline = time.monotonic() + scale.longest_countdown_s + _LOST_AFTER_S
        while worker.count() - before < scale.tasks and time.monotonic() < deadline:
            time.sleep(0.2)
        return worker.runs()
