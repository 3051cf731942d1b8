"""What Celery's own prefork pool, with real child processes, still has when a connection is lost.

It is the pool of a worker, without the worker. So a test can lose the connection between two turns of the event loop.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

import pytest
import redis
from celery import Celery
from celery.concurrency.asynpool import AsynPool
from celery.concurrency.prefork import TaskPool
from celery.worker import state
from celery.worker.request import Request
from kombu import Connection
from kombu.asynchronous import Hub

from celery_delayq.worker.handover import Handover
from examples.private_redis import PrivateRedis
from tests.integration.long_tasks import add_long_tasks, open_gate
from tests.ledger import Ledger
from tests.support import wait_until
from tests.worker_app import publisher

# This process forks, perhaps with threads of other tests.
pytestmark = [
    pytest.mark.on_cluster,
    pytest.mark.filterwarnings("ignore:Using fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]

#: More than a pipe holds.
LARGE = {"large": "x" * 300_000}


class Prefork:
    """A pool of one child process, on an event loop that turns only when it is told to."""

    def __init__(self, app: Celery, ledger: Ledger) -> None:
        self._app = app
        self._ledger = ledger
        self._hub = Hub()
        self._connection: Connection = app.connection_for_read()
        self._requests: list[Request] = []  # Celery has weak references only
        self._jobs: WeakValueDictionary[str, Any] = WeakValueDictionary()
        self.pool: Any = TaskPool(1, app=app, threads=False, putlocks=False, initargs=(app, "a host"))
        self.handover = Handover(self.pool, cancels_late=False)
        self.pool.start()
        self.connect()

    def connect(self) -> None:
        """Do what a worker does with a new connection."""
        self._channel = self._connection.channel()
        self.pool.register_with_event_loop(self._hub)
        self._turns = self._hub.create_loop()

    def lose_connection(self) -> set[str]:
        """Do what a worker does when its connection is lost; return the ids of the tasks left to the pool."""
        self._hub.reset()
        left = self.left()
        self.pool.flush()
        return left

    def left(self) -> set[str]:
        """The ids of the tasks that would be left to the pool."""
        tags = self.handover.delivery_tags()
        return {it.id for it in self._requests if it.message.delivery_tag in tags}

    def close(self) -> None:
        """End all processes."""
        if self.pool.active:
            os.kill(self.child, signal.SIGCONT)  # or it would not hear that it is to end
            self.pool.terminate()
        self._hub.close()
        self._connection.release()

    @property
    def child(self) -> int:
        """The id of the child process."""
        (pid,) = self.pool.info["processes"]
        assert isinstance(pid, int)
        return pid

    def give(self, count: int = 1, name: str = "gated_late", **options: Any) -> list[str]:
        """Give it so many tasks; return their ids."""
        return [self._give(name, options) for _ in range(count)]

    def _give(self, name: str, options: dict[str, Any]) -> str:
        task_id: str = self._app.send_task(name, **options).id
        client = self._channel.client
        message = self._channel.Message(json.loads(client.rpop("celery")), channel=self._channel)
        self._channel.qos.append(message, message.delivery_tag)
        request = Request(message, app=self._app, on_ack=message.ack_log_error, hostname="a host")
        self._requests.append(request)
        self._jobs[task_id] = request.execute_using_pool(self.pool)
        return task_id

    def has(self, task_id: str) -> bool:
        """Whether the pool has a task still."""
        gc.collect()  # a failed job refers to itself
        return task_id in self._jobs

    def turn_until(self, predicate: Callable[[], object], description: str) -> None:
        """Turn the event loop until something holds."""

        def holds() -> bool:
            self._hub.call_later(0.01, lambda: None)
            next(self._turns)
            return bool(predicate())

        wait_until(holds, description)

    def turn_until_acknowledged(self, ids: Sequence[str]) -> None:
        self.turn_until(lambda: self.acknowledged(ids) == [*ids], "all are acknowledged")

    def acknowledged(self, ids: Sequence[str]) -> list[str]:
        """Those that are acknowledged."""
        return [it.id for it in self._requests if it.id in ids and it.message.acknowledged]

    def begun(self) -> list[str]:
        """The ids of the tasks that have begun, once for each time."""
        return [run.task_id for run in self._ledger.runs()]


@contextmanager
def prefork_of(url: str, client: redis.Redis, ledger: Ledger) -> Iterator[Prefork]:
    """A pool with messages of an empty broker."""
    client.flushall()
    with publisher(url, ledger.url) as app:
        prefork = Prefork(add_long_tasks(app, ledger), ledger)
        try:
            yield prefork
        finally:
            prefork.close()


@pytest.fixture
def prefork(broker_url: str, broker_client: redis.Redis, ledger: Ledger) -> Iterator[Prefork]:
    with prefork_of(broker_url, broker_client, ledger) as prefork:
        yield prefork


def kill(child: int) -> None:
    """Kill a child; returns when it has died."""
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)


def suspended(prefork: Prefork) -> int:
    """Suspend the child once it is ready for tasks; returns its pid."""
    prefork.turn_until_acknowledged(prefork.give(name="late_ack"))
    child = prefork.child
    os.kill(child, signal.SIGSTOP)
    return child


def give_to_a_suspended_child(prefork: Prefork) -> tuple[int, list[str]]:
    """Have a task written to the child, which does not read it; returns its pid, and the task's id."""
    child = suspended(prefork)
    ids = prefork.give()
    prefork.turn_until(lambda: prefork.left() == {*ids}, "it is written")
    return child, ids


def test_what_a_child_runs_is_left_to_the_pool_and_what_waits_is_dropped(prefork: Prefork, ledger: Ledger) -> None:
    first, *waiting = prefork.give(3)
    prefork.turn_until(lambda: first in prefork.begun(), "the first runs")
    assert prefork.lose_connection() == {first}
    assert [it for it in (first, *waiting) if prefork.has(it)] == [first]
    prefork.connect()
    (last,) = prefork.give()
    open_gate(ledger)
    prefork.turn_until_acknowledged([first, last])
    assert prefork.begun() == [first, last]


def test_what_a_child_has_not_read_yet_is_left_to_the_pool(prefork: Prefork, ledger: Ledger) -> None:
    open_gate(ledger)
    child, ids = give_to_a_suspended_child(prefork)
    for _ in range(2):
        assert prefork.lose_connection() == {*ids}
        prefork.connect()
    os.kill(child, signal.SIGCONT)
    prefork.turn_until_acknowledged(ids)
    assert prefork.begun().count(*ids) == 1


def test_what_is_partly_written_is_written_completely(prefork: Prefork, ledger: Ledger) -> None:
    """Or the child would take what it reads next for the rest."""
    open_gate(ledger)
    child = suspended(prefork)
    ids = prefork.give(headers=LARGE)
    prefork.turn_until(lambda: prefork.left() == {*ids}, "it is partly written")
    threading.Timer(0.2, os.kill, (child, signal.SIGCONT)).start()
    assert prefork.lose_connection() == {*ids}
    prefork.connect()
    ids += prefork.give()
    prefork.turn_until_acknowledged(ids)
    assert prefork.begun()[1:] == ids


@pytest.mark.parametrize("losses", [1, 2])
def test_what_a_child_did_not_read_before_it_died_runs_in_another(
    prefork: Prefork, ledger: Ledger, losses: int
) -> None:
    """The pool drops nothing of what it was left before, though no child has it now."""
    open_gate(ledger)
    child, ids = give_to_a_suspended_child(prefork)
    kill(child)
    for _ in range(losses):
        assert prefork.lose_connection() == {*ids}
        prefork.connect()
    ids += prefork.give()
    prefork.turn_until_acknowledged(ids)
    assert prefork.begun()[1:] == ids


@pytest.mark.parametrize("size", ["small", "large"])
def test_a_worker_that_stops_waits_for_what_is_written_only(
    prefork: Prefork, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    """Celery waits for children. One that had a part of a task would never end."""
    open_gate(ledger)
    child = suspended(prefork)
    first, *waiting = prefork.give(3, headers=LARGE if size == "large" else None)
    prefork.turn_until(lambda: prefork.left() == {first}, "it is written, if only a part of it")
    monkeypatch.setattr(state, "should_stop", 0)
    assert prefork.left() == set(), "all others are put back"
    threading.Timer(0.2, os.kill, (child, signal.SIGCONT)).start()
    prefork.handover.take_back()
    assert [it for it in (first, *waiting) if prefork.has(it)] == [first]
    prefork.pool.stop()
    assert prefork.acknowledged([first, *waiting]) == [first]
    assert prefork.begun()[1:] == [first]


@pytest.mark.one_server("it is about stock kombu")
@pytest.mark.parametrize("stops", [False, True])
def test_messages_of_other_transports_are_left_to_celery(
    broker_server: PrivateRedis, broker_client: redis.Redis, ledger: Ledger, stops: bool
) -> None:
    """It forgets what a child has not begun if the connection is lost: then the broker delivers it again."""
    with prefork_of(broker_server.url, broker_client, ledger) as prefork:
        open_gate(ledger)
        child, ids = give_to_a_suspended_child(prefork)
        if stops:
            prefork.handover.take_back()
        else:
            prefork.lose_connection()
            prefork.connect()
        os.kill(child, signal.SIGCONT)
        prefork.turn_until_acknowledged(prefork.give())
        assert ids[0] in prefork.begun()
        assert prefork.acknowledged(ids) == (ids if stops else [])


def test_the_pool_does_not_wait_for_what_failed_meanwhile(
    prefork: Prefork, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its child dies just after we have looked for dead ones, and before Celery does, which then fails the task."""
    caplog.set_level(logging.CRITICAL, "celery.worker.request")  # its records refer to the job
    (task_id,) = prefork.give()
    prefork.turn_until(lambda: task_id in prefork.begun(), "it runs")
    child, looks, look = prefork.child, [False, True], AsynPool.maintain_pool

    def look_for_dead(self: AsynPool) -> None:
        if looks and looks.pop(0):
            kill(child)
        look(self)

    monkeypatch.setattr(AsynPool, "maintain_pool", look_for_dead)
    assert prefork.lose_connection() == {task_id}
    assert prefork.acknowledged([task_id]) == [task_id]
    assert not prefork.has(task_id)
