"""Lateness of execution: how long after its eta a task begins to run."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from tests.benchmarks.copies import Copier, seconds_to_publish
from tests.benchmarks.figures import Figure, Target, in_turns, percentile
from tests.benchmarks.load import busy_tasks, cpu_load
from tests.benchmarks.report import Report
from tests.benchmarks.scale import SEED, Scale
from tests.benchmarks.worker import SHORTEST_COUNTDOWN_S, BenchWorker, Run, worker_pair

#: After the last eta, and so long after the last one that ran, what did not run counts as lost, in seconds.
_LOST_AFTER_S = 10.0

#: The shortest countdown of those that are published meanwhile, in seconds.
_SOON_S = 0.5

#: Targets: at most so many times stock's.
_AS_STOCK = {"p50": 1.5, "p99": 1.5}
_MEANWHILE = {"p50": 1.2, "p99": 1.5}

_PERCENTS = {"p50": 50, "p95": 95, "p99": 99, "max": 100}


@dataclass(frozen=True)
class Condition:
    """Under what lateness is measured.

    Attributes:
        name: in the report.
        countdowns: of the tasks, in seconds.
        rounds: turns.
        published_by_celery: whether each is published by `apply_async`; otherwise copies are, see `Copier`.
        loaded: whether other processes want the CPU.
        busy: whether the worker is busy with other tasks half of its time.
        targets: percentile -> at most so many times stock's.
    """

    name: str
    countdowns: Sequence[float]
    rounds: int = 1
    published_by_celery: bool = True
    loaded: bool = False
    busy: bool = False
    targets: Mapping[str, float] = field(default_factory=dict)


def run(scale: Scale) -> Report:
    report = Report("lateness of execution: from the eta of a task to its start")
    with worker_pair() as workers:
        for condition in _conditions(scale):
            compare(report, workers, condition)
    with worker_pair() as waiting:
        beyond = Beyond(waiting, scale)
        with worker_pair() as workers:
            compare(report, workers, _under_load(scale))
        with worker_pair("solo") as workers:
            compare(report, workers, _on_a_busy_worker(scale))
        beyond.show(report)
    report.notes += [
        "One worker: prefork with 2 processes, unless it says solo.",
        "At a constant rate: all are published before the first is due. What is more than a worker can do adds up.",
        "Above a minute: both workers wait at the same time; the tasks of one are due after those of the other.",
        "Under CPU load: one process a core that never sleeps. Busy: other tasks take half of the worker's time.",
        "On a shared machine look at the steal time, too: it is what makes long tails.",
    ]
    return report


def _conditions(scale: Scale) -> list[Condition]:
    steady_tasks = int(scale.steady_s * scale.steady_rate)
    steady = [seconds_to_publish(steady_tasks) + number / scale.steady_rate for number in range(steady_tasks)]
    return [
        random_countdowns(scale),
        _published_meanwhile(scale),
        Condition(f"{scale.steady_rate:,}/s for {scale.steady_s:g} s", steady, published_by_celery=False),
    ]


def random_countdowns(scale: Scale) -> Condition:
    """Return the condition in which nothing else goes on."""
    name = f"{scale.tasks:,} in {scale.longest_countdown_s:g} s"
    return Condition(name, _countdowns(scale), rounds=scale.rounds, targets=_AS_STOCK)


def _published_meanwhile(scale: Scale) -> Condition:
    """Return the condition in which the first ones already run while the others are published."""
    rng = random.Random(SEED)
    countdowns = [rng.uniform(_SOON_S, scale.longest_countdown_s) for _ in range(scale.tasks)]
    name = f"{scale.tasks:,} published while they run"
    return Condition(name, countdowns, rounds=scale.rounds, targets=_MEANWHILE)


def fewer_random_countdowns(scale: Scale) -> Condition:
    """Return the same, for half of the time and once."""
    few = _first_half(_countdowns(scale))
    return Condition(f"{len(few):,} in {scale.longest_countdown_s / 2:g} s", few)


def _under_load(scale: Scale) -> Condition:
    loaded = _first_half(_countdowns(scale))
    return Condition(f"{len(loaded):,} under CPU load", loaded, loaded=True)


def _on_a_busy_worker(scale: Scale) -> Condition:
    loaded = _first_half(_countdowns(scale))
    few = loaded[:: max(1, len(loaded) // 150)]
    return Condition(f"{len(few):,} on a busy solo worker", few, busy=True)


def _countdowns(scale: Scale) -> list[float]:
    rng = random.Random(SEED)
    return [rng.uniform(SHORTEST_COUNTDOWN_S, scale.longest_countdown_s) for _ in range(scale.tasks)]


def _first_half(countdowns: Sequence[float]) -> list[float]:
    """Return those that are due in the first half of the time."""
    return [one for one in countdowns if one <= max(countdowns) / 2]


def _show(report: Report, condition: Condition, results: dict[str, list[list[Run]]]) -> None:
    def figure(name: str, unit: str, target: Target | None) -> Figure:
        return report.figure(f"{condition.name}: {name}", unit, target=target)

    percentiles = {
        name: figure(name, "ms", Target(condition.targets[name], ratio=True) if name in condition.targets else None)
        for name in _PERCENTS
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


def compare(report: Report, workers: dict[str, BenchWorker], condition: Condition) -> None:
    """Measure a condition with each worker in turn, and add what was found to a report."""
    turns = {name: partial(_measure, worker, condition) for name, worker in workers.items()}
    _show(report, condition, in_turns(condition.rounds, turns))


def _measure(worker: BenchWorker, condition: Condition) -> list[Run]:
    countdowns = condition.countdowns
    worker.forget()
    with ExitStack() as stack:
        if condition.busy:
            stack.enter_context(busy_tasks(worker.app))
        if condition.loaded:
            stack.enter_context(cpu_load())
        if condition.published_by_celery:
            _publish(worker, countdowns)
        else:
            now, tasks = time.time(), range(len(countdowns))
            Copier(worker.app, worker.client).publish(tasks, *(now + one for one in countdowns))
        return _wait(worker, countdowns)


class Beyond:
    """Lets workers wait for tasks at the same time; those of the second are due after those of the first, and so on.

    Other conditions can be measured meanwhile. If they take longer than the wait, `show` says so.
    """

    def __init__(self, workers: dict[str, BenchWorker], scale: Scale) -> None:
        rng = random.Random(SEED)
        span_s = scale.longest_countdown_s / 2
        countdowns = [scale.beyond_s + rng.uniform(0.5, span_s) for _ in range(scale.tasks // 2)]
        self._condition = Condition(f"{len(countdowns):,} above {scale.beyond_s:g} s", countdowns)
        self._due_at = time.monotonic() + scale.beyond_s
        self._workers = workers
        self._late = {name: [span_s * turn + one for one in countdowns] for turn, name in enumerate(workers)}
        for name, worker in workers.items():
            worker.forget()
            _publish(worker, self._late[name])

    def show(self, report: Report) -> None:
        """Wait until all have run, and add what was measured."""
        if time.monotonic() > self._due_at:
            report.notes.append(f"{self._condition.name}: disturbed by other conditions, which took too long.")
        _show(report, self._condition, {name: [_wait(one, self._late[name])] for name, one in self._workers.items()})


def _publish(worker: BenchWorker, countdowns: Sequence[float]) -> None:
    for number, countdown_s in enumerate(countdowns):
        worker.publish(number, countdown_s)


def _wait(worker: BenchWorker, countdowns: Sequence[float]) -> list[Run]:
    """Return what ran, once all have run, or those that have not count as lost."""
    count, deadline = 0, time.monotonic() + max(countdowns) + _LOST_AFTER_S
    while count < len(countdowns) and time.monotonic() < deadline:
        time.sleep(0.2)
        before, count = count, worker.count()
        if count > before:
            deadline = max(deadline, time.monotonic() + _LOST_AFTER_S)
    return worker.runs()
