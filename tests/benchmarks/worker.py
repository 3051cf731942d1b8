"""A `celery worker` of the benchmarks, ready and warm."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import redis
from celery import Celery

from examples.private_redis import PrivateRedis
from tests.benchmarks.figures import OURS, STOCK
from tests.benchmarks.shop import broker_url, make_app
from tests.benchmarks.usage import process_bytes
from tests.support import wait_until
from tests.workers import CeleryCommand

#: RabbitMQ's native delays take no shorter countdown, in seconds.
SHORTEST_COUNTDOWN_S = 1.0

#: Tasks that run before anything is measured; each child process of the worker gets some.
_WARM_UP = 40


@dataclass(frozen=True)
class Run:
    """That a task ran: its number, when (unix time in s), and how late, in ms; 0 for one without an eta."""

    number: int
    ran_at: float
    lateness_ms: float


class BenchWorker(CeleryCommand):
    """`celery worker -P prefork -c 2 -l WARNING`, all other options at their defaults.

    Args:
        variant: `stock`, `delayq` or a peer.
        port: of its server; of a Redis server, database 0 is used.
        pool: `prefork` or `solo`.
        broker: the broker URL, if it is another one than that of the variant.
        queues: what it consumes; by default, the app's default queue.
        conf: further configuration of the app.

    Attributes:
        app: to publish with.
        client: of the server, if that is a Redis.
    """

    def __init__(
        self,
        variant: str,
        port: int,
        pool: str = "prefork",
        *,
        broker: str | None = None,
        queues: Sequence[str] = (),
        conf: Mapping[str, Any] | None = None,
    ) -> None:
        broker = broker or broker_url(variant, port)
        self.queues = tuple(queues)
        self._records = tempfile.TemporaryDirectory(prefix="delayq-bench-")
        self._ledger = Path(self._records.name, "ledger")
        self.app: Celery = make_app(broker)
        self.client = redis.Redis(host="127.0.0.1", port=port)
        options = ["-P", pool, "-c", "2", "-l", "WARNING", "-n", f"{variant}@%h"]
        if queues:
            options += ["-Q", ",".join(queues)]
        shop = "tests.benchmarks.shop"
        super().__init__("worker", *options, broker=broker, ledger=str(self._ledger), app=shop, conf=conf, stops=True)

    def __enter__(self) -> BenchWorker:
        super().__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()  # all is measured, and to end well may take it half a minute
        super().__exit__(*exc_info)
        self.app.close()
        self.client.close()
        self._records.cleanup()

    def wait_until_ready(self) -> None:
        """Run some tasks, half of them delayed."""
        for number in range(_WARM_UP):
            self.publish(number, countdown_s=SHORTEST_COUNTDOWN_S if number % 2 else 0)
        wait_until(lambda: self._ledger.exists() and self.count() >= _WARM_UP, "the warm-up has run", 60)
        self.forget()

    def publish(self, number: int, countdown_s: float) -> None:
        """Publish a task, to one queue after the other."""
        queue = {"queue": self.queues[number % len(self.queues)]} if self.queues else {}
        self.app.tasks["note"].apply_async((number,), countdown=countdown_s or None, **queue)

    def forget(self) -> None:
        """Forget what ran so far."""
        os.truncate(self._ledger, 0)

    def runs(self) -> list[Run]:
        """Return what ran so far."""
        lines = [line.split() for line in self._ledger.read_text().splitlines()]
        return [Run(int(number), float(ran_at), _lateness_ms(float(ran_at), eta)) for number, ran_at, eta in lines]

    def count(self) -> int:
        """Return how many tasks ran so far; cheaper than `runs`."""
        return self._ledger.read_bytes().count(b"\n")

    def memory_bytes(self) -> int:
        """Return the resident memory of the main process, which is what receives messages."""
        return process_bytes(self.pid)


@contextmanager
def worker_pair(pool: str = "prefork", queues: Sequence[str] = ()) -> Iterator[dict[str, BenchWorker]]:
    """Give a worker of each variant, on servers of their own; the one that is not measured has nothing to do."""
    with ExitStack() as stack:
        servers = {variant: stack.enter_context(PrivateRedis()) for variant in (STOCK, OURS)}
        yield stack.enter_context(workers_on({name: server.port for name, server in servers.items()}, pool, queues))


@contextmanager
def workers_on(
    ports: Mapping[str, int], pool: str = "prefork", queues: Sequence[str] = ()
) -> Iterator[dict[str, BenchWorker]]:
    """Give a worker of each variant, on the server at its port."""
    with ExitStack() as stack:
        workers = {name: BenchWorker(name, port, pool, queues=queues) for name, port in ports.items()}
        for worker in workers.values():
            stack.push(worker)
            worker.start()
        for worker in workers.values():
            worker.wait_until_ready()
        yield workers


def _lateness_ms(ran_at: float, eta: str) -> float:
    return 0.0 if eta == "-" else (ran_at - datetime.fromisoformat(eta).timestamp()) * 1000
