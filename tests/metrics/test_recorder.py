"""The recorder: what a transfer moved, how late that was, and who was punctual."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import kombu
import pytest
import redis

from celery_delayq.metrics.recorder import Recorder
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.transport import register
from tests.state import now_ms, offer, seed

register()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def queue(client: redis.Redis) -> DelayedQueue:
    return DelayedQueue(client, "q")


def transfer(recorder: Recorder, queue: DelayedQueue, transferrer: str = "host:1:a", **options: Any) -> None:
    recorder.on_pass(queue, queue.transfer(transferrer=transferrer, grace=0, **options))


def test_each_message_counts_with_its_lateness(recorder: Recorder, queue: DelayedQueue) -> None:
    now = now_ms(queue.client)
    for number, late_ms in enumerate((3_600_000, 2_000, 2_000)):
        offer(queue, str(number), now - late_ms)
    offer(queue, "soon", now + 60_000)
    transfer(recorder, queue, lead=120)
    found = recorder.pending()["q"]
    assert found["transferred"] == 4
    # The first is alone in its part; what follows counts as late as the first of them.
    assert {name: n for name, n in found.items() if "lateness" in name and "us" not in name} == {
        "transfer_lateness:inf": 1,
        "transfer_lateness:5": 3,
    }
    assert 3_606_000 <= found["transfer_lateness:us"] / 1e3 <= 3_606_000 + 60_000


def test_a_message_that_moves_early_is_not_late(recorder: Recorder, queue: DelayedQueue) -> None:
    offer(queue, "soon", now_ms(queue.client) + 60_000)
    transfer(recorder, queue, lead=120)
    found = recorder.pending()["q"]
    assert found["transfer_lateness:0"] == 1
    assert "transfer_lateness:us" not in found


def test_garbage_counts_as_a_dead_letter_and_not_as_transferred(recorder: Recorder, queue: DelayedQueue) -> None:
    seed(queue, {b"garbage": 1})
    transfer(recorder, queue)
    found = recorder.pending()["q"]
    assert found["dead_letters:not-an-entry"] == 1
    assert "transferred" not in found


def test_a_change_counts_once_by_whoever_takes_over(recorder: Recorder, queue: DelayedQueue) -> None:
    for message_id, transferrer in enumerate(("host:1:a", "host:1:a", "host:2:b", "host:2:new connection", "host:1:c")):
        offer(queue, str(message_id), 1)
        transfer(recorder, queue, transferrer)
        transfer(recorder, queue, transferrer)
    assert recorder.pending()["q"]["punctual_worker_changes"] == 3


def test_one_that_may_not_move_yet_counts_nothing(recorder: Recorder, queue: DelayedQueue) -> None:
    offer(queue, "0", 1)
    queue.transfer(transferrer="host:1:a", grace=0)
    offer(queue, "1", now_ms(queue.client))
    recorder.on_pass(queue, queue.transfer(transferrer="host:2:b", grace=60))
    assert recorder.pending() == {}


@pytest.mark.parametrize("due", [None, True, "1", 1.5, -1, 10**400, {}, [1]])
def test_a_due_time_that_is_none_is_not_counted(recorder: Recorder, due: object) -> None:
    """Whoever wrote the message; an error would be one of its task."""
    properties = None if due is None else {"delayq_due": due}
    channel = SimpleNamespace(connection=kombu.Connection("delayq://").transport)
    message = SimpleNamespace(properties=properties, channel=channel, delivery_tag="1")
    assert recorder.on_hand_over(message) is None


def test_how_late_a_task_begins_is_counted_from_when_its_process_says(recorder: Recorder, client: redis.Redis) -> None:
    held = {"tag": SimpleNamespace(name="q")}
    transport = kombu.Connection("delayq://").transport
    transport.stations.held = held.get
    message = SimpleNamespace(
        properties={"delayq_due": now_ms(client) - 3_000},
        channel=SimpleNamespace(connection=transport),
        delivery_tag="tag",
    )
    on_begin = recorder.on_hand_over(message)
    assert on_begin is not None
    held.clear()  # it is acknowledged as it begins
    on_begin(time.monotonic() - 2.9)
    on_begin(time.monotonic())
    found = recorder.pending()["q"]
    assert found["start_lateness:5"] >= 1
    assert found["start_lateness:us"] >= 3_000_000
    assert sum(number for name, number in found.items() if name != "start_lateness:us") == 2
