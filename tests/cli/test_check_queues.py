"""`celery delayq check`: what is ready and nobody takes, what was set aside, what nobody can run."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from celery import Celery

from celery_delayq import DelayedQueue
from tests.cli.running import Command, run
from tests.cli.test_check import found
from tests.state import bury, lease, offer, publish
from tests.worker_app import publisher

pytestmark = pytest.mark.on_cluster


def warnings(command: Command, check: str) -> list[str]:
    """What a check warns of, after `--strict` has failed."""
    assert command("check", "--strict").code == 1
    done = command("check", "--json")
    return [line["message"] for line in found(done, check) if line["level"] == "warning"]


def test_ready_messages_that_nobody_consumes(waiting: DelayedQueue, command: Command) -> None:
    publish(waiting, *(b"ready %d" % number for number in range(10)))
    assert warnings(command, "queues") == ["10 messages are ready in queue 'celery', but no worker consumes it."]
    lease(waiting, "ended", ms_left=-1000)
    assert warnings(command, "queues") == ["10 messages are ready in queue 'celery', but no worker consumes it."]
    lease(waiting, "worker")
    assert warnings(command, "queues") == []


def test_dead_letters(waiting: DelayedQueue, broker_client: redis.Redis, command: Command) -> None:
    bury(broker_client, waiting.name, b"one", b"two")
    assert warnings(command, "queues") == ["There are 2 dead letters in queue 'celery'."]


def test_entries_that_are_never_due(waiting: DelayedQueue, broker_client: redis.Redis, command: Command) -> None:
    """No list shows them, but they are counted."""
    broker_client.zadd(waiting.keys.timeout_set, {b"far": 1e300, b"never": float("inf")})
    offer(waiting, "id")
    (finding,) = [line for line in found(command("check", "--json"), "queues") if line["level"] == "warning"]
    assert finding["message"].startswith("2 entries are due after the year 9999, or never")
    line = finding["advice"].partition("`")[2].partition("`")[0]
    assert broker_client.execute_command(*line.split()) == 2
    assert waiting.size() == 1


def test_neither_of_them(waiting: DelayedQueue, command: Command) -> None:
    (finding,) = found(command("check", "--json"), "queues")
    assert finding["level"] == "ok"


def test_lists_that_cannot_be_counted(waiting: DelayedQueue, broker_client: redis.Redis, command: Command) -> None:
    broker_client.set(waiting.keys.dead, "text")
    (finding,) = [line for line in found(command("check", "--json"), "queues") if "Not checked" in line["message"]]
    assert "WRONGTYPE" in finding["message"]
    assert command("check", "--max-overdue", "60").code == 0


def test_a_periodic_entry_whose_task_nobody_has(app: Celery, waiting: DelayedQueue, command: Command) -> None:
    app.delayq.schedule.add("good", "note", 3600)
    assert warnings(command, "planner") == []
    app.delayq.schedule.add("odd", "no.such.task", 3600)
    assert warnings(command, "planner") == [
        "The periodic task 'odd' sends 'no.such.task', a task that this app does not have."
    ]


@pytest.mark.one_server
def test_a_configured_entry_whose_task_nobody_has(broker_url: str, ledger_url: str, waiting: DelayedQueue) -> None:
    conf: dict[str, Any] = {"beat_scheduler": "celery_delayq.beat:Scheduler"}
    schedule = {"odd": {"task": "no.such.task", "schedule": 60}, "good": {"task": "note", "schedule": 60}}
    with publisher(broker_url, ledger_url, beat_schedule=schedule, **conf) as app:
        lines = found(run(app, "check", "--json"), "planner")
    assert [line["message"].partition(" sends")[0] for line in lines if line["level"] == "warning"] == [
        "The periodic task 'odd'"
    ]


@pytest.mark.one_server
def test_without_an_app_no_task_is_missed(app: Celery, broker_url: str, waiting: DelayedQueue) -> None:
    app.delayq.schedule.add("good", "note", 3600)
    other = Celery("default", broker=broker_url, set_as_current=False)
    lines = found(run(other, "check", "--json"), "planner")
    assert not [line for line in lines if line["level"] == "warning"]
