"""`celery delayq workers`: who consumes which queues."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from celery_delayq import DelayedQueue
from tests.brokers import list_for
from tests.cli.running import Command
from tests.state import give, lease

pytestmark = pytest.mark.on_cluster(always=True)

ONE, TWO = "web-1:1:random", "web-1:2:random"


@pytest.fixture
def two(waiting: DelayedQueue) -> int:
    """Two consumers; when the lease of the first one ends, in ms."""
    high = DelayedQueue(waiting.client, list_for(waiting.client, "celery", 9))
    ends_ms = int(lease(waiting, ONE))
    lease(high, ONE)
    give(waiting, ONE, b"held", b"too")
    lease(waiting, TWO, ms_left=-90_000)
    waiting.client.zadd(high.keys.consumers, {TWO: -1_000})
    waiting.client.set(waiting.keys.transferrer, "1:web-1:2:loop")
    return ends_ms


def test_json(waiting: DelayedQueue, two: int, command: Command) -> None:
    one, other = command("workers", "--json").json()
    assert one == {
        "id": ONE,
        "node": "web-1",
        "host": "web-1",
        "pid": 1,
        "queues": ["celery"],
        "in_flight": 2,
        "leases": one["leases"],
    }
    assert one["leases"][0] == {
        "queue": "celery",
        "priority": 0,
        "broker_list": "celery",
        "ends": datetime.fromtimestamp(two / 1000, timezone.utc).isoformat(),
        "lasting": True,
        "given_up": False,
        "in_flight": 2,
        "punctual": False,
    }
    assert [(it["lasting"], it["given_up"], it["punctual"]) for it in other["leases"]] == [
        (False, False, True),
        (False, True, False),
    ]


def test_a_table(two: int, command: Command) -> None:
    _, heading, _, one, other = command("workers").stdout.splitlines()
    assert heading.split() == ["worker", "queues", "in-flight", "lease", "punctual", "worker", "of"]
    assert one.split()[:4] == ["web-1:1", "celery", "2", "lasts"]
    assert one.split()[-1] == "-"
    assert other.split()[:3] == ["web-1:2", "celery", "0"]
    assert "ended 1m 3" in other
    assert "given up" in other
    assert other.split()[-1] == "celery"


def test_what_consumers_are_called_cannot_dress_up(waiting: DelayedQueue, command: Command) -> None:
    lease(waiting, "[red]\x1b[31m:1:x")
    assert r"[red]\x1b[31m:1" in command("workers").stdout


def test_nobody_is_no_error(command: Command) -> None:
    done = command("workers")
    said = (
        "No worker with a delayq:// URL and DelayQ(app) is running. Stock workers (redis://) have no leases, and are "
        "not shown.\n"
    )
    assert (done.code, done.stdout, done.stderr) == (0, "", said)
    done = command("workers", "--json")
    assert (done.code, done.stdout, done.stderr) == (0, "", said)
