"""However often its connections are lost, a worker leaves nothing open of what it had."""

from __future__ import annotations

import time
from operator import le

import pytest
import redis
from celery import Celery

from tests.integration.long_tasks import long_worker
from tests.ledger import Ledger
from tests.processes import connections, descriptors, threads
from tests.support import wait_until

pytestmark = pytest.mark.on_cluster

#: How many times the connections are lost; and how many times before that, while the worker takes what it needs.
_RESETS, _AT_FIRST = 50, 3

#: So much more it may hold than at first: threads share a pool, and what is done every half a minute takes a connection
#: to each node. Far less than one for each reset.
_MORE = 8


def published(app: Celery, task: str, *args: float) -> str:
    """Publish a task on a connection of its own: the others were lost."""
    with app.connection_for_write() as connection:
        return str(app.send_task(task, args, connection=connection).id)


def held(pid: int) -> tuple[int, int, int]:
    """How many descriptors, connections and threads a process has."""
    return len(descriptors(pid)), len(connections(pid)), threads(pid)


def settled(pid: int) -> tuple[int, int, int]:
    """What a process holds once that has not changed for a second."""
    since, last = time.monotonic(), held(pid)

    def is_settled() -> bool:
        nonlocal since, last
        now = held(pid)
        if now != last:
            since, last = time.monotonic(), now
        return time.monotonic() > since + 1

    wait_until(is_settled, "it holds the same for a second")
    return last


@pytest.mark.parametrize(
    "pool",
    [
        "prefork",
        pytest.param("threads", marks=pytest.mark.one_server("one pool is enough")),
        pytest.param("solo", marks=pytest.mark.one_server("one pool is enough")),
    ],
)
def test_a_worker_holds_hardly_more_after_fifty_resets_than_before(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger, pool: str
) -> None:
    conf = {"result_backend": broker_url}
    with long_worker(broker=broker_url, ledger=ledger, pool=pool, concurrency=2, conf=conf) as worker:

        def reset() -> None:
            """Cut all connections, while tasks run that are acknowledged late."""
            running = [published(app, "nap", 0.2) for _ in range(2 if pool != "solo" else 0)]
            wait_until(lambda: ledger.has(running), "they run")
            for kind in ("normal", "pubsub"):
                broker_client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
            after = published(app, "note")
            wait_until(lambda: ledger.has([after]), "the worker is back")

        before = set()
        for _ in range(_AT_FIRST):
            reset()
            before.add(settled(worker.pid))
        for _ in range(_RESETS):
            reset()
        most = tuple(most + _MORE for most in map(max, zip(*before, strict=True)))
        wait_until(lambda: all(map(le, held(worker.pid), most)), f"it holds {most} at most")
