"""What is closed leaves no descriptor and no thread behind, although the garbage collector has not run.

Each test is in a process of its own: threads of other tests, whose servers are gone, open and close connections.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import Exchange, Queue

from celery_delayq import DelayQ
from tests.brokers import ClusterServer, Server
from tests.processes import descriptors, threads
from tests.sentinel import replicated
from tests.support import wait_until

pytestmark = pytest.mark.on_cluster


def in_a_process(function: Callable[..., None], *args: Any) -> None:
    """Call a function in a new process, where it must not raise."""
    process = multiprocessing.get_context("spawn").Process(target=function, args=args)
    process.start()
    try:
        process.join(120)
        assert process.exitcode == 0
    finally:
        process.kill()


def made(url: str, conf: dict[str, Any]) -> Celery:
    """An app without a pool: each publication opens a connection, and closes it."""
    app = Celery("tests", broker=url, set_as_current=False)
    app.conf.update(broker_pool_limit=0, **conf)
    DelayQ(app)
    return app


def publish(app: Celery) -> None:
    app.send_task("note")
    app.send_task("note", countdown=3600)


def consume(app: Celery) -> None:
    with app.connection_for_read() as connection, connection.SimpleQueue("left_open") as queue:
        queue.put("hello")
        queue.get(timeout=30).ack()


def consume_until_it_is_lost(ports: Sequence[int], app: Celery) -> None:
    queues = [Queue("left_open"), Queue("told", Exchange("told", "fanout"), auto_delete=True)]
    with (
        app.connection_for_read() as connection,
        suppress(*connection.recoverable_connection_errors),
        connection.Consumer(queues, on_message=lambda message: message.ack()),
    ):
        with suppress(TimeoutError):
            connection.drain_events(timeout=0.1)
        for port in ports:
            with redis.Redis(port=port) as client:
                for kind in ("normal", "pubsub"):
                    client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
        for _ in range(3):
            with suppress(TimeoutError):
                connection.drain_events(timeout=0.1)


def leaves_nothing(use: Callable[[Celery], None], url: str, conf: dict[str, Any], sentinel: int = 0) -> None:
    """Use an app, then again and again; `sentinel` is the port of one."""
    gc.disable()
    if sentinel:
        use(made(url, conf))
        # From now on this process listens for ten seconds more, at least, and that takes what it takes.
        with redis.Redis(port=sentinel) as client:
            wait_until(lambda: any(int(one["sub"]) for one in client.client_list()), "it listens to the sentinel")
    app = made(url, conf)
    use(app)  # what the first use opens for good
    before = settled()
    for _ in range(10):
        use(app)
    with told():
        wait_until(lambda: held() == before, f"it holds {before} again")


def held() -> tuple[int, int]:
    return len(descriptors(os.getpid())), threads(os.getpid())


@contextmanager
def told() -> Iterator[None]:
    """Say what this process holds if a wait fails."""
    try:
        yield
    except AssertionError as exc:
        there = [thread.name for thread in threading.enumerate()]
        raise AssertionError(f"{exc}; it holds {held()}: {there}, {descriptors(os.getpid())}") from None


def settled() -> tuple[int, int]:
    """What this process holds when the threads of the last connection have ended."""
    seen = [held()]

    def is_settled() -> bool:
        seen.append(held())
        return len(seen) > 100 and len(set(seen[-100:])) == 1

    with told():
        wait_until(is_settled, "all threads have ended")
    return seen[-1]


@pytest.mark.parametrize("use", [publish, consume])
def test_a_closed_connection_leaves_nothing_open(broker_url: str, use: Callable[[Celery], None]) -> None:
    in_a_process(leaves_nothing, use, broker_url, {})


def test_a_connection_that_was_lost_leaves_nothing_open(broker_url: str, broker_server: Server) -> None:
    nodes = broker_server.cluster.nodes if isinstance(broker_server, ClusterServer) else [broker_server]
    in_a_process(leaves_nothing, partial(consume_until_it_is_lost, [it.port for it in nodes]), broker_url, {})


@pytest.mark.one_server("a Sentinel")
@pytest.mark.parametrize("use", [publish, consume])
def test_a_closed_connection_by_way_of_sentinel_leaves_nothing_open(
    tmp_path: Path, use: Callable[[Celery], None]
) -> None:
    with replicated(tmp_path) as servers:
        in_a_process(leaves_nothing, use, servers.url, servers.conf, servers.sentinel.port)
