"""Throttled tasks: each waits in the delayed queue for its turn, and no worker holds it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from celery import Celery, group

from celery_delayq import DelayedQueue, Throttle, Unique
from celery_delayq.queue.holds import Pace
from tests.integration.long_tasks import in_flight
from tests.ledger import Ledger
from tests.state import floor_ms, now_ms
from tests.support import is_raised, wait_until
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster(always=True)

A_SECOND = Throttle("60/m", key="sync:7")


@pytest.fixture
def sync(app: Celery, waiting: DelayedQueue) -> Iterator[Any]:
    """A task with `throttle` in its decorator."""

    @app.task(name="sync", throttle=Throttle("1/m", by=("customer",)), shared=False)
    def sync(customer: int, what: str = "all") -> None: ...

    yield sync
    app.tasks.pop("sync", None)


def dues(waiting: DelayedQueue) -> list[float]:
    """When what waits is due, in seconds since the first."""
    found = [entry.score for entry in waiting.peek(100)]
    return [(due - found[0]) / 1000 for due in found]


def test_one_after_the_other(app: Celery, waiting: DelayedQueue) -> None:
    for _ in range(4):
        app.tasks["note"].apply_async(countdown=60, throttle=A_SECOND)
    assert dues(waiting) == pytest.approx([0, 1, 2, 3], abs=0.9)
    assert all(later - earlier >= 1 for earlier, later in pairwise(dues(waiting)))


def test_without_a_countdown_the_first_is_due_at_once(app: Celery, waiting: DelayedQueue) -> None:
    results = [app.tasks["note"].apply_async(throttle=A_SECOND) for _ in range(3)]
    assert waiting.size() == 3
    wait_until(lambda: waiting.transfer().moved == 1, "it is due, within a millisecond")
    assert app.delayq.get(results[0]) is None
    assert app.delayq.get(results[1]).due < app.delayq.get(results[2]).due


def test_the_message_says_when_its_turn_is(app: Celery, waiting: DelayedQueue) -> None:
    """So its worker waits for the rest of the lead."""
    app.tasks["note"].apply_async(countdown=60, throttle=A_SECOND)
    app.tasks["note"].apply_async(throttle=Throttle("1/m", key="other"), unique="key")
    app.tasks["note"].apply_async((f"%d {9**50}",), countdown=60, throttle=A_SECOND)
    entries = waiting.peek(9)
    assert len(entries) == 3
    for entry in entries:
        assert json.loads(entry.payload)["properties"]["delayq_due"] == entry.score


def test_a_repeated_call_takes_no_second_turn(app: Celery, waiting: DelayedQueue) -> None:
    pace = Pace("key", 60_000_000)
    dues = [waiting.offer_throttled(b'{"at": ', pace, eta=None, message_id="a", tail=b"}") for _ in range(2)]
    assert dues[0] == dues[1]
    assert [entry.payload for entry in waiting.peek(9)] == [b'{"at": %d}' % floor_ms(dues[0])]
    waiting.offer_throttled(b'{"at": ', pace, eta=None, message_id="b", tail=b" }")
    assert waiting.size() == 2


def test_by_some_arguments(sync: Any, waiting: DelayedQueue, app: Celery) -> None:
    for customer in (1, 1, 2, 2, 2):
        sync.apply_async((customer,), countdown=600)
    assert [round(due / 60) for due in dues(waiting)] == [0, 0, 1, 1, 2]
    sync.apply_async((1,), countdown=600, throttle=None)
    assert [round(due / 60) for due in dues(waiting)] == [0, 0, 0, 1, 1, 2]


def test_signatures_groups_and_many(sync: Any, waiting: DelayedQueue, app: Celery) -> None:
    group(sync.s(1).set(countdown=600) for _ in range(2)).apply_async()
    found = app.delayq.apply_async_many(sync.s(1).set(countdown=600) for _ in range(3))
    assert len(found) == 3
    assert [round(due / 60) for due in dues(waiting)] == [0, 1, 2, 3, 4]


def test_with_a_unique_key(sync: Any, waiting: DelayedQueue) -> None:
    """Only what is sent takes a turn."""
    for number in (1, 1, 2, 3):
        sync.apply_async((7, str(number)), countdown=600, unique=Unique(by=("customer", "what")))
    assert [round(due / 60) for due in dues(waiting)] == [0, 1, 2]


def test_rescheduled_it_leaves_the_row(sync: Any, waiting: DelayedQueue, app: Celery) -> None:
    results = [sync.apply_async((1,), countdown=600) for _ in range(3)]
    assert app.delayq.reschedule(results[2], countdown=600)
    assert app.delayq.run_now(results[1])
    assert [round(due / 60) for due in dues(waiting)] == [0, 0]
    sync.apply_async((1,), countdown=600)
    assert [round(due / 60) for due in dues(waiting)] == [0, 0, 3]


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"rate": "fast"}, ValueError, "rate must be"),
        ({"rate": 0}, ValueError, "rate must be"),
        ({"rate": None}, TypeError, "rate must be"),
        ({"rate": "1/m", "by": "customer"}, TypeError, "by must be the names of arguments"),
        ({"rate": "1/m", "by": ("a",), "key": "b"}, TypeError, "either by or key"),
        ({"rate": "1/m", "key": ""}, ValueError, "key must be a text"),
        ({"rate": "1/m", "key": 7}, TypeError, "key must be a text"),
    ],
)
def test_wrong_arguments(given: dict[str, Any], error: type[Exception], match: str) -> None:
    with is_raised(error, match):
        Throttle(**given)


def test_a_wrong_option(app: Celery, waiting: DelayedQueue) -> None:
    with is_raised(TypeError, r"throttle must be Throttle\(...\), or None for none, not '1/m'"):
        app.tasks["note"].apply_async(throttle="1/m")


class TestWithAWorker:
    @pytest.fixture
    def worker(self, broker_url: str, ledger: Ledger) -> Iterator[Worker]:
        with Worker(broker=broker_url, ledger=ledger.url, pool="prefork", concurrency=2) as worker:
            yield worker

    def test_they_run_in_turn(self, app: Celery, waiting: DelayedQueue, ledger: Ledger, worker: Worker) -> None:
        pace = Throttle(10, key="ten a second")
        begun_ms = now_ms(ledger.client)
        ids = [app.tasks["note"].apply_async(throttle=pace).id for _ in range(20)]
        assert in_flight(waiting.client) <= 3, "they wait in the delayed queue"
        wait_until(lambda: ledger.has(ids), "all ran")
        runs = ledger.runs()
        assert sorted(run.task_id for run in runs) == sorted(ids)
        for number, run in enumerate(runs):
            assert run.at_ms - begun_ms >= number * 100, "no task begins before its turn"

    def test_a_retry_takes_a_turn(self, app: Celery, waiting: DelayedQueue, ledger: Ledger, worker: Worker) -> None:
        begun_ms = now_ms(ledger.client)
        result = app.tasks["try_again"].apply_async((2, 0), throttle=Throttle(2, key="two a second"))
        app.tasks["note"].apply_async(throttle=Throttle(2, key="two a second"))
        assert result.get(timeout=20) == 2
        assert ledger.runs()[-1].at_ms - begun_ms >= 3 * 500
