"""plan.lua, the first occurrence of an entry: with nothing to withdraw, nothing else looks at the keys before."""

from __future__ import annotations

import pytest

from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.schedule import scripts
from celery_delayq.schedule.records import Seen
from celery_delayq.schedule.scripts import Message, Step
from tests.state import FAR, offer, wrong_type


@pytest.mark.parametrize("key", ["timeout_set", "index", "repeated", "delay_list"])
@pytest.mark.parametrize("repeated", [False, True])
def test_keys_of_another_type_change_nothing(queue: DelayedQueue, key: str, repeated: bool) -> None:
    """A state without its message would be an occurrence that nobody sends."""
    queue.mirror_list = True
    if repeated:
        offer(queue, "one")
    first = Message(queue.name, "one", FAR, b"one")
    step = Step("e", queue.name, Seen(), b"at 1", offer=first)
    wrong_type(queue, getattr(queue.keys, key), lambda: scripts.plan(queue.keys, step, mirrored=True).run(queue.client))
