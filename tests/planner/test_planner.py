"""Planners: each occurrence is offered once, whoever comes when, and a change takes effect at once."""

from __future__ import annotations

import gc
import itertools
import tracemalloc
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from celery_delayq.queue.script import load
from celery_delayq.schedule.records import State
from celery_delayq.schedule.scripts import CHANGED, DONE
from celery_delayq.schedule.store import ScheduleStore
from tests.planner.conftest import Stage, run, run_until, started
from tests.state import calls
from tests.support import wait_until


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


class TestOrder:
    """What has to be planned soonest is planned first."""

    def test_an_entry_of_each_second_before_those_of_each_minute(self, stage: Stage) -> None:
        entries: dict[str, Any] = {f"minute {n}": 60 for n in range(300)}
        started(stage, {**entries, "often": 1})
        before = stage.state("often")
        assert before is not None
        for name in entries:
            stage.set_back(name, 60_000, transferred=True)
        stage.set_back("often", 1000, transferred=True)
        stage.attended_for(600_000)
        planner = stage.planner({**entries, "often": 1})
        planner.read()
        wait_until(lambda: stage.store.now_ms() > (before.at_ms or 0) + 100, "those that another one planned are its")
        planner.run_due()
        after = stage.state("often")
        assert after is not None
        assert after.runs == 1
        assert sum((stage.state(name) or 0).runs for name in entries) < 300  # type: ignore[union-attr]

    def test_what_is_known_goes_on_while_everything_is_read_again(self, stage: Stage) -> None:
        planner = started(stage, {**{f"hour {n}": 3600 for n in range(2500)}, "often": 0.5})
        before = stage.state("often")
        assert before is not None
        wait_until(lambda: stage.store.now_ms() > (before.at_ms or 0), "its time has come")
        planner.begin_reading()
        planner.run_due()
        assert not planner.is_up_to_date
        after = stage.state("often")
        assert after is not None
        assert after.last_ms == before.at_ms

    def test_several_planners_share_new_entries(self, stage: Stage) -> None:
        entries = {f"e{n}": 3600 for n in range(1000)}
        planners = [stage.planner(entries) for _ in range(3)]
        for planner in planners:
            planner.read()
        while sum(planner.run_due() for planner in planners):
            pass
        assert stage.built == 1000


class TestCost:
    def test_of_a_new_entry(self, stage: Stage) -> None:
        """One script plans it; all else is done for many at once."""
        planner = stage.planner({f"e{n}": "0 4 * * *" for n in range(1000)})
        stage.client.script_load(load("plan").text)  # or a hundred calls are made again
        stage.client.config_resetstat()
        planner.read()
        run(planner)
        assert calls(stage.client, "evalsha") < 1050
        assert calls(stage.client, "hmget") + calls(stage.client, "hscan") < 60

    def test_of_an_occurrence(self, stage: Stage) -> None:
        """One script, and nothing is read."""
        planner = started(stage, {f"e{n}": 0.5 for n in range(500)})
        wait_until(lambda: (planner.seconds_until_next() or 0) < -0.01, "their time has come")
        stage.client.config_resetstat()
        while planner.run_due():
            pass
        assert 500 <= calls(stage.client, "evalsha") < 520
        assert calls(stage.client, "hmget") == 0

    def test_of_changes(self, stage: Stage) -> None:
        """However many there are at once, they are read together."""
        planner = started(stage)
        for n in range(400):
            stage.add(f"e{n}", 3600)
        stage.client.config_resetstat()
        planner.on_changes([(n + 1, f"e{n}") for n in range(400)])
        assert calls(stage.client, "hmget") < 10
        run(planner)
        assert stage.queue().size() == 400

    def test_memory(self, stage: Stage) -> None:
        """Of crontabs that say the same there is one; messages and definitions as data are not kept."""
        for n in range(2000):
            stage.add(f"e{n}", f"{n % 60} 4 * * *")
        planner = stage.planner()
        gc.collect()
        tracemalloc.start()
        try:
            planner.read()
            run(planner)
            gc.collect()
            used, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert used / 2000 < 1500


class TestAtRunTime:
    def test_an_entry_that_is_added_is_planned(self, stage: Stage) -> None:
        planner = started(stage)
        stage.add("a", 60)
        planner.on_changes([(1, "a")])
        run(planner)
        assert stage.waiting() == ["a []"]

    def test_a_change_replaces_the_pending_message(self, stage: Stage) -> None:
        stage.add("a", 60)
        planner = started(stage)
        stage.add("a", {"schedule": 60, "args": [2]})
        planner.on_changes([(10**6, "a")])
        run(planner)
        assert stage.waiting() == ["a [2]"]

    def test_an_entry_that_was_read_often_is_planned_once(self, stage: Stage) -> None:
        planner = started(stage, {"a": 0.3})
        for number in range(3):
            planner.on_changes([(10**6 + number, "a")])
        before, state = stage.built, stage.state("a")
        assert state is not None
        wait_until(lambda: stage.store.now_ms() > (state.at_ms or 0), "its time has come")
        planner.run_due()
        assert stage.built == before + 1

    def test_one_that_was_read_often_and_is_gone(self, stage: Stage) -> None:
        started(stage, {"a": 0.3})
        looks = started(stage, {"a": 0.3})
        for number in range(3):
            looks.on_changes([(10**6 + number, "a")])
        stage.store.write_record("a", stage.store.record("a"), None)
        stage.store.forget_all("a", ["celery"])
        run_until(lambda: not looks.entries, "it is noticed", looks)

    def test_a_removed_entry_is_withdrawn(self, stage: Stage) -> None:
        stage.add("a", 60)
        planner = started(stage)
        stage.store.write_record("a", stage.store.record("a"), None)
        planner.on_changes([(10**6, "a")])
        assert stage.waiting() == []
        assert stage.state("a") is None

    def test_one_that_was_removed_while_nobody_planned_is_withdrawn_later(self, stage: Stage) -> None:
        stage.add("a", 60)
        started(stage)
        stage.store.write_record("a", stage.store.record("a"), None)
        started(stage)
        assert stage.waiting() == []

    def test_missed_notifications_are_noticed(self, stage: Stage) -> None:
        planner = started(stage)
        stage.add("a", 60)
        planner.look()
        run(planner)
        assert stage.waiting() == [], "the notification may be on its way"
        planner.look()
        run(planner)
        assert stage.waiting() == ["a []"]

    def test_data_that_the_server_lost_is_written_again(self, stage: Stage) -> None:
        planner = started(stage, {"a": 60})
        stage.client.flushall()
        planner.look()
        run(planner)
        assert stage.waiting() == ["a []"]

    def test_a_paused_entry_rests(self, stage: Stage) -> None:
        stage.add("a", 60)
        planner = started(stage)
        stage.add("a", 60, paused=True, queue="celery")
        planner.on_changes([(10**6, "a")])
        run(planner)
        assert stage.waiting() == []
        stage.add("a", 60, queue="celery")
        planner.on_changes([(10**6, "a")])
        run(planner)
        assert stage.waiting() == ["a []"]

    def test_a_stale_planner_does_not_bring_a_removed_entry_back(self, stage: Stage) -> None:
        stage.add("a", 60)
        stale = stage.planner()
        stale.read()
        started(stage)
        stage.store.write_record("a", stage.store.record("a"), None)
        started(stage)
        run(stale)
        assert stage.waiting() == []


class TestDeploy:
    """Workers with an old and a new configuration, side by side."""

    def test_the_new_one_counts_whoever_looks(self, stage: Stage) -> None:
        old = started(stage, {"a": 60, "gone": 60})
        new = started(stage, {"a": {"schedule": 60, "args": ["new"]}, "fresh": 60})
        for _ in range(2):
            for planner in (old, new, started(stage, {"a": 60, "gone": 60})):
                planner.look()
                planner.read()
                run(planner)
        assert sorted(stage.waiting()) == ["a ['new']", "fresh []"]

    def test_the_old_one_plans_what_is_the_same(self, stage: Stage) -> None:
        old = started(stage, {"a": 60, "same": 0.2})
        started(stage, {"a": 120, "same": 0.2})
        old.look()
        run_until(lambda: (stage.state("same") or 0).runs > 0, "the old one goes on", old)

    def test_a_roll_back_counts_when_the_new_one_is_gone(self, stage: Stage) -> None:
        old = started(stage, {"a": 60})
        started(stage, {"a": {"schedule": 60, "args": ["new"]}, "fresh": 60})
        old.look()
        stage.client.delete(stage.store.keys.configurations)  # as after half a minute
        old.look()
        run(old)
        assert stage.waiting() == ["a []"]

    def test_an_old_one_that_slept_all_the_time_finds_out_as_well(self, stage: Stage) -> None:
        old = started(stage, {"a": 60})
        started(stage, {"a": {"schedule": 60, "args": ["new"]}})
        stage.client.delete(stage.store.keys.configurations)
        old.on_changes([(10**6, "a")])
        old.look()
        run(old)
        assert stage.waiting() == ["a []"]

    def test_what_was_added_at_run_time_stays(self, stage: Stage) -> None:
        stage.add("mine", 60)
        started(stage, {"a": 60})
        started(stage, {})
        assert stage.waiting() == ["mine []"]

    def test_other_apps_are_left_alone(self, stage: Stage) -> None:
        started(stage, {"a": 60})
        started(stage, {"b": 60}, app="warehouse")
        started(stage, {"a": 60})
        assert sorted(stage.waiting()) == ["a []", "b []"]

    def test_a_paused_entry_stays_paused(self, stage: Stage) -> None:
        planner = started(stage, {"a": 60})
        record = stage.record("a")
        assert record is not None
        stage.add("a", 60, paused=True, app="shop", queue="celery")
        planner.on_changes([(10**6, "a")])
        run(planner)
        started(stage, {"a": {"schedule": 60, "args": ["new"]}})
        assert stage.waiting() == []


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

    def test_and_the_old_planner_does_not_move_it_back(self, stage: Stage) -> None:
        old = started(stage, {"a": 60})
        started(stage, {"a": 60}, queues={"t": "other"})
        old.look()
        old.read()
        run(old)
        assert (stage.waiting(), stage.waiting("other")) == ([], ["a []"])

    @pytest.mark.parametrize("parked", [False, True])
    @pytest.mark.parametrize("restarted", [False, True])
    def test_a_planner_that_is_killed_in_between_leaves_it_to_another(
        self, stage: Stage, parked: bool, restarted: bool
    ) -> None:
        """The record says where it goes; the old state may be parked already."""
        stage.add("a", 60)
        started(stage)
        before = stage.state("a")
        assert before is not None
        other = started(stage, queues={"t": "other"})
        stage.add("a", 60, queue="other", earlier=["celery"])
        if parked:
            stage.store.park("a", "celery", stage.store.seen([("a", "celery")])[0])
        if restarted:
            started(stage, queues={"t": "other"})
        else:
            other.on_changes([(10**6, "a")])
            run(other)
        assert (stage.waiting(), stage.waiting("other")) == ([], ["a []"])
        after = stage.state("a", "other")
        assert after is not None
        assert after.at_ms == before.at_ms
        assert stage.state("a") is None

    def test_a_state_that_cannot_be_read_is_not_moved(self, stage: Stage) -> None:
        stage.add("a", 60, queue="other", earlier=["celery"])
        stage.client.hset(stage.queue().keys.schedule, "a", "junk")
        stage.client.sadd("delayq:queues", "celery")
        started(stage, queues={"t": "other"})
        assert stage.waiting("other") == ["a []"]
        assert stage.state("a") is None

    def test_a_parked_state_is_not_taken_for_the_present_one(self, stage: Stage) -> None:
        """The entry has come back to a queue in which a killed planner left its state."""
        stage.add("a", 60)
        started(stage)
        seen = stage.store.seen([("a", "celery")])[0]
        old = State.parse(seen.raw)
        stage.store.park("a", "celery", seen)
        present = replace(old, at_ms=(old.at_ms or 0) + 600_000, last_ms=old.at_ms, runs=9, task_id="")
        stage.client.hset(stage.queue("other").keys.schedule, "a", present.dump())
        stage.client.sadd("delayq:queues", "other")
        started(stage)
        after = stage.state("a")
        assert after is not None
        assert after.runs == 9
        assert stage.state("a", "other") is None

    def test_one_that_goes_on_to_a_third_queue_keeps_its_state(self, stage: Stage) -> None:
        """A planner was killed while it moved the entry, and by now it goes elsewhere."""
        stage.add("a", 60)
        started(stage)
        stage.set_runs("a", 9)
        stage.store.park("a", "celery", stage.store.seen([("a", "celery")])[0])
        stage.add("a", 60, queue="mine", earlier=["celery"])
        started(stage, queues={"t": "other"})
        after = stage.state("a", "other")
        assert after is not None
        assert after.runs == 9
        assert [stage.waiting(queue) for queue in ("celery", "mine", "other")] == [[], [], ["a []"]]

    def test_one_whose_time_comes_while_it_moves_is_planned_ahead_again(self, stage: Stage) -> None:
        stage.add("a", 0.1)
        started(stage)
        parked = stage.store.park("a", "celery", stage.store.seen([("a", "celery")])[0])
        assert parked is not None
        at_ms = parked[0].at_ms
        wait_until(lambda: stage.store.now_ms() > at_ms, "its time has come")
        stage.add("a", 0.1, queue="other", earlier=["celery"])
        started(stage, queues={"t": "other"})
        after = stage.state("a", "other")
        assert after is not None
        assert after.task_id
        assert f"a [] {at_ms}" in stage.offered("other")

    def test_a_planner_that_was_slower_than_the_move_back(self, stage: Stage) -> None:
        """It had decided what to do while the entry still went to its queue."""
        stage.add("a", 60)
        started(stage)
        stage.store.park("a", "celery", stage.store.seen([("a", "celery")])[0])
        slow = stage.slow_step("a", "other")
        stage.add("a", 60, queue="celery", earlier=["other"])
        planner = stage.planner()
        planner.read()
        planner.on_changes([(10**6, "a")])
        assert stage.store.plan([slow])[0].outcome == DONE
        run(planner)
        assert (stage.waiting(), stage.waiting("other")) == (["a []"], [])

    @pytest.mark.parametrize("parked", [False, True])
    def test_a_planner_that_looks_after_the_move_and_has_not_heard_of_it(self, stage: Stage, parked: bool) -> None:
        started(stage, {"a": 0.3})
        looks = started(stage, {"a": 0.3})
        before = stage.state("a")
        assert before is not None
        seen = stage.store.seen([("a", "celery")])[0]
        stage.queue().transfer(10)
        started(stage, {"a": 0.3}, queues={"t": "other"})
        if parked:  # as in the middle of it
            stage.client.hset(stage.queue().keys.schedule, "a", seen.raw)
            stage.store.park("a", "celery", seen)
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

    def test_a_state_that_was_parked_twice_is_not_the_same(self, stage: Stage) -> None:
        stage.add("a", 60)
        started(stage)
        before = stage.store.seen([("a", "celery")])[0]
        first = stage.store.park("a", "celery", before)
        stage.client.hset(stage.queue().keys.schedule, "a", before.raw)
        stage.queue().offer(b"again", due_ms=10**13, message_id=State.parse(before.raw).task_id)
        second = stage.store.park("a", "celery", before)
        assert first is not None
        assert second is not None
        assert first[1].raw != second[1].raw

    def test_a_deploy_remembers_where_a_state_may_be(self, stage: Stage) -> None:
        """Planners that only hear of the change look for it in those queues."""
        started(stage, {"a": 60})
        stage.add("a", 60, app="shop", queue="other", earlier=["celery"])
        started(stage, {"a": {"schedule": 60, "args": ["new"]}}, queues={"t": "other"})
        record = stage.record("a")
        assert record is not None
        assert list(record.earlier) == ["celery"]
        assert (stage.waiting(), stage.waiting("other")) == ([], ["a ['new']"])


def test_entries_that_are_new_do_not_hold_up_the_others(stage: Stage) -> None:
    planner = started(stage, {"often": 0.5})
    for n in range(300):
        stage.add(f"e{n}", 3600)
    run(planner)
    planner.read()
    before = stage.state("often")
    assert before is not None
    wait_until(lambda: stage.store.now_ms() > (before.at_ms or 0), "its time has come")
    planner.run_due()
    after = stage.state("often")
    assert after is not None
    assert after.last_ms == before.at_ms
    assert stage.queue().size() < 300
    run_until(lambda: stage.queue().size() > 300, "all are planned", planner)


def test_ten_thousand_entries_each_have_one_occurrence(stage: Stage) -> None:
    entries = {f"e{n}": {"schedule": 3600, "args": [n]} for n in range(10_000)}
    first, second = stage.planner(entries), stage.planner(entries)
    first.read()
    second.read()
    while first.run_due() + second.run_due():
        pass
    found = [entry.payload for entry in stage.queue().page(limit=1000)]
    assert len(found) == 1000
    assert stage.built == 10_000
    assert stage.queue().size() == 10_000
    assert len({name for page in stage.store.states("celery") for name in page}) == 10_001
