"""Moves: how long a publisher waits while the slot of a large queue goes to another node of a cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery_delayq import DelayedQueue
from tests.benchmarks.figures import OURS, Target
from tests.benchmarks.filling import Filler
from tests.benchmarks.report import Report
from tests.benchmarks.shop import make_app
from tests.brokers import ClusterServer
from tests.redis_cluster.servers import Cluster, cluster, slot_of

_QUEUE = "q0"

#: Delayed messages, and as many ready ones, of so many bytes.
_COUNT, _BYTES = 10_000, 1_000

_A_CALL, _DAY_MS = 1_000, 86_400_000

_MOVES = 4

#: The publisher pauses for so long between two tasks, in seconds.
_PAUSE_S = 0.002

_PAUSE = Target(0.5)


def report_moves(report: Report, settings: tuple[str, ...]) -> None:
    """Measure the longest call of a publisher in each of some moves.

    Args:
        report: gets the figure.
        settings: of the servers.
    """
    figure = report.figure("a queue of 20 MB moves: longest call of a publisher", "s", target=_PAUSE)
    with cluster(3, settings=settings) as nodes:
        app = make_app(nodes.url(3))
        try:
            _fill(nodes)
            for _ in range(_MOVES):
                target = next(node for node in nodes.masters() if node is not nodes.owner(_QUEUE))
                with _publishing(app.tasks["note"]) as longest_s:
                    nodes.move(slot_of(_QUEUE), target)
                figure.add(OURS, max(longest_s))
        finally:
            app.close()
    report.notes.append(f"{_COUNT:,} delayed and {_COUNT:,} ready messages of {_BYTES:,} bytes move by MIGRATE")


def _fill(nodes: Cluster) -> None:
    far_ms = round(time.time() * 1000) + _DAY_MS
    with ClusterServer(nodes).client() as client:
        filler = Filler(DelayedQueue(client, _QUEUE), first_due_ms=far_ms, span_ms=_DAY_MS, payload_bytes=_BYTES)
        filler.fill_up_to(_COUNT)
        for _ in range(_COUNT // _A_CALL):
            client.lpush(_QUEUE, *[bytes(_BYTES)] * _A_CALL)


@contextmanager
def _publishing(note: Any) -> Iterator[list[float]]:
    """Publish to the queue while the block lasts; give how long each call took, in seconds."""
    took: list[float] = []
    stop = threading.Event()

    def publish() -> None:
        while not stop.wait(_PAUSE_S):
            begin = time.monotonic()
            note.apply_async((0,), queue=_QUEUE)
            took.append(time.monotonic() - begin)

    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    try:
        yield took
    finally:
        stop.set()
        thread.join()
