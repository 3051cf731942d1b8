"""Lateness of execution: how long after its eta a task begins to run."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from examples.private_redis import PrivateRedis
from tests.benchmarks.copies import Copier, seconds_to_publish
from tests.benchmarks.figures import OURS, STOCK, Figure, Target, in_turns, percentile
from tests.benchmarks.load import busy_tasks, cpu_load
from tests.benchmarks.report import Report
from tests.benchmarks.scale import SEED, Scale
from tests.benchmarks.worker import BenchWorker, Run

_SHORTEST_COUNTDOWN_S = 0.5

#: How long after the last eta a task counts as lost, in seconds.
_LOST_AFTER_S = 10.0

_PERCENTS = {"p50": 50, "p95": 95, "p99": 99, "max": 100}


@dataclass(frozen=True)
class _Condition:
    """Under what lateness is measured.

    Attributes:
        name: in the report.
        countdowns: of the tasks, in seconds.
        rounds: turns.
        pool: of the worker.
        published_by_celery: whether each is published by `apply_async`; otherwise copies are, see `Copier`.
        loaded: whether other processes want the CPU.
        busy: whether the worker is busy with other tasks half of its time.
        targets: by name of the percentile.
    """

    name: str
    countdowns: Sequence[float]
    rounds: int = 1
    pool: str = "prefork"
    published_by_celery: bool = True
    loaded: bool = False
    busy: bool = False
    targets: tuple[str, ...] = ()


def run(scale: Scale) -> Report:
    report = Report("lateness of execution: from the eta of a task to its start")
    for condition in _conditions(scale):
        turns = {name: partial(_measure, name, condition) for name in (STOCK, OURS)}
        _show(report, condition, in_turns(condition.rounds, turns))
    _show(report, *_beyond(scale))
    report.notes += [
        "One worker: prefork with 2 processes, unless it says solo.",
        "At a constant rate: all tasks are published before the first is due.",
        "Above a minute: both workers wait at the same time; the tasks of one are due after those of the other.",
        "Under CPU load: one process a core that never sleeps. Busy: other tasks take half of the worker's time.",
        "On a shared machine look at the steal time, too: it is what makes long tails.",
    ]
    return report


def _conditions(scale: Scale) -> list[_Condition]:
    rng = random.Random(SEED)
    shorts = [rng.uniform(_SHORTEST_COUNTDOWN_S, scale.longest_countdown_s) for _ in range(scale.tasks)]
    steady_tasks = int(scale.steady_s * scale.steady_rate)
    steady = [seconds_to_publish(steady_tasks) + number / scale.steady_rate for number in range(steady_tasks)]
    loaded = [one for one in shorts if one <= scale.longest_countdown_s / 2]
    few = loaded[:: max(1, len(loaded) // 150)]
    return [
        _Condition(f"{scale.tasks:,} in {scale.longest_countdown_s:g} s", shorts, scale.rounds, targets=("p50", "p99")),
        _Condition(f"{scale.steady_rate:,}/s for {scale.steady_s:g} s", steady, published_by_celery=False),
        _Condition(f"{len(loaded):,} under CPU load", loaded, loaded=True),
        _Condition(f"{len(few):,} on a busy solo worker", few, pool="solo", busy=True),
    ]


def _show(report: Report, condition: _Condition, results: dict[str, list[list[Run]]]) -> None:
    def figure(name: str, unit: str, target: Target | None) -> Figure:
        return report.figure(f"{condition.name}: {name}", unit, target=target)

    percentiles = {
        name: figure(name, "ms", Target(1.5, ratio=True) if name in condition.targets else None) for name in _PERCENTS
    }
    early, lost, twice = (figure(name, "tasks", Target(0)) for name in ("early", "lost", "twice"))
    for variant, turns in results.items():
        for runs in turns:
            late = [one.lateness_ms for one in runs]
            for name, percent in _PERCENTS.items():
                percentiles[name].add(variant, percentile(late, percent))
            different = len({one.number for one in runs})
            early.add(variant, sum(value < 0 for value in late))
            lost.add(variant, len(condition.countdowns) - different)
            twice.add(variant, len(runs) - different)


def _measure(variant: str, condition: _Condition) -> list[Run]:
    with PrivateRedis() as server, server.client() as client, ExitStack() as stack:
        worker = stack.enter_context(BenchWorker(variant, server.port, condition.pool))
        if condition.busy:
            stack.enter_context(busy_tasks(worker.app))
        if condition.loaded:
            stack.enter_context(cpu_load())
        if condition.published_by_celery:
            _publish(worker, condition.countdowns)
        else:
            now, tasks = time.time(), range(len(condition.countdowns))
            Copier(worker.app, client).publish(tasks, *(now + one for one in condition.countdowns))
        return _wait(worker, condition.countdowns)


def _beyond(scale: Scale) -> tuple[_Condition, dict[str, list[list[Run]]]]:
    """Let both workers wait at the same time, for tasks that are due one worker after the other."""
    rng = random.Random(SEED)
    span_s = scale.longest_countdown_s / 2
    countdowns = [scale.beyond_s + rng.uniform(0.5, span_s) for _ in range(scale.tasks // 2)]
    condition = _Condition(f"{len(countdowns):,} above {scale.beyond_s:g} s", countdowns)
    with ExitStack() as stack:
        servers = {variant: stack.enter_context(PrivateRedis()) for variant in (STOCK, OURS)}
        workers = {name: stack.enter_context(BenchWorker(name, server.port)) for name, server in servers.items()}
        late = {name: [span_s * turn + one for one in countdowns] for turn, name in enumerate(workers)}
        for name, worker in workers.items():
            _publish(worker, late[name])
        return condition, {name: [_wait(worker, late[name])] for name, worker in workers.items()}


def _publish(worker: BenchWorker, countdowns: Sequence[float]) -> None:
    for number, countdown_s in enumerate(countdowns):
        worker.publish(number, countdown_s)


def _wait(worker: BenchWorker, countdowns: Sequence[float]) -> list[Run]:
    """Return what ran, once all have run, or those that have not count as lost."""
    deadline = time.monotonic() + max(countdowns) + _LOST_AFTER_S
    while worker.count() < len(countdowns) and time.monotonic() < deadline:
        time.sleep(0.2)
    return worker.runs()
