"""A misspelt queue is an error, as on the command line; a queue in which nothing waits is none."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayedQueue, DelayQ, UnknownQueue
from tests.state import now_ms

pytestmark = pytest.mark.on_cluster

#: Calls for one queue, and what they return if nothing waits there.
CALLS: dict[str, Callable[[DelayQ, str], Any]] = {
    "scheduled": lambda delayq, queue: len(delayq.scheduled(queue=queue)),
    "iter_scheduled": lambda delayq, queue: len(list(delayq.iter_scheduled(queue=queue))),
    "cancel_all": lambda delayq, queue: delayq.cancel_all(queue=queue),
    "reschedule_all": lambda delayq, queue: delayq.reschedule_all(queue=queue, countdown=60),
    "run_now_all": lambda delayq, queue: delayq.run_now_all(queue=queue),
    "change_some": lambda delayq, queue: delayq.change_some("cancel", queue=queue).changed,
    "histogram": lambda delayq, queue: delayq.histogram(0, 3600, 1, queue=queue).after,
    "release": lambda delayq, queue: delayq.release(queue).released,
    "export": lambda delayq, queue: delayq.export(io.BytesIO(), queues=["celery", queue]),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_misspelt_queue(app: Celery, waiting: DelayedQueue, call: str) -> None:
    app.tasks["note"].apply_async(queue="mailing", countdown=60)
    with pytest.raises(UnknownQueue, match=r"unknown queue 'mialing': did you mean 'mailing'\?"):
        CALLS[call](app.delayq, "mialing")


@pytest.mark.parametrize("name", ["a}b", "x{}"])
def test_a_name_that_no_queue_of_a_cluster_can_have(app: Celery, waiting: DelayedQueue, name: str) -> None:
    """The lists of its priorities would be in several hash slots."""
    with pytest.raises(UnknownQueue):
        CALLS["histogram"](app.delayq, name)


@pytest.mark.parametrize("call", CALLS)
def test_an_empty_queue(app: Celery, waiting: DelayedQueue, call: str) -> None:
    """Of the app's configuration, or one that was published to at any time."""
    app.tasks["note"].apply_async(queue="mailing", countdown=60)
    assert app.delayq.cancel_all(queue="mailing") == 1
    waiting.client.delete("delayq:queues")
    assert [CALLS[call](app.delayq, queue) for queue in ("celery", "mailing")] == [0, 0]


def test_an_empty_part_of_a_queue(app: Celery, waiting: DelayedQueue) -> None:
    app.tasks["note"].apply_async(queue="mailing", countdown=60)
    assert len(app.delayq.scheduled(queue="mailing", task="other")) == 0
    assert len(app.delayq.scheduled(queue="mailing", due_before=now_ms(waiting.client) / 1000)) == 0
