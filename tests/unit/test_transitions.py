"""Where an entry goes next, for every state in which a planner can find it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from celery.schedules import schedule

from celery_delayq.options.settings import ScheduleSettings
from celery_delayq.schedule import transitions
from celery_delayq.schedule.definition import Definition
from celery_delayq.schedule.entry import Entry
from celery_delayq.schedule.records import Record, State
from celery_delayq.schedule.transitions import SKIPPED_AFTER_S, Transition, policy_of

APP = Celery("shop", set_as_current=False)
#: A moment that is a multiple of everything used here.
T = 1_800_000_000_000
MINUTE = 60_000


def entry(every: Any = 60, *, paused: bool = False, **timing: Any) -> Entry:
    definition = Definition.of("e", {"task": "t", "schedule": every, "timing": timing}, APP)
    return Entry(definition, Record(definition.fingerprint, T, None, paused=paused))


def policy(one: Entry) -> ScheduleSettings:
    return policy_of(one.definition, ScheduleSettings())


def next_transition(one: Entry, state: State | None, now_ms: int, **options: Any) -> Transition | None:
    return transitions.next_transition(one, state, now_ms, policy=policy(one), **options)


def at(one: Entry, at_ms: int | None, *, task_id: str = "id", **rest: Any) -> State:
    return State(one.definition.fingerprint, "me", at_ms, task_id, **rest)


class TestOnTime:
    def test_a_new_entry_begins_one_interval_after_it_was_recorded(self) -> None:
        assert next_transition(entry(), None, T + 100) == Transition(T + MINUTE, send_ms=T + MINUTE)

    def test_nothing_happens_before_its_time(self) -> None:
        one = entry()
        assert next_transition(one, at(one, T + MINUTE), T + MINUTE - 1) is None

    def test_it_goes_on_when_its_time_has_come(self) -> None:
        one = entry()
        move = next_transition(one, at(one, T + MINUTE, runs=3), T + MINUTE)
        assert move == Transition(T + 2 * MINUTE, T + 2 * MINUTE, last_ms=T + MINUTE, runs=4)

    def test_being_a_little_late_misses_nothing(self) -> None:
        one = entry(0.5)
        move = next_transition(one, at(one, T), T + 1900)
        assert move is not None
        assert move.at_ms == T + 500

    def test_a_lazy_one_is_sent_when_its_time_has_come(self) -> None:
        one = entry(lazy=True)
        assert next_transition(one, None, T) == Transition(T + MINUTE, send_ms=None)
        move = next_transition(one, at(one, T + MINUTE, task_id=""), T + MINUTE)
        assert move == Transition(T + 2 * MINUTE, T + MINUTE, last_ms=T + MINUTE, runs=1)

    def test_it_ends_after_so_many_runs(self) -> None:
        one = entry(max_runs=2)
        second = next_transition(one, at(one, T, runs=0), T)
        assert second is not None
        assert second.at_ms == T + MINUTE
        over = next_transition(one, at(one, T + MINUTE, runs=1), T + MINUTE)
        assert over == Transition(None, None, last_ms=T + MINUTE, runs=2)
        assert next_transition(one, at(one, None, runs=2, last_ms=T + MINUTE), T + 5 * MINUTE) is None

    def test_it_ends_with_its_window(self) -> None:
        one = entry(end="2027-01-15T08:00:30Z")
        over = next_transition(one, at(one, T), T)
        assert over is not None
        assert over.at_ms is None
        assert next_transition(one, at(one, None, last_ms=T), T + 5 * MINUTE) is None


class TestMissed:
    """Nobody planned for 10 minutes and a half."""

    now = T + 10 * MINUTE + 30_000

    def move(self, one: Entry, *, still_waits: bool = False, **state: Any) -> Transition:
        found = next_transition(one, at(one, T, **state), self.now, still_waits=still_waits)
        assert found is not None
        return found

    def test_skip_goes_on_with_the_next(self) -> None:
        assert self.move(entry(missed="skip")).at_ms == T + 11 * MINUTE

    def test_skip_drops_what_waits_for_too_long(self) -> None:
        assert policy(entry(missed="skip")).max_lateness_s == SKIPPED_AFTER_S

    def test_once_runs_the_latest_now(self) -> None:
        one = entry()
        first = self.move(one)
        assert first.send_ms == first.at_ms == T + 10 * MINUTE
        then = next_transition(one, at(one, first.at_ms, made_up=1), self.now)
        assert then is not None
        assert (then.at_ms, then.made_up) == (T + 11 * MINUTE, 0)

    def test_once_is_the_one_that_still_waits(self) -> None:
        assert self.move(entry(), still_waits=True).at_ms == T + 11 * MINUTE

    def test_all_runs_each(self) -> None:
        assert made_up(entry(missed="all"), T, self.now) == [T + n * MINUTE for n in range(1, 12)]

    def test_all_has_a_cap(self) -> None:
        assert made_up(entry(missed="all", catch_up=3), T, self.now) == [T + n * MINUTE for n in (8, 9, 10, 11)]

    @pytest.mark.parametrize("every", [60, schedule(60, relative=True, app=APP), "* * * * *"], ids=repr)
    @pytest.mark.parametrize(
        "options", [{"missed": "once"}, {"missed": "all"}, {"missed": "all", "catch_up": 2}], ids=str
    )
    def test_an_entry_that_ended_meanwhile_runs_until_its_end(self, every: Any, options: dict[str, Any]) -> None:
        one = entry(every, end="2027-01-15T08:05:30Z", **options)
        times = [T + n * MINUTE for n in range(1, 6)]
        most = options.get("catch_up", 5) if options["missed"] == "all" else 1
        assert made_up(one, T, self.now) == times[-most:]

    @pytest.mark.parametrize("every", [60, schedule(60, relative=True, app=APP), "* * * * *"], ids=repr)
    def test_all_leaves_out_what_is_pointless(self, every: Any) -> None:
        one = entry(every, missed="all", max_lateness=100)
        assert made_up(one, T, self.now) == [T + n * MINUTE for n in (9, 10, 11)]

    @pytest.mark.parametrize(("missed", "sent"), [("skip", None), ("once", 10), ("all", 0)])
    def test_a_lazy_one(self, missed: str, sent: int | None) -> None:
        move = self.move(entry(missed=missed, lazy=True), task_id="")
        assert move.send_ms == (None if sent is None else T + sent * MINUTE)
        assert move.at_ms == (T + MINUTE if missed == "all" else T + 11 * MINUTE)

    @pytest.mark.parametrize(("missed", "next_is"), [("skip", 11), ("once", 10), ("all", 0)])
    def test_one_whose_message_was_taken_back_by_a_change(self, missed: str, next_is: int) -> None:
        """It is planned with a message, as ever, and not sent when its time has come from then on."""
        changed = replace(at(entry(), T, task_id="", runs=3), fingerprint="before")
        move = next_transition(entry(missed=missed), changed, self.now)
        assert move == Transition(T + next_is * MINUTE, send_ms=T + next_is * MINUTE, runs=3)

    def test_crontabs_keep_the_deadline_of_celery(self) -> None:
        definition = entry("* * * * *").definition
        assert policy_of(definition, ScheduleSettings(), 30).max_lateness_s == 30
        assert policy_of(entry().definition, ScheduleSettings(), 30).max_lateness_s == 0


class Asked(schedule):
    """Is due a minute after its last run, and wants to be asked again after 7 s."""

    def is_due(self, last_run_at: datetime) -> tuple[bool, float]:
        return self.now() - last_run_at >= timedelta(minutes=1), 7


class TestAsked:
    """A schedule that decides for itself: there is a time to ask it, and a message only when it says so."""

    every = Asked(1, app=APP)

    def test_a_new_one_is_asked_at_once(self) -> None:
        assert next_transition(entry(self.every), None, T + 5) == Transition(T + 5)

    def test_one_whose_window_begins_later_is_asked_then(self) -> None:
        assert next_transition(entry(self.every, start="2027-01-15T08:01:00Z"), None, T) == Transition(T + MINUTE)

    def test_one_that_is_not_due_is_asked_again(self) -> None:
        one = entry(self.every)
        move = next_transition(one, at(one, T, task_id="", last_ms=T - 59_999, runs=3), T)
        assert move == Transition(T + 7000, None, last_ms=T - 59_999, runs=3)

    def test_one_that_is_due_is_sent_now(self) -> None:
        one = entry(self.every)
        move = next_transition(one, at(one, T, task_id="", last_ms=T - MINUTE, runs=3), T)
        assert move == Transition(T + 7000, T, last_ms=T, runs=4)

    @pytest.mark.parametrize(("now_ms", "sent"), [(T + MINUTE, True), (T + MINUTE + 1, False)])
    def test_it_ends_with_its_window(self, now_ms: int, sent: bool) -> None:
        one = entry(self.every, end="2027-01-15T08:01:00Z")
        move = next_transition(one, at(one, T, task_id="", last_ms=T - MINUTE, runs=3), now_ms)
        assert move is not None
        assert (move.at_ms, move.send_ms) == ((now_ms + 7000, now_ms) if sent else (None, None))
        assert move.runs == 3 + sent

    def test_one_that_has_ended_is_not_asked_again(self) -> None:
        one = entry(self.every, max_runs=3)
        assert next_transition(one, at(one, None, last_ms=T, runs=3), T + MINUTE) is None
        one = entry(self.every, end="2027-01-15T08:01:00Z")
        assert next_transition(one, at(one, None, last_ms=T, runs=3), T + MINUTE + 1) is None


class TestLate:
    """Planners were there all the time, and reach an entry 10 minutes and a half late."""

    now = T + 10 * MINUTE + 30_000

    @pytest.mark.parametrize("missed", ["skip", "once", "all"])
    @pytest.mark.parametrize("still_waits", [False, True])
    @pytest.mark.parametrize("lazy", [False, True])
    def test_each_occurrence_is_sent(self, missed: str, still_waits: bool, lazy: bool) -> None:
        one = entry(missed=missed, lazy=lazy, max_lateness=3600, catch_up=1)
        assert made_up(one, T, self.now, attended_ms=T - MINUTE, still_waits=still_waits) == [
            T + n * MINUTE for n in range(1, 12)
        ]

    @pytest.mark.parametrize(("missed", "planned"), [("skip", [5, 6, 7, 8, 9, 10, 11]), ("once", range(4, 12))])
    def test_the_policy_is_for_what_was_before_they_came(self, missed: str, planned: Sequence[int]) -> None:
        found = made_up(entry(missed=missed), T, self.now, attended_ms=T + 5 * MINUTE)
        assert found == [T + n * MINUTE for n in planned]

    def test_all_makes_up_for_as_many_as_it_should(self) -> None:
        found = made_up(entry(missed="all", catch_up=2), T, self.now, attended_ms=T + 5 * MINUTE)
        assert found == [T + n * MINUTE for n in range(3, 12)]

    def test_a_new_entry_begins_with_its_first_occurrence(self) -> None:
        move = next_transition(entry(), None, self.now, attended_ms=T - MINUTE)
        assert move is not None
        assert move.at_ms == T + MINUTE

    def test_what_is_hopelessly_late_counts_as_missed(self) -> None:
        """So planners that cannot keep up do not lag behind for ever."""
        now = T + 600 * MINUTE + 30_000
        found = made_up(entry(missed="skip"), T, now, attended_ms=T - MINUTE)
        assert found == [T + n * MINUTE for n in range(541, 602)]


def made_up(one: Entry, at_ms: int, now_ms: int, **besides: Any) -> list[int]:
    """Return to which occurrences an entry goes until it is up to date."""
    found: list[int] = []
    task_id = "" if one.definition.is_lazy else "id"
    state = at(one, at_ms, task_id=task_id)
    while (move := next_transition(one, state, now_ms, **besides)) is not None:
        if move.at_ms is None:  # it has ended
            break
        found.append(move.at_ms)
        state = at(one, move.at_ms, task_id=task_id, made_up=move.made_up)
    return found


class TestPaused:
    def test_its_message_is_withdrawn(self) -> None:
        one = entry(paused=True)
        assert next_transition(one, at(one, T + MINUTE, runs=2), T) == Transition(None, runs=2, withdraw="id")

    def test_it_rests(self) -> None:
        one = entry(paused=True)
        assert next_transition(one, at(one, None), T) is None
        assert next_transition(one, None, T) is None
        assert next_transition(entry(enabled=False), None, T) is None

    def test_what_runs_already_counts(self) -> None:
        one = entry(paused=True)
        assert next_transition(one, at(one, T), T) == Transition(None, last_ms=T, runs=1)
        assert next_transition(one, at(one, T + 5), T, gone=True) == Transition(None, last_ms=T + 5, runs=1)

    def test_what_was_missed_meanwhile_does_not_run(self) -> None:
        one = entry()
        move = next_transition(one, at(one, None, last_ms=T, runs=1), T + 10 * MINUTE + 1)
        assert move == Transition(T + 11 * MINUTE, T + 11 * MINUTE, last_ms=T, runs=1)


class TestChanged:
    def changed(self, old: State, **now: Any) -> State:
        return replace(old, fingerprint="another", **now)

    def test_the_next_is_counted_from_the_last(self) -> None:
        one = entry(60)
        state = self.changed(at(one, T + 60 * MINUTE, last_ms=T))
        assert next_transition(one, state, T + 30_000) == Transition(T + MINUTE, T + MINUTE, last_ms=T, withdraw="id")

    def test_but_an_interval_that_is_over_runs_now(self) -> None:
        one = entry(60)
        state = self.changed(at(one, T + 60 * MINUTE, last_ms=T))
        move = next_transition(one, state, T + 5 * MINUTE)
        assert move is not None
        assert move.at_ms == T + 5 * MINUTE

    def test_and_a_crontab_not_before_its_next_time(self) -> None:
        one = entry("*/10 * * * *")
        state = self.changed(at(one, T + 60 * MINUTE, last_ms=T))
        move = next_transition(one, state, T + 15 * MINUTE)
        assert move is not None
        assert move.at_ms == T + 20 * MINUTE

    def test_what_was_sent_meanwhile_is_not_sent_again(self) -> None:
        one = entry(60)
        state = self.changed(at(one, T + 3, last_ms=T - MINUTE))
        move = next_transition(one, state, T, gone=True)
        assert move == Transition(T + 3 + MINUTE, T + 3 + MINUTE, last_ms=T + 3, runs=1)
