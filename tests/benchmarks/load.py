"""What goes on beside a measurement: processes that want the CPU, tasks that keep a worker busy, another client."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from celery import Celery

from examples.private_redis import PrivateRedis, dying_with_us
from tests.support import beside

#: A busy worker is busy half of its time, with tasks of this length in seconds.
BUSY_S = 0.05

#: How often the other client asks, in seconds.
_PING_EVERY_S = 0.002


@contextmanager
def cpu_load() -> Iterator[None]:
    """Let one process a core compute without end."""
    command = dying_with_us([sys.executable, "-S", "-c", "while True: pass"])
    processes = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def busy_tasks(app: Celery) -> Iterator[None]:
    """Publish tasks that keep a worker busy half of its time."""

    def publish(ended: threading.Event) -> None:
        while not ended.wait(2 * BUSY_S):
            app.tasks["busy"].apply_async((BUSY_S,))

    with beside(publish):
        yield


@contextmanager
def pings(server: PrivateRedis) -> Iterator[list[float]]:
    """Let a client of its own send PING again and again; gives how long each took in ms."""
    took_ms: list[float] = []

    def ping(ended: threading.Event) -> None:
        while not ended.wait(_PING_EVERY_S):
            start = time.perf_counter()
            client.ping()
            took_ms.append((time.perf_counter() - start) * 1000)

    with server.client() as client, beside(ping):
        yield took_ms
