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
        passed: whether the step passes an occurrence.
        next_ms: its occurrence after the step if what is sent does not count as a run; then `max_runs` is not reached.
    """

    at_ms: int | None
    send_ms: int | None = None
    last_ms: int | None = None
    runs: int = 0
    made_up: int = 0
    withdraw: str = ""
    passed: bool = False
    next_ms: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Policy:
    """What to do with missed runs of one entry.

    Attributes:
        missed: one of MISSED_POLICIES.
        max_lateness_s: a run that would start later than this is dropped, in seconds; 0 means never.
        catch_up: how many missed runs `all` makes up for.
    """

    missed: str
    max_lateness_s: float
    catch_up: int

    @classmethod
    def of(cls, definition: Definition, defaults: ScheduleSettings, cron_deadline_s: float | None = None) -> Policy:
        """Return the policy of an entry.

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
        return cls(missed, lateness_s, catch_up)


def next_transition(
    entry: Entry,
    state: State | None,
    now_ms: int,
    *,
    policy: Policy,
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
    late = Late(now_ms, missed_until(now_ms, attended_ms), policy)
    if state is None:
        return None if entry.is_idle else _begin(entry, late)
    passed = state.at_ms is not None and (state.at_ms <= now_ms or gone)
    if entry.is_idle:
        return _rest(entry, state, passed=passed)
    if state.at_ms is None:
        return _resume(entry, state, now_ms)
    if passed:
        if definition.is_asked:
            return _ask(entry, state, now_ms)
        if state.task_id:
            return _go_on(entry, state, late, still_waits)
        if definition.is_lazy or state.fingerprint == entry.record.fingerprint:
            return _go_on_lazily(entry, state, late)
        return _send_late(entry, state, late)
    if state.fingerprint != entry.record.fingerprint:
        return _begin_again(entry, state, now_ms)
    return None


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
    if not (move.passed or definition.is_lazy or state.fingerprint == entry.record.fingerprint):
        return 0
    window = definition.timing.window
    between = occurrences.count_missed(definition.schedule, window, at_ms, move.at_ms - 1, MOST_LEFT_OUT)
    return between + (not move.passed)


@dataclass(frozen=True, slots=True)
class Late:
    """Tells late occurrences from missed ones.

    Attributes:
        now_ms: the server's time.
        missed_ms: occurrences up to this time count as missed.
        policy: what to do with these.
    """

    now_ms: int
    missed_ms: int
    policy: Policy


def _to(entry: Entry, at_ms: int | None, **rest: object) -> Transition:
    """Return the step to an occurrence. A lazy entry does not send its message yet."""
    runs = rest.get("runs", 0)
    assert isinstance(runs, int)
    most, next_ms = entry.definition.timing.max_runs, at_ms
    if most is not None and runs >= most:
        at_ms = None
    send_ms = None if entry.definition.is_lazy else at_ms
    return Transition(at_ms, **{"send_ms": send_ms, **rest}, next_ms=next_ms)  # type: ignore[arg-type]


def _begin(entry: Entry, late: Late) -> Transition:
    definition = entry.definition
    window = definition.timing.window
    if definition.is_asked:
        return Transition(max(late.now_ms, window.start_ms or 0))
    at_ms = occurrences.first(definition.schedule, window, entry.record.since_ms)
    if at_ms is not None and at_ms <= late.missed_ms:
        at_ms = occurrences.following_now(definition.schedule, window, at_ms, late.missed_ms)
    return _to(entry, at_ms)


def _rest(entry: Entry, state: State, *, passed: bool) -> Transition | None:
    if state.at_ms is None:
        return None
    if passed and not state.task_id:  # its message would be sent now
        return Transition(None, last_ms=state.last_ms, runs=state.runs)
    if passed:
        return Transition(None, last_ms=state.at_ms, runs=state.runs + 1, passed=True)
    return Transition(None, last_ms=state.last_ms, runs=state.runs, withdraw=state.task_id)


def _resume(entry: Entry, state: State, now_ms: int) -> Transition | None:
    definition = entry.definition
    if definition.is_asked:
        move = Transition(now_ms, last_ms=state.last_ms, runs=state.runs)
    else:
        window, schedule = definition.timing.window, definition.schedule
        at_ms = None if state.last_ms else occurrences.first(schedule, window, entry.record.since_ms)
        if at_ms is None or at_ms <= now_ms:
            at_ms = occurrences.following_now(schedule, window, at_ms or state.last_ms or entry.record.since_ms, now_ms)
        move = _to(entry, at_ms, last_ms=state.last_ms, runs=state.runs)
    return None if move.at_ms is None else move


def _begin_again(entry: Entry, state: State, now_ms: int) -> Transition:
    """Plan an occurrence for a changed definition: count from the last run, but do not plan into the past."""
    definition = entry.definition
    schedule, window = definition.schedule, definition.timing.window
    rest = {"last_ms": state.last_ms, "runs": state.runs, "withdraw": state.task_id}
    if definition.is_asked:
        return Transition(now_ms, **rest)  # type: ignore[arg-type]
    if state.last_ms is None:
        at_ms = occurrences.first(schedule, window, entry.record.since_ms)
    else:
        at_ms = occurrences.following(schedule, window, max(state.last_ms, (window.start_ms or 1) - 1))
    if at_ms is not None and at_ms <= now_ms:
        at_ms = occurrences.following_now(schedule, window, now_ms, now_ms) if _is_crontab(definition) else now_ms
    return _to(entry, at_ms, **rest)


def _is_crontab(definition: Definition) -> bool:
    return not hasattr(definition.schedule, "run_every")


def _go_on(entry: Entry, state: State, late: Late, still_waits: bool) -> Transition:
    """Plan the occurrence after one whose message was sent."""
    assert state.at_ms is not None
    at_ms, made_up = _after(entry, state, late, makes_up=not still_waits)
    return _to(entry, at_ms, last_ms=state.at_ms, runs=state.runs + 1, made_up=made_up, passed=True)


def _after(entry: Entry, state: State, late: Late, *, makes_up: bool) -> tuple[int | None, int]:
    """Return the next occurrence by the policy, and how many occurrences were made up for in a row."""
    assert state.at_ms is not None
    schedule, window = entry.definition.schedule, entry.definition.timing.window
    at_ms, policy = state.at_ms, late.policy
    following_ms = occurrences.following(schedule, window, at_ms)
    if following_ms is None or following_ms > late.missed_ms:
        return following_ms, 0
    if policy.missed == "all":
        if state.made_up:  # a catch-up is under way: it began with its first occurrence
            return following_ms, state.made_up + 1
        if policy.max_lateness_s:
            at_ms = max(at_ms, late.now_ms - math.ceil(policy.max_lateness_s * 1000))
            at_ms = _occurrence_before(entry, state.at_ms, at_ms)
        times = occurrences.missed(schedule, window, at_ms, late.missed_ms, policy.catch_up)
        if times:
            return times[0], 1
    elif policy.missed == "once" and makes_up:
        times = occurrences.missed(schedule, window, at_ms, late.missed_ms, 1)
        if times:
            return times[0], 1
    return occurrences.following_now(schedule, window, at_ms, late.missed_ms), 0


def _occurrence_before(entry: Entry, from_ms: int, limit_ms: int) -> int:
    """Return an occurrence to start counting from, to find those later than `limit_ms`."""
    schedule = entry.definition.schedule
    if limit_ms <= from_ms or not hasattr(schedule, "run_every") or schedule.relative:
        return max(from_ms, limit_ms)
    every = occurrences.interval_ms(schedule)
    return from_ms + every * ((limit_ms - from_ms) // every)


def _go_on_lazily(entry: Entry, state: State, late: Late) -> Transition:
    """Send the occurrence that is due, and move to the next."""
    assert state.at_ms is not None
    schedule, window, policy = entry.definition.schedule, entry.definition.timing.window, late.policy
    send_ms: int | None = state.at_ms
    following_ms, made_up = _after(entry, state, late, makes_up=False)
    if policy.missed == "once":
        latest = occurrences.missed(schedule, window, state.at_ms, late.missed_ms, 1)
        if latest:
            send_ms = latest[0]
    if policy.max_lateness_s and send_ms is not None and late.now_ms - send_ms > policy.max_lateness_s * 1000:
        send_ms = None
    sent = send_ms is not None
    return _to(
        entry,
        following_ms,
        send_ms=send_ms,
        last_ms=send_ms if sent else state.last_ms,
        runs=state.runs + sent,
        made_up=made_up,
        passed=sent,
    )


def _send_late(entry: Entry, state: State, late: Late) -> Transition:
    """Plan an occurrence that is due but has no message: a change withdrew the message, or the entry was lazy.

    The result is the same as if it had been planned ahead, so the entry continues normally.
    """
    sent = _go_on_lazily(entry, state, late)
    if sent.send_ms is None:
        return _to(entry, sent.at_ms, last_ms=state.last_ms, runs=state.runs, made_up=sent.made_up)
    return _to(entry, sent.send_ms, last_ms=state.last_ms, runs=state.runs, made_up=state.made_up)


def _ask(entry: Entry, state: State, now_ms: int) -> Transition:
    definition = entry.definition
    window = definition.timing.window
    last_ms = entry.record.since_ms if state.last_ms is None else state.last_ms
    due, again_s = occurrences.ask(definition.schedule, last_ms, now_ms)
    at_ms: int | None = now_ms + max(1, math.ceil(min(again_s, _LONGEST_ASK_S) * 1000))
    if window.end_ms is not None and now_ms > window.end_ms:
        return Transition(None, last_ms=state.last_ms, runs=state.runs)
    if not due:
        return _to(entry, at_ms, send_ms=None, last_ms=state.last_ms, runs=state.runs)
    return _to(entry, at_ms, send_ms=now_ms, last_ms=now_ms, runs=state.runs + 1, passed=True)
