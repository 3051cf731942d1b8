"""`celery delayq status`, and `top --once`, which shows the same and what is next."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from celery import Celery

from celery_delayq import DelayedQueue
from celery_delayq.cluster.client import Routed
from tests.cli.running import Command, Done, failed, is_wrong_use
from tests.integration.publishing import publish
from tests.state import bury, give, lease, now_ms
from tests.state import publish as put

pytestmark = pytest.mark.on_cluster


def row(done: Done, first: str) -> list[str]:
    """The cells of the line that begins so."""
    (line,) = (line for line in done.stdout.splitlines() if line.startswith(f"{first} "))
    return line.split()


def fill(app: Celery, queue: DelayedQueue) -> list[datetime]:
    """One of each, of `celery`, and two delayed tasks of `other`, of which one is due within the hour."""
    now = datetime.fromtimestamp(now_ms(queue.client) / 1000, timezone.utc)
    etas = [now + timedelta(minutes=30), now + timedelta(days=2)]
    for eta in etas:
        publish(app, eta=eta, queue="other")
    publish(app, eta=now + timedelta(days=1))
    put(queue, b"ready")
    lease(queue, "consumer")
    give(queue, "consumer", b"held", b"held too")
    bury(queue.client, queue.name, b"dead")
    queue.client.set(queue.keys.transferrer, "0:host:4711:1")
    return etas


def test_json(app: Celery, waiting: DelayedQueue, command: Command) -> None:
    etas = fill(app, waiting)
    (found,) = command("status", "--json", "--span", "1h", "--buckets", 2).json()
    queues = {queue["queue"]: queue for queue in found["queues"]}
    if isinstance(waiting.client, Routed):
        assert found.pop("error") is None
        for name, queue in queues.items():
            assert queue.pop("node") == str(waiting.client.node_of(name).address)
            assert queue.pop("error") is None
    assert found.keys() == {"at", "queues", "totals", "next_due", "histogram", "later"}
    assert queues["celery"] == {
        "queue": "celery",
        "ready": 1,
        "delayed": 1,
        "overdue": 0,
        "in_flight": 2,
        "dead": 1,
        "failed": 0,
        "next_due": (etas[1] - timedelta(days=1)).isoformat(),
        "punctual": ["host:4711:1"],
        "paused": False,
    }
    assert queues["other"]["delayed"] == 2
    assert found["totals"] == {"ready": 1, "delayed": 3, "overdue": 0, "in_flight": 2, "dead": 1, "failed": 0}
    assert found["next_due"] == etas[0].isoformat()
    assert [bucket.keys() for bucket in found["histogram"]] == [{"start", "end", "count"}] * 2
    assert sum(bucket["count"] for bucket in found["histogram"]) == 1
    assert found["later"] == 2


def test_tables(app: Celery, waiting: DelayedQueue, command: Command) -> None:
    fill(app, waiting)
    done = command("status", "--span", "36h", "--buckets", 3)
    celery = row(done, "celery")
    if isinstance(waiting.client, Routed):
        assert celery.pop(1) == str(waiting.client.node_of("celery").address)
    assert celery[:6] == ["celery", "1", "1", "0", "2", "1"]
    assert celery[-1] == "host:4711"
    assert row(done, "all")[:6] == ["all", "1", "3", "0", "2", "1"]
    assert "due within 1d 12h" in done.stdout
    assert row(done, "later") == ["later", "1"]
    assert done.stdout.count("█" * 50) == 2


def test_an_empty_system_says_what_to_do(command: Command) -> None:
    done = command("status")
    assert done.code == 0
    assert done.stdout.startswith("Nothing here yet: no task is delayed, ready or in flight")
    assert "countdown=60" in done.stdout
    assert "stock Celery" in done.stdout
    assert command("status", "--json").json()[0]["totals"]["delayed"] == 0


def test_no_histogram_of_zeros(app: Celery, waiting: DelayedQueue, command: Command) -> None:
    put(waiting, b"ready")
    done = command("status")
    assert row(done, "celery")[1:3] != ["0", "0"]
    assert done.stdout.endswith("No task is delayed.\n")


def test_ready_tasks_of_another_priority_are_counted(app: Celery, command: Command) -> None:
    """Nothing but the delayed one is known of the queue: the app does not have it."""
    publish(app, queue="elsewhere", priority=3)
    app.tasks["note"].apply_async(queue="elsewhere", priority=9)
    (found,) = (one for one in command("status", "--json").json()[0]["queues"] if one["queue"] == "elsewhere")
    assert (found["delayed"], found["ready"]) == (1, 1)


def test_spans_and_numbers_that_are_none(command: Command) -> None:
    is_wrong_use(command("status", "--span", "0"), "span must be more than 0")
    is_wrong_use(command("status", "--span", "long"), "cannot parse 'long' as a span of time")
    is_wrong_use(command("status", "--buckets", "1001"), "--buckets")


class TestTop:
    def test_once(self, app: Celery, waiting: DelayedQueue, command: Command) -> None:
        fill(app, waiting)
        first, second = publish(app), publish(app, seconds=1, queue="other")
        done = command("top", "--once", "--limit", 5)
        assert row(done, "all")[2] == "5"
        assert done.stdout.index(first) < done.stdout.index(second)
        assert row(done, "later") == ["later", "4"]
        done = command("top", "--once", "--queue", "celery")
        assert first in done.stdout
        assert second not in done.stdout

    def test_is_for_a_terminal(self, command: Command) -> None:
        is_wrong_use(command("top"), "top needs a terminal: add --once, or use `status`")
        is_wrong_use(command("top", "--once", "--interval", "0"), "--interval")

    def test_of_an_unknown_queue(self, command: Command) -> None:
        failed(command("top", "--once", "--queue", "cellery"), "unknown queue 'cellery': did you mean 'celery'?")
