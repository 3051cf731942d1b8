"""Memory: what a pending message costs Redis, and what pending messages cost a worker."""

from __future__ import annotations

import time
from typing import Any

import redis

from celery_delayq import DelayedQueue
from examples.private_redis import PrivateRedis
from tests.benchmarks.figures import OURS, STOCK, Target
from tests.benchmarks.filling import PAYLOAD_BYTES, fill
from tests.benchmarks.report import Report
from tests.benchmarks.scale import Scale
from tests.benchmarks.worker import BenchWorker
from tests.support import wait_until

_DAY_MS = 86_400_000
_MIRRORED = "with Redisson's mirror list"

#: Two samples of a worker's memory this far apart tell whether it still grows, in seconds.
_SETTLED_AFTER_S = 6.0


def run(scale: Scale) -> Report:
    report = Report(f"memory: pending messages with payloads of {PAYLOAD_BYTES} bytes")
    for pending in scale.pending[1:]:
        figure = report.figure(f"Redis, {pending:,} pending", "times the payload", target=Target(1.6))
        figure.add(OURS, _server_bytes(pending, mirrored=False) / pending / PAYLOAD_BYTES)
        if pending <= scale.mirrored_up_to:
            mirrored = _server_bytes(pending, mirrored=True)
            figure.add(_MIRRORED, mirrored / pending / PAYLOAD_BYTES)
    _worker_memory(report, scale)
    report.notes.append("Worker: resident memory of the main process after a warm-up, which is what receives messages.")
    return report


def _server_bytes(pending: int, *, mirrored: bool) -> int:
    with PrivateRedis() as server, server.client() as client:
        queue = DelayedQueue(client, "celery", mirror_list=mirrored)
        fill(queue, 1, first_due_ms=_far_away_ms(), span_ms=_DAY_MS)  # scripts and buffers
        before = _used(client)
        fill(queue, pending, first_due_ms=_far_away_ms(), span_ms=_DAY_MS)
        return _used(client) - before


def _worker_memory(report: Report, scale: Scale) -> None:
    most = max(scale.pending)
    grown = report.figure("worker, growth by pending messages", "MiB", target=Target(1.0))
    total = report.figure("worker, with them", "MiB")
    with PrivateRedis() as server, server.client() as client:
        with BenchWorker(OURS, server.port) as worker:
            empty = _settled(worker)
            fill(DelayedQueue(client, "celery"), most, first_due_ms=_far_away_ms(), span_ms=_DAY_MS)
            full = _settled(worker)
        grown.add(OURS, (full - empty) / 2**20)
        total.add(OURS, full / 2**20)
        client.flushall()
        with BenchWorker(STOCK, server.port) as worker:
            empty = _settled(worker)
            for number in range(scale.stock_pending):
                worker.publish(number, countdown_s=86_400)
            wait_until(lambda: client.hlen("unacked") >= scale.stock_pending, "the worker has all", 120)
            full = _settled(worker)
        grown.add(STOCK, (full - empty) / 2**20)
        total.add(STOCK, full / 2**20)
    report.notes.append(f"Pending are {most:,} messages with {OURS}, and {scale.stock_pending:,} with {STOCK}.")


def _settled(worker: BenchWorker) -> int:
    """Return the worker's memory in bytes after it had time for a look at its queues."""
    time.sleep(_SETTLED_AFTER_S)
    return worker.memory_bytes()


def _far_away_ms() -> int:
    return int(time.time() * 1000) + 30 * _DAY_MS


def _used(client: redis.Redis) -> int:
    information: Any = client.info("memory")
    return int(information["used_memory"])
