"""Whoever hooks into publishing is asked for each task of `apply_async_many`, as with `apply_async`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery, signals
from celery.app.task import Task
from celery.canvas import Signature

from tests.integration.publishing import stored
from tests.integration.template.conftest import NAMES, notes, nothing
from tests.worker_app import publisher

pytestmark = pytest.mark.on_cluster


@pytest.fixture
def seen(app: Celery, by_template: list[str]) -> Iterator[list[str]]:
    """Ids of tasks, filled in by a test; those of all tasks in the end."""
    ids: list[str] = []
    yield ids
    assert ids == list(NAMES)
    assert by_template == []


@pytest.mark.parametrize("name", ["before_task_publish", "after_task_publish"])
def test_a_signal(app: Celery, seen: list[str], name: str) -> None:
    def heard(headers: dict[str, Any], **kwargs: Any) -> None:
        seen.append(headers["id"])

    signal = getattr(signals, name)
    signal.connect(heard)
    try:
        app.delayq.apply_async_many(notes(app))
    finally:
        signal.disconnect(heard)


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Task, "apply_async"), (Signature, "apply_async"), (Celery, "send_task")],
    ids=["task", "signature", "app"],
)
def test_whoever_wraps_a_method(
    app: Celery, seen: list[str], monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    method: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(kwargs["task_id"])
        return method(self, *args, **kwargs)

    monkeypatch.setattr(owner, name, wrapper)
    app.delayq.apply_async_many(notes(app))


def test_a_task_with_an_apply_async_of_its_own(app: Celery, seen: list[str]) -> None:
    class Seen(Task):
        name = "seen"

        def apply_async(self, *args: Any, **kwargs: Any) -> Any:
            seen.append(kwargs["task_id"])
            return super().apply_async(*args, **kwargs)

        def run(self, value: Any = None) -> None: ...

    task = app.register_task(Seen())
    app.delayq.apply_async_many(task.s(name).set(task_id=name) for name in NAMES)


def test_a_shadow_name(app: Celery, seen: list[str]) -> None:
    def shadow_name(task: Task, args: Any, kwargs: Any, options: Any) -> str:
        seen.append(args[0])
        return "shadow"

    task = app.task(name="shadowed", shared=False, lazy=False, shadow_name=shadow_name)(nothing)
    app.delayq.apply_async_many(task.s(name).set(task_id=name) for name in NAMES)


def test_a_protocol_of_its_own(broker_url: str, ledger_url: str, seen: list[str]) -> None:
    with publisher(broker_url, ledger_url) as app:
        usual = app.amqp.task_protocols[2]

        def own(task_id: str, *args: Any, **kwargs: Any) -> Any:
            seen.append(task_id)
            return usual(task_id, *args, **kwargs)

        app.amqp.task_protocols[2] = own
        app.delayq.apply_async_many(notes(app))


def test_a_router(app: Celery, seen: list[str]) -> None:
    route = app.amqp.router.route

    def noted(options: Any, name: str, args: Any = (), *rest: Any) -> Any:
        seen.append(NAMES[len(seen)])
        return route(options, name, args, *rest)

    app.amqp.router.route = noted
    app.delayq.apply_async_many(notes(app))


def test_a_task_with_options_of_the_moment(app: Celery, seen: list[str]) -> None:
    class Moody(Task):
        name = "moody"

        def _get_exec_options(self) -> Any:
            seen.append(NAMES[len(seen)])
            return super()._get_exec_options()

        def run(self) -> None: ...

    task = app.register_task(Moody())
    app.delayq.apply_async_many(task.s() for _ in NAMES)


def test_a_receiver_that_comes_later(app: Celery, by_template: list[str]) -> None:
    """From then on Celery decides who hears what (5.6 looks for receivers once an app)."""

    def receive(**kwargs: Any) -> None: ...

    def signatures() -> Iterator[Signature]:
        first, second, third = notes(app)
        yield first
        yield second
        signals.before_task_publish.connect(receive)
        yield third

    try:
        app.delayq.apply_async_many(signatures())
    finally:
        signals.before_task_publish.disconnect(receive)
    assert by_template == ["second"]


@pytest.mark.parametrize("text", ["***", "()"])
def test_a_route_that_hides_arguments(
    broker_url: str, ledger_url: str, client: redis.Redis, by_template: list[str], text: str
) -> None:
    """`()` is what the arguments of the first one are."""
    with publisher(broker_url, ledger_url, task_routes={"note": {"argsrepr": text}}) as app:
        app.delayq.apply_async_many(notes(app))
    (messages,) = stored(client).values()
    assert [message["headers"]["argsrepr"] for message in messages] == [text] * 3
    assert by_template == []


def test_the_first_protocol(broker_url: str, ledger_url: str, client: redis.Redis, by_template: list[str]) -> None:
    with publisher(broker_url, ledger_url, task_protocol=1) as app:
        app.delayq.apply_async_many(notes(app))
    assert client.llen("celery") == 3
    assert by_template == []


def test_a_route(broker_url: str, ledger_url: str, client: redis.Redis, by_template: list[str]) -> None:
    def by_argument(name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **kw: Any) -> dict[str, str]:
        return {"queue": f"queue of {args[0]}"}

    with publisher(broker_url, ledger_url, task_routes=(by_argument,)) as app:
        app.delayq.apply_async_many(app.tasks["note"].s(number) for number in range(3))
    assert stored(client).keys() == {f"queue of {number}" for number in range(3)}
    assert by_template == []


def test_routes_by_name_are_the_same_for_all(
    broker_url: str, ledger_url: str, client: redis.Redis, by_template: list[str]
) -> None:
    with publisher(broker_url, ledger_url, task_routes={"no*": {"queue": "mapped"}}) as app:
        app.delayq.apply_async_many(notes(app))
    assert len(stored(client)["mapped"]) == 3
    assert len(by_template) == 2
