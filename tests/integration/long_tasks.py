"""An app whose tasks take as long as a test wants, or end their worker; and the facts that tests wait for."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import redis
from billiard import current_process
from celery import Celery
from celery.exceptions import Ignore, Reject

from celery_delayq.cluster.client import Routed
from celery_delayq.fetching import process
from celery_delayq.signals import dead_letter
from tests.brokers import list_for
from tests.ledger import Ledger
from tests.support import wait_until
from tests.worker_app import make_app
from tests.workers import Worker

APP = "tests.integration.long_tasks"

_GATE, _TOLD = "gate", "told"


def add_long_tasks(app: Celery, ledger: Ledger) -> Celery:
    """Give the app its further tasks."""

    def gated(self: Any) -> None:
        """Run until `open_gate`."""
        ledger.record(self.request.id, os.getpid())
        wait_until(lambda: ledger.client.exists(_GATE), "the gate is open", 60)

    app.task(bind=True, name="gated", lazy=False, shared=False)(gated)
    app.task(bind=True, name="gated_late", acks_late=True, lazy=False, shared=False)(gated)

    def gated_after_another(self: Any) -> None:
        """End at once if it is the first task of all, else run until `open_gate`."""
        ledger.record(self.request.id)
        if len(ledger.runs()) > 1:
            wait_until(lambda: ledger.client.exists(_GATE), "the gate is open", 60)

    app.task(bind=True, name="gated_after", lazy=False, shared=False)(gated_after_another)
    app.task(bind=True, name="gated_after_late", acks_late=True, lazy=False, shared=False)(gated_after_another)

    @app.task(bind=True, name="hold_gil", acks_late=True, lazy=False, shared=False)
    def hold_gil(self: Any, seconds: int) -> None:
        """Let no other thread of the process run from `open_gate` on, as a regular expression may."""
        ledger.record(self.request.id, os.getpid())
        wait_until(lambda: ledger.client.exists(_GATE), "the gate is open", 60)
        ctypes.PyDLL(None).sleep(seconds)

    @app.task(bind=True, name="nap", acks_late=True, lazy=False, shared=False)
    def nap(self: Any, seconds: float) -> None:
        ledger.record(self.request.id)
        time.sleep(seconds)

    @app.task(bind=True, name="rejecting", acks_late=True, lazy=False, shared=False)
    def rejecting(self: Any) -> None:
        raise Reject("it is not for me")

    @app.task(bind=True, name="rejecting_again", acks_late=True, lazy=False, shared=False)
    def rejecting_again(self: Any) -> None:
        ledger.record(self.request.id)
        raise Reject("not now", requeue=True)

    @app.task(bind=True, name="retrying", max_retries=None, lazy=False, shared=False)
    def retrying(self: Any) -> None:
        raise self.retry(countdown=600)

    def failing(self: Any, how: str = "raise") -> str:
        """Fail in one of several ways, until the gate is open."""
        ledger.record(self.request.id, self.request.retries)
        if how == "wait":
            wait_until(lambda: ledger.client.exists(_GATE), "the gate is open", 60)
        elif ledger.client.exists(_GATE):
            return "at last"
        if how == "retry":
            raise self.retry(countdown=0, max_retries=2, exc=ValueError("no such order"))
        if how == "ignore":
            raise Ignore("it is not for anybody")
        if how == "reject":
            raise Reject("it is not for me")
        if how == "hang":
            time.sleep(60)
        if how == "exit":
            sys.exit(1)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("no such order")

    app.task(bind=True, name="failing", lazy=False, shared=False)(failing)
    app.task(bind=True, name="failing_late", acks_late=True, lazy=False, shared=False)(failing)
    app.task(bind=True, name="failing_unkept", keep_failed=False, lazy=False, shared=False)(failing)

    @app.task(bind=True, name="kill_worker", acks_late=True, lazy=False, shared=False)
    def kill_worker(self: Any) -> None:
        """Kill the process in which it runs: with the solo pool, the worker."""
        ledger.record(self.request.id, os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)

    @app.task(bind=True, name="poison", acks_late=True, lazy=False, shared=False)
    def poison(self: Any) -> None:
        """Kill the worker, and with it all that it runs: the process that holds its messages."""
        ledger.record(self.request.id, os.getpid())
        is_child = current_process().name != "MainProcess"
        os.kill(os.getppid() if is_child else os.getpid(), signal.SIGKILL)
        time.sleep(60)

    return app


def open_gate(ledger: Ledger) -> None:
    """Let all `gated` tasks end, now and later."""
    ledger.client.set(_GATE, 1)


def long_worker(*options: str, broker: str, ledger: Ledger, place: str = "here", **kwargs: Any) -> Worker:
    """A worker with this app. The options of the transport may be given as `transport`.

    If its place is "elsewhere", nobody can ask for its process; any file that there is makes a place of its own.
    """
    if place != "here":
        kwargs["env"] = {"PLACE": place}
    conf = dict(kwargs.pop("conf", {}))
    if "transport" in kwargs:
        conf["broker_transport_options"] = kwargs.pop("transport")
    return Worker(*options, broker=broker, ledger=ledger.url, app=APP, conf=conf, **kwargs)


def in_flight(client: redis.Redis) -> int:
    """How many messages all consumers hold."""
    return sum(client.llen(key) for key in client.scan_iter("*delayq:inflight:*"))


def task_ids(client: redis.Redis, name: str = "celery") -> list[str]:
    """The ids of all tasks on a broker list, the first to be run first."""
    return [json.loads(message)["headers"]["id"] for message in reversed(client.lrange(name, 0, -1))]


def message_of(app: Celery, client: redis.Redis, task: str) -> tuple[str, bytes]:
    """Make a task that nobody has; return its id and its message."""
    sent = app.send_task(task, queue="aside")
    message = client.rpop(list_for(client, "aside"))
    assert isinstance(message, bytes)
    return str(sent.id), message


def node_of(client: redis.Redis, name: str) -> redis.Redis:
    """Return a client of the server that has a list."""
    return client.node_of(name).client if isinstance(client, Routed) else client


def waits(client: redis.Redis, name: str) -> int:
    """How many connections of workers wait for messages on the server that has a list."""
    count: int = node_of(client, name).info("clients")["blocked_clients"]
    return count


if "PLACE" in os.environ:
    process._BOOT = Path(os.environ["PLACE"])


def told(ledger: Ledger) -> list[dict[str, Any]]:
    """What the signal `dead_letter` has told in workers."""
    return [json.loads(line) for line in ledger.client.lrange(_TOLD, 0, -1)]


@dead_letter.connect
def tell(sender: Celery, **known: Any) -> None:
    """Write down what a worker was told of a dead letter."""
    known.pop("signal")
    if b"hang the receiver" in known["message"]:
        time.sleep(60)
    known["message"] = bool(known["message"])
    Ledger(os.environ["LEDGER"]).client.rpush(_TOLD, json.dumps({"app": sender.main, **known}))


if "LEDGER" in os.environ:
    app = add_long_tasks(
        make_app(os.environ["BROKER"], os.environ["LEDGER"], **json.loads(os.environ["CONF"])),
        Ledger(os.environ["LEDGER"]),
    )
