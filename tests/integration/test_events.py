"""Events tell monitors the same of a delayed task as those of a stock worker, its eta above all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.events.state import State
from dateutil.parser import isoparse

from examples.private_redis import PrivateRedis
from tests.brokers import Server, url_of
from tests.integration.monitoring import task_events
from tests.ledger import Ledger
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster

#: Fields that differ from one run of a task to the next.
_OWN = {"timestamp", "local_received", "clock", "hostname", "pid", "runtime", "utcoffset"}

#: Workers and publishers that tell monitors all they can.
_TELLING = {"worker_send_task_events": True, "task_send_sent_event": True}

Events = list[dict[str, Any]]


class Scene:
    """A broker, an app that publishes to it, and the events that are sent there."""

    def __init__(self, app: Celery, events: Events) -> None:
        self.app = app
        self.events = events

    def of(self, task_id: str, kind: str = "task-") -> Events:
        """The events of a task."""
        return [event for event in self.events if event["type"].startswith(kind) and event["uuid"] == task_id]

    def all_of(self, task_id: str) -> Events:
        """The events of a task that is sent and runs."""
        wait_until(lambda: self.of(task_id, "task-succeeded"), "all events", 30)
        return self.of(task_id)


@pytest.fixture(scope="module")
def other_server() -> Iterator[PrivateRedis]:
    """The broker of stock workers."""
    with PrivateRedis() as server:
        yield server


@pytest.fixture
def scenes(ledger: Ledger) -> Iterator[Callable[..., Scene]]:
    """Makes scenes with a worker."""
    with ExitStack() as stack:

        def scene(server: Server, *, stock: bool = False, **options: Any) -> Scene:
            url = url_of(server)
            if stock:
                url = url.replace("delayq", "redis")
            conf = {**_TELLING, **options.pop("conf", {}), "delayqs": 0 if stock else 1}
            app = stack.enter_context(publisher(url, ledger.url, **conf))
            events = stack.enter_context(task_events(app, stack.enter_context(server.client()), "*"))
            stack.enter_context(Worker(broker=url, ledger=ledger.url, conf=conf, **options))
            return Scene(app, events)

        yield scene


def told(events: Events) -> dict[str, dict[str, Any]]:
    """Kind of event -> the fields that are about the task."""
    return {event["type"]: {name: event[name] for name in event.keys() - _OWN} for event in events}


@pytest.mark.parametrize(
    "conf",
    [
        pytest.param({}, id="utc"),
        pytest.param(
            {"timezone": "Asia/Tokyo", "enable_utc": False},
            id="tokyo",
            marks=pytest.mark.one_server("a time zone has nothing to do with nodes"),
        ),
    ],
)
def test_they_are_those_of_a_stock_worker_field_by_field(
    broker_server: Server, other_server: PrivateRedis, scenes: Callable[..., Scene], conf: dict[str, Any]
) -> None:
    ours, stocks = scenes(broker_server, conf=conf), scenes(other_server, stock=True, conf=conf)
    eta = datetime.now(timezone.utc) + timedelta(seconds=2)
    sent = {
        "eta": {"eta": eta},
        "naive": {"eta": eta.replace(tzinfo=None)},
        "zone": {"eta": eta.astimezone(timezone(timedelta(hours=-5))), "expires": eta + timedelta(hours=1)},
        "past": {"eta": eta - timedelta(hours=1)},
        "none": {},
    }
    for task_id, options in sent.items():
        for scene in (ours, stocks):
            scene.app.tasks["note"].apply_async([1], task_id=task_id, **options)
    for task_id in sent:
        ours_told, stock_told = told(ours.all_of(task_id)), told(stocks.all_of(task_id))
        assert ours_told.keys() == {"task-sent", "task-received", "task-started", "task-succeeded"}
        assert ours_told == stock_told, task_id
        assert (ours_told["task-received"]["eta"] is None) is (task_id == "none")


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
@pytest.mark.one_server("a pool has nothing to do with nodes")
def test_with_every_pool(broker_server: Server, scenes: Callable[..., Scene], pool: str) -> None:
    """Messages come ahead by the lead; the worker holds them for the rest of it, and then Celery's eta is another."""
    if pool == "gevent":
        pytest.importorskip("gevent")
    scene = scenes(broker_server, pool=pool)
    results = [scene.app.tasks["note"].apply_async(countdown=0.5 + number / 20) for number in range(10)]
    for result in results:
        # Not all events: Celery 5.6 loses some that threads send while it writes others.
        (received,) = wait_until(lambda task_id=result.id: scene.of(task_id, "task-received"), "it is received", 30)
        (sent,) = scene.of(result.id, "task-sent")
        assert received["eta"] == sent["eta"] is not None


def test_every_way_to_delay_a_task(broker_server: Server, scenes: Callable[..., Scene]) -> None:
    entry = {"task": "note", "schedule": 0.5, "args": ["periodic"]}
    scene = scenes(
        broker_server,
        conf={"beat_scheduler": "celery_delayq.beat:Scheduler", "beat_schedule": {"entry": entry}},
    )
    tasks = scene.app.tasks

    many = scene.app.delayq.apply_async_many(tasks["note"].s(n).set(countdown=0.5) for n in range(3))
    for result in many:
        sent, received, *_ = scene.all_of(result.id)
        assert sent["eta"] == received["eta"] is not None

    retried = tasks["try_again"].delay(1, 0.3).id
    scene.all_of(retried)
    received_etas, sent_etas = (
        {it["eta"] for it in scene.of(retried, f"task-{done}")} for done in ("received", "sent")
    )
    assert len(received_etas) == 2
    assert received_etas == sent_etas

    moved = tasks["note"].apply_async(countdown=3600)
    eta = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(seconds=1)
    assert scene.app.delayq.reschedule(moved.id, eta=eta)
    assert [isoparse(event["eta"]) for event in scene.all_of(moved.id) if event["type"] == "task-received"] == [eta]

    now = tasks["note"].apply_async(countdown=3600)
    assert scene.app.delayq.run_now(now.id)
    assert [event["eta"] for event in scene.all_of(now.id) if event["type"] == "task-received"] == [None]

    def periodic() -> Events:
        return [event for event in scene.events if event["type"] == "task-received" and "periodic" in event["args"]]

    wait_until(lambda: len(periodic()) >= 3, "occurrences")
    for received in periodic():
        (sent,) = scene.of(received["uuid"], "task-sent")
        assert sent["eta"] == received["eta"] is not None


@pytest.mark.one_server("a monitor has nothing to do with nodes")
def test_a_monitor_does_not_count_the_countdown_as_waiting_for_a_worker(
    broker_server: Server, scenes: Callable[..., Scene]
) -> None:
    """celery-exporter counts from the eta of these events, if there is one, or else from when the task was sent."""
    scene = scenes(broker_server)
    before = time.time()
    result = scene.app.tasks["note"].apply_async(countdown=2)
    state = State()
    for event in scene.all_of(result.id):
        state.event(event)
    task = state.tasks[result.id]
    due = isoparse(task.eta).timestamp()
    assert due >= before + 2
    assert task.received - task.sent > 1, "it was received when it was due"
    assert due <= task.started, "so the wait ends after the eta, and is counted from there"
