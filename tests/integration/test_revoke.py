"""Revoking a task that waits: gone from Redis, REVOKED, and everybody is told; without any worker."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from celery import Celery, chord, group, signals
from celery.app.control import Control
from celery.exceptions import ChordError, TaskRevokedError
from celery.result import AsyncResult
from kombu.exceptions import OperationalError

from celery_delayq import DelayedQueue, DelayQ
from celery_delayq.publishing import revocation
from examples.private_redis import PrivateRedis
from tests.integration.monitoring import task_events
from tests.state import FAR
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import CeleryCommand

#: Half a year, in s.
MONTHS = 180 * 86400

# The ledger empties the result backend.
pytestmark = [pytest.mark.usefixtures("ledger"), pytest.mark.on_cluster]


@contextmanager
def revoked_signals() -> Iterator[list[dict[str, Any]]]:
    """Listen to `task_revoked` while the block lasts."""
    heard: list[dict[str, Any]] = []

    def listen(**given: Any) -> None:
        heard.append(given)

    signals.task_revoked.connect(listen)
    try:
        yield heard
    finally:
        signals.task_revoked.disconnect(listen)


WAYS: dict[str, Callable[[Celery, AsyncResult], object]] = {
    "result.revoke": lambda app, result: result.revoke(),
    "result.revoke, terminate": lambda app, result: result.revoke(terminate=True),
    "control.revoke": lambda app, result: app.control.revoke(result.id),
    "control.revoke, several": lambda app, result: app.control.revoke(["other", result.id]),
    "control.revoke, one worker's": lambda app, result: app.control.revoke(result.id, destination=["nobody@nowhere"]),
    "control.terminate": lambda app, result: app.control.terminate(result.id),
    "broadcast": lambda app, result: app.control.broadcast("revoke", {"task_id": [result.id]}),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_waiting_task_is_gone_and_revoked(
    app: Celery, waiting: DelayedQueue, way: Callable[[Celery, AsyncResult], object]
) -> None:
    result = app.tasks["note"].apply_async(countdown=MONTHS)
    other = app.tasks["note"].apply_async(countdown=MONTHS)
    way(app, result)
    assert waiting.size() == 1
    assert result.state == "REVOKED"
    assert other.state == "PENDING"
    with pytest.raises(TaskRevokedError, match="revoked"):
        result.get(timeout=1)


def test_it_is_found_in_any_queue_and_priority(app: Celery, waiting: DelayedQueue) -> None:
    note = app.tasks["note"]
    results = [
        note.apply_async(countdown=MONTHS, queue=queue, priority=priority)
        for queue in ("celery", "other")
        for priority in (0, 9)
    ]
    app.control.revoke([result.id for result in results])
    assert {result.state for result in results} == {"REVOKED"}
    assert waiting.client.keys("redisson*") == []


def test_a_group_is_revoked_as_a_whole(app: Celery, waiting: DelayedQueue) -> None:
    note = app.tasks["note"]
    result = group(note.si(number).set(countdown=MONTHS) for number in range(5)).apply_async()
    result.revoke()
    assert [child.state for child in result.children] == ["REVOKED"] * 5
    assert waiting.size() == 0


def test_an_id_that_was_scheduled_often_is_revoked_once(
    app: Celery, waiting: DelayedQueue, broker_client: redis.Redis
) -> None:
    for _ in range(101):
        app.tasks["note"].apply_async(countdown=MONTHS, task_id="same")
    with revoked_signals() as heard, task_events(app, broker_client, "task-revoked") as events:
        app.control.revoke("same")
        wait_until(lambda: events, "the event")
    assert waiting.size() == 0
    assert len(heard) == len(events) == 1


def test_celery_control_revokes_without_any_worker(
    app: Celery, waiting: DelayedQueue, broker_url: str, ledger_url: str
) -> None:
    result = app.tasks["note"].apply_async(countdown=MONTHS)
    with CeleryCommand("control", "revoke", result.id, broker=broker_url, ledger=ledger_url) as command:
        command.wait()
    assert waiting.size() == 0
    assert result.state == "REVOKED"


def test_monitors_and_receivers_hear_what_a_worker_would_have_told_them(
    app: Celery, waiting: DelayedQueue, broker_client: redis.Redis
) -> None:
    result = app.tasks["note"].apply_async(("a value",), countdown=MONTHS)
    with revoked_signals() as heard, task_events(app, broker_client, "task-revoked") as events:
        result.revoke()
        wait_until(lambda: events, "the event")
        result.revoke()
    ((given,), (event,)) = heard, events
    assert given["sender"] is app.tasks["note"]
    assert given["request"].id == result.id
    assert given["request"].args == ["a value"]
    assert [given[name] for name in ("terminated", "signum", "expired")] == [False, None, False]
    assert event["uuid"] == result.id
    assert [event[name] for name in ("terminated", "signum", "expired")] == [False, None, False]
    assert event["hostname"].startswith("delayq@")


def test_a_chord_learns_that_one_of_its_tasks_was_revoked(app: Celery, waiting: DelayedQueue) -> None:
    add, total = app.tasks["add"], app.tasks["total"]
    result = chord([add.s(1, 1).set(countdown=MONTHS)] * 2, total.s()).apply_async()
    result.parent.revoke()
    assert result.state == "FAILURE"
    assert isinstance(result.result, ChordError)
    assert "TaskRevokedError" in str(result.result)
    assert waiting.size() == 0


def test_whoever_waits_for_the_reply_of_an_rpc_backend_gets_one(broker_url: str, waiting: DelayedQueue) -> None:
    app = Celery("rpc", broker=broker_url, backend="rpc://", set_as_current=False)
    DelayQ(app)
    result = app.send_task("any", countdown=MONTHS)
    result.revoke()
    with pytest.raises(TaskRevokedError, match="revoked"):
        result.get(timeout=10)
    assert waiting.size() == 0
    app.close()


def test_the_state_of_a_task_whose_result_is_ignored_is_not_stored(app: Celery, waiting: DelayedQueue) -> None:
    results = [
        app.tasks["note"].apply_async(countdown=MONTHS, ignore_result=True),
        app.tasks["work"].apply_async((1,), countdown=MONTHS),
    ]
    with revoked_signals() as heard:
        app.control.revoke([result.id for result in results])
    assert waiting.size() == 0
    assert len(heard) == 2
    assert [app.AsyncResult(result.id).state for result in results] == ["PENDING"] * 2


def test_a_task_that_this_process_does_not_know_is_revoked(app: Celery, waiting: DelayedQueue) -> None:
    result = app.send_task("of another program", countdown=MONTHS)
    with revoked_signals() as heard:
        result.revoke()
    assert waiting.size() == 0
    assert result.state == "REVOKED"
    assert heard[0]["sender"] == "of another program"


class Bomb:
    """Fails the test's process if somebody unpickles it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.exit, ("unpickled",)


@pytest.mark.parametrize("accepted", [["json"], ["json", "pickle"]], ids=str)
@pytest.mark.parametrize("by", ["id", "stamp"])
def test_no_body_is_unpickled(
    broker_url: str,
    ledger_url: str,
    waiting: DelayedQueue,
    caplog: pytest.LogCaptureFixture,
    accepted: list[str],
    by: str,
) -> None:
    """Also if workers accept it: this process may be another one, such as that of the web page."""
    with publisher(broker_url, ledger_url, accept_content=accepted) as app:
        note = app.tasks["note"].s(Bomb()).set(countdown=MONTHS, serializer="pickle")
        alone, member = note.apply_async(stamped_headers=["day"], day="monday"), note.clone().apply_async(group_id="g")
        assert pickle.dumps(Bomb())
        if by == "id":
            alone.revoke()
        else:
            app.control.revoke_by_stamped_headers({"day": ["monday"]})
        assert alone.state == "REVOKED"
        assert not caplog.messages
        member.revoke()
        assert member.state == "REVOKED"
        assert waiting.size() == 0
    assert f"Cannot decode the body of task {member.id}: its chord" in caplog.text


@pytest.mark.parametrize(
    "headers",
    [{"task": []}, {"task": {}}, {"id": ["x"]}, {"id": None}, {"stamped_headers": 5}, {"stamped_headers": [["a"]]}],
)
def test_one_bad_message_does_not_shield_the_others(
    app: Celery, waiting: DelayedQueue, headers: dict[str, Any]
) -> None:
    note = app.tasks["note"]
    before, bad, behind = (note.apply_async(countdown=MONTHS).id for _ in range(3))
    stamped = note.s().set(countdown=MONTHS)
    stamped.stamp(customer="42")
    by_stamp = stamped.apply_async()
    (entry,) = waiting.find(bad)
    message = json.loads(entry.payload)
    message["headers"].update({"stamps": {}, **headers})
    assert waiting.amend(entry, json.dumps(message).encode())
    app.control.revoke_by_stamped_headers({"customer": "42"})
    assert by_stamp.state == "REVOKED"
    app.control.revoke([before, bad, behind])
    assert waiting.size() == 0
    assert [app.AsyncResult(task_id).state for task_id in (before, behind)] == ["REVOKED"] * 2


def test_if_the_result_backend_is_away_the_tasks_are_revoked_and_that_is_logged(
    broker_url: str, waiting: DelayedQueue, caplog: pytest.LogCaptureFixture
) -> None:
    with PrivateRedis() as backend, publisher(broker_url, f"redis://127.0.0.1:{backend.port}/0") as app:
        app.conf.result_backend_transport_options = {"retry_policy": {"max_retries": 0}}
        ids = [app.tasks["note"].apply_async(countdown=MONTHS, ignore_result=None).id for _ in range(2)]
        backend.kill()
        with revoked_signals() as heard:
            app.control.revoke(ids)
        assert waiting.size() == 0
        assert {given["request"].id for given in heard} == set(ids)
        for task_id in ids:
            assert f"Task {task_id} was revoked, but its state REVOKED could not be stored" in caplog.text
        backend.start()  # for the results, which unsubscribe when they are collected


def test_a_queue_that_the_server_refuses_does_not_shield_the_others(
    app: Celery, waiting: DelayedQueue, broker_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = app.tasks["note"].apply_async(countdown=MONTHS)
    broker_client.zadd("delayq:queues", {"a": FAR, "z": FAR})
    for name in ("a", "z"):
        broker_client.set(f"delayq:index:{{{name}}}", "of a wrong type")
    told: list[str] = []
    monkeypatch.setattr(Control, "broadcast", lambda self, command, *args, **kwargs: told.append(command))
    with pytest.raises(OperationalError, match="cannot revoke all waiting tasks"):
        result.revoke()
    assert result.state == "REVOKED"
    assert waiting.size() == 0
    assert told == ["revoke"]
    broker_client.zrem("delayq:queues", "a", "z")


def test_a_registry_that_the_server_refuses_is_an_error_that_celery_knows(
    app: Celery, waiting: DelayedQueue, broker_client: redis.Redis
) -> None:
    broker_client.delete("delayq:queues")
    broker_client.set("delayq:queues", "of a wrong type")
    with pytest.raises(OperationalError, match="cannot revoke all waiting tasks"):
        app.control.revoke("any")
    broker_client.delete("delayq:queues")
    result = app.tasks["note"].apply_async(countdown=MONTHS)  # registers its queue anew
    result.revoke()
    assert waiting.size() == 0


def test_workers_are_told_as_without_delayq(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    def broadcast(self: Control, *args: Any, **kwargs: Any) -> str:
        told.append((args, kwargs))
        return "replies"

    monkeypatch.setattr(Control, "broadcast", broadcast)
    assert app.control.revoke("a", destination=["w"], terminate=True, signal="KILL", reply=True, timeout=2) == "replies"
    arguments = {"task_id": "a", "terminate": True, "signal": "KILL"}
    assert told == [(("revoke", arguments, ["w"], None), {"reply": True, "timeout": 2})]


def test_an_app_with_another_broker_is_left_alone(redis_server: PrivateRedis, ledger_url: str) -> None:
    with publisher(f"{redis_server.url.rpartition('/')[0]}/5", ledger_url) as app:
        assert app.control.revoke("any") is None
        assert app.control.ping(timeout=0.1) == []


class Own(Control):
    """An app's own control."""

    def broadcast(self, command: str, *args: Any, **kwargs: Any) -> Any:
        self.told = command
        return super().broadcast(command, *args, **kwargs)


@pytest.mark.parametrize("own", [Own, f"{__name__}:Own"])
def test_an_apps_own_control_stays_also_where_it_was_used_before(
    own: Any, broker_url: str, ledger_url: str, waiting: DelayedQueue
) -> None:
    app = Celery("own", broker=broker_url, backend=ledger_url, control=own, set_as_current=False)
    assert type(app.control) is Own
    DelayQ(app)
    DelayQ(app)
    result = app.send_task("any", countdown=MONTHS)
    result.revoke()
    assert isinstance(app.control, Own)
    assert app.control.told == "revoke"
    assert waiting.size() == 0
    assert type(pickle.loads(pickle.dumps(app.control_cls))(app=app)).__name__ == "Own"
    app.close()


class TestStamps:
    def schedule(self, app: Celery, **stamps: Any) -> AsyncResult:
        signature = app.tasks["note"].s()
        if stamps:
            signature.stamp(**stamps)
        return signature.apply_async(countdown=MONTHS)

    @pytest.mark.parametrize("headers", [{"customer": "7"}, {"customer": ["6", "7"]}, {"no": "x", "customer": "7"}])
    def test_tasks_with_one_of_the_stamps_are_revoked(
        self, app: Celery, waiting: DelayedQueue, headers: dict[str, Any]
    ) -> None:
        stamped = [self.schedule(app, customer="7"), self.schedule(app, customer=["7", "8"], other="x")]
        others = [self.schedule(app, customer="8"), self.schedule(app, order="7"), self.schedule(app)]
        app.control.revoke_by_stamped_headers(headers)
        assert [result.state for result in stamped] == ["REVOKED"] * 2
        assert [result.state for result in others] == ["PENDING"] * 3
        assert waiting.size() == 3

    def test_it_searches_many_pages(self, app: Celery, waiting: DelayedQueue, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(revocation, "ANNOUNCED_AT_ONCE", 50)
        signatures = []
        for number in range(350):
            signatures.append(app.tasks["note"].s().set(countdown=MONTHS))
            signatures[-1].stamp(half=str(number % 2))
        results = app.delayq.apply_async_many(signatures)
        app.control.revoke_by_stamped_headers({"half": "1"})
        assert waiting.size() == 175
        assert [result.state for result in results] == ["PENDING", "REVOKED"] * 175

    def test_celery_control_does_it_too(
        self, app: Celery, waiting: DelayedQueue, broker_url: str, ledger_url: str
    ) -> None:
        stamped, other = self.schedule(app, customer="7"), self.schedule(app, customer="8")
        arguments = ("control", "revoke_by_stamped_headers", "customer=7", "customer=9")
        with CeleryCommand(*arguments, broker=broker_url, ledger=ledger_url) as command:
            command.wait()
        assert (stamped.state, other.state) == ("REVOKED", "PENDING")
        assert waiting.size() == 1


def test_where_redis_is_away_the_error_says_that_the_tasks_may_still_wait(ledger_url: str) -> None:
    with PrivateRedis() as server, publisher(f"delayq://127.0.0.1:{server.port}/0", ledger_url) as app:
        result = app.tasks["note"].apply_async(countdown=MONTHS)
        server.kill()
        with pytest.raises(OperationalError, match="cannot revoke all waiting tasks"):
            result.revoke()
        server.start()
