"""What we override of Celery, or rely on although it is private: the same in all supported versions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.app.control import Control
from celery.app.task import Task
from celery.backends.base import Backend
from celery.events import EventDispatcher
from celery.worker import control as worker_control
from celery.worker.components import Pool
from celery.worker.request import Request
from kombu import Connection, Producer, Queue
from kombu.asynchronous.semaphore import LaxBoundedSemaphore

from celery_delayq.publishing.broadcast import BY_ID, BY_STAMPS
from celery_delayq.transport import producer
from celery_delayq.worker.program import WorkerProgram

pytestmark = pytest.mark.one_server("it is about Celery")

METHODS: dict[Any, dict[str, str]] = {
    Control: {
        "broadcast": "(self, command, arguments=None, destination=None, connection=None, reply=False, timeout=1.0, "
        "limit=None, callback=None, channel=None, pattern=None, matcher=None, **extra_kwargs)",
    },
    worker_control: {
        "revoke": "(state, task_id, terminate=False, signal=None, **kwargs)",
        "terminate": "(state, signal, task_id, **kwargs)",
        "revoke_by_stamped_headers": "(state, headers, terminate=False, signal=None, **kwargs)",
        "scheduled": "(state, **kwargs)",
    },
    Backend: {
        "mark_as_revoked": "(self, task_id, reason='', request=None, store_result=True, state='REVOKED')",
    },
    Request: {"_announce_revoked": "(self, reason, terminated, signum, expired)", "revoked": "(self)"},
    Task: {"_get_exec_options": "(self)"},
    Producer: {"maybe_declare": "(self, entity, retry=False, **retry_policy)", "revive": "(self, channel)"},
}


@pytest.mark.parametrize(
    ("owner", "name", "expected"),
    [(owner, name, expected) for owner, methods in METHODS.items() for name, expected in methods.items()],
)
def test_celery_has_the_methods_that_we_rely_on(owner: Any, name: str, expected: str) -> None:
    assert str(inspect.signature(getattr(owner, name))) == expected


def test_a_worker_announces_a_revoked_task_as_we_do() -> None:
    source = inspect.getsource(Request._announce_revoked)
    for step in ("'task-revoked'", "terminated=terminated, signum=signum, expired=expired", "mark_as_revoked("):
        assert step in source
    assert list(inspect.signature(EventDispatcher.send).parameters)[1] == "type"


def test_errors_of_publishing_are_kombus_where_we_have_it_from() -> None:
    assert "P.connection._reraise_as_library_errors()" in inspect.getsource(Celery.send_task)
    assert "self.backend.on_task_call(P, task_id)" in inspect.getsource(Celery.send_task)


def test_tasks_wait_in_a_semaphore_for_a_process() -> None:
    worker = SimpleNamespace(semaphore=LaxBoundedSemaphore(1))
    program: Any = SimpleNamespace(_consumer=SimpleNamespace(controller=worker))
    started: list[str] = []
    for number, name in enumerate(("first", "second", "third")):
        assert WorkerProgram.tasks_waiting(program) == max(0, number - 1)
        worker.semaphore.acquire(started.append, name)
    assert WorkerProgram.tasks_waiting(program) == 2
    worker.semaphore.release()
    assert started == ["first", "second"]
    assert WorkerProgram.tasks_waiting(program) == 1
    worker.semaphore = None
    assert WorkerProgram.tasks_waiting(program) == 0
    assert "w.semaphore = LaxBoundedSemaphore(procs)" in inspect.getsource(Pool.create)


REVOKING: dict[str, Callable[[Control], object]] = {
    "revoke": lambda control: control.revoke("a"),
    "terminate": lambda control: control.terminate("a"),
    "revoke_by_stamped_headers": lambda control: control.revoke_by_stamped_headers({"a": "b"}),
}


@pytest.mark.parametrize("call", REVOKING.values(), ids=REVOKING)
def test_everything_that_revokes_goes_through_broadcast(
    call: Callable[[Control], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    monkeypatch.setattr(Control, "broadcast", lambda self, command, **kwargs: sent.append(command))
    call(Control(app=Celery(set_as_current=False)))
    assert set(sent) <= {*BY_ID, BY_STAMPS}
    assert sent


def test_the_app_makes_its_control_as_we_expect() -> None:
    app = Celery(set_as_current=False, control="celery.app.control:Control")
    assert app.control_cls == "celery.app.control:Control"
    control = app.control
    assert app.__dict__["control"] is control


def test_the_commands_that_we_wrap_are_in_the_table_of_all_workers() -> None:
    panel = worker_control.Panel
    assert {*BY_ID, "scheduled", "dump_schedule"} <= panel.data.keys()
    assert panel.meta["scheduled"].alias == "dump_schedule"


def test_our_producer_overrides_what_kombu_calls() -> None:
    assert "self.maybe_declare" in inspect.getsource(Producer._publish)
    assert {"maybe_declare", "revive"} <= vars(producer.Producer).keys()


def test_our_producer_looks_once_at_each_queue_of_a_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Queue] = []
    monkeypatch.setattr(Producer, "maybe_declare", lambda self, entity, retry=False, **policy: looked.append(entity))
    with Connection("memory://") as connection:
        made = producer.Producer(connection.default_channel, auto_declare=False)
        one, other = Queue("one"), Queue("other")
        for queue in (one, other, one, other):
            made.maybe_declare(queue)
        assert looked == [one, other]
        made.revive(connection.channel())
        made.maybe_declare(one)
    assert looked == [one, other, one]
