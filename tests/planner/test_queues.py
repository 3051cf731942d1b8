"""An entry whose queue is another one now moves there with its state, whoever is killed or slow meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from celery_delayq.schedule.records import State
from celery_delayq.schedule.scripts import CHANGED, DONE, Step
from celery_delayq.schedule.store import ScheduleStore
from tests.planner.conftest import Stage, run, started
from tests.state import FAR
from tests.support import wait_until

pytestmark = pytest.mark.on_cluster(always=True)


class TestQueues:
    def test_an_entry_moves_to_its_new_queue(self, stage: Stage) -> None:
        started(stage, {"a": 60})
        before = stage.state("a")
        started(stage, {"a": 60}, queues={"t": "other"})
        assert (stage.waiting(), stage.waiting("other")) == ([], ["a []"])
        after = stage.state("a", "other")
        assert before is not None
        assert after is not None
        assert after.at_ms == before.at_ms
        assert stage.state("a") is None

    def test_a_queue_that_the_registry_has_forgotten_is_registered_again(self, stage: Stage) -> None:
        """A failover may undo that a queue was registered, and while it is empty, no loop notices."""
        planner = started(stage, {"a": 1})
        stage.client.delete("delayq:queues")
        stage.set_back("a", 2000, transferred=True)
        planner.read()
        run(planner)
        assert stage.waiting() != []
        assert stage.client.zscore("delayq:queues", "celery")

    def test_and_the_old_planner_does_not_move_it_back(self, stage: Stage) -> None:
        old = started(stage, {"a": 60})
        started(stage, {"a": 60}, queues={"t": "other"})
        old.look()
        old.read()
        run(old)
        assert (stage.waiting(), stage.waiting("other")) == ([], ["a []"])

    @pytest.mark.parametrize("left", [False, True])
    @pytest.mark.parametrize("restarted", [False, True])
    def test_a_planner_that_is_killed_in_between_leaves_it_to_another(
        self, stage: Stage, left: bool, restarted: bool
    ) -> None:
        """The record says where it goes, and from which state; that may have left its queue already."""
        stage.add("a", 60)
        started(stage)
        before = stage.state("a")
        assert before is not None
        other = started(stage, queues={"t": "other"})
        stage.add("a", 60, queue="other", earlier=["celery"], last=before.on_leaving(sent=False))
        if left:
            stage.leave("a")
        if restarted:
            started(stage, queues={"t": "other"})
        else:
            other.on_changes([(10**6, "a")])
            wait_until(lambda: run(other) or stage.waiting("other"), "it has left the other one time enough")
        assert (stage.waiting(), stage.waiting("other")) == ([], ["a []"])
        after = stage.state("a", "other")
        assert after is not None
        assert after.at_ms == before.at_ms
        assert stage.state("a") is None

    def test_one_that_moves_late_leaves_nothing_out(self, stage: Stage) -> None:
        """Planners were there, but slow: its message has gone, and those after it are due, too."""
        started(stage, {"a": 1})
        stage.set_back("a", 20_000, transferred=True)
        stage.attended_for(60_000)
        sent = stage.state("a")
        assert sent is not None
        assert sent.at_ms is not None
        started(stage, {"a": 1}, queues={"t": "other"})
        times = [int(payload.split()[-1]) for payload in stage.offered("other")]
        assert times == list(range(sent.at_ms + 1000, sent.at_ms + 1000 * (len(times) + 1), 1000))
        assert times[-1] > stage.store.now_ms()

    def test_a_state_that_cannot_be_read_is_not_moved(self, stage: Stage) -> None:
        stage.add("a", 60, queue="other", earlier=["celery"])
        stage.client.hset(stage.queue().keys.schedule, "a", "junk")
        stage.client.zadd("delayq:queues", {"celery": FAR})
        started(stage, queues={"t": "other"})
        assert stage.waiting("other") == ["a []"]
        assert stage.state("a") is None

    def test_a_message_that_was_transferred_meanwhile_is_not_sent_again(self, stage: Stage) -> None:
        stage.add("a", 60)
        started(stage)
        before = stage.state("a")
        assert before is not None
        stage.queue().cancel(before.task_id)
        started(stage, queues={"t": "other"})
        stage.add("a", 60, queue="other", earlier=["celery"], last=before.on_leaving(sent=False))
        started(stage, queues={"t": "other"})
        after = stage.state("a", "other")
        assert after is not None
        assert (after.runs, after.last_ms) == (1, before.at_ms)
        assert stage.offered("other") == [f"a [] {(before.at_ms or 0) + 60_000}"]

    @pytest.mark.parametrize("transferred", [False, True])
    def test_a_failover_that_brings_back_an_earlier_state_to_its_queue_repeats_nothing(
        self, stage: Stage, transferred: bool
    ) -> None:
        """The queue that it had gone to meanwhile has the later state, and that counts."""
        stage.add("a", 60, queue="other", earlier=["celery"])
        started(stage, queues={"t": "other"})
        later = stage.state("a", "other")
        assert later is not None
        assert later.at_ms is not None
        if transferred:
            stage.set_back("a", 70_000, queue="other", transferred=True)
            later = stage.state("a", "other")
            assert later is not None
            assert later.at_ms is not None
        stage.add("a", 60, queue="celery", earlier=["other"])
        earlier = replace(later, at_ms=later.at_ms - 600_000, last_ms=later.at_ms - 660_000, task_id="")
        (seen,) = stage.store.seen([("a", "celery")])
        assert stage.store.plan([Step("a", "celery", seen, earlier.dump())])[0].outcome == DONE
        started(stage)
        after = stage.state("a")
        assert after is not None
        assert after.at_ms == (later.at_ms + 60_000 if transferred else later.at_ms)
        assert (len(stage.waiting()), stage.waiting("other"), stage.state("a", "other")) == (1, [], None)

    @pytest.mark.parametrize("moves_back", [False, True])
    def test_a_state_that_a_failover_brings_back_is_not_taken_for_the_present_one(
        self, stage: Stage, moves_back: bool
    ) -> None:
        """Not even if the entry goes back to that queue. Its message is withdrawn."""
        stage.add("a", 60)
        started(stage)
        seen = stage.store.seen([("a", "celery")])[0]
        old = State.parse(seen.raw)
        present = replace(old, at_ms=(old.at_ms or 0) + 600_000, last_ms=old.at_ms, runs=9, task_id="")
        stage.client.hset(stage.queue("other").keys.schedule, "a", present.dump())
        stage.client.zadd("delayq:queues", {"other": FAR})
        stage.add("a", 61 if moves_back else 60, queue="other", earlier=["celery"])
        started(stage, queues={} if moves_back else {"t": "other"})
        runs = {queue: state and state.runs for queue in ("celery", "other") for state in [stage.state("a", queue)]}
        assert runs == ({"celery": 9, "other": None} if moves_back else {"celery": None, "other": 9})
        assert stage.waiting() == (["a []"] if moves_back else [])

    def test_one_that_goes_on_to_a_third_queue_keeps_its_state(self, stage: Stage) -> None:
        """A planner was killed while it moved the entry, and by now it goes elsewhere."""
        stage.add("a", 60)
        started(stage)
        stage.set_runs("a", 9)
        before = stage.state("a")
        assert before is not None
        stage.leave("a")
        stage.add("a", 60, queue="mine", earlier=["celery"], last=before.on_leaving(sent=False))
        started(stage, queues={"t": "other"})
        after = stage.state("a", "other")
        assert after is not None
        assert after.runs == 9
        assert [stage.waiting(queue) for queue in ("celery", "mine", "other")] == [[], [], ["a []"]]

    def test_one_whose_time_comes_while_it_moves_is_planned_ahead_again(self, stage: Stage) -> None:
        stage.add("a", 0.1)
        started(stage)
        before = stage.state("a")
        assert before is not None
        stage.leave("a")
        wait_until(lambda: stage.store.now_ms() > (before.at_ms or 0), "its time has come")
        stage.add("a", 0.1, queue="other", earlier=["celery"], last=before.on_leaving(sent=False))
        started(stage, queues={"t": "other"})
        after = stage.state("a", "other")
        assert after is not None
        assert after.task_id
        assert f"a [] {before.at_ms}" in stage.offered("other")

    def test_a_planner_that_was_slower_than_the_move_back(self, stage: Stage) -> None:
        """It had decided what to do while the entry still went to its queue."""
        stage.add("a", 60)
        started(stage)
        stage.leave("a")
        slow = stage.slow_step("a", "other")
        stage.add("a", 60, queue="celery", earlier=["other"])
        planner = stage.planner()
        planner.read()
        planner.on_changes([(10**6, "a")])
        assert stage.store.plan([slow])[0].outcome == DONE
        wait_until(lambda: run(planner) or stage.waiting(), "it has left the other one time enough")
        assert (stage.waiting(), stage.waiting("other")) == (["a []"], [])

    def test_a_planner_that_looks_after_the_move_and_has_not_heard_of_it(self, stage: Stage) -> None:
        started(stage, {"a": 0.3})
        looks = started(stage, {"a": 0.3})
        before = stage.state("a")
        assert before is not None
        stage.queue().transfer(10)
        started(stage, {"a": 0.3}, queues={"t": "other"})
        wait_until(lambda: stage.store.now_ms() > (before.at_ms or 0) + 1000, "it looks whether somebody planned")
        run(looks)
        assert [entry for entry in stage.offered() if entry != f"a [] {before.at_ms}"] == []

    def test_a_planner_that_is_overtaken_with_a_new_entry(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        """It lets a new entry go to a queue from which another one takes it away at once."""
        stage.add("a", 60)
        write = ScheduleStore.write_records

        def write_and_sleep(store: ScheduleStore, changes: Any) -> Any:
            replies = write(store, changes)
            monkeypatch.undo()
            started(stage, queues={"t": "third"})
            return replies

        slow = stage.planner(queues={"t": "other"})
        slow.read()
        monkeypatch.setattr(ScheduleStore, "write_records", write_and_sleep)
        slow.run_due()
        assert (stage.waiting("other"), stage.waiting("third")) == ([], ["a []"])

    def test_that_there_is_no_state_is_forgotten_although_others_forget_meanwhile(self, stage: Stage) -> None:
        """So that who has seen the same does not plan any more."""
        (before,) = stage.store.seen([("a", "celery")])
        stage.store.forget("another", "celery", before)
        slow = stage.slow_step("a", "celery")
        assert stage.store.forget("a", "celery", before)
        assert stage.store.plan([slow])[0].outcome == CHANGED

    def test_a_planner_that_starts_takes_an_entry_out_of_queues_where_it_was_never_planned(self, stage: Stage) -> None:
        """Another one may be about to; the one that moved the entry was killed."""
        slow = stage.slow_step("a", "celery")
        stage.add("a", 60, queue="other", earlier=["celery"])
        started(stage, queues={"t": "other"})
        assert stage.store.plan([slow])[0].outcome == CHANGED
        assert stage.waiting("other") == ["a []"]

    def test_a_lazy_one_is_found_in_the_queue_from_which_it_came(self, stage: Stage) -> None:
        stage.add("a", {"schedule": 60, "timing": {"lazy": True}})
        started(stage)
        stage.set_runs("a", 9)
        stage.add("a", {"schedule": 60, "timing": {"lazy": True}}, queue="other")
        started(stage, queues={"t": "other"})
        after = stage.state("a", "other")
        assert after is not None
        assert after.runs == 9

    def test_one_that_has_ended_keeps_its_runs(self, stage: Stage) -> None:
        one = {"schedule": 60, "timing": {"max_runs": 9}}
        stage.add("a", one)
        started(stage)
        stage.set_runs("a", 9)
        stage.store.rest("a", "celery")
        started(stage, queues={"t": "other"})
        stage.add("a", one, queue="other", earlier=["celery"])
        started(stage, queues={"t": "other"})
        after = stage.state("a", "other")
        assert after is not None
        assert after.runs == 9
        assert stage.state("a") is None

    def test_a_deploy_remembers_where_a_state_may_be(self, stage: Stage) -> None:
        """Planners that only hear of the change look for it in those queues."""
        started(stage, {"a": 60})
        stage.add("a", 60, app="shop", queue="other", earlier=["celery"])
        started(stage, {"a": {"schedule": 60, "args": ["new"]}}, queues={"t": "other"})
        record = stage.record("a")
        assert record is not None
        assert list(record.earlier) == ["celery"]
        assert (stage.waiting(), stage.waiting("other")) == ([], ["a ['new']"])
