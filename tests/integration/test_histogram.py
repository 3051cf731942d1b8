"""`delayq.histogram`: how many tasks are due when, in any window of time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayedQueue
from celery_delayq.basics.times import to_datetime, to_ms
from celery_delayq.inspector.broker_lists import BrokerLists
from celery_delayq.inspector.histogram import Bucket, histogram
from celery_delayq.queue import codec
from tests.integration.publishing import SOON, milliseconds, publish
from tests.state import FAR, nothing_changes, now_ms, offer

pytestmark = pytest.mark.on_cluster

START_MS = milliseconds(SOON)


@pytest.fixture
def some(app: Celery, waiting: DelayedQueue) -> DelayedQueue:
    """Tasks that are due around SOON, in two queues and two priorities; and a late one of another program."""
    for seconds in (-100, -1, 0, 9.999, 10, 29.999, 30, 1000):
        publish(app, seconds=seconds, priority=9 if seconds == 10 else 0)
    publish(app, seconds=5, queue="other")
    waiting.client.zadd(waiting.keys.timeout_set, {codec.pack(bytes(8), b"java"): FAR})
    return waiting


def counts(app: Celery, **options: Any) -> tuple[int, list[int], int]:
    found = app.delayq.histogram(SOON, 30, 3, **options)
    assert not found.lost
    return found.before, [bucket.count for bucket in found.buckets], found.after


def test_what_is_due_before_in_and_after_the_window(app: Celery, some: DelayedQueue) -> None:
    with nothing_changes(some.client):
        assert counts(app) == (2, [3, 1, 1], 3)  # the end of a bucket belongs to the next one
    begin = now_ms(some.client)
    found = app.delayq.histogram(SOON.timestamp(), 30.0, 3)
    assert begin <= to_ms(found.at, "at") <= now_ms(some.client)
    assert found.buckets == tuple(
        Bucket(to_datetime(START_MS + 10_000 * number), to_datetime(START_MS + 10_000 * (number + 1)), count)
        for number, count in enumerate([3, 1, 1])
    )


def test_of_one_queue(app: Celery, some: DelayedQueue) -> None:
    assert counts(app, queue="celery") == (2, [2, 1, 1], 3)
    assert counts(app, queue="other") == (0, [1, 0, 0], 0)


def test_all_that_waits_is_counted_once(app: Celery, some: DelayedQueue) -> None:
    for start, span, buckets in ((0, 31_557_600_000, 1000), (SOON - timedelta(days=1), 86_402, 7), (1, 0.001, 5)):
        found = app.delayq.histogram(start, span, buckets)
        assert found.before + sum(bucket.count for bucket in found.buckets) + found.after == 10
        assert len(found.buckets) == buckets


def test_overdue_tasks_are_in_the_past(app: Celery, waiting: DelayedQueue) -> None:
    waiting.register(again=True)
    offer(waiting, "overdue", 5)
    found = app.delayq.histogram(0, 1, 1000)
    assert found.buckets[5] == Bucket(to_datetime(5), to_datetime(6), 1)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        (("tomorrow", 1, 1), TypeError, "start must be a datetime"),
        ((float("nan"), 1, 1), ValueError, "start must be a datetime"),
        ((0, 0, 1), ValueError, "span must be more than 0"),
        ((0, "1", 1), TypeError, "span must be a number of seconds"),
        ((0, 1, 0), ValueError, "buckets must be 1 to 1000"),
        ((0, 1, 1001), ValueError, "buckets must be 1 to 1000"),
        ((0, 1, 1.0), TypeError, "buckets must be a whole number"),
        ((0, 1, 1, 5), TypeError, "queue must be a name as a str, not 5"),
    ],
)
def test_arguments_that_are_none(app: Celery, arguments: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        app.delayq.histogram(*arguments)


@pytest.mark.parametrize(("start_ms", "error"), [(1.0, TypeError), (-1, ValueError), (10**16, ValueError)])
def test_a_start_in_ms_that_is_none(app: Celery, start_ms: Any, error: type[Exception]) -> None:
    with app.connection() as connection, pytest.raises(error, match="start_ms must be a"):
        histogram(BrokerLists(connection.default_channel), start_ms, 1.0, 1)
