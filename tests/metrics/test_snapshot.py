"""The snapshot: what waits where, on one server and on a cluster."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
import redis
from celery import Celery

from celery_delayq import DelayedQueue, DelayQ
from celery_delayq.metrics.collector import text_of
from celery_delayq.metrics.source import Source
from celery_delayq.schedule.service import planner_loop
from tests.brokers import list_for
from tests.foreign import defined
from tests.integration.publishing import publish
from tests.metrics.parsing import Metrics, Scrape
from tests.state import FAR, bury, give, lease, now_ms
from tests.state import publish as put
from tests.support import wait_until

pytestmark = pytest.mark.on_cluster(always=True)


def gauges(found: Metrics, queue: str = "celery") -> dict[str, float | None]:
    """The numbers of messages of a queue."""
    names = ("ready", "delayed", "overdue", "in_flight", "dead")
    return {name: found.get(f"delayq_{name}_messages", queue) for name in names}


def test_counts_are_those_of_all_priorities(app: Celery, waiting: DelayedQueue, scrape: Scrape) -> None:
    client = waiting.client
    other = DelayedQueue(client, list_for(client, "celery", 6))
    put(waiting, b"ready")
    put(other, b"ready", b"too")
    lease(waiting, "one")
    lease(other, "one")
    lease(other, "two", ms_left=-1000)
    give(other, "one", b"held")
    give(other, "two", b"left", b"behind")
    bury(client, other.name, b"dead")
    client.set(other.keys.transferrer, "0:host:4711:1")
    found = scrape()
    assert gauges(found) == {"ready": 3, "delayed": 0, "overdue": 0, "in_flight": 3, "dead": 1}
    assert found.get("delayq_consumers") == 1
    assert found.get("delayq_ended_leases") == 1
    assert found.get("delayq_punctual_worker_info", worker="host:4711") == 1
    assert found.get("delayq_next_due_timestamp_seconds") is None


def test_a_paused_queue_has_a_mark(app: Celery, waiting: DelayedQueue, scrape: Scrape) -> None:
    assert scrape().get("delayq_paused") == 0
    app.delayq.pause("celery")
    assert scrape().get("delayq_paused") == 1
    app.delayq.resume("celery")
    assert scrape().get("delayq_paused") == 0


def test_what_waits_is_counted_by_when_it_is_due(app: Celery, waiting: DelayedQueue, scrape: Scrape) -> None:
    now = now_ms(waiting.client)
    for in_s in (50, 290, 3500, 7200):
        publish(app, eta=datetime.fromtimestamp(now / 1000 + in_s, timezone.utc))
    waiting.client.zadd(waiting.keys.timeout_set, {b"%d" % late_s: now - late_s * 1000 for late_s in (30, 100)})
    found = scrape()
    assert gauges(found) == {"ready": 0, "delayed": 6, "overdue": 2, "in_flight": 0, "dead": 0}
    assert [found.get("delayq_due_messages", within=within) for within in ("60", "300", "3600")] == [3, 4, 5]
    age_s = found.get("delayq_oldest_overdue_age_seconds")
    assert age_s is not None
    assert 100 <= age_s < 160
    assert found.get("delayq_next_due_timestamp_seconds") == pytest.approx(now / 1000 - 100, abs=0.001)


def test_names_from_outside_are_escaped(waiting: DelayedQueue, scrape: Scrape) -> None:
    name = 'a "queue"\n{x="y"}\\'
    DelayedQueue(waiting.client, name).offer(b"1", countdown=60.0)
    try:
        assert scrape().get("delayq_delayed_messages", name) == 1
    finally:
        waiting.client.zrem("delayq:queues", name)


def test_a_queue_that_the_server_refuses_is_left_out(waiting: DelayedQueue, scrape: Scrape) -> None:
    waiting.client.set("celery", "no list")
    put(DelayedQueue(waiting.client, "other"), b"1")
    waiting.client.zadd("delayq:queues", {"other": FAR})
    try:
        found = scrape()
        assert gauges(found, "other")["ready"] == 1
        assert found.get("delayq_unreadable_queues", None) == 1
    finally:
        waiting.client.zrem("delayq:queues", "other")


def test_counters_of_a_queue_that_lacks_a_part_are_left_out(waiting: DelayedQueue, scrape: Scrape) -> None:
    """They would fall, and Prometheus would take that for a restart."""
    waiting.client.hset(waiting.keys.metrics, mapping={"transferred": 7, "missed_runs:report": 1})
    assert scrape().get("delayq_transferred_messages_total") == 7
    waiting.client.set(list_for(waiting.client, "celery", 6), "no list")
    found = scrape()
    assert found.get("delayq_transferred_messages_total") is None
    assert found.get("delayq_unreadable_queues", None) == 1
    assert found.get("delayq_ready_messages") == 0


def test_runs_that_a_removed_entry_missed_are_left_out(waiting: DelayedQueue, scrape: Scrape) -> None:
    waiting.client.hset(waiting.keys.metrics, "missed_runs:removed", 3)
    assert not scrape().named("delayq_periodic_missed_total")


def test_the_beginning_of_time_is_a_due_time(waiting: DelayedQueue, scrape: Scrape) -> None:
    other = DelayedQueue(waiting.client, list_for(waiting.client, "celery", 6))
    for queue, due_ms in ((waiting, 0), (other, 5000)):
        queue.client.zadd(queue.keys.timeout_set, {b"entry": due_ms})
    assert scrape().get("delayq_next_due_timestamp_seconds") == 0


def test_totals_are_there_when_nothing_waits_any_more(waiting: DelayedQueue, scrape: Scrape) -> None:
    waiting.client.hset("delayq:metrics:{gone}", mapping={"transferred": 7})
    waiting.client.zadd("delayq:metrics", {"gone": 1})
    assert scrape().get("delayq_transferred_messages_total", "gone") == 7


@pytest.fixture
def entries(app: Celery, waiting: DelayedQueue) -> Any:
    schedule = DelayQ(app).schedule
    schedule.add("report", "note", 3600.0)
    yield schedule
    schedule.remove("report")


def test_periodic_entries_have_their_times_and_errors(
    app: Celery, entries: Any, waiting: DelayedQueue, scrape: Scrape
) -> None:
    loop = planner_loop(app)
    loop.start()
    try:
        wait_until(lambda: entries.get("report").next_run is not None, "it is planned")
    finally:
        loop.stop()
    assert scrape().get("delayq_periodic_missed_total", entry="report") == 0  # `increase` sees the first one that comes
    waiting.client.hset(waiting.keys.metrics, "missed_runs:report", 3)
    found = scrape()
    following = found.get("delayq_periodic_next_run_timestamp_seconds", entry="report")
    assert following == entries.get("report").next_run.timestamp()
    assert found.get("delayq_periodic_last_run_timestamp_seconds", entry="report") is None
    assert found.get("delayq_periodic_runs_total", entry="report") == 0
    assert found.get("delayq_periodic_error", entry="report") == 0
    assert found.get("delayq_periodic_missed_total", entry="report") == 3


def test_entries_that_cannot_be_planned_have_one_sample(
    app: Celery, waiting: DelayedQueue, broker_client: redis.Redis
) -> None:
    """Also if no planner has found out their queue, or if nobody can read them."""
    broker_client.hset("delayq:schedule", mapping={"unreadable": "{", "unbuildable": defined(args=[1, 2, 3])})
    loop = planner_loop(app)
    loop.start()
    try:
        found = DelayQ(app).schedule
        wait_until(lambda: {entry.name for entry in found if entry.error} == {"unreadable", "unbuildable"}, "errors")
    finally:
        loop.stop()
    source = Source(app)
    samples = [line for line in text_of(source.read()).splitlines() if line.startswith("delayq_periodic_error{")]
    source.close()
    assert sorted(samples) == [
        f'delayq_periodic_error{{entry="{name}",queue_name=""}} 1.0' for name in ("unbuildable", "unreadable")
    ]


def test_a_scrape_takes_a_bounded_number_of_commands(
    app: Celery, waiting: DelayedQueue, broker_client: redis.Redis, scrape: Scrape
) -> None:
    """However much waits; one script call for each list."""

    def sent(messages: int) -> int:
        now = now_ms(broker_client)
        broker_client.zadd(waiting.keys.timeout_set, {b"%d" % number: now - number for number in range(messages)})
        broker_client.config_resetstat()
        assert scrape().get("delayq_overdue_messages") == messages
        return sum(stat["calls"] for stat in broker_client.info("commandstats").values())

    sent(1)
    assert sent(1) == sent(10_000)


def test_the_nodes_of_a_cluster_answer(broker_kind: str, waiting: DelayedQueue, scrape: Scrape) -> None:
    nodes = scrape().named("delayq_node_up")
    assert len(nodes) == (3 if broker_kind == "cluster" else 0)


def test_a_source_reads_again_after_it_was_closed(app: Celery, waiting: DelayedQueue) -> None:
    source = Source(app)
    assert source.read().queues.keys() >= {"celery"}
    source.close()
    assert source.read().queues.keys() >= {"celery"}
    source.close()
