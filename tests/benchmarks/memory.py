"""Memory: what a pending message costs Redis, and what pending messages cost a worker."""

from __future__ import annotations

import time

import redis

from celery_delayq import DelayedQueue
from examples.private_redis import PrivateRedis
from tests.benchmarks.copies import Copier
from tests.benchmarks.figures import OURS, STOCK, Target
from tests.benchmarks.filling import PAYLOAD_BYTES, Filler
from tests.benchmarks.report import Report
from tests.benchmarks.scale import Scale
from tests.benchmarks.usage import server_bytes
from tests.benchmarks.worker import BenchWorker, worker_pair
from tests.support import wait_until

_DAY_S = 86_400
_PAYLOADS = (200, PAYLOAD_BYTES, 10_000)
_MIRRORED = "with Redisson's mirror list"

#: Two samples of a worker's memory this far apart tell whether it still grows, in seconds.
_SETTLED_AFTER_S = 6.0


def run(scale: Scale) -> Report:
    report = Report(f"memory: what {scale.memory_pending:,} pending messages cost, a message")
    for payload_bytes in _PAYLOADS:
        used = report.figure(f"Redis, payload of {payload_bytes:,} bytes", "bytes")
        times = report.figure(
            f"Redis, payload of {payload_bytes:,} bytes",
            "times the payload",
            target=Target(1.6) if payload_bytes == PAYLOAD_BYTES else None,
        )
        variants = {OURS: False, _MIRRORED: True} if payload_bytes == PAYLOAD_BYTES else {OURS: False}
        for variant, mirrored in variants.items():
            a_message = _server_bytes(scale.memory_pending, payload_bytes, mirrored=mirrored) / scale.memory_pending
            used.add(variant, a_message)
            times.add(variant, a_message / payload_bytes)
    _worker_memory(report, scale)
    report.notes.append("Worker: resident memory of the main process after a warm-up, which is what receives messages.")
    return report


def _server_bytes(pending: int, payload_bytes: int, *, mirrored: bool) -> int:
    with PrivateRedis() as server, server.client() as client:
        queue = DelayedQueue(client, "celery", mirror_list=mirrored)
        filler = _filler(queue, payload_bytes)
        filler.fill_up_to(1)  # scripts and buffers
        before = server_bytes(client)
        filler.fill_up_to(1 + pending)
        return server_bytes(client) - before


def _worker_memory(report: Report, scale: Scale) -> None:
    task = report.figure(f"Redis, a small task, {scale.stock_pending:,} pending", "bytes")
    million = report.figure(
        f"Redis, payload of {PAYLOAD_BYTES} bytes, {scale.worker_pending:,} pending",
        "times the payload",
        target=Target(1.6),
    )
    grown = report.figure("worker, growth by pending messages", "MiB", target=Target(1.0))
    total = report.figure("worker, with them", "MiB")
    with worker_pair() as workers:
        empty = _settled(workers)
        for variant, worker in workers.items():
            before = server_bytes(worker.client)
            Copier(worker.app, worker.client).publish(range(scale.stock_pending), time.time() + _DAY_S)
            if variant == STOCK:
                wait_until(lambda: workers[STOCK].client.hlen("unacked") >= scale.stock_pending, "it has all", 180)
            task.add(variant, (server_bytes(worker.client) - before) / scale.stock_pending)
        million.add(OURS, _fill(workers[OURS].client, scale.worker_pending) / PAYLOAD_BYTES)
        for variant, full in _settled(workers).items():
            grown.add(variant, (full - empty[variant]) / 2**20)
            total.add(variant, full / 2**20)
    report.notes.append(
        f"Worker: with {scale.worker_pending:,} pending messages ({OURS}), with {scale.stock_pending:,} ({STOCK})."
    )


def _fill(client: redis.Redis, pending: int) -> float:
    """Offer messages until so many wait; return how many bytes each of them took."""
    queue, before = DelayedQueue(client, "celery"), server_bytes(client)
    missing = pending - queue.size()
    _filler(queue, PAYLOAD_BYTES).fill_up_to(pending)
    return (server_bytes(client) - before) / missing


def _settled(workers: dict[str, BenchWorker]) -> dict[str, int]:
    """Return the memory of workers in bytes after they had time for a look at their queues."""
    time.sleep(_SETTLED_AFTER_S)
    return {variant: worker.memory_bytes() for variant, worker in workers.items()}


def _filler(queue: DelayedQueue, payload_bytes: int) -> Filler:
    far_away_ms = int(time.time() + 30 * _DAY_S) * 1000
    return Filler(queue, first_due_ms=far_away_ms, span_ms=_DAY_S * 1000, payload_bytes=payload_bytes)
