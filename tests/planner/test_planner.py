"""Planners: each occurrence is offered once, whoever comes when; what was missed, and what was reached late."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from celery_delayq.basics.times import to_datetime
from celery_delayq.queue.codec import OfferId
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.entry import Entry
from tests.brokers import list_for
from tests.planner.conftest import Stage, run, run_until, started
from tests.state import FAR, calls

pytestmark = pytest.mark.on_cluster(always=True)

#: What the API does to a waiting task, and how many messages of it are left.
CHANGES: dict[str, tuple[Callable[[DelayedQueue, str], Any], int]] = {
    "cancel": (lambda queue, task_id: queue.cancel(task_id), 0),
    "revoke": (lambda queue, task_id: all(queue.remove(queue.find(task_id))), 0),
    "reschedule": (lambda queue, task_id: queue.amend(*message(queue, task_id), eta=to_datetime(FAR)), 1),
    "update": (
        lambda queue, task_id: queue.amend(*message(queue, task_id)),
        1,
    ),
    "another priority": (lambda queue, task_id: queue.move(*message(queue, task_id), other_priority(queue)), 0),
    "release": (lambda queue, task_id: all(queue.release([message(queue, task_id)])), 1),
}


def message(queue: DelayedQueue, task_id: str) -> tuple[Entry, bytes]:
    """Return a waiting entry, and its message."""
    (entry,) = queue.find(task_id)
    return entry, entry.payload


def other_priority(queue: DelayedQueue) -> DelayedQueue:
    """Return the delayed queue of another priority."""
    return DelayedQueue(queue.client, list_for(queue.client, queue.name, 3))


class TestOneOccurrence:
    def test_is_pending_for_each_entry(self, stage: Stage) -> None:
        started(stage, {"a": 60, "b": {"schedule": "0 4 * * *", "args": [1]}})
        assert sorted(stage.waiting()) == ["a []", "b [1]"]
        state = stage.state("a")
        record = stage.record("a")
        assert state is not None
        assert record is not None
        assert state.at_ms == record.since_ms + 60_000

    def test_is_offered_once_by_any_number_of_planners(self, stage: Stage) -> None:
        planners = [stage.planner({"a": 60}) for _ in range(5)]
        for planner in planners:
            planner.read()
        run(*planners)
        assert stage.waiting() == ["a []"]

    def test_is_followed_by_the_next_once_its_time_has_come(self, stage: Stage) -> None:
        planners = [started(stage, {"a": 0.05}) for _ in range(3)]
        run_until(lambda: (stage.state("a") or 0).runs >= 10, "ten runs", *planners)
        times = [int(text.rpartition(" ")[2]) for text in stage.offered()]
        assert set(Counter(times).values()) == {1}
        assert {later - earlier for earlier, later in itertools.pairwise(times)} == {50}

    @pytest.mark.parametrize("delay", [{"options": {"countdown": 0.5}}, {"timing": {"jitter": 1.0}}], ids=str)
    def test_that_is_lazy_is_built_when_it_is_due_with_its_delay(self, stage: Stage, delay: dict[str, Any]) -> None:
        """Also if that is later than the next one."""
        entry = {"schedule": 0.3, **delay, "timing": {**delay.get("timing", {}), "lazy": True}}
        planners = [started(stage, {"a": entry}) for _ in range(2)]
        run_until(lambda: (stage.state("a") or 0).runs >= 4, "it is due", *planners)
        for waiting in stage.queue().peek(1000):
            offer_id = OfferId.from_bytes(waiting.id)
            assert offer_id is not None
            assert offer_id.offered_us >= waiting.score * 1000
        times = [int(text.rpartition(" ")[2]) for text in stage.offered()]
        assert {later - earlier for earlier, later in itertools.pairwise(sorted(times))} == {300}

    @pytest.mark.parametrize(("change", "left"), CHANGES.values(), ids=CHANGES)
    def test_that_somebody_changed_counts_and_is_followed_by_the_next(
        self, stage: Stage, change: Callable[[DelayedQueue, str], Any], left: int
    ) -> None:
        planner = started(stage, {"a": 0.3})
        planned = stage.state("a")
        assert planned is not None
        assert planned.at_ms is not None
        assert change(stage.queue(), planned.task_id)
        run_until(lambda: (stage.state("a") or 0).runs >= 1, "its time has come", planner)
        times = Counter(int(text.rpartition(" ")[2]) for text in stage.offered())
        assert (times[planned.at_ms], times[planned.at_ms + 300]) == (left, 1)

    def test_that_has_passed_is_followed_up_by_another_planner_if_the_first_is_gone(self, stage: Stage) -> None:
        started(stage, {"a": 0.2})
        other = started(stage, {"a": 0.2})
        run_until(lambda: (stage.state("a") or 0).runs >= 1, "the other takes over", other)

    def test_planners_that_restart_change_nothing(self, stage: Stage) -> None:
        started(stage, {"a": 60})
        before = stage.state("a")
        started(stage, {"a": 60})
        assert stage.state("a") == before

    def test_looking_costs_one_read_and_no_message_is_built(self, stage: Stage) -> None:
        first, other = (started(stage, {str(n): 0.3 for n in range(50)}) for _ in range(2))
        built = stage.built
        run_until(lambda: all(stage.state(str(n)).runs == 1 for n in range(50)), "all ran", first)  # type: ignore[union-attr]
        assert stage.built == built + 50
        stage.client.config_resetstat()
        run(other)
        assert calls(stage.client, "evalsha") == 0
        assert stage.built == built + 50


class TestMissed:
    def test_one_run_after_all_were_down(self, stage: Stage) -> None:
        started(stage, {"a": 60})
        stage.set_back("a", 3_630_000, transferred=True)
        started(stage, {"a": 60})
        assert len([text for text in stage.offered() if text.startswith("a")]) == 2

    def test_what_still_waits_is_that_run(self, stage: Stage) -> None:
        started(stage, {"a": 60})
        stage.set_back("a", 3_630_000)
        started(stage, {"a": 60})
        assert [text.partition(" ")[0] for text in stage.offered()] == ["late", "a"]

    def test_all_of_them(self, stage: Stage) -> None:
        entries = {"a": {"schedule": 60, "timing": {"missed": "all", "catch_up": 10}}}
        started(stage, entries)
        stage.set_back("a", 3_630_000, transferred=True)
        started(stage, entries)
        assert len(stage.offered()) == 11


class TestLate:
    """What planners reach late while they are there is sent late: each occurrence, whatever the policy."""

    @pytest.mark.parametrize("missed", ["skip", "once", "all"])
    def test_by_the_one_that_was_there(self, stage: Stage, missed: str) -> None:
        planner = started(stage, {"a": {"schedule": 0.5, "timing": {"missed": missed, "catch_up": 1}}})
        stage.set_back("a", 20_000, transferred=True)
        stage.attended_for(60_000)
        planner.look()
        planner.read()
        run(planner)
        assert len(stage.offered()) >= 40
        times = [int(text.rpartition(" ")[2]) for text in stage.offered()]
        assert {later - earlier for earlier, later in itertools.pairwise(times)} == {500}

    def test_by_one_that_takes_over_at_once(self, stage: Stage) -> None:
        started(stage, {"a": 0.5})
        stage.set_back("a", 20_000, transferred=True)
        stage.attended_for(60_000, silent_ms=1000)
        started(stage, {"a": 0.5})
        assert len(stage.offered()) >= 40

    def test_but_not_by_one_that_comes_after_a_gap(self, stage: Stage) -> None:
        started(stage, {"a": 0.5})
        stage.set_back("a", 20_000, transferred=True)
        stage.attended_for(60_000, silent_ms=10_000)
        started(stage, {"a": 0.5})
        assert len(stage.offered()) < 10

    def test_an_app_whose_planners_were_away_while_others_were_there(self, stage: Stage) -> None:
        started(stage, {"a": 0.5})
        stage.add("at run time", 0.5)
        started(stage, {}, app="warehouse")
        for name in ("a", "at run time"):
            stage.set_back(name, 20_000, transferred=True)
        stage.attended_for(60_000)
        stage.client.hdel(stage.store.keys.configurations, *stage.client.hkeys(stage.store.keys.configurations)[:1])
        started(stage, {"a": 0.5})
        names = Counter(text.partition(" [")[0] for text in stage.offered())
        assert names["a"] < 10
        assert names["at run time"] >= 40
