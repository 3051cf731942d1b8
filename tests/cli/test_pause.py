"""`pause` and `resume`, and where else one sees that a queue is paused."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_delayq.queue.delayed_queue import DelayedQueue
from tests.cli.running import Command

pytestmark = pytest.mark.on_cluster


def test_a_queue_is_paused_and_resumed(app: Celery, waiting: DelayedQueue, command: Command) -> None:
    assert command("pause", "celery").stdout == "celery: paused.\n"
    assert command("pause", "celery").stdout == "celery: is already paused.\n"
    assert app.delayq.paused() == ["celery"]
    assert "celery (paused)" in command("status").stdout
    assert [queue["paused"] for queue in command("status", "--json").json()[0]["queues"]] == [True]
    assert "Queue 'celery' is paused: workers fetch nothing from it." in command("check").stdout
    assert command("resume", "celery", "--json").json() == [{"queue": "celery", "done": True}]
    assert command("resume", "celery").stdout == "celery: is not paused.\n"
    assert "paused" not in command("status").stdout


def test_an_unknown_queue_is_an_error(waiting: DelayedQueue, command: Command) -> None:
    found = command("pause", "celry")
    assert found.code == 1
    assert "did you mean 'celery'?" in found.stderr


def test_a_key_of_another_type_hides_nothing_else(waiting: DelayedQueue, command: Command) -> None:
    waiting.client.set("delayq:paused", "?")
    assert command("status", "--json").json()[0]["queues"][0]["queue"] == "celery"
    assert "WRONGTYPE" in command("check").stdout
