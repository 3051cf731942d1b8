"""Where an entry goes next: pure functions of its definition, its state and the time. All times are unix times in ms.

An occurrence is sent one occurrence ahead: its message waits in the delayed queue, and the entry stays there until its
time has come; then it moves on to the next. A lazy entry moves on in the same way, but its message is made and sent
when its time has come.

An occurrence is missed if nobody could have planned it, since no planner was there at its time. One that a planner
reaches late is sent late.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from celery_delayq.schedule import occurrences
from celery_delayq.schedule.entry import Definition
from celery_delayq.schedule.records import State
from celery_delayq.settings import ScheduleSettings

#: An occurrence counts as missed only if its time was so long ago when a planner came; until then it is merely late.
TOLERATED_MS = 2000

#: What planners reach later than that counts as missed, too: so they do not lag behind for ever.
LATEST_MS = 3_600_000

#: With the policy `skip` and no maximal lateness of its own, a run later than that is dropped, in seconds.
SKIPPED_AFTER_S = 60.0

#: Longest time after which a schedule that decides for itself is asked again, in seconds.
_LONGEST_ASK_S = 300.0


@dataclass(frozen=True, slots=True)
class Move:
    """A step of an entry.

    Attributes:
        at_ms: the occurrence at which it will be; None if there is none.
        send_ms: the occurrence whose message is to be offered; None for none.
        last_ms: the occurrence before.
        runs: how many occurrences were sent, without the one at which it will be.
        made_up: how many missed occurrences were made up for in a row.
        withdraw: the id of the message that must not run; empty if there is none.
        passed: whether an occurrence has passed by this step.
    """

    at_ms: int | None
    send_ms: int | None = None
    last_ms: int | None = None
    runs: int = 0
    made_up: int = 0
    withdraw: str = ""
    passed: bool = False


@dataclass(frozen=True)
class Policy:
    """What becomes of missed runs of one entry.

    Attributes:
        missed: one of MISSED_POLICIES.
        max_lateness_s: a run that would begin later than this is dropped; 0: it is not.
        catch_up: how many runs `all` makes up for.
    """

    missed: str
    max_lateness_s: float
    catch_up: int

    @classmethod
    def of(cls, definition: Definition, defaults: ScheduleSettings, cron_deadline_s: float | None = None) -> Policy:
        """Return the policy of an entry.

        Args:
            definition: of the entry.
            defaults: of the app.
            cron_deadline_s: Celery's `beat_cron_starting_deadline`: the maximal lateness of crontabs.
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


@dataclass(frozen=True, slots=True)
class Entry:
    """What decides where an entry goes.

    Attributes:
        definition: what it is.
        policy: what becomes of missed runs.
        since_ms: from when on its times count.
        fingerprint: of the definition, as it is recorded.
        paused: whether somebody paused it.
    """

    definition: Definition
    policy: Policy
    since_ms: int
    fingerprint: str
    paused: bool = False

    @property
    def is_idle(self) -> bool:
        """Whether it does not run at present."""
        return self.paused or not self.definition.timing.enabled


def next_move(
    entry: Entry,
    state: State | None,
    now_ms: int,
    *,
    attended_ms: int | None = None,
    still_waits: bool = False,
    gone: bool = False,
) -> Move | None:
    """Return the next step of an entry; None if there is none before its occurrence, or at all.

    Args:
        entry: what it is.
        state: where it is; None if it was never planned.
        now_ms: the server's time.
        attended_ms: since when a planner could have planned it at any time; only since now if None.
        still_waits: whether the message of the occurrence that has passed still waits, since nobody transferred it.
        gone: whether its message turned out to be transferred, although its time is yet to come by `now_ms`.
    """
    definition = entry.definition
    late = Late(now_ms, missed_until(now_ms, attended_ms))
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
        if definition.is_lazy or state.fingerprint == entry.fingerprint:
            return _go_on_lazily(entry, state, late)
        return _send_late(entry, state, late)
    if state.fingerprint != entry.fingerprint:
        return _begin_again(entry, state, now_ms)
    return None


def missed_until(now_ms: int, attended_ms: int | None) -> int:
    """Return until when occurrences count as missed, unix time in ms; later ones are merely late."""
    since_ms = now_ms if attended_ms is None else min(attended_ms, now_ms)
    return max(since_ms - TOLERATED_MS, now_ms - LATEST_MS) - 1


@dataclass(frozen=True, slots=True)
class Late:
    """What is late, and what is missed.

    Attributes:
        now_ms: the server's time.
        missed_ms: until when occurrences count as missed.
    """

    now_ms: int
    missed_ms: int


def _to(entry: Entry, at_ms: int | None, **rest: object) -> Move:
    """Return the step to an occurrence; a lazy entry sends nothing for it yet."""
    runs = rest.get("runs", 0)
    assert isinstance(runs, int)
    most = entry.definition.timing.max_runs
    if most is not None and runs >= most:
        at_ms = None
    send_ms = None if entry.definition.is_lazy else at_ms
    return Move(at_ms, **{"send_ms": send_ms, **rest})  # type: ignore[arg-type]


def _begin(entry: Entry, late: Late) -> Move:
    definition = entry.definition
    window = definition.timing.window
    if definition.is_asked:
        return Move(max(late.now_ms, window.start_ms or 0))
    at_ms = occurrences.first(definition.schedule, window, entry.since_ms)
    if at_ms is not None and at_ms <= late.missed_ms:
        at_ms = occurrences.following_now(definition.schedule, window, at_ms, late.missed_ms)
    return _to(entry, at_ms)


def _rest(entry: Entry, state: State, *, passed: bool) -> Move | None:
    if state.at_ms is None:
        return None
    if passed and not state.task_id:  # it would have been sent now
        return Move(None, last_ms=state.last_ms, runs=state.runs)
    if passed:
        return Move(None, last_ms=state.at_ms, runs=state.runs + 1, passed=True)
    return Move(None, last_ms=state.last_ms, runs=state.runs, withdraw=state.task_id)


def _resume(entry: Entry, state: State, now_ms: int) -> Move | None:
    definition = entry.definition
    if definition.is_asked:
        move = Move(now_ms, last_ms=state.last_ms, runs=state.runs)
    else:
        window, schedule = definition.timing.window, definition.schedule
        at_ms = None if state.last_ms else occurrences.first(schedule, window, entry.since_ms)
        if at_ms is None or at_ms <= now_ms:
            at_ms = occurrences.following_now(schedule, window, at_ms or state.last_ms or entry.since_ms, now_ms)
        move = _to(entry, at_ms, last_ms=state.last_ms, runs=state.runs)
    return None if move.at_ms is None else move


def _begin_again(entry: Entry, state: State, now_ms: int) -> Move:
    """Plan an occurrence by a definition that has changed: counted from the last run, but not into the past."""
    definition = entry.definition
    schedule, window = definition.schedule, definition.timing.window
    rest = {"last_ms": state.last_ms, "runs": state.runs, "withdraw": state.task_id}
    if definition.is_asked:
        return Move(now_ms, **rest)  # type: ignore[arg-type]
    if state.last_ms is None:
        at_ms = occurrences.first(schedule, window, entry.since_ms)
    else:
        at_ms = occurrences.following(schedule, window, max(state.last_ms, (window.start_ms or 1) - 1))
    if at_ms is not None and at_ms <= now_ms:
        at_ms = occurrences.following_now(schedule, window, now_ms, now_ms) if _is_crontab(definition) else now_ms
    return _to(entry, at_ms, **rest)


def _is_crontab(definition: Definition) -> bool:
    return not hasattr(definition.schedule, "run_every")


def _go_on(entry: Entry, state: State, late: Late, still_waits: bool) -> Move:
    """Plan the occurrence that follows one whose message was sent."""
    assert state.at_ms is not None
    at_ms, made_up = _after(entry, state, late, makes_up=not still_waits)
    return _to(entry, at_ms, last_ms=state.at_ms, runs=state.runs + 1, made_up=made_up, passed=True)


def _after(entry: Entry, state: State, late: Late, *, makes_up: bool) -> tuple[int | None, int]:
    """Return the occurrence after the present one, by the policy, and how many were made up for in a row."""
    assert state.at_ms is not None
    schedule, window = entry.definition.schedule, entry.definition.timing.window
    at_ms, policy = state.at_ms, entry.policy
    following_ms = occurrences.following(schedule, window, at_ms)
    if following_ms is None or following_ms > late.missed_ms:
        return following_ms, 0
    if policy.missed == "all":
        if state.made_up:  # it began with the first of those that are made up for
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
    """Return an occurrence from which those later than `limit_ms` can be counted."""
    schedule = entry.definition.schedule
    if limit_ms <= from_ms or not hasattr(schedule, "run_every") or schedule.relative:
        return max(from_ms, limit_ms)
    every = occurrences.interval_ms(schedule)
    return from_ms + every * ((limit_ms - from_ms) // every)


def _go_on_lazily(entry: Entry, state: State, late: Late) -> Move:
    """Send the occurrence whose time has come, and go on to the next."""
    assert state.at_ms is not None
    schedule, window, policy = entry.definition.schedule, entry.definition.timing.window, entry.policy
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


def _send_late(entry: Entry, state: State, late: Late) -> Move:
    """Plan an occurrence whose time has come without a message: a change took it back, or none was to wait for it.

    As if it had been planned ahead, so that the entry goes on as it should.
    """
    sent = _go_on_lazily(entry, state, late)
    if sent.send_ms is None:
        return _to(entry, sent.at_ms, last_ms=state.last_ms, runs=state.runs, made_up=sent.made_up)
    return _to(entry, sent.send_ms, last_ms=state.last_ms, runs=state.runs, made_up=state.made_up)


def _ask(entry: Entry, state: State, now_ms: int) -> Move:
    definition = entry.definition
    window = definition.timing.window
    last_ms = entry.since_ms if state.last_ms is None else state.last_ms
    due, again_s = occurrences.ask(definition.schedule, last_ms, now_ms)
    at_ms: int | None = now_ms + max(1, math.ceil(min(again_s, _LONGEST_ASK_S) * 1000))
    if window.end_ms is not None and now_ms > window.end_ms:
        return Move(None, last_ms=state.last_ms, runs=state.runs)
    if not due:
        return _to(entry, at_ms, send_ms=None, last_ms=state.last_ms, runs=state.runs)
    return _to(entry, at_ms, send_ms=now_ms, last_ms=now_ms, runs=state.runs + 1, passed=True)
