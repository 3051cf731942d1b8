"""`cancel` and `cancel_all` with `ready=True`: True means that a task never runs, False that a worker has or had it."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery, chain, chord, group
from kombu.exceptions import OperationalError

from celery_delayq import DelayedQueue, Unique
from celery_delayq.queue.cursors import encode
from celery_delayq.transport import messages
from tests.brokers import list_for
from tests.integration.long_tasks import in_flight, long_worker, open_gate, task_ids
from tests.ledger import Ledger
from tests.state import FAR, bury, nothing_changes
from tests.support import wait_until
from tests.worker_app import protocol_1
from tests.workers import Worker

pytestmark = [pytest.mark.on_cluster(always=True), pytest.mark.usefixtures("long_tasks", "empty_broker")]


def send(app: Celery, task: str = "note", **options: Any) -> str:
    return str(app.tasks[task].apply_async(**options).id)


class TestCancel:
    def test_it_removes_a_ready_task(self, app: Celery, broker_client: redis.Redis) -> None:
        first, second, third = (send(app) for _ in range(3))
        with nothing_changes(broker_client):
            assert app.delayq.cancel(second) is False
        assert app.delayq.cancel(second, ready=True) is True
        assert task_ids(broker_client, list_for(broker_client, "celery")) == [first, third]
        assert app.delayq.cancel(second, ready=True) is False
        assert app.delayq.cancel("never heard of", ready=True) is False

    def test_in_any_queue_and_priority_many_at_once(self, app: Celery, broker_client: redis.Redis) -> None:
        ids = [send(app, queue=queue, priority=step) for queue in ("celery", "other") for step in (0, 3, 9)]
        delayed = send(app, queue="other", priority=6, countdown=60)
        kept = send(app, queue="other", priority=9)
        answers = app.delayq.cancel([*ids, delayed, "nobody"], ready=True)
        assert answers == {**dict.fromkeys([*ids, delayed], True), "nobody": False}
        assert [task.id for task in app.delayq.scheduled(state="ready")] == [kept]

    def test_more_ids_than_the_server_searches_for(self, app: Celery) -> None:
        ids = [send(app) for _ in range(70)]
        assert set(app.delayq.cancel(ids[:60], ready=True).values()) == {True}
        assert [task.id for task in app.delayq.scheduled(state="ready")] == ids[60:]

    def test_a_task_that_was_delayed_and_is_in_its_queue_by_now(self, app: Celery, waiting: DelayedQueue) -> None:
        result = app.tasks["note"].apply_async(countdown=60)
        assert app.delayq.run_now(result)
        assert app.delayq.cancel(result) is False
        assert app.delayq.cancel(result, ready=True) is True
        assert waiting.client.exists(list_for(waiting.client, "celery")) == 0

    def test_an_id_that_waits_and_is_ready_goes_from_both(self, app: Celery, waiting: DelayedQueue) -> None:
        for countdown in (None, 60, None):
            send(app, task_id="same", countdown=countdown)
        assert app.delayq.get("same", ready=True).state == "delayed"
        assert app.delayq.cancel("same", ready=True) is True
        assert (waiting.size(), list(app.delayq.scheduled(state="ready"))) == (0, [])

    def test_an_id_is_not_found_in_other_messages(self, app: Celery, broker_client: redis.Redis) -> None:
        other = send(app, args=("an-id",), argsrepr='("an-id",)', root_id="an-id", parent_id="an-id")
        assert app.delayq.cancel("an-id", ready=True) is False
        assert app.delayq.get(other, ready=True).root_id == "an-id"

    @pytest.mark.parametrize("task_id", ["é\u4e2d\U0001f600", 'with "quotes" and \\', "7", " ", "null"])
    def test_ids_of_any_text(self, app: Celery, task_id: str) -> None:
        send(app, task_id=task_id)
        send(app)
        assert app.delayq.get(task_id, ready=True).id == task_id
        assert app.delayq.cancel(task_id, ready=True) is True
        assert len(app.delayq.scheduled(state="ready")) == 1

    def test_a_message_of_another_program_is_left_alone(self, app: Celery, broker_client: redis.Redis) -> None:
        name = list_for(broker_client, "celery")
        junk = [b"an-id", b'{"headers": {"id": "an-id"}}', b'["an-id"]', b'{"properties": {}, "headers": ["an-id"]}']
        broker_client.lpush(name, *junk)
        assert app.delayq.cancel("an-id", ready=True) is False
        assert broker_client.llen(name) == len(junk)
        assert [task.id for task in app.delayq.scheduled(state="ready")] == [None] * len(junk)

    def test_protocol_1_has_no_id_in_its_headers(self, app: Celery) -> None:
        with protocol_1(app):
            task_id = send(app)
        assert app.delayq.cancel(task_id, ready=True) is False

    def test_an_expired_or_dead_one_is_not_ready(self, app: Celery, broker_client: redis.Redis) -> None:
        task_id = send(app)
        name = list_for(broker_client, "celery")
        bury(broker_client, name, b'{"reason": "x"}\n' + broker_client.rpop(name))
        assert app.delayq.cancel(task_id, ready=True) is False

    def test_in_a_paused_queue(self, app: Celery) -> None:
        task_id = send(app)
        app.delayq.pause("celery")
        assert app.delayq.cancel(task_id, ready=True) is True

    def test_a_periodic_run_that_is_ready(self, app: Celery, broker_client: redis.Redis) -> None:
        app.delayq.schedule.add("tidy", "note", timedelta(hours=1))
        task_id = app.delayq.schedule.run_now("tidy").id
        assert app.delayq.cancel(task_id, ready=True) is True

    def test_a_queue_that_the_server_refuses_does_not_shield_the_others(
        self, app: Celery, broker_client: redis.Redis
    ) -> None:
        broker_client.zadd("delayq:queues", {"refused": FAR})
        broker_client.set("refused", "of a wrong type")
        task_id = send(app)
        assert app.delayq.get(task_id, ready=True).id == task_id
        assert app.delayq.cancel(task_id, ready=True) is True
        with pytest.raises(OperationalError, match="cannot look up task"):
            app.delayq.cancel(task_id, ready=True)


def cancelled_message(task_id: str) -> bytes:
    """What takes the place of a task."""
    task = {"headers": {"task": "note", "id": task_id}, "properties": {"delivery_tag": "1"}}
    return messages.cancelled(json.dumps(task).encode())


@pytest.fixture
def cancelled(app: Celery, broker_client: redis.Redis) -> str:
    """The id of a task cancelled in the middle of a long list. What took its place is alone in the list now."""
    name = list_for(broker_client, "celery")
    others = [b"x"] * 10_000
    broker_client.lpush(name, *others)
    task_id = app.tasks["note"].apply_async(unique=Unique(key="k", for_="until_done"), priority=0).id
    broker_client.lpush(name, *others)
    assert app.delayq.cancel(task_id, ready=True) is True
    assert broker_client.llen(name) == 20_001
    broker_client.ltrim(name, 10_000, 10_000)
    return str(task_id)


class TestInTheMiddleOfALongList:
    def test_it_is_gone(self, app: Celery, broker_client: redis.Redis, cancelled: str) -> None:
        with nothing_changes(broker_client):
            assert app.delayq.cancel(cancelled, ready=True) is False
            assert app.delayq.get(cancelled, ready=True) is None
            assert list(app.delayq.scheduled(state="ready")) == []
            assert app.delayq.cancel_all(everything=True, ready=True, dry_run=True) == 0
        assert app.delayq.was_new(app.tasks["note"].apply_async(unique=Unique(key="k", for_="until_done")))

    @pytest.mark.parametrize("pool", ["prefork", "solo"])
    def test_a_worker_drops_what_took_its_place(
        self, app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger, cancelled: str, pool: str
    ) -> None:
        with Worker(broker=broker_url, ledger=ledger.url, pool=pool):
            result = app.tasks["note"].delay()
            result.get(timeout=20)
            wait_until(lambda: in_flight(broker_client) == 0, "all is done")
        assert [run.task_id for run in ledger.runs()] == [result.id]
        assert app.AsyncResult(cancelled).state == "PENDING"
        assert not app.delayq.dead()

    def test_a_consumer_of_kombu_drops_it(self, app: Celery, broker_client: redis.Redis, cancelled: str) -> None:
        last = send(app)
        with app.connection_for_read() as connection, connection.SimpleQueue("celery") as queue:
            message = queue.get(timeout=10)
            assert message.headers["id"] == last
            message.ack()
            assert connection.default_channel.basic_get("celery") is None
            wait_until(lambda: in_flight(broker_client) == 0, "nothing is in flight")

    def test_so_does_one_that_acknowledges_nothing(
        self, app: Celery, broker_client: redis.Redis, cancelled: str
    ) -> None:
        ids = [send(app, priority=0) for _ in range(2)]
        name = list_for(broker_client, "celery")
        with app.connection_for_read() as connection:
            assert connection.default_channel.basic_get("celery", no_ack=True).headers["id"] == ids[0]
            broker_client.rpush(name, cancelled_message(cancelled))
            with connection.SimpleQueue("celery", no_ack=True) as queue:
                assert queue.get(timeout=10).headers["id"] == ids[1]
        assert broker_client.llen(name) == 0

    @pytest.mark.one_server("stock Celery")
    def test_a_worker_of_stock_celery_takes_it_for_an_expired_task(
        self, app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger, cancelled: str
    ) -> None:
        with Worker(broker=broker_url.replace("delayq", "redis"), ledger=ledger.url) as worker:
            result = app.tasks["note"].delay()
            result.get(timeout=20)
            assert f"Discarding revoked task: note[{cancelled}]" in worker.log
        assert [run.task_id for run in ledger.runs()] == [result.id]


class TestUniqueKeys:
    @pytest.mark.parametrize("for_", ["until_start", "until_done"])
    @pytest.mark.parametrize("priority", [0, 3])
    @pytest.mark.parametrize("way", ["cancel", "cancel_all", "change_some"])
    def test_the_key_is_free(self, app: Celery, broker_client: redis.Redis, for_: Any, priority: int, way: str) -> None:
        unique = Unique(key="rebuild:7", for_=for_)
        first = app.tasks["note"].apply_async(unique=unique, countdown=60, priority=priority)
        assert app.delayq.run_now(first)
        assert app.tasks["note"].apply_async(unique=unique).id == first.id
        if way == "cancel":
            assert app.delayq.cancel(first, ready=True)
        elif way == "cancel_all":
            assert app.delayq.cancel_all(task="note", ready=True) == 1
        else:
            assert app.delayq.change_some("cancel", queue="celery", state="ready").changed == 1
        second = app.tasks["note"].apply_async(unique=unique)
        assert app.delayq.was_new(second)

    def test_a_key_of_a_period_stays(self, app: Celery) -> None:
        unique = Unique(key="rebuild:7", period=timedelta(hours=1))
        first = app.tasks["note"].apply_async(unique=unique)
        assert app.delayq.cancel(first, ready=True)
        assert not app.delayq.was_new(app.tasks["note"].apply_async(unique=unique))

    def test_the_key_of_a_retry_stays(self, app: Celery) -> None:
        unique = Unique(key="rebuild:7", for_="until_done")
        first = app.tasks["note"].apply_async(unique=unique)
        app.tasks["note"].apply_async(task_id=first.id, retries=1, countdown=60, unique=unique)
        ready = app.delayq.scheduled(state="ready").tasks
        assert [task.id for task in ready] == [first.id]
        assert app.delayq.change_some("cancel", everything=True, state="ready").changed == 1
        assert app.delayq.waiting("rebuild:7").id == first.id


class TestWorkflows:
    def test_a_chain_whose_first_task_is_ready(self, app: Celery) -> None:
        note = app.tasks["note"]
        result = chain(note.si(1), note.si(2), note.si(3)).apply_async()
        assert app.delayq.cancel(result) is False
        assert app.delayq.cancel(result, ready=True) is True
        assert list(app.delayq.scheduled(state="ready")) == []

    def test_a_chord_whose_header_is_ready(self, app: Celery) -> None:
        note = app.tasks["note"]
        result = chord([note.si(1), note.si(2).set(countdown=60)])(note.si("body"))
        assert app.delayq.cancel(result, ready=True) is True
        assert list(app.delayq.scheduled(state="ready")) == list(app.delayq.scheduled()) == []

    def test_a_group(self, app: Celery) -> None:
        some = group(app.tasks["note"].si(1), app.tasks["note"].si(2).set(countdown=60)).apply_async()
        assert app.delayq.cancel(some, ready=True) == {child.id: True for child in some.results}


class TestWithWorkers:
    @pytest.mark.parametrize("pool", ["prefork", "solo"])
    def test_what_a_worker_holds_is_not_taken_from_it(
        self, app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger, pool: str
    ) -> None:
        """It runs one, and holds some more; the others are in the queue."""
        conf = {"worker_prefetch_multiplier": 2}
        with long_worker(broker=broker_url, ledger=ledger, pool=pool, concurrency=1, conf=conf):
            ids = [send(app, "gated_late") for _ in range(20)]
            wait_until(ledger.runs, "one runs")
            answers = app.delayq.cancel(ids, ready=True)
            assert 10 < sum(answers.values()) < 20
            open_gate(ledger)
            wait_until(lambda: in_flight(broker_client) == 0, "all is done")
            last = app.tasks["note"].delay()
            last.get(timeout=20)
        ran = {run.task_id for run in ledger.runs()}
        assert ran == {task_id for task_id, cancelled in answers.items() if not cancelled} | {last.id}

    def test_either_it_or_a_worker_gets_each_task(
        self, app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger
    ) -> None:
        """A worker runs a queue from its oldest message on, while they are cancelled one by one, and new ones come."""
        ids = [str(number) for number in range(400)]
        app.delayq.apply_async_many(app.tasks["note"].s().set(task_id=task_id) for task_id in ids)
        cancelled: set[str] = set()
        with Worker(broker=broker_url, ledger=ledger.url):
            wait_until(ledger.runs, "it runs")
            for task_id in reversed(ids):
                send(app, task_id=f"more {task_id}")
                if app.delayq.cancel(task_id, ready=True):
                    cancelled.add(task_id)
            sent = {*ids, *(f"more {task_id}" for task_id in ids)}
            wait_until(lambda: ledger.has(sent - cancelled), "all others ran", 30)
            app.tasks["note"].delay().get(timeout=20)
        runs = [run.task_id for run in ledger.runs()]
        assert not cancelled & set(runs)
        assert len(runs) == len(set(runs))
        assert 5 < len(cancelled) < 395, "the race did not happen"


class TestCancelAll:
    def test_what_matches_and_nothing_else(self, app: Celery) -> None:
        send(app, task_id="a")
        send(app, "add", args=(7, 8), task_id="b", queue="other")
        send(app, "add", args=(7, 9), task_id="c", queue="other", priority=3)
        send(app, "add", args=(7, 9), task_id="d", countdown=60)
        for criteria, found in (
            ({"task": "add"}, 3),
            ({"queue": "other"}, 2),
            ({"text": "7, 9"}, 2),
            ({"text": "7, 9", "queue": "other"}, 1),
            ({"task": "nobody"}, 0),
            ({"everything": True}, 4),
        ):
            assert app.delayq.cancel_all(**criteria, ready=True, dry_run=True) == found
        assert app.delayq.cancel_all(text="7, 9") == 1
        assert app.delayq.cancel_all(text="7, 9", ready=True) == 1
        assert [task.id for task in app.delayq.scheduled(state="ready")] == ["a", "b"]
        with pytest.raises(ValueError, match="give a queue, a task"):
            app.delayq.cancel_all(ready=True)
        told: list[tuple[int, int]] = []
        assert app.delayq.cancel_all(everything=True, ready=True, on_progress=lambda *one: told.append(one)) == 2
        assert told[-1][0] >= 1

    def test_by_due_time(self, app: Celery) -> None:
        """A task that was never delayed is due now."""
        now = datetime.now(timezone.utc)
        send(app, task_id="was delayed", countdown=60)
        app.delayq.reschedule("was delayed", eta=now - timedelta(hours=2))
        send(app, task_id="never")
        assert app.delayq.cancel_all(due_before=now - timedelta(hours=1), ready=True) == 1
        assert app.delayq.cancel_all(due_after=now + timedelta(hours=1), ready=True) == 0
        assert app.delayq.cancel_all(due_before=now + timedelta(hours=1), ready=True) == 1

    def test_thousands(self, app: Celery, broker_client: redis.Redis) -> None:
        tasks = [app.tasks["note"].s() if number % 3 else app.tasks["add"].s(1, 2) for number in range(3000)]
        app.delayq.apply_async_many(tasks)
        assert app.delayq.cancel_all(task="note", ready=True) == 2000
        left = [
            json.loads(message)["headers"]["task"]
            for message in broker_client.lrange(list_for(broker_client, "celery"), 0, -1)
        ]
        assert left == ["add"] * 1000

    def test_in_chunks(self, app: Celery) -> None:
        app.delayq.apply_async_many(app.tasks["note"].s().set(queue=queue) for queue in ["celery", "other"] * 600)
        app.delayq.apply_async_many(app.tasks["add"].s(1, 2) for _ in range(7))
        changed, cursor, chunks = 0, None, 0
        while chunks == 0 or cursor:
            chunk = app.delayq.change_some("cancel", task="note", state="ready", limit=500, cursor=cursor)
            assert chunk.changed <= 500
            changed, cursor, chunks = changed + chunk.changed, chunk.cursor, chunks + 1
        assert changed == 1200
        assert chunks >= 3
        assert len(app.delayq.scheduled(state="ready")) == 7
        with pytest.raises(ValueError, match="ready tasks can be cancelled, not 'run_now'"):
            app.delayq.change_some("run_now", task="note", state="ready")
        for wrong in ([1, 2], ["celery", -1, 0], ["celery", 2**70, None], ["celery", 1, "x"], ["celery", True, 0]):
            with pytest.raises(ValueError, match="cursor must be the cursor"):
                app.delayq.change_some("cancel", task="note", state="ready", cursor=encode(wrong))
