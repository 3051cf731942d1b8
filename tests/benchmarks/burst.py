"""A burst: many tasks that are due at one instant, beside as many immediate ones, and what other clients feel."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from examples.private_redis import PrivateRedis
from tests.benchmarks.copies import Copier, seconds_to_publish
from tests.benchmarks.figures import OURS, STOCK, Target, percentile
from tests.benchmarks.load import pings
from tests.benchmarks.report import Report
from tests.benchmarks.scale import Scale
from tests.benchmarks.worker import BenchWorker
from tests.support import wait_until

#: Stock's worker fetches so many tasks a second at least.
_FETCHED_PER_S = 600

_DEADLINE_S = 600
_LOOK_EVERY_S = 0.5

#: How long pings are measured while nothing happens, in seconds.
_QUIET_S = 3.0

_DUE, _IMMEDIATE = "due at one instant", "immediate"


def run(scale: Scale) -> Report:
    sizes = {STOCK: scale.stock_burst, OURS: scale.burst}
    report = Report(
        f"burst: {scale.burst:,} tasks, {scale.stock_burst:,} with {STOCK}, one prefork worker of 2 processes"
    )
    rate = {
        _DUE: report.figure(f"{_DUE}: rate from then to the last start", "tasks/s"),
        _IMMEDIATE: report.figure(f"{_IMMEDIATE}: rate from the first start to the last", "tasks/s"),
    }
    share = report.figure(f"{_DUE} to {_IMMEDIATE}", "times", target=Target(0.9, at_most=False))
    first = report.figure(f"{_DUE}: first start", "ms after it")
    other = {when: report.figure(f"{when}: PING of another client, p99", "ms") for when in ("idle", _DUE, _IMMEDIATE)}
    for variant, count in sizes.items():
        due, now = _due(variant, count), _immediate(variant, count)
        for when, found in ((_DUE, due), (_IMMEDIATE, now)):
            rate[when].add(variant, found.rate)
            other[when].add(variant, found.ping_ms)
        share.add(variant, due.rate / now.rate)
        first.add(variant, due.first_ms)
        other["idle"].add(variant, due.idle_ping_ms)
    report.notes += [
        f"{STOCK}: its worker has fetched all of them before they are due, and holds them in memory.",
        "Immediate: the worker does not consume the queue until all of them are in it.",
    ]
    return report


@dataclass(frozen=True)
class _Burst:
    """What became of one burst.

    Attributes:
        rate: tasks a second.
        first_ms: from the begin to the first start.
        ping_ms: p99 of another client's PING meanwhile.
        idle_ping_ms: the same before; 0 where it was not measured.
    """

    rate: float
    first_ms: float
    ping_ms: float
    idle_ping_ms: float = 0.0


def _due(variant: str, count: int) -> _Burst:
    """Let the tasks be due at one instant."""
    head_start_s = seconds_to_publish(count) + (count / _FETCHED_PER_S if variant == STOCK else 0)
    with PrivateRedis() as server, server.client() as client, BenchWorker(variant, server.port) as worker:
        with pings(server) as idle_ms:
            time.sleep(_QUIET_S)
        before, due_at = worker.count(), time.time() + head_start_s
        Copier(worker.app, client).publish(range(count), due_at)
        if time.time() > due_at:
            raise RuntimeError("publishing took longer than expected: the tasks were due before its end")
        time.sleep(max(0.0, due_at - time.time()))
        return replace(_wait(server, worker, before + count, due_at), idle_ping_ms=percentile(idle_ms, 99))


def _immediate(variant: str, count: int) -> _Burst:
    """Let a worker find the tasks."""
    with PrivateRedis() as server, server.client() as client, BenchWorker(variant, server.port) as worker:
        before, copier = worker.count(), Copier(worker.app, client)
        worker.app.control.cancel_consumer("celery", reply=True, timeout=5)
        copier.publish(range(count))
        worker.app.control.add_consumer("celery")
        return _wait(server, worker, before + count)


def _wait(server: PrivateRedis, worker: BenchWorker, lines: int, begin_at: float | None = None) -> _Burst:
    """Wait until the ledger has so many lines; without a begin, the first start is it."""

    def is_over() -> bool:
        time.sleep(_LOOK_EVERY_S)
        return worker.count() >= lines

    with pings(server) as took_ms:
        wait_until(is_over, "all have run", _DEADLINE_S)
    ran_at = [one.ran_at for one in worker.runs()]
    begin = min(ran_at) if begin_at is None else begin_at
    return _Burst(len(ran_at) / (max(ran_at) - begin), (min(ran_at) - begin) * 1000, percentile(took_ms, 99))
