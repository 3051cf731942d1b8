"""Throughput: how many empty tasks a worker takes from a backlog per second, and with how many Redis commands."""

from __future__ import annotations

import time
from functools import partial

import redis

from tests.benchmarks.copies import Copier
from tests.benchmarks.figures import Target, in_turns
from tests.benchmarks.report import Report
from tests.benchmarks.scale import Scale
from tests.benchmarks.worker import BenchWorker, worker_pair
from tests.support import wait_until

#: Pool and number of queues -> how many times stock's rate it should reach.
_RUNS = {("prefork", 1): 1.8, ("solo", 1): 2.5, ("prefork", 100): 1.0}

#: What scripts of ours call while they fetch; the server counts it as if a client had sent it.
_CALLED_BY_SCRIPTS = {"rpop", "lpush", "llen", "zscore"}

#: What the measurement itself sends.
_OURS = {"llen", "info", "config|resetstat", "rename"}

_DEADLINE_S = 300


def run(scale: Scale) -> Report:
    turns = scale.backlog_turns
    report = Report(
        f"throughput: a worker that finds {scale.backlog:,} empty tasks, -c 2, in {turns} turns of equal size",
        notes=[
            "The rate is that at which they leave the queue, from when they are in it; commands are those of clients.",
            "Both workers run all the time; one of them has nothing to do.",
        ],
    )
    for (pool, queues), times in _RUNS.items():
        what = pool if queues == 1 else f"{pool}, {queues} queues"
        rate = report.figure(f"{what}: rate", "tasks/s", target=Target(times, at_most=False, ratio=True))
        commands = report.figure(f"{what}: commands a task", "", target=Target(2.0))
        server = report.figure(f"{what}: Redis' time a task", "µs")
        with worker_pair(pool, [f"q{number}" for number in range(queues)]) as workers:
            drains = {name: partial(_drain, worker, scale.backlog // turns) for name, worker in workers.items()}
            for name, results in in_turns(turns, drains).items():
                for tasks_per_s, commands_per_task, us_per_task in results:
                    rate.add(name, tasks_per_s)
                    commands.add(name, commands_per_task)
                    server.add(name, us_per_task)
    return report


def _drain(worker: BenchWorker, count: int) -> tuple[float, float, float]:
    """Let a worker run so many tasks; return tasks a second, and commands and the server's µs a task."""
    client = worker.client
    copiers = [Copier(worker.app, client, "empty", queue) for queue in worker.queues]
    for copier in copiers:
        copier.prepare(range(count // len(copiers)))
    client.config_resetstat()
    began = time.perf_counter()
    for copier in copiers:
        copier.release()
    wait_until(lambda: not any(map(client.llen, worker.queues)), "the backlog is gone", _DEADLINE_S)
    seconds = time.perf_counter() - began
    calls, us = _commands(client)
    return count / seconds, calls / count, us / count


def _commands(client: redis.Redis) -> tuple[int, int]:
    """Return how many commands clients have sent since the counters were reset, and how many µs they took."""
    stats = client.info("commandstats")
    sent = [stat for name, stat in stats.items() if name.removeprefix("cmdstat_") not in _OURS | _CALLED_BY_SCRIPTS]
    return sum(int(stat["calls"]) for stat in sent), sum(int(stat["usec"]) for stat in sent)
