"""A server that hangs for longer than `socket_timeout`, and then takes what it was sent, and what was sent again."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayedQueue, Throttle, Unique
from celery_delayq.transport import publisher as publishing
from tests.brokers import ClusterServer, Server
from tests.support import wait_until
from tests.worker_app import publisher

pytestmark = pytest.mark.on_cluster

KEY = "remind:42"


@pytest.fixture
def app(broker_url: str, ledger_url: str) -> Iterator[Celery]:
    with publisher(broker_url, ledger_url, broker_transport_options={"socket_timeout": 0.5}) as app:
        yield app


def pid_of(server: Server, name: str) -> int:
    """The process that has a list."""
    if not isinstance(server, ClusterServer):
        return server.pid
    with server.client() as client:
        port = client.node_of(name).address.port
    return next(node.pid for node in server.cluster.nodes if node.port == port)


@contextmanager
def hanging(pid: int) -> Iterator[Callable[..., None]]:
    """Let a server hang; give a function that ends that."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield lambda *_: os.kill(pid, signal.SIGCONT)
    finally:
        os.kill(pid, signal.SIGCONT)


def ready(waiting: DelayedQueue) -> int:
    """How many messages are ready; 0 as long as others wait."""
    waiting.transfer()
    return 0 if waiting.size() else int(waiting.client.llen(waiting.name))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"countdown": 0.2},
        {"throttle": Throttle("1000/s")},
        {"unique": KEY, "countdown": 0.2},
        {"unique": Unique(key=KEY, for_="until_done")},
        {"unique": Unique(key=KEY, period=600)},
        {"unique": Unique(key=KEY, for_="until_done", on_conflict="replace"), "countdown": 0.2},
    ],
    ids=["immediate", "delayed", "throttled", "unique and delayed", "unique", "for a period", "replacing"],
)
def test_a_task_is_stored_once(
    app: Celery, waiting: DelayedQueue, broker_server: Server, options: dict[str, Any]
) -> None:
    note = app.tasks["note"]
    note.apply_async(**options)
    wait_until(lambda: ready(waiting), "it is ready")
    waiting.client.delete(waiting.name)
    app.delayq.forget(KEY)
    with hanging(pid_of(broker_server, "celery")) as go_on:
        result = note.apply_async(
            retry_policy={"errback": go_on, "max_retries": 20, "interval_start": 0, "interval_step": 0.1}, **options
        )
    wait_until(lambda: ready(waiting), "it is ready")
    assert ready(waiting) == 1
    assert getattr(result, "was_new", True)


def test_a_later_task_with_the_same_id_is_another_one(
    app: Celery, waiting: DelayedQueue, broker_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the caller was told that the first one failed, and it was stored."""
    monkeypatch.setattr(publishing, "SOON_S", 0.0)
    note = app.tasks["note"]
    note.apply_async()
    with hanging(pid_of(broker_server, "celery")), pytest.raises(note.OperationalError):
        note.apply_async(task_id="refresh", retry=False)
    wait_until(lambda: ready(waiting) == 2, "the server has stored it")
    note.apply_async(task_id="refresh")
    assert ready(waiting) == 3
