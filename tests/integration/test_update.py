"""`delayq.update`: the same task with other arguments, or another priority, in one step, whoever else is at work."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import celery
import pytest
from celery import Celery, chain, chord
from kombu.exceptions import EncodeError

from celery_delayq import DelayedQueue, Throttle, Unique
from celery_delayq.transport.messages import decode, json_body
from tests.brokers import list_for
from tests.integration.publishing import ready
from tests.integration.test_rescheduling import LATER, MS
from tests.ledger import Ledger
from tests.state import FAR, offer
from tests.support import wait_until
from tests.worker_app import protocol_1, publisher
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster

NEW: dict[str, Any] = {"args": ("new",), "kwargs": {"more": [1.5, None]}}


@pytest.fixture
def loose(app: Celery) -> Iterator[Any]:
    """A task that takes whatever it gets."""

    @app.task(name="loose", shared=False)
    def loose(*args: Any, **kwargs: Any) -> None: ...

    yield loose
    app.tasks.pop("loose", None)


@pytest.fixture
def yaml(app: Celery) -> Iterator[None]:
    """The app accepts YAML, too."""
    app.conf.accept_content = ["json", "yaml"]
    yield
    app.conf.accept_content = ["json"]


def message_in(queue: DelayedQueue) -> dict[str, Any]:
    """The one message that waits."""
    (entry,) = queue.peek(9)
    message: dict[str, Any] = json.loads(entry.payload)
    return message


def there(queue: DelayedQueue, priority: int) -> DelayedQueue:
    """The delayed queue of another priority."""
    return DelayedQueue(queue.client, list_for(queue.client, "celery", priority))


class TestArguments:
    @pytest.mark.parametrize("option", [{}, {"serializer": "yaml"}, {"compression": "gzip"}], ids=str)
    def test_it_is_what_apply_async_would_have_made_of_it(
        self,
        app: Celery,
        waiting: DelayedQueue,
        loose: Any,
        yaml: None,
        option: dict[str, Any],
    ) -> None:
        options = {"eta": LATER, "expires": 1e9, "priority": 0, **option}
        for what in ({},) if "serializer" in option else ({}, {"link": loose.si("then")}):  # YAML knows no signature
            result = loose.apply_async(("old",), {"few": 1}, **options, **what)
            assert app.delayq.update(result, **NEW) is True
            updated = message_in(waiting)
            assert app.delayq.cancel(result)
            fresh_result = loose.apply_async(NEW["args"], NEW["kwargs"], **options, **what)
            fresh = message_in(waiting)
            assert app.delayq.cancel(fresh_result)
            for message, own in ((updated, result.id), (fresh, fresh_result.id)):
                for name in ("id", "root_id"):
                    assert message["headers"].pop(name) == own
                message["headers"].pop("expires")
                for name in ("correlation_id", "delivery_tag", "reply_to"):
                    message["properties"].pop(name)
                body = message.pop("body")
                message["size"] = len(body)
            assert updated == fresh

    def test_the_rest_stays(self, app: Celery, waiting: DelayedQueue, loose: Any) -> None:
        signature = loose.s("old").set(
            countdown=600, priority=0, link_error=loose.si("oh"), stamped_headers=["by"], by=1
        )
        result = chord([signature, loose.s().set(countdown=700, queue="other")], loose.s("then")).apply_async()
        first = result.parent.results[0]
        before = message_in(waiting)
        assert app.delayq.update(first, args=["new"]) is True
        after = message_in(waiting)
        (args, kwargs, embed), (_, old_kwargs, old_embed) = json_body(after), json_body(before)
        assert (args, kwargs, embed) == (["new"], old_kwargs, old_embed)
        assert embed["chord"]
        assert after["headers"].pop("argsrepr") == "('new',)"
        assert before["headers"].pop("argsrepr") == "('old',)"
        for message in (before, after):
            message.pop("body")
        assert after == before
        assert app.delayq.get(first).args_text == "('new',)"
        assert app.delayq.update(first, kwargs={"x": uuid.UUID(int=7)}) is True
        assert json_body(message_in(waiting))[:2] == [
            ["new"],
            {"x": {"__type__": "uuid", "__value__": {"hex": "0" * 31 + "7"}}},
        ]

    def test_a_long_text_is_shortened_and_a_given_one_shown(
        self, app: Celery, waiting: DelayedQueue, loose: Any
    ) -> None:
        result = loose.apply_async((1,), countdown=600)
        assert app.delayq.update(result, args=("x" * 5000,))
        shown = app.delayq.get(result).args_text
        assert shown.endswith("x...',)" if celery.VERSION >= (5, 7) else "x...', ...")
        assert len(shown) < 1100
        assert app.delayq.update(result, args=("secret",), kwargs={"card": 1}, argsrepr="(***)", kwargsrepr="{***}")
        found = app.delayq.get(result)
        assert (found.args_text, found.kwargs_text) == ("(***)", "{***}")
        assert found.body[:2] == [["secret"], {"card": 1}]

    def test_nothing_is_unpickled_that_the_app_does_not_accept(
        self, app: Celery, waiting: DelayedQueue, broker_url: str, ledger_url: str, loose: Any
    ) -> None:
        result = loose.apply_async((1,), countdown=600, serializer="pickle")
        before = waiting.peek(9)
        with pytest.raises(ValueError, match=f"cannot read the arguments of task {result.id}.*pickle"):
            app.delayq.update(result, args=(2,))
        assert waiting.peek(9) == before
        assert app.delayq.update(result, priority=1), "no body is read for that"
        with publisher(broker_url, ledger_url, accept_content=["pickle"]) as other:
            assert other.delayq.update(result, args=({1, 2},))
            message = message_in(waiting)
            assert message["content-type"] == "application/x-python-serialize"
            assert app.delayq.get(result).args_text == "({1, 2},)"

    @pytest.mark.parametrize(
        ("new", "error", "match"),
        [
            ({}, TypeError, r"give update\(\) args, kwargs or priority"),
            ({"args": "text"}, TypeError, "task args must be a list or tuple"),
            ({"kwargs": [1]}, TypeError, "task keyword arguments must be a mapping"),
            ({"args": (1, 2, 3)}, TypeError, "takes from 1 to 2 positional arguments but 4 were given"),
            ({"kwargs": {"wrong": 1}}, TypeError, "unexpected keyword argument 'wrong'"),
            ({"args": (object(),)}, EncodeError, "object is not JSON serializable"),
            ({"priority": 10}, ValueError, "priority must be 0 to 9, not 10"),
            ({"priority": "3"}, TypeError, "priority must be a whole number, not '3'"),
            ({"priority": True}, TypeError, "priority must be a whole number, not True"),
        ],
    )
    def test_what_is_wrong_changes_nothing(
        self, app: Celery, waiting: DelayedQueue, new: Any, error: type[Exception], match: str
    ) -> None:
        result = app.tasks["note"].apply_async(("old",), countdown=600)
        before = waiting.peek(9)
        with pytest.raises(error, match=match):
            app.delayq.update(result, **new)
        assert waiting.peek(9) == before

    def test_messages_of_another_kind(self, app: Celery, waiting: DelayedQueue) -> None:
        waiting.register(again=True)
        offer(waiting, "id", payload=b"\xffbytes")
        with pytest.raises(ValueError, match="not a task message of protocol 2"):
            app.delayq.update("id", args=(1,))
        with protocol_1(app):
            old = app.tasks["note"].apply_async(countdown=600)
        assert app.delayq.update(old, args=(1,)) is False, "nobody finds it by its id"

    def test_a_task_that_the_app_does_not_know(self, app: Celery, waiting: DelayedQueue) -> None:
        result = app.send_task("nobody knows it", (1, 2), countdown=600)
        assert app.delayq.update(result, args=(1, 2, 3))
        assert app.delayq.get(result).args_text == "(1, 2, 3)"


class TestPriority:
    def test_it_waits_for_another_list(self, app: Celery, waiting: DelayedQueue) -> None:
        result = app.tasks["note"].apply_async(("a",), eta=LATER, priority=0)
        for priority, step in ((4, 3), (9, 9), (1, 0), (2, 0)):
            assert app.delayq.update(result, priority=priority) is True
            message = message_in(there(waiting, step))
            assert message["properties"]["priority"] == priority
            found = app.delayq.get(result)
            assert (found.priority, found.due, found.queue) == (priority, LATER, "celery")
            assert list(app.delayq.scheduled()) == [found]
        assert app.delayq.update(result, priority=6, args=("b",))
        assert app.delayq.get(result).args_text == "('b',)"
        assert app.delayq.run_now(result)
        assert len(ready(waiting.client, list_for(waiting.client, "celery", 6))) == 1

    def test_all_of_an_id_and_of_some(self, app: Celery, waiting: DelayedQueue) -> None:
        for number in range(130):
            app.tasks["note"].apply_async((number,), countdown=60 + number % 7, task_id="same", priority=number % 7)
        other = app.tasks["note"].apply_async(countdown=60, queue="other")
        assert app.delayq.update(["same", other, "never heard of"], priority=5, kwargs={}) == {
            "same": True,
            other.id: True,
            "never heard of": False,
        }
        found = list(app.delayq.iter_scheduled())
        assert {(task.priority, task.queue) for task in found} == {(5, "celery"), (5, "other")}
        assert len({task.args_text for task in found}) == 131

    @pytest.mark.one_server("its own separator")
    def test_with_another_separator(self, broker_url: str, ledger_url: str, waiting: DelayedQueue) -> None:
        with publisher(broker_url, ledger_url, broker_transport_options={"sep": ":"}) as app:
            note = app.tasks["note"]
            result = note.apply_async(countdown=600, unique="key")
            assert app.delayq.update(result, priority=3)
            assert not app.delayq.was_new(note.apply_async(countdown=600, unique="key", priority=3))
            assert app.delayq.was_new(note.apply_async(countdown=600, unique="key"))
            assert app.delayq.cancel(result)
            assert app.delayq.was_new(note.apply_async(countdown=600, unique="key", priority=3))


class TestMeets:
    @pytest.mark.parametrize("priority", [None, 3])
    def test_a_unique_key_stays_though_it_was_made_of_other_arguments(
        self, app: Celery, waiting: DelayedQueue, loose: Any, priority: int | None
    ) -> None:
        unique = Unique()
        result = loose.apply_async((1,), countdown=600, unique=unique)
        assert app.delayq.update(result, args=(2,), priority=priority)
        first, second = (loose.apply_async((number,), countdown=600, unique=unique) for number in (1, 2))
        assert first.id == result.id
        assert app.delayq.was_new(second)
        replacing = loose.apply_async((1,), countdown=700, unique=unique, on_conflict="replace")
        assert replacing.id != result.id
        assert app.delayq.get(result) is None
        assert app.delayq.cancel([replacing, second]) == {replacing.id: True, second.id: True}
        assert not waiting.client.exists(waiting.keys.holds)

    def test_a_task_that_is_published_again_since_its_reply_was_lost(
        self, app: Celery, waiting: DelayedQueue, loose: Any
    ) -> None:
        result = loose.apply_async((1,), countdown=600, unique="key", task_id="mine")
        assert app.delayq.update(result, args=(2,))
        assert loose.apply_async((1,), countdown=600, unique="key", task_id="mine").id == "mine"
        assert app.delayq.get(result).args_text == "(2,)"

    def test_a_throttled_task_keeps_its_turn(self, app: Celery, waiting: DelayedQueue, loose: Any) -> None:
        tasks = [loose.apply_async((n,), throttle=Throttle("1/h", key="key")) for n in range(3)]
        due = app.delayq.get(tasks[2]).due
        assert app.delayq.update(tasks[2], args=(7,), priority=9)
        assert app.delayq.get(tasks[2]).due == due
        assert loose.apply_async(throttle=Throttle("1/h", key="key")).id
        last = max(app.delayq.iter_scheduled(), key=lambda task: task.due)
        assert abs(last.due - due - timedelta(hours=1)) < timedelta(seconds=1)

    def test_a_worker_runs_it_with_what_is_new(
        self, app: Celery, waiting: DelayedQueue, broker_url: str, ledger: Ledger
    ) -> None:
        note = app.tasks["note"]
        one = note.apply_async(("old",), countdown=600)
        chained = chain(app.tasks["add"].s(1, 1).set(countdown=600), note.s()).apply_async()
        request = app.tasks["note_request"].apply_async(countdown=600)
        gone = note.apply_async(("gone",), countdown=600, expires=1e-3)
        assert app.delayq.update(one, args=(), kwargs={"value": "new"})
        assert app.delayq.update(chained.parent, args=(20, 22), priority=9)
        assert app.delayq.update(request, priority=6)
        assert app.delayq.update(gone, args=("late",))
        ids = [one.id, chained.parent.id, request.id, gone.id]
        assert all(app.delayq.reschedule(ids, countdown=1).values())
        with Worker(broker=broker_url, ledger=ledger.url):
            wait_until(lambda: ledger.has([one.id, chained.id, request.id]), "they ran")
            wait_until(lambda: gone.state == "REVOKED", "it had expired")
        assert (one.get(timeout=20), chained.get(timeout=20)) == ("new", 42)
        assert app.delayq.update(ids, args=("late",)) == dict.fromkeys(ids, False)

    @pytest.mark.parametrize("new", [{"args": ("b",)}, {"priority": 9}], ids=str)
    def test_an_occurrence_of_a_periodic_task_is_changed_alone(
        self, app: Celery, waiting: DelayedQueue, broker_url: str, ledger: Ledger, new: dict[str, Any]
    ) -> None:
        app.delayq.schedule.add("entry", "note", 0.5, args=("a",))
        with Worker(broker=broker_url, ledger=ledger.url, conf={"beat_scheduler": "delayq"}):
            changed: list[str] = []

            def change() -> bool:
                changed.extend(task.id for task in app.delayq.scheduled() if app.delayq.update(task.id, **new))
                return bool(changed)

            wait_until(change, "one is changed")
            wait_until(lambda: ledger.has(changed) and len(ledger.runs()) > 3, "it runs, and others do")
            app.delayq.schedule.remove("entry")
        expected = "b" if "args" in new else "a"
        assert [run.note for run in ledger.runs() if run.task_id in changed] == [expected] * len(changed)
        assert {run.note for run in ledger.runs() if run.task_id not in changed} == {"a"}

    def test_eager_tasks_do_not_wait(self, broker_url: str, ledger_url: str) -> None:
        with publisher(broker_url, ledger_url, task_always_eager=True) as app:
            assert app.delayq.update("id", args=(1,)) is False


class TestRaces:
    @pytest.mark.parametrize("priority", [None, 9])
    def test_with_a_transfer_either_wins_and_the_answer_says_which(
        self, app: Celery, waiting: DelayedQueue, priority: int | None
    ) -> None:
        note, both = app.tasks["note"], threading.Barrier(2)

        def transfer() -> int:
            both.wait()
            return waiting.transfer(lead=FAR / 1000).moved

        with ThreadPoolExecutor(1) as thread:
            for _ in range(100):
                task = note.apply_async(("old",), eta=LATER)
                transferred = thread.submit(transfer)
                both.wait()
                updated = app.delayq.update(task, args=("new",), priority=priority)
                moved = transferred.result()
                delivered = [message["headers"]["argsrepr"] for message in ready(waiting.client)]
                waits = [found.args_text for found in app.delayq.scheduled()]
                assert [*delivered, *waits] == ["('new',)" if updated else "('old',)"]
                assert len(delivered) == moved
                app.delayq.cancel(task)
                waiting.client.delete("celery")

    def test_others_who_change_the_same_tasks(self, app: Celery, waiting: DelayedQueue, loose: Any) -> None:
        """Everyone succeeds, since the tasks wait all the time; none is lost, and no change undoes another."""
        tasks = [loose.apply_async((n,), {"n": n}, countdown=600, unique=f"key {n}").id for n in range(5)]

        def change(seed: int) -> None:
            for number in range(30):
                task_id = tasks[(seed + number) % 5]
                if seed == 0:
                    assert app.delayq.update(task_id, args=("last" if number >= 25 else number,))
                elif seed == 1:
                    assert app.delayq.reschedule(task_id, eta=LATER + number * MS)
                else:
                    assert app.delayq.update(task_id, kwargs={"seed": number})

        with ThreadPoolExecutor(3) as threads:
            list(threads.map(change, range(3)))
        found = {task.id: task for task in app.delayq.iter_scheduled()}
        assert sorted(found) == sorted(tasks)
        for number, task_id in enumerate(tasks):
            message = decode(found[task_id].entry.payload)
            assert message is not None
            args, kwargs, _ = json_body(message)
            assert args == ["last"]
            assert set(kwargs) == {"seed"}
            assert found[task_id].due >= LATER
            assert loose.apply_async(countdown=600, unique=f"key {number}").id == task_id
