"""`delayq.cancel_all` and `delayq.counts`: what matches and nothing else; what is where."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from kombu.exceptions import OperationalError

from celery_delayq import DelayedQueue
from celery_delayq.basics.times import to_ms
from celery_delayq.inspector.histogram import Bucket
from celery_delayq.queue import codec
from celery_delayq.transport import messages
from tests.brokers import list_for
from tests.integration.publishing import ready
from tests.state import FAR, bury, calls, give, lease, nothing_changes, now_ms, offer
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster

SOON = datetime(2040, 1, 1, tzinfo=timezone.utc)
SECOND = timedelta(seconds=1)

MATCHING: list[tuple[dict[str, Any], set[str]]] = [
    ({"task": "note"}, {"a", "c", "d"}),
    ({"queue": "other"}, {"c", "d"}),
    ({"queue": "other", "task": "add"}, set()),
    ({"due_before": SOON + SECOND}, {"a"}),
    ({"due_after": SOON + SECOND}, {"b", "c", "d"}),
    ({"due_after": SOON + SECOND, "due_before": SOON + 2 * SECOND}, {"b"}),
    ({"text": "7, 'Zoë"}, {"b"}),
    ({"text": "'"}, {"b", "d"}),
    ({"text": "why", "task": "note"}, {"d"}),
    ({"text": "why", "task": "add"}, set()),
    ({"text": "ZOË"}, set()),
    ({"everything": True}, {"a", "b", "c", "d"}),
]


@pytest.fixture
def four(app: Celery, waiting: DelayedQueue) -> DelayedQueue:
    """Tasks "a" to "d", in two queues, due a second apart; the queue of the first two."""
    app.tasks["note"].apply_async(eta=SOON, task_id="a")
    app.tasks["add"].apply_async((7, "Zoë"), eta=SOON + SECOND, task_id="b")
    app.tasks["note"].apply_async(eta=SOON + 2 * SECOND, task_id="c", queue="other")
    app.tasks["note"].apply_async(
        eta=SOON + 3 * SECOND, task_id="d", queue="other", priority=9, kwargsrepr="{'why': 'unpaid'}"
    )
    return waiting


class TestCancelAll:
    @pytest.mark.parametrize(("criteria", "expected"), MATCHING)
    def test_what_matches_and_nothing_else(
        self, app: Celery, four: DelayedQueue, criteria: dict[str, Any], expected: set[str]
    ) -> None:
        with nothing_changes(four.client):
            assert app.delayq.cancel_all(**criteria, dry_run=True) == len(expected)
        assert app.delayq.cancel_all(**criteria) == len(expected)
        assert {task.id for task in app.delayq.iter_scheduled()} == set("abcd") - expected
        assert app.delayq.cancel_all(**criteria) == 0

    @pytest.mark.parametrize("options", [{}, {"dry_run": True}, {"queue": None}, {"everything": False}])
    def test_not_without_a_criterion(self, app: Celery, four: DelayedQueue, options: dict[str, Any]) -> None:
        with (
            nothing_changes(four.client),
            pytest.raises(ValueError, match="give a queue, a task, a time or a text, or pass"),
        ):
            app.delayq.cancel_all(**options)

    def test_leaves_no_trace_of_what_it_removes(self, broker_url: str, ledger_url: str, waiting: DelayedQueue) -> None:
        with publisher(broker_url, ledger_url, broker_transport_options={"mirror_list": True}) as app:
            for _ in range(5):
                app.tasks["note"].apply_async(countdown=60, task_id="same")
            assert app.delayq.cancel_all(task="note") == 5
        assert waiting.client.exists(waiting.keys.timeout_set, waiting.keys.index, waiting.keys.delay_list) == 0

    def test_what_others_offered_has_no_name_but_a_queue(self, app: Celery, four: DelayedQueue) -> None:
        four.client.zadd(four.keys.timeout_set, {codec.pack(bytes(8), b"java"): FAR})
        assert app.delayq.cancel_all(task="java") == 0
        assert app.delayq.cancel_all(queue="celery") == 3

    def test_tells_how_far_it_is_in_bounded_calls(self, app: Celery, waiting: DelayedQueue) -> None:
        waiting.register(again=True)
        many = {codec.pack(number.to_bytes(8, "big"), b"{}"): FAR + number for number in range(20_000)}
        waiting.client.zadd(waiting.keys.timeout_set, many)
        waiting.client.config_resetstat()
        told: list[tuple[int, int]] = []
        assert app.delayq.cancel_all(queue="celery", on_progress=lambda *now: told.append(now)) == 20_000
        assert told == [(number * 100, 20_000) for number in range(1, 201)]
        # 200 pages, and an empty one; each removal takes a hundred.
        assert calls(waiting.client, "evalsha") <= 200 + 201 + 2
        assert calls(waiting.client, "zrem") == 20_000

    def test_only_what_may_match_is_decoded(
        self, app: Celery, waiting: DelayedQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The name of some tasks is in arguments of others, and begins as theirs does."""
        decoded: list[bytes] = []
        decode = messages.decode

        def noted(payload: bytes) -> Any:
            decoded.append(payload)
            return decode(payload)

        note, note_request = app.tasks["note"], app.tasks["note_request"]
        app.delayq.apply_async_many(
            note_request.s().set(eta=SOON + number * SECOND) if number % 100 else note.s("x").set(eta=SOON)
            for number in range(3000)
        )
        monkeypatch.setattr(messages, "decode", noted)
        told: list[tuple[int, int]] = []
        assert len(list(app.delayq.iter_scheduled(task="note"))) == 30
        assert app.delayq.cancel_all(task="note", on_progress=lambda *now: told.append(now)) == 30
        # Beside those that match, the last one that each call read.
        assert len(decoded) <= 2 * (30 + 3000 / 100)
        assert told[-1] == (3000, 3000)
        assert len(told) >= 3000 / 200

    def test_beside_a_transfer_each_is_cancelled_or_delivered(self, app: Celery, waiting: DelayedQueue) -> None:
        waiting.register(again=True)
        for number in range(3_000):
            offer(waiting, str(number), 1 + number)
        stop = threading.Event()

        def transfer() -> int:
            moved = 0
            while not stop.is_set():
                moved += waiting.transfer(random.randint(1, 3)).moved
            return moved

        with ThreadPoolExecutor(1) as threads:
            transferring = threads.submit(transfer)
            wait_until(lambda: waiting.size() < 2_900, "the transfer began")
            cancelled = app.delayq.cancel_all(queue="celery")
            stop.set()
            moved = transferring.result()
        assert cancelled + moved + waiting.size() == 3_000
        assert waiting.client.llen("celery") == moved
        assert min(cancelled, moved) > 20, "the race did not happen"
        assert waiting.size() == 0


#: The other two calls for all that match, each with what becomes of a task.
_IN_2099 = datetime(2099, 7, 1, tzinfo=timezone.utc) - datetime.now(timezone.utc)
OTHERS: list[tuple[str, dict[str, Any], int | None]] = [
    ("reschedule_all", {"countdown": _IN_2099}, 2099),
    ("reschedule_all", {"eta": SOON + timedelta(days=366)}, 2041),
    ("reschedule_all", {"eta": 5}, None),
    ("run_now_all", {}, None),
]


@pytest.mark.parametrize(("method", "when", "year"), OTHERS)
class TestTheOthers:
    @pytest.mark.parametrize(("criteria", "expected"), MATCHING)
    def test_change_what_matches_and_nothing_else(
        self,
        app: Celery,
        four: DelayedQueue,
        method: str,
        when: dict[str, Any],
        year: int | None,
        criteria: dict[str, Any],
        expected: set[str],
    ) -> None:
        change = getattr(app.delayq, method)
        with nothing_changes(four.client):
            assert change(**criteria, **when, dry_run=True) == len(expected)
        told: list[tuple[int, int]] = []
        assert change(**criteria, **when, on_progress=lambda *now: told.append(now)) == len(expected)
        assert not told or told[-1][0] == told[-1][1]
        left = {task.id: task for task in app.delayq.iter_scheduled()}
        assert left.keys() == set("abcd") - (expected if year is None else set())
        for task_id, task in left.items():
            assert task.due.year == (year if task_id in expected else 2040)
            assert task.eta == task.due

    def test_change_each_task_once_in_due_order(
        self, app: Celery, waiting: DelayedQueue, method: str, when: dict[str, Any], year: int | None
    ) -> None:
        """Also those that are due before and after the new time, of which there is more than a page."""
        app.delayq.apply_async_many(
            app.tasks["note"].s(number).set(eta=SOON + number * SECOND, task_id=str(number)) for number in range(500)
        )
        if year is not None:
            when = {"eta": SOON + 250 * SECOND}
        assert getattr(app.delayq, method)(queue="celery", **when) == 500 - (year is not None)
        if year is None:
            assert [message["headers"]["id"] for message in ready(waiting.client)] == [str(at) for at in range(500)]
        else:
            assert {task.due for task in app.delayq.iter_scheduled()} == {SOON + 250 * SECOND}
        assert getattr(app.delayq, method)(queue="celery", **when) == 0

    def test_stop_where_progress_raises(
        self, app: Celery, waiting: DelayedQueue, method: str, when: dict[str, Any], year: int | None
    ) -> None:
        app.delayq.apply_async_many(app.tasks["note"].s().set(eta=SOON) for _ in range(300))

        def stop(examined: int, total: int) -> None:
            assert (examined, total) == (100, 300)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            getattr(app.delayq, method)(queue="celery", on_progress=stop, **when)
        assert sum(task.due == SOON for task in app.delayq.iter_scheduled()) == 200

    def test_want_a_criterion(
        self, app: Celery, four: DelayedQueue, method: str, when: dict[str, Any], year: int | None
    ) -> None:
        with nothing_changes(four.client), pytest.raises(ValueError, match="or pass everything=True"):
            getattr(app.delayq, method)(**when)


@pytest.mark.parametrize("when", [{}, {"countdown": 1, "eta": 1}])
def test_a_new_time_is_given_in_one_way(app: Celery, four: DelayedQueue, when: dict[str, Any]) -> None:
    with nothing_changes(four.client), pytest.raises(TypeError, match="either countdown or eta"):
        app.delayq.reschedule_all(queue="celery", **when)


class TestCounts:
    def test_everything_that_is_somewhere(self, app: Celery, waiting: DelayedQueue) -> None:
        client = waiting.client
        now = now_ms(client)
        offer(waiting, "overdue", 5)
        for seconds in (150, 160, 450, 100_000):
            offer(waiting, str(seconds), now + seconds * 1000)
        high = DelayedQueue(client, list_for(client, "celery", 9))
        offer(high, "high", now + 30_000)
        client.lpush("celery", b"ready")
        client.lpush(high.name, b"ready", b"ready")
        bury(client, waiting.name, b"dead")
        for consumer in ("one", "two"):
            lease(waiting, consumer)
            give(waiting, consumer, b"held", b"held")
        client.zadd(waiting.keys.consumers, {"": 1})
        client.set(waiting.keys.transferrer, f"{now}:host:1:abc")
        with nothing_changes(client):
            counts = app.delayq.counts(span=timedelta(minutes=10), buckets=6)
        celery = next(queue for queue in counts.queues if queue.queue == "celery")
        assert (celery.ready, celery.delayed, celery.overdue) == (3, 6, 1)
        assert (celery.in_flight, celery.dead) == (4, 1)
        assert celery.punctual == ("host:1:abc",)
        assert counts.next_due == celery.next_due == datetime(1970, 1, 1, 0, 0, 0, 5000, tzinfo=timezone.utc)
        assert now <= to_ms(counts.at, "at") <= now_ms(client)
        assert [bucket.count for bucket in counts.histogram] == [1, 2, 0, 0, 1, 0]
        assert counts.later == 1
        ends = [(bucket.start - counts.at, bucket.end - counts.at) for bucket in counts.histogram]
        first = timedelta(milliseconds=1)
        assert ends == [(first + number * 100 * SECOND, first + (number + 1) * 100 * SECOND) for number in range(6)]

    def test_of_nothing(self, app: Celery, waiting: DelayedQueue) -> None:
        counts = app.delayq.counts(span=1, buckets=1)
        assert all(queue.ready == queue.delayed == queue.dead == 0 for queue in counts.queues)
        assert counts.next_due is None
        first = timedelta(milliseconds=1)
        assert counts.histogram == (Bucket(counts.at + first, counts.at + first + SECOND, 0),)
        assert "celery" in [queue.queue for queue in counts.queues]

    def test_commands_do_not_grow_with_what_waits(self, app: Celery, waiting: DelayedQueue) -> None:
        ran = []
        for _ in range(2):
            for number in range(3_000):
                offer(waiting, str(number), FAR + number)
            waiting.client.config_resetstat()
            app.delayq.counts()
            stats = waiting.client.info("commandstats")
            ran.append(
                {name: stat["calls"] for name, stat in stats.items() if name.startswith(("cmdstat_z", "cmdstat_l"))}
            )
        assert ran[0] == ran[1]

    def test_the_punctual_worker_and_what_it_holds(
        self, app: Celery, waiting: DelayedQueue, broker_url: str, ledger_url: str
    ) -> None:
        app.tasks["work_late"].apply_async((60,), countdown=3)
        with Worker(broker=broker_url, ledger=ledger_url) as worker:

            def celery() -> Any:
                return next(queue for queue in app.delayq.counts().queues if queue.queue == "celery")

            wait_until(lambda: celery().in_flight == 1, "the worker works", 20)
            (punctual,) = celery().punctual
            assert int(punctual.split(":")[1]) == worker.pid
            worker.kill()

    @pytest.mark.parametrize(
        ("options", "error", "match"),
        [
            ({"span": 0}, ValueError, "span must be more than 0"),
            ({"span": 1e12}, ValueError, "span must be more than 0"),
            ({"span": "hour"}, TypeError, "span must be a number of seconds"),
            ({"buckets": 0}, ValueError, "buckets must be 1 to 1000"),
            ({"buckets": 1001}, ValueError, "buckets must be 1 to 1000"),
            ({"buckets": 2.5}, TypeError, "buckets must be a whole number"),
        ],
    )
    def test_bad_input(self, app: Celery, options: dict[str, Any], error: type[Exception], match: str) -> None:
        with pytest.raises(error, match=match):
            app.delayq.counts(**options)

    def test_a_list_of_another_type(self, app: Celery, waiting: DelayedQueue) -> None:
        waiting.client.set("celery", "no list")
        with pytest.raises(OperationalError, match=r"cannot count messages: .*WRONGTYPE"):
            app.delayq.counts()
