"""A change takes effect at once: of an entry at run time, and of a configuration that is deployed."""

from __future__ import annotations

import itertools

import pytest

from tests.planner.conftest import Stage, run, run_until, started
from tests.support import wait_until

pytestmark = pytest.mark.on_cluster(always=True)


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

    @pytest.mark.parametrize(("change", "left"), {"paused": [], "changed": ["a [2]"], "removed": []}.items())
    def test_a_run_that_waits_for_its_delay_is_withdrawn(self, stage: Stage, change: str, left: list[str]) -> None:
        """Its time has come, and no other occurrence is planned before it is due."""
        given = {"schedule": 1, "options": {"countdown": 0.9}}
        stage.add("a", given)
        planners = [started(stage) for _ in range(2)]
        planned = stage.state("a")
        assert planned is not None
        run_until(lambda: stage.store.now_ms() > (planned.at_ms or 0), "its time has come", *planners)
        assert stage.state("a") == planned
        if change == "removed":
            assert stage.store.write_record("a", stage.store.record("a"), None)
        else:
            given = {**given, "args": [2]} if change == "changed" else given
            stage.add("a", given, queue="celery", paused=change == "paused")
        for planner in planners:
            planner.on_changes([(10**6, "a")])
        run(*planners)
        assert stage.waiting() == left

    def test_a_run_that_is_delayed_beyond_the_next_one_counts_as_sent(self, stage: Stage) -> None:
        """The next one may be due before it, so it is planned in time."""
        planner = started(stage, {"a": {"schedule": 0.3, "options": {"countdown": 60}}})
        run_until(lambda: (stage.state("a") or 0).runs >= 3, "three occurrences", planner)
        assert stage.waiting() == ["a []"] * 4
        assert {late.score - early.score for early, late in itertools.pairwise(stage.queue().peek(10))} == {300}

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
