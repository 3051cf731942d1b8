"""`delayq.reschedule` and `delayq.run_now`: the same task at another time, in one step, whoever else is at work."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayedQueue
from celery_delayq.basics.times import to_ms
from tests.brokers import list_for
from tests.integration.publishing import ready
from tests.ledger import Ledger
from tests.state import FAR, now_ms, offer
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster

LATER = datetime(2040, 1, 1, 12, 0, 0, 250_000, tzinfo=timezone(timedelta(hours=9)))
MS = timedelta(milliseconds=1)


def without_eta(message: dict[str, Any]) -> dict[str, Any]:
    """A message without what another time may change."""
    headers = {key: value for key, value in message["headers"].items() if key != "eta"}
    properties = {key: value for key, value in message["properties"].items() if key != "delayq_due"}
    return {**message, "headers": headers, "properties": properties}


class TestLater:
    def test_only_the_time_is_another(self, app: Celery, waiting: DelayedQueue) -> None:
        result = app.tasks["note"].apply_async(("body",), countdown=60, expires=90, priority=0, serializer="pickle")
        before = json.loads(waiting.peek()[0].payload)
        assert app.delayq.reschedule(result, eta=LATER) is True
        (entry,) = waiting.peek(9)
        after = json.loads(entry.payload)
        assert without_eta(after) == without_eta(before)
        assert after["headers"]["eta"] == "2040-01-01T12:00:00.250000+09:00"
        assert after["properties"]["delayq_due"] == entry.score == round(LATER.timestamp() * 1000)
        assert app.delayq.get(result).due == LATER
        assert app.delayq.cancel(result.id) is True

    def test_at_the_end_of_time(self, app: Celery, waiting: DelayedQueue) -> None:
        never = datetime.max.replace(tzinfo=timezone.utc)
        result = app.tasks["note"].apply_async(countdown=60)
        assert app.delayq.reschedule_all(task="note", eta=never, timeout=30) == 1
        assert app.delayq.reschedule(result, eta=never, timeout=30) is True
        assert app.delayq.get(result).due == never.replace(microsecond=999_000)

    @pytest.mark.parametrize("naive", [False, True])
    def test_is_what_apply_async_would_have_made_of_it(self, app: Celery, waiting: DelayedQueue, naive: bool) -> None:
        eta = LATER.replace(tzinfo=None) if naive else LATER
        first = app.tasks["note"].apply_async(eta=eta)
        second = app.tasks["note"].apply_async(countdown=60)
        assert app.delayq.reschedule(second, eta=eta)
        found = app.delayq.get([first, second])
        assert len({(task.due, task.eta) for task in found.values()}) == 1

    def test_a_countdown_counts_by_the_servers_clock(self, app: Celery, waiting: DelayedQueue) -> None:
        result = app.tasks["note"].apply_async(countdown=60)
        before = now_ms(waiting.client)
        assert app.delayq.reschedule(result.id, countdown=3600.5) is True
        assert before <= to_ms(app.delayq.get(result).due, "due") - 3_600_500 <= now_ms(waiting.client)

    def test_the_same_time_again(self, app: Celery, waiting: DelayedQueue) -> None:
        result = app.tasks["note"].apply_async(countdown=60)
        assert [app.delayq.reschedule(result, eta=LATER) for _ in range(3)] == [True] * 3
        assert waiting.size() == 1

    def test_in_any_queue_and_priority(self, app: Celery, waiting: DelayedQueue) -> None:
        where = {
            app.tasks["note"].apply_async(countdown=60, queue=queue, priority=priority).id: (queue, priority)
            for queue in ("celery", "other")
            for priority in (0, 3, 9)
        }
        assert app.delayq.reschedule([*where, "never heard of"], eta=LATER) == {
            **dict.fromkeys(where, True),
            "never heard of": False,
        }
        assert {task.id: (task.queue, task.priority) for task in app.delayq.scheduled()} == where
        assert {task.due for task in app.delayq.scheduled()} == {LATER}

    def test_all_of_an_id_that_was_scheduled_several_times(self, app: Celery, waiting: DelayedQueue) -> None:
        for number in range(130):
            app.tasks["note"].apply_async((number,), countdown=60 + number % 7, task_id="same")
        app.tasks["note"].apply_async(countdown=60, task_id="same", queue="other")
        assert app.delayq.reschedule("same", eta=LATER) is True
        assert {task.due for task in app.delayq.iter_scheduled()} == {LATER}
        assert len({task.args_text for task in app.delayq.iter_scheduled()}) == 131
        assert app.delayq.cancel("same") is True
        assert list(app.delayq.iter_scheduled()) == []

    def test_redissons_delay_list_follows(self, broker_url: str, ledger_url: str, waiting: DelayedQueue) -> None:
        with publisher(broker_url, ledger_url, broker_transport_options={"mirror_list": True}) as app:
            results = [app.tasks["note"].apply_async(countdown=60) for _ in range(3)]
            assert app.delayq.reschedule(results[1], eta=LATER)
        listed = waiting.client.lrange(waiting.keys.delay_list, 0, -1)
        assert sorted(listed) == sorted(waiting.client.zrange(waiting.keys.timeout_set, 0, -1))

    def test_what_is_no_task_gets_only_another_due_time(self, app: Celery, waiting: DelayedQueue) -> None:
        waiting.register(again=True)
        offer(waiting, "id", payload=b"\xffbytes")
        assert app.delayq.reschedule("id", eta=LATER)
        (entry,) = waiting.peek(9)
        assert (entry.payload, entry.score) == (b"\xffbytes", round(LATER.timestamp() * 1000))

    def test_what_does_not_wait(self, app: Celery, waiting: DelayedQueue) -> None:
        result = app.tasks["note"].delay()
        assert app.delayq.reschedule(result, countdown=60) is False
        assert app.delayq.run_now("never heard of") is False
        assert waiting.client.llen("celery") == 1
        assert waiting.size() == 0

    @pytest.mark.parametrize(
        ("when", "error", "match"),
        [
            ({}, TypeError, "either countdown or eta"),
            ({"countdown": 1, "eta": LATER}, TypeError, "either countdown or eta"),
            ({"countdown": "5"}, TypeError, "countdown must be a number of seconds, or a timedelta, not '5'"),
            ({"countdown": float("nan")}, ValueError, "countdown must be a number of seconds, or a timedelta, not nan"),
            ({"countdown": 1e15}, ValueError, "before the year 10000"),
            ({"eta": "tomorrow"}, TypeError, "eta must be a datetime, or unix time in seconds, not 'tomorrow'"),
            ({"eta": 1e15}, ValueError, "eta must be a datetime"),
        ],
    )
    def test_a_time_that_is_none(
        self, app: Celery, waiting: DelayedQueue, when: Any, error: type[Exception], match: str
    ) -> None:
        result = app.tasks["note"].apply_async(countdown=60)
        before = waiting.peek()
        with pytest.raises(error, match=match):
            app.delayq.reschedule(result, **when)
        assert waiting.peek() == before


class TestNow:
    def test_it_is_on_its_broker_list_at_once_as_one_without_eta(self, app: Celery, waiting: DelayedQueue) -> None:
        published = app.tasks["note"].delay("ready")
        result = app.tasks["note"].apply_async(("now",), countdown=60, expires=90, task_id="it")
        before = json.loads(waiting.peek()[0].payload)
        assert app.delayq.run_now(result) is True
        other, message = ready(waiting.client)
        assert other["headers"]["id"] == published.id
        assert without_eta(message) == without_eta(before)
        assert message["headers"]["eta"] is None
        assert "delayq_due" not in message["properties"]
        assert waiting.client.exists(waiting.keys.timeout_set, waiting.keys.index) == 0
        assert app.delayq.run_now(result) is False

    @pytest.mark.parametrize("when", [{"countdown": -5}, {"countdown": 0}, {"eta": 5}, {"eta": LATER.replace(1969)}])
    def test_a_time_in_the_past_is_now(self, app: Celery, waiting: DelayedQueue, when: Any) -> None:
        result = app.tasks["note"].apply_async(countdown=60, priority=3)
        assert app.delayq.reschedule(result, **when) is True
        (message,) = ready(waiting.client, list_for(waiting.client, "celery", 3))
        assert datetime.fromisoformat(message["headers"]["eta"]).timestamp() * 1000 <= now_ms(waiting.client)
        assert "delayq_due" not in message["properties"]
        assert waiting.size() == 0

    def test_all_of_an_id_in_due_order(self, app: Celery, waiting: DelayedQueue) -> None:
        for number in random.sample(range(130), 130):
            app.tasks["note"].apply_async((number,), eta=LATER + timedelta(seconds=number), task_id="same")
        assert app.delayq.run_now("same") is True
        args = [message["headers"]["argsrepr"] for message in ready(waiting.client)]
        assert len(args) == 130
        assert args[:100] == sorted(args[:100], key=lambda text: int(text.strip("(,)")))

    @pytest.mark.parametrize("scheme", [pytest.param("redis", marks=pytest.mark.one_server("stock")), "delayq"])
    def test_stock_and_our_workers_run_it_at_once(
        self, app: Celery, waiting: DelayedQueue, broker_url: str, ledger: Ledger, scheme: str
    ) -> None:
        result = app.tasks["note"].apply_async(countdown=3600)
        past = app.tasks["note"].apply_async(countdown=3600)
        assert app.delayq.run_now(result)
        assert app.delayq.reschedule(past, countdown=-1)
        with Worker(broker=broker_url.replace("delayq", scheme), ledger=ledger.url):
            wait_until(lambda: ledger.has([result.id, past.id]), "both ran", 20)
        for change in (app.delayq.cancel, app.delayq.run_now):
            assert change([result, past]) == {result.id: False, past.id: False}, "they ran"

    def test_one_that_is_rescheduled_beyond_its_expiry_is_discarded(
        self, app: Celery, waiting: DelayedQueue, broker_url: str, ledger: Ledger
    ) -> None:
        result = app.tasks["note"].apply_async(countdown=60, expires=0.5)
        assert app.delayq.reschedule(result, countdown=1)
        with Worker(broker=broker_url, ledger=ledger.url):
            wait_until(lambda: result.state == "REVOKED", "the worker discarded it", 20)
        assert not ledger.has([result.id])


class TestRaces:
    def test_with_a_transfer_either_wins_and_the_answer_says_which(self, app: Celery, waiting: DelayedQueue) -> None:
        """Each is delivered once, or cancelled, or waits for its new time. The transfer is always close by."""
        eta = LATER - timedelta(days=365)
        names = [app.tasks["note"].apply_async((n,), eta=eta + n * MS, task_id=f"id{n}").id for n in range(400)]
        lead = LATER.timestamp() - 86400 - now_ms(waiting.client) / 1000
        # Before each task, beside those who change it, or after them.
        ahead = random.choices([1, 0, 0, -2], k=len(names))
        at = [0, 0]
        stop = threading.Event()

        def transfer() -> None:
            while not stop.is_set():
                head = waiting.peek()
                number = names.index(json.loads(head[0].payload)["headers"]["id"]) if head else len(names)
                if number < len(names) and number <= max(at) + ahead[number]:
                    waiting.transfer(1, lead=lead)

        def change(half: int) -> dict[str, str]:
            ways: dict[str, Callable[[str], bool]] = {
                "later": lambda task_id: app.delayq.reschedule(task_id, eta=LATER),
                "cancelled": app.delayq.cancel,
                "now": app.delayq.run_now,
            }
            said = {}
            for number in range(half, len(names), 2):
                at[half] = number
                way = random.choice([*ways])
                said[names[number]] = way if ways[way](names[number]) else "delivered"
            return said

        with ThreadPoolExecutor(3) as threads:
            transferring = threads.submit(transfer)
            said = {task_id: way for part in threads.map(change, range(2)) for task_id, way in part.items()}
            stop.set()
            transferring.result()
        delivered = [message["headers"]["id"] for message in ready(waiting.client)]
        assert len(delivered) == len(set(delivered))
        assert set(delivered) == {task_id for task_id, way in said.items() if way in ("now", "delivered")}
        left = {task.id: task.due for task in app.delayq.iter_scheduled()}
        assert left == {task_id: LATER for task_id, way in said.items() if way == "later"}
        counts = Counter(said.values())
        assert len(counts) == 4, "the race did not happen"
        assert min(counts.values()) > 10, "the race did not happen"

    def test_with_others_who_reschedule_the_same_tasks(self, app: Celery, waiting: DelayedQueue) -> None:
        """Everyone succeeds, since the tasks wait all the time, and none is lost or doubled."""
        tasks = [app.tasks["note"].apply_async((n,), countdown=60, task_id=f"id{n % 5}").id for n in range(10)]

        def move(seed: int) -> None:
            for number in range(40):
                task_id = tasks[(seed + number) % 5]
                assert app.delayq.reschedule(task_id, eta=LATER + seed * number * MS) is True

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(move, range(4)))
        found = list(app.delayq.iter_scheduled())
        assert sorted(task.args_text for task in found) == [f"({n},)" for n in range(10)]
        assert app.delayq.cancel(tasks) == dict.fromkeys(tasks, True)
        assert waiting.client.exists(waiting.keys.index) == 0

    def test_with_one_who_delivers_it_at_once(
        self, app: Celery, waiting: DelayedQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was given its new time, although it does not wait any more when that is looked up."""
        task_id = app.tasks["note"].apply_async(countdown=60).id
        amend = DelayedQueue.amend

        def amend_and_deliver(queue: DelayedQueue, *args: Any, **kwargs: Any) -> Any:
            done = amend(queue, *args, **kwargs)
            assert waiting.transfer(lead=FAR / 1000).moved == 1
            return done

        monkeypatch.setattr(DelayedQueue, "amend", amend_and_deliver)
        assert app.delayq.reschedule(task_id, eta=LATER) is True
        assert [message["headers"]["eta"] for message in ready(waiting.client)] == [LATER.isoformat()]
