"""Entries whose messages claim a unique key. They ask for it when they are due, and are left out if it is held."""

from __future__ import annotations

from typing import Any

import pytest

from celery_delayq.queue.holds import Holder, Offered, hold, holds_of
from celery_delayq.schedule.records import State
from tests.planner.conftest import KEY, Stage, run, run_until, started

pytestmark = pytest.mark.on_cluster(always=True)


def entry(every: Any = 0.05, **fields: Any) -> dict[str, Any]:
    return {"a": {"task": "unique", "schedule": every, **fields}}


def state(stage: Stage) -> State:
    found = stage.state("a")
    assert found is not None
    return found


def take_key(stage: Stage) -> Offered:
    """Send another task that holds the key; it has left its delayed queue."""
    return stage.queue().offer_unique(b"other", KEY, eta=None, message_id="other")


def end(stage: Stage, task_id: str = "other") -> None:
    """End a task that holds the key, after it has left its delayed queue."""
    while stage.queue().transfer().moved:
        pass
    assert hold(stage.queue().keys, holders=[Holder.of(KEY.key, task_id)], what="done").run(stage.client)


def holder(stage: Stage) -> str:
    """Return the task that holds the key."""
    found = holds_of(stage.client, [stage.queue().keys], KEY.key)
    return found[0].task_id if found else ""


def sent(stage: Stage) -> list[int]:
    """Return for which occurrences messages were sent."""
    return [int(text.rpartition(" ")[2]) for text in stage.offered() if text != "other"]


def test_one_that_is_planned_does_not_hold_the_key(stage: Stage) -> None:
    started(stage, entry(60))
    assert state(stage).at_ms is not None
    assert take_key(stage).outcome == "stored"


def test_each_is_sent_once_when_it_is_due(stage: Stage) -> None:
    planners = [started(stage, entry()) for _ in range(3)]
    for number in range(1, 6):
        run_until(lambda number=number: state(stage).runs == number, "it is due", *planners)  # type: ignore[misc]
        assert int(holder(stage).split("/")[1]) == state(stage).last_ms
        end(stage, holder(stage))
    assert len(set(sent(stage))) == len(sent(stage)) == 5


def test_one_that_is_left_out_does_not_count_as_a_run(stage: Stage) -> None:
    take_key(stage)
    planners = [started(stage, entry(timing={"max_runs": 1})) for _ in range(2)]
    first_ms = state(stage).at_ms
    assert first_ms is not None
    run_until(lambda: (state(stage).at_ms or 0) >= first_ms + 250, "five are left out", *planners)
    assert (state(stage).runs, state(stage).last_ms) == (0, None)
    end(stage)
    run_until(lambda: state(stage).runs, "it goes on", *planners)
    assert sent(stage) == [state(stage).last_ms]
    assert state(stage).at_ms is None


@pytest.mark.parametrize("fields", [{"options": {"countdown": 0.5}}, {"timing": {"jitter": 1.0}}], ids=str)
def test_a_delayed_one_asks_when_it_is_due_with_its_delay(stage: Stage, fields: Any) -> None:
    """Until then, the run before may still be under way."""
    planners = [started(stage, entry(0.6, **fields)) for _ in range(2)]
    for number in range(1, 4):
        run_until(lambda number=number: state(stage).runs == number, "it is due", *planners)  # type: ignore[misc]
        (waiting,) = stage.queue().peek()
        assert waiting.score <= stage.store.now_ms()
        end(stage, holder(stage))


def test_what_was_missed_runs_once(stage: Stage) -> None:
    started(stage, entry(60))
    stage.set_back("a", 600_500, transferred=True)
    stage.attended_for(0)
    planner = started(stage, entry(60))
    assert state(stage).runs == 1
    assert state(stage).at_ms > stage.store.now_ms()  # type: ignore[operator]
    assert len(sent(stage)) == 1
    run(planner)
    assert len(sent(stage)) == 1


def test_of_all_that_is_made_up_for_one_waits_at_a_time(stage: Stage) -> None:
    """Others are left out while it has the key, which is what the key is for."""
    missed = {"timing": {"missed": "all", "catch_up": 5}}
    started(stage, entry(60, **missed))
    stage.set_back("a", 600_500, transferred=True)
    stage.attended_for(0)
    started(stage, entry(60, **missed))
    assert state(stage).at_ms > stage.store.now_ms()  # type: ignore[operator]
    assert (state(stage).runs, len(sent(stage))) == (1, 1)


@pytest.mark.parametrize("change", ["paused", "changed", "removed"])
def test_an_entry_that_changes_leaves_no_key_behind(stage: Stage, change: str) -> None:
    stage.add("a", {"task": "unique", "schedule": 60})
    planner = started(stage)
    assert state(stage).at_ms is not None
    if change == "paused":
        stage.add("a", {"task": "unique", "schedule": 60}, paused=True)
    elif change == "changed":
        stage.add("a", {"task": "t", "schedule": 60})
    else:
        assert stage.store.write_record("a", stage.store.record("a"), None)
    planner.read()
    run(planner)
    assert stage.waiting() == (["a []"] if change == "changed" else [])
    assert not holder(stage)


def test_an_entry_whose_task_becomes_unique_sends_what_was_planned_and_then_asks(stage: Stage) -> None:
    """A deploy may change the decorator of a task, and nothing in the entry."""
    planner = started(stage, {"a": 0.3})
    stage.unique.add("t")
    take_key(stage)
    run_until(lambda: state(stage).runs == 1 and not state(stage).task_id, "the planned one ran", planner)
    passed = state(stage).at_ms
    run_until(lambda: state(stage).at_ms != passed, "the next is left out", planner)
    assert state(stage).runs == 1
