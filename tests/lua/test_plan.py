"""plan.lua: an entry goes on only from where it was seen, and never half."""

from __future__ import annotations

from typing import Any

import pytest

from celery_delayq.basics.times import to_datetime
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.schedule import scripts
from celery_delayq.schedule.records import Seen
from celery_delayq.schedule.scripts import CHANGED, DONE, GONE, Message, Planned, Step
from tests.state import FAR, nothing_changes, out_of_memory, state, waiting, wrong_type

SCHEDULE = "delayq:schedule:{q}"


def plan(queue: DelayedQueue, new: bytes = b"new", seen: bytes = b"", **step: Any) -> Planned:
    """Run the script for the entry "e"."""
    present = Seen(seen, step.pop("forgotten", b"0"))
    one = Step(step.pop("entry", "e"), queue.name, present, new, **step)
    return scripts.plan(queue.keys, one, mirrored=queue.mirror_list).run(queue.client)


def message(name: str, due_ms: int = FAR) -> Message:
    return Message("q", name, due_ms, name.encode())


def test_offers_the_message_and_writes_the_state(queue: DelayedQueue) -> None:
    done = plan(queue, b"at 1", offer=message("one"))
    assert (done.outcome, done.state) == (DONE, b"at 1")
    assert waiting(queue) == [b"one"]
    assert queue.client.hget(SCHEDULE, "e") == b"at 1"
    assert [entry.score for entry in queue.find("one")] == [FAR]


def test_tells_whether_the_queue_was_empty(queue: DelayedQueue) -> None:
    assert not plan(queue, b"lazy").alone
    assert plan(queue, b"at 1", b"lazy", offer=message("one")).alone
    assert plan(queue, b"at 2", b"at 1", withdraw="one", offer=message("two")).alone
    assert not plan(queue, b"at 3", b"at 2", offer=message("three")).alone


def test_of_two_planners_that_saw_the_same_one_goes_on(queue: DelayedQueue) -> None:
    plan(queue, b"at 1", offer=message("one"))
    assert plan(queue, b"at 2", b"at 1", offer=message("two")).outcome == DONE
    with nothing_changes(queue.client):
        late = plan(queue, b"at 2", b"at 1", offer=message("two again"))
    assert (late.outcome, late.state) == (CHANGED, b"at 2")
    assert waiting(queue) == [b"one", b"two"]


def test_an_entry_that_has_a_state_is_not_begun_again(queue: DelayedQueue) -> None:
    plan(queue, b"at 1", offer=message("one"))
    with nothing_changes(queue.client):
        assert plan(queue, b"at 1", offer=message("one")).outcome == CHANGED


@pytest.mark.parametrize("mirrored", [False, True])
def test_withdraws_what_must_not_run(queue: DelayedQueue, mirrored: bool) -> None:
    queue.mirror_list = mirrored
    plan(queue, b"at 1", offer=message("one"))
    plan(queue, b"at 2", b"at 1", withdraw="one", must_wait=True, offer=message("two"))
    assert waiting(queue) == [b"two"]
    assert queue.client.hlen(queue.keys.index) == 1
    assert queue.client.llen(queue.keys.delay_list) == mirrored


def test_changes_nothing_if_what_must_wait_was_transferred(queue: DelayedQueue) -> None:
    plan(queue, b"at 1", offer=message("one", due_ms=1))
    queue.transfer()
    with nothing_changes(queue.client):
        done = plan(queue, b"at 2", b"at 1", withdraw="one", must_wait=True, offer=message("two"))
    assert (done.outcome, done.state) == (GONE, b"at 1")


def test_a_planner_that_slept_while_an_entry_was_forgotten_does_not_begin_it(queue: DelayedQueue) -> None:
    """It saw no state; since then the entry was planned, and moved to another queue or removed."""
    plan(queue, b"at 1", offer=message("one"))
    assert plan(queue, b"", b"at 1", withdraw="one").forgotten == b"1"
    with nothing_changes(queue.client):
        assert plan(queue, b"at 1", offer=message("one")).outcome == CHANGED
    assert plan(queue, b"at 1", forgotten=b"1", offer=message("one")).outcome == DONE


def test_forgetting_what_was_never_planned_counts_too(queue: DelayedQueue) -> None:
    plan(queue, b"")
    assert plan(queue, b"at 1", offer=message("one")).outcome == CHANGED


def test_other_entries_go_on_meanwhile(queue: DelayedQueue) -> None:
    plan(queue, b"at 1")
    plan(queue, b"", entry="other")
    assert plan(queue, b"at 2", b"at 1").outcome == DONE


def test_keeps_other_messages(queue: DelayedQueue) -> None:
    queue.offer(b"mine", eta=to_datetime(FAR), message_id="mine")
    plan(queue, b"at 1", offer=message("one", FAR + 1))
    plan(queue, b"", b"at 1", withdraw="one")
    assert waiting(queue) == [b"mine"]


@pytest.mark.parametrize("key", ["timeout_set", "index", "repeated", "delay_list"])
def test_keys_of_another_type_change_nothing(queue: DelayedQueue, key: str) -> None:
    plan(queue, b"at 1", offer=message("one"))
    step = {"withdraw": "one", "offer": message("two")}
    wrong_type(queue, getattr(queue.keys, key), lambda: plan(queue, b"at 2", b"at 1", **step))


def test_out_of_memory_changes_nothing(queue: DelayedQueue) -> None:
    plan(queue, b"at 1", offer=message("one"))
    before = state(queue.client)
    with out_of_memory(queue.client), pytest.raises(Exception, match=r"OOM|maxmemory"):
        plan(queue, b"at 2", b"at 1", offer=message("two"))
    assert state(queue.client) == before
