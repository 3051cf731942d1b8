"""The next step of an entry: pure functions of its definition, its state and the time. All times are unix times in ms.

An occurrence is sent one occurrence ahead: its message waits in the delayed queue. The entry stays at this occurrence
until its time comes, and then moves to the next one. A lazy entry moves in the same way, but its message is built and
sent only when its time comes. If jitter or countdown delays the message, the planner gives a `now` that is earlier by
the delay.

An occurrence is missed if no planner was running at its time, so that nobody could plan it. If a planner was running
but reaches it late, it is sent late.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from celery_delayq.options.settings import ScheduleSettings
from celery_delayq.schedule import occurrences
from celery_delayq.schedule.definition import Definition
from celery_delayq.schedule.entry import Entry
from celery_delayq.schedule.records import State

#: An occurrence counts as missed only if it was this old when a planner came, in ms; a younger one is merely late.
TOLERATED_MS = 2000

#: Occurrences that planners reach later than this also count as missed, so that planners cannot lag behind for ever.
LATEST_MS = 3_600_000

#: With the policy `skip` and without `max_lateness`, a run that is later than this is dropped, in seconds.
SKIPPED_AFTER_S = 60.0

#: How many occurrences of a crontab are counted at most that one step leaves out: finding each takes some 20 µs, and
#: other entries wait meanwhile.
MOST_LEFT_OUT = 100

#: Maximum time until a schedule that decides for itself is asked again, in seconds.
_LONGEST_ASK_S = 300.0


@dataclass(frozen=True, slots=True)
class Transition:
    """A step of an entry.

    Attributes:
        at_ms: its occurrence after the step; None if there is none.
        send_ms: the occurrence whose message must be offered; None for none.
        last_ms: the previous occurrence.
        runs: number of occurrences that were sent, not counting the one at `at_ms`.
        made_up: number of missed occurrences that were made up for in a row.
        withdraw: id of the message that must not run; empty for none.
        next_ms: its occurrence after the step if what is sent does not count as a run; then `max_runs` is not reached.
    """

    at_ms: int | None
    send_ms: int | None = None
    last_ms: int | None = None
    runs: int = 0
    made_up: int = 0
    withdraw: str = ""
    next_ms: int | None = field(default=None, compare=False)


def policy_of(
    definition: Definition, defaults: ScheduleSettings, cron_deadline_s: float | None = None
) -> ScheduleSettings:
    """Return what to do with missed runs of an entry.

    Args:
        definition: definition of the entry.
        defaults: the app's defaults.
        cron_deadline_s: Celery's `beat_cron_starting_deadline`: the maximum lateness of crontabs, in seconds.
    """
    timing = definition.timing
    missed = timing.missed or defaults.missed
    lateness_s = timing.max_lateness if timing.max_lateness is not None else defaults.max_lateness_s
    if not lateness_s and cron_deadline_s and hasattr(definition.schedule, "day_of_month"):
        lateness_s = float(cron_deadline_s)
    if not lateness_s and missed == "skip":
        lateness_s = SKIPPED_AFTER_S
    catch_up = timing.catch_up if timing.catch_up is not None else defaults.catch_up
    return ScheduleSettings(missed, lateness_s, catch_up)


def next_transition(
    entry: Entry,
    state: State | None,
    now_ms: int,
    *,
    policy: ScheduleSettings,
    attended_ms: int | None = None,
    still_waits: bool = False,
    gone: bool = False,
) -> Transition | None:
    """Return the next step of an entry, or None if there is nothing to do before its occurrence, or at all.

    Args:
        entry: the entry.
        state: its present state; None if it was never planned.
        now_ms: the server's time.
        policy: what to do with its missed runs.
        attended_ms: since when a planner could always have planned it; None means since now.
        still_waits: whether the message of the past occurrence still waits, because nobody transferred it.
        gone: whether its message was already transferred, although its time is still in the future by `now_ms`.
    """
    definition = entry.definition
    moving = _Moving(entry, state or _NEVER_PLANNED, now_ms, missed_until(now_ms, attended_ms), policy)
    if state is None:
        return None if entry.is_idle else moving.begin()
    passed = state.at_ms is not None and (state.at_ms <= now_ms or gone)
    if entry.is_idle:
        return moving.rest(passed=passed)
    if state.at_ms is None:
        return moving.resume()
    if passed:
        if definition.is_asked:
            return moving.ask()
        if state.task_id:
            return moving.go_on(makes_up=not still_waits)
        if definition.is_lazy or state.fingerprint == entry.record.fingerprint:
            return moving.go_on_lazily()
        return moving.send_late()
    if state.fingerprint != entry.record.fingerprint:
        return moving.begin_again()
    return None


def changed(entry: Entry, state: State, now_ms: int) -> Transition:
    """Return the step of an entry whose definition has changed at this time, whatever its state is.

    Args:
        entry: the entry, with the new definition.
        state: its present state.
        now_ms: the server's time.
    """
    policy = policy_of(entry.definition, ScheduleSettings())
    return _Moving(entry, state, now_ms, now_ms, policy).begin_again()


def missed_until(now_ms: int, attended_ms: int | None) -> int:
    """Return the time up to which occurrences count as missed, unix time in ms. Later ones are merely late."""
    since_ms = now_ms if attended_ms is None else min(attended_ms, now_ms)
    return max(since_ms - TOLERATED_MS, now_ms - LATEST_MS) - 1


def left_out(entry: Entry, state: State, move: Transition, now_ms: int) -> int:
    """Return how many occurrences a step passes without sending them: they were missed, and nothing makes up for them.

    Args:
        entry: the entry.
        state: its state before the step.
        move: the step.
        now_ms: the server's time.
    """
    definition, at_ms = entry.definition, state.at_ms
    if at_ms is None or move.at_ms is None or now_ms - at_ms <= TOLERATED_MS or entry.is_idle or definition.is_asked:
        return 0
    is_sent = move.runs > state.runs
    if not (is_sent or definition.is_lazy or state.fingerprint == entry.record.fingerprint):
        return 0
    return definition.times.count_missed(at_ms, move.at_ms - 1, MOST_LEFT_OUT) + (not is_sent)


_NEVER_PLANNED = State("", "", None)


@dataclass(frozen=True, slots=True)
class _Moving:
    """Finds the step of an entry from a state.

    Attributes:
        entry: the entry.
        state: its state before the step.
        now_ms: the server's time.
        missed_ms: occurrences up to this time count as missed; later ones are merely late.
        policy: what to do with those that were missed.
    """

    entry: Entry
    state: State
    now_ms: int
    missed_ms: int
    policy: ScheduleSettings

    def to(self, at_ms: int | None, **changes: Any) -> Transition:
        """Return the step to an occurrence. A lazy entry does not send its message yet."""
        definition, next_ms = self.entry.definition, at_ms
        changes = {"last_ms": self.state.last_ms, "runs": self.state.runs, **changes}
        if definition.timing.max_runs is not None and changes["runs"] >= definition.timing.max_runs:
            at_ms = None
        changes.setdefault("send_ms", None if definition.is_lazy else at_ms)
        return Transition(at_ms, next_ms=next_ms, **changes)

    def begin(self) -> Transition:
        """Plan the first occurrence."""
        definition = self.entry.definition
        if definition.is_asked:
            return self.to(max(self.now_ms, definition.times.start_ms or 0))
        at_ms = self._first()
        if at_ms is not None and at_ms <= self.missed_ms:
            at_ms = self.entry.definition.times.after_now(at_ms, self.missed_ms)
        return self.to(at_ms)

    def rest(self, *, passed: bool) -> Transition | None:
        """Plan nothing; a message that waits must not run."""
        if self.state.at_ms is None:
            return None
        if passed and self.state.task_id:
            return self.to(None, last_ms=self.state.at_ms, runs=self.state.runs + 1)
        return self.to(None, withdraw="" if passed else self.state.task_id)

    def resume(self) -> Transition | None:
        """Plan an occurrence after now, if there is one."""
        at_ms = None if self.state.last_ms else self._first()
        if self.entry.definition.is_asked:
            at_ms = None if self._is_over else self.now_ms
        elif at_ms is None or at_ms <= self.now_ms:
            at_ms = self.entry.definition.times.after_now(
                at_ms or self.state.last_ms or self.entry.record.since_ms, self.now_ms
            )
        move = self.to(at_ms)
        return None if move.at_ms is None else move

    def begin_again(self) -> Transition:
        """Plan an occurrence for a changed definition: count from the last run, but do not plan into the past."""
        definition, last_ms = self.entry.definition, self.state.last_ms
        at_ms: int | None = self.now_ms
        if not definition.is_asked:
            start_ms = definition.times.start_ms or 1
            at_ms = self._first() if last_ms is None else self.entry.definition.times.after(max(last_ms, start_ms - 1))
            if at_ms is not None and at_ms <= self.now_ms:
                has_interval = hasattr(definition.schedule, "run_every")
                at_ms = self.now_ms if has_interval else self.entry.definition.times.after_now(self.now_ms, self.now_ms)
        return self.to(at_ms, withdraw=self.state.task_id)

    def go_on(self, *, makes_up: bool) -> Transition:
        """Plan the occurrence after one whose message was sent."""
        at_ms, made_up = self._after(makes_up=makes_up)
        return self.to(at_ms, last_ms=self.state.at_ms, runs=self.state.runs + 1, made_up=made_up)

    def go_on_lazily(self) -> Transition:
        """Send the occurrence that is due, and move to the next."""
        send_ms, policy = self.state.at_ms, self.policy
        assert send_ms is not None
        following_ms, made_up = self._after(makes_up=False)
        if policy.missed == "once":
            send_ms = self._first_missed(send_ms, 1) or send_ms
        if policy.max_lateness_s and self.now_ms - send_ms > policy.max_lateness_s * 1000:
            return self.to(following_ms, send_ms=None, made_up=made_up)
        runs = self.state.runs + 1
        return self.to(following_ms, send_ms=send_ms, last_ms=send_ms, runs=runs, made_up=made_up)

    def send_late(self) -> Transition:
        """Plan an occurrence that is due but has no message: a change withdrew the message, or the entry was lazy.

        The result is the same as if it had been planned ahead, so the entry continues normally.
        """
        sent = self.go_on_lazily()
        if sent.send_ms is None:
            return self.to(sent.at_ms, made_up=sent.made_up)
        return self.to(sent.send_ms, made_up=self.state.made_up)

    def ask(self) -> Transition:
        """Send an occurrence if a schedule that decides for itself says so; ask it again later."""
        if self._is_over:
            return self.to(None)
        last_ms = self.entry.record.since_ms if self.state.last_ms is None else self.state.last_ms
        due, again_s = occurrences.ask(self.entry.definition.schedule, last_ms, self.now_ms)
        at_ms = self.now_ms + max(1, math.ceil(min(again_s, _LONGEST_ASK_S) * 1000))
        if not due:
            return self.to(at_ms)
        return self.to(at_ms, send_ms=self.now_ms, last_ms=self.now_ms, runs=self.state.runs + 1)

    # -- the times of its schedule

    @property
    def _is_over(self) -> bool:
        end_ms = self.entry.definition.times.end_ms
        return end_ms is not None and self.now_ms > end_ms

    def _first(self) -> int | None:
        return self.entry.definition.times.first(self.entry.record.since_ms)

    def _first_missed(self, last_ms: int, most: int) -> int | None:
        """Return the first of the latest `most` missed occurrences after another one; None if none was missed."""
        return next(iter(self.entry.definition.times.missed(last_ms, self.missed_ms, most)), None)

    def _after(self, *, makes_up: bool) -> tuple[int | None, int]:
        """Return the next occurrence by the policy, and how many occurrences were made up for in a row."""
        at_ms, policy = self.state.at_ms, self.policy
        assert at_ms is not None
        following_ms = self.entry.definition.times.after(at_ms)
        if following_ms is None or following_ms > self.missed_ms:
            return following_ms, 0
        made_up_ms = None
        if policy.missed == "all":
            if self.state.made_up:  # a catch-up is under way: it began with its first occurrence
                return following_ms, self.state.made_up + 1
            if policy.max_lateness_s:
                at_ms = self._occurrence_before(self.now_ms - math.ceil(policy.max_lateness_s * 1000))
            made_up_ms = self._first_missed(at_ms, policy.catch_up)
        elif policy.missed == "once" and makes_up:
            made_up_ms = self._first_missed(at_ms, 1)
        return (
            (made_up_ms, 1)
            if made_up_ms is not None
            else (self.entry.definition.times.after_now(at_ms, self.missed_ms), 0)
        )

    def _occurrence_before(self, limit_ms: int) -> int:
        """Return an occurrence to start counting from, to find those later than `limit_ms`."""
        schedule, from_ms = self.entry.definition.schedule, self.state.at_ms or 0
        if limit_ms <= from_ms or not hasattr(schedule, "run_every") or schedule.relative:
            return max(from_ms, limit_ms)
        every = occurrences.interval_ms(schedule)
        return from_ms + every * ((limit_ms - from_ms) // every)
