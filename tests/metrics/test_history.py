"""The history: what was counted in the last hours and days, as points of a chart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
import redis
from celery import Celery

from celery_delayq import DelayedQueue, UnknownQueue
from celery_delayq.inspector.broker_lists import BrokerLists
from celery_delayq.inspector.history import History, Point, read
from celery_delayq.metrics.flusher import Flusher
from celery_delayq.metrics.recorder import Recorder
from celery_delayq.queue import measuring
from celery_delayq.queue.histograms import fields_of
from celery_delayq.queue.keys import QueueKeys
from tests.state import FAR, nothing_changes, now_ms

pytestmark = pytest.mark.on_cluster(always=True)


@pytest.fixture
def lists(app: Celery, waiting: DelayedQueue) -> Iterator[BrokerLists]:
    with app.connection_or_acquire() as connection:
        yield BrokerLists(connection.default_channel, ["celery"])


def count(client: redis.Redis, seconds_ago: int, numbers: dict[str, int], name: str = "celery") -> int:
    """Add numbers as a worker would have done so long ago; return when that was, in seconds."""
    at_s = now_ms(client) // 1000 - seconds_ago
    measuring.count(QueueKeys.of(name), now_s=at_s, numbers=numbers).run(client)
    return at_s


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


def milliseconds(when: datetime) -> int:
    return (when - at(0)) // timedelta(milliseconds=1)


def late(seconds: float, number: int) -> dict[str, int]:
    """What is counted of messages that were so late."""
    bucket, _, _ = fields_of("transfer_lateness", seconds)
    return {"transferred": number, bucket: number, "start_lateness:1": 7, "dead_letters:invalid-task": 3}


def point_at(found: History, at_s: int) -> Point:
    (point,) = (point for point in found.points if point.start <= at(at_s) < point.end)
    return point


@pytest.mark.parametrize(("hours", "number", "point_ms"), [(8, 96, 300_000), (72, 72, 3_600_000)])
class TestPoints:
    def test_cover_the_hours(self, lists: BrokerLists, hours: int, number: int, point_ms: int) -> None:
        begin = now_ms(lists.client)
        with nothing_changes(lists.client):
            found = read(lists, hours)
        assert begin <= milliseconds(found.at) <= now_ms(lists.client)
        starts = [milliseconds(point.start) for point in found.points]
        assert starts == list(range(starts[0], starts[0] + number * point_ms, point_ms))
        assert all(point.end - point.start == timedelta(milliseconds=point_ms) for point in found.points)
        assert starts[0] % point_ms == 0
        assert found.points[-1].start <= found.at < found.points[-1].end
        assert {(point.transferred, point.p50_s, point.p95_s) for point in found.points} == {(0, None, None)}

    def test_have_what_was_counted_then(self, lists: BrokerLists, hours: int, number: int, point_ms: int) -> None:
        span_s = hours * 3600 - point_ms // 1000
        added = {count(lists.client, ago_s, late(0.02, 1)) for ago_s in range(0, span_s, 1171)}
        found = read(lists, hours)
        assert sum(point.transferred for point in found.points) == len(added)
        for point in found.points:
            assert point.transferred == sum(point.start <= at(at_s) < point.end for at_s in added)

    def test_have_percentiles_of_all_queues(self, lists: BrokerLists, hours: int, number: int, point_ms: int) -> None:
        at_s = count(lists.client, 0, late(0.0, 50))
        lists.client.zadd("delayq:queues", {"other": FAR})
        try:
            count(lists.client, 0, late(0.02, 50), "other")
            both, one = point_at(read(lists, hours), at_s), point_at(read(lists, hours, queue="other"), at_s)
        finally:
            lists.client.zrem("delayq:queues", "other")
        assert (both.transferred, both.p50_s) == (100, 0.0)
        assert both.p95_s == pytest.approx(0.01 + 0.015 * 0.9)
        assert (one.transferred, one.p50_s) == (50, pytest.approx(0.0175))

    def test_leave_out_what_is_no_number(self, lists: BrokerLists, hours: int, number: int, point_ms: int) -> None:
        minute_s = count(lists.client, 0, {"transferred": 2}) // 60 * 60
        for key in lists.client.scan_iter("delayq:metrics:{celery}:*"):
            # A second after the full minute: the field of the minute itself has what was counted.
            wrong = {f"{minute_s + 1}:transferred": "x", "x": "5", "x:transferred": "1", b"\xff": b"\xff"}
            lists.client.hset(key, mapping=wrong)
        assert sum(point.transferred for point in read(lists, hours).points) == 2


def test_a_queue_of_which_only_the_counts_are_left(lists: BrokerLists) -> None:
    count(lists.client, 0, late(0, 5), "gone")
    lists.client.zadd("delayq:metrics", {"gone": 1})
    assert sum(point.transferred for point in read(lists, 8).points) == 5
    assert sum(point.transferred for point in read(lists, 8, queue="gone").points) == 5
    assert sum(point.transferred for point in read(lists, 8, queue="never heard of").points) == 0


def test_what_workers_add_is_there(lists: BrokerLists, app: Celery) -> None:
    """For all priorities together."""
    recorder = Recorder()
    flusher = Flusher(recorder, first_list=lists.channel.first_list)
    for name in lists.channel.broker_lists("celery"):
        recorder.add(name, "transferred", 3)
    flusher.flush_everywhere(lists.client)
    for hours in (8, 72):
        assert sum(point.transferred for point in read(lists, hours).points) == 12


@pytest.mark.parametrize("hours", [0, 1, 24, 7.99, True])
def test_other_hours_are_not_kept(lists: BrokerLists, hours: int) -> None:
    with pytest.raises(ValueError, match="a history has 8 or 72 hours, not"):
        read(lists, hours)


def test_takes_few_commands(lists: BrokerLists) -> None:
    """One for each key of a queue."""
    read(lists, 8)
    lists.client.config_resetstat()
    read(lists, 8)
    queues = {found.queue for found in lists.known()[0]}
    sent = lists.client.info("commandstats")["cmdstat_hgetall"]["calls"]
    assert 48 * len(queues) <= sent <= 49 * len(queues)


@pytest.mark.parametrize("hours", [8, 72])
def test_what_is_over_is_not_read_again(lists: BrokerLists, hours: int) -> None:
    for ago_s in range(0, hours * 3600 - 3600, 1171):
        count(lists.client, ago_s, late(0.02, 1))
    known = read(lists, hours)
    count(lists.client, 0, late(0.02, 100))
    lists.client.config_resetstat()
    found = read(lists, hours, known=known)
    calls = lists.client.info("commandstats")
    assert found.points == read(lists, hours).points
    assert sum(point.transferred for point in found.points) == sum(point.transferred for point in known.points) + 100
    if "cmdstat_hgetall" in calls:  # on a cluster, another node may have been asked
        assert calls["cmdstat_hgetall"]["calls"] <= 3


def test_a_clock_that_was_put_back_does_no_harm(lists: BrokerLists) -> None:
    found = read(lists, 8)
    ahead = History(found.at + timedelta(hours=1), tuple(replace(one, transferred=7) for one in found.points))
    assert {point.transferred for point in read(lists, 8, known=ahead).points} == {7}


class TestThroughDelayQ:
    def test_the_history_of_all_queues_or_of_one(self, lists: BrokerLists, app: Celery) -> None:
        """A span is a timedelta or seconds."""
        at_s = count(lists.client, 0, late(0.02, 3))
        for found in (app.delayq.history(), app.delayq.history(8 * 3600), app.delayq.history(queue="celery")):
            assert (len(found.points), point_at(found, at_s).transferred) == (96, 3)
        long = app.delayq.history(timedelta(hours=72), "celery")
        assert (len(long.points), point_at(long, at_s).transferred) == (72, 3)

    def test_a_queue_of_which_nothing_is_known(self, lists: BrokerLists, app: Celery) -> None:
        with pytest.raises(UnknownQueue, match="did you mean 'celery'"):
            app.delayq.history(queue="clery")

    def test_an_app_in_which_nothing_waits(self, app: Celery) -> None:
        app.conf.task_always_eager = True
        try:
            found = app.delayq.history(queue="celery")
        finally:
            app.conf.task_always_eager = False
        assert (len(found.points), sum(point.transferred for point in found.points)) == (96, 0)
