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
    sizes = {STOCK: (scale.stock_burst, scale.stock_burst), OURS: (scale.burst, scale.immediate_burst)}
    report = Report(
        f"burst: {scale.burst:,} tasks, {scale.stock_burst:,} with {STOCK}, one prefork worker of 2 processes"
    )
    rate = {
        _DUE: report.figure(f"{_DUE}: rate from then to the last start", "tasks/s"),
        _IMMEDIATE: report.figure(f"{_IMMEDIATE}: rate from then to the last start", "tasks/s"),
    }
    share = report.figure(f"{_DUE} to {_IMMEDIATE}", "times", target=Target(0.9, at_most=False))
    first = report.figure(f"{_DUE}: first start", "ms after it")
    other = {when: report.figure(f"{when}: PING of another client, p99", "ms") for when in ("idle", _DUE, _IMMEDIATE)}
    for variant, counts in sizes.items():
        due, now = _bursts(variant, *counts)
        for when, found in ((_DUE, due), (_IMMEDIATE, now)):
            rate[when].add(variant, found.rate)
            other[when].add(variant, found.ping_ms)
        share.add(variant, due.rate / now.rate)
        first.add(variant, due.first_ms)
        other["idle"].add(variant, due.idle_ping_ms)
    report.notes += [
        f"{STOCK}: its worker has fetched all of them before they are due, and holds them in memory.",
        f"Immediate: all of them are in the queue in one instant, too; {scale.immediate_burst:,} of them with {OURS}.",
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


def _bursts(variant: str, count: int, immediate: int) -> tuple[_Burst, _Burst]:
    """Let tasks be due at one instant, then let immediate ones be in the queue at one instant."""
    with PrivateRedis() as server, BenchWorker(variant, server.port) as worker:
        copier = Copier(worker.app, worker.client)
        with pings(server) as idle_ms:
            time.sleep(_QUIET_S)
        due_at = time.time() + seconds_to_publish(count) + (count / _FETCHED_PER_S if variant == STOCK else 0)
        copier.publish(range(count), due_at)
        if time.time() > due_at:
            raise RuntimeError("publishing took longer than expected: the tasks were due before its end")
        time.sleep(max(0.0, due_at - time.time()))
        due = _wait(server, worker, due_at, count)
        copier.prepare(range(count, count + immediate))
        begin_at = time.time()
        copier.release()
        now = _wait(server, worker, begin_at, count + immediate)
        return replace(due, idle_ping_ms=percentile(idle_ms, 99)), now


def _wait(server: PrivateRedis, worker: BenchWorker, begin_at: float, count: int) -> _Burst:
    """Wait until so many tasks have begun; tell of those since `begin_at`, a unix time in s."""

    def is_over() -> bool:
        time.sleep(_LOOK_EVERY_S)
        return worker.count() >= count

    with pings(server) as took_ms:
        wait_until(is_over, "all have run", _DEADLINE_S)
    ran_at = [one.ran_at for one in worker.runs() if one.ran_at >= begin_at]
    return _Burst(len(ran_at) / (max(ran_at) - begin_at), (min(ran_at) - begin_at) * 1000, percentile(took_ms, 99))
