"""The bootstep that plans periodic tasks: the transfer waits for it, the worker does not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from celery.concurrency.solo import TaskPool

from celery_delayq.queue.keys import registry
from celery_delayq.schedule.loop import PlannerLoop
from celery_delayq.transport.program import Program
from celery_delayq.worker import bootsteps
from celery_delayq.worker.bootsteps import Plan
from celery_delayq.worker.program import program_of
from tests.support import wait_until

pytestmark = pytest.mark.on_cluster


class Waiting(Program):
    """A program whose loops may not begin yet."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_begin = False

    def may_transfer(self) -> bool:
        self.asked += 1
        return self.may_begin


def test_no_loop_begins_before_it_may(app: Celery, broker_client: redis.Redis) -> None:
    def listens() -> bool:
        return bool(broker_client.pubsub_numsub(registry(""))[0][1])

    with app.connection_for_read() as connection:
        connection.ensure_connection()
        _ = connection.default_channel  # of a cluster, it knows the nodes
        program = connection.transport.program = Waiting()
        connection.transport.loops.start()
        wait_until(lambda: program.asked > 10, "they ask")
        assert not listens()
        program.may_begin = True
        wait_until(listens, "they begin")


def test_a_worker_goes_on_while_its_periodic_tasks_are_planned(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it connects anew; and nothing is transferred meanwhile."""
    is_over = threading.Event()

    @contextmanager
    def connect() -> Iterator[Any]:
        is_over.wait(20)
        raise redis.ConnectionError("it took too long")
        yield

    loop = PlannerLoop(connect, is_awaited=False)
    monkeypatch.setattr(bootsteps, "planner_loop", lambda app, **options: loop)
    with app.connection() as connection:
        consumer = SimpleNamespace(app=app, hostname="", connection=connection, pool=TaskPool(), hub=None)
        step = Plan(consumer)
        program = program_of(consumer)
        starting = threading.Thread(target=step.start, args=(consumer,), daemon=True)
        starting.start()
        wait_until(lambda: not starting.is_alive(), "it goes on", 5)
        assert not program.may_transfer()
        is_over.set()
        wait_until(program.may_transfer, "it is over, and nothing waits for it")
        step.stop(consumer)
