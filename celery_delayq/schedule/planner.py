"""Planner: keeps the next occurrence of every periodic entry planned. Any number of them may do so at once.

What it knows is in memory: the entries, where they are, and a heap of the times at which they go on. So nothing scans
all entries, but for the start and after lost notifications. What it does is one script an occurrence, which does
nothing if another planner was there first; then it reads where the entry is now.

Who plans
    The planner that planned the last occurrence of an entry plans the next as soon as its time has come. The others
    look a grace period later whether that happened; looking costs a read, in a pipeline for all entries at once.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from redis.exceptions import ConnectionError, ReadOnlyError, ResponseError

from celery_delayq.errors import DelayqError
from celery_delayq.schedule import scripts
from celery_delayq.schedule.configured import Configured
from celery_delayq.schedule.entry import Definition
from celery_delayq.schedule.message import CannotSend, Occurrence
from celery_delayq.schedule.moves import TOLERATED_MS, Entry, Move, Policy, next_move
from celery_delayq.schedule.occurrences import jitter_ms
from celery_delayq.schedule.records import Seen, State, Step
from celery_delayq.schedule.roster import Known, Roster
from celery_delayq.schedule.store import ScheduleStore

#: Entries that go on in one pass, so that a change is noticed between two of them.
_BATCH = 200

#: After that time an entry that could not be planned is tried again, in ms: at first, and after many times.
_RETRY_MS = (1000, 30_000)

#: How long another planner leaves an entry to the one that planned it last, in ms; at most this part of an interval.
_GRACE_MS, _GRACE_OF_INTERVAL = (500, 1000), 0.4


class Planner:
    """Plans the entries of one Redis database; for one thread at a time. Every method may raise `redis.RedisError`.

    Args:
        store: where the schedule is.
        configured: what the configuration of this process says.
        parse: makes a definition of a name and the data of a record; raises InvalidSchedule.
        build: lets Celery build the message of an occurrence: definition, occurrence (ms), jitter (ms), lateness (s).
        policy: says what becomes of missed runs of an entry.
        id: readable, unique.
        on_sent: called with a definition when one of its occurrences was sent, in this planner's turn.
    """

    def __init__(
        self,
        store: ScheduleStore,
        configured: Configured,
        *,
        parse: Callable[[str, Mapping[str, Any]], Definition],
        build: Callable[[Definition, int, int, float], Occurrence],
        policy: Callable[[Definition], Policy],
        id: str,
        on_sent: Callable[[Definition], None] = lambda definition: None,
    ) -> None:
        self.id = id
        self._store = store
        self._build = build
        self._policy = policy
        self._on_sent = on_sent
        self._roster = Roster(store, configured, parse, self._on_read)
        self._clock = self._roster.clock
        self._heap: list[tuple[int, str]] = []
        #: Entries that are new, or have changed: there may be very many, and those whose time has come go first.
        self._new: dict[str, Known] = {}

    @property
    def entries(self) -> dict[str, Known]:
        """The entries that this planner plans, by name."""
        return self._roster.entries

    # -- the time

    def seconds_until_next(self) -> float | None:
        """Return in how many seconds an entry goes on; None if none does."""
        if self._new:
            return 0.0
        while self._heap and not self._is_current(*self._heap[0]):
            heapq.heappop(self._heap)
        return self._clock.seconds_until(self._heap[0][0]) if self._heap else None

    def _is_current(self, wake_ms: int, name: str) -> bool:
        known = self.entries.get(name)
        return known is not None and known.wake_ms == wake_ms

    def _wake(self, name: str, known: Known, wake_ms: int | None) -> None:
        known.wake_ms = wake_ms
        if wake_ms is not None:
            heapq.heappush(self._heap, (wake_ms, name))

    # -- what there is

    def look(self) -> None:
        """Say that this planner lives, and read everything again if changes were missed."""
        if self._roster.look():
            self.read()

    def read(self) -> None:
        """Read all entries, and write those of the configuration, if it counts."""
        self._heap.clear()
        self._new.clear()
        self._roster.read()

    def on_change(self, number: int, name: str) -> None:
        """Take notice of the change of an entry, by its number."""
        self._roster.on_change(number, name)

    def _on_read(self, name: str, known: Known) -> None:
        state, now_ms = known.state, self._roster.now_ms()
        self._new.pop(name, None)
        if known.strays or state is None or state.fingerprint != known.definition.fingerprint:
            known.wake_ms = now_ms
            self._new[name] = known
        elif state.at_ms is None or known.record.paused or not known.definition.timing.enabled:
            try:
                move = next_move(self._entry(known), state, now_ms)
            except Exception as exc:  # whatever a schedule raises
                self._fail(name, known, exc)
            else:
                self._wake(name, known, now_ms if move else None)
        else:
            self._wake(name, known, self._turn_ms(state))

    def _turn_ms(self, state: State) -> int | None:
        """Return when this planner should look at an entry: at its time, or later if another planner planned it."""
        if state.at_ms is None or state.planner == self.id:
            return state.at_ms
        interval_ms = state.at_ms - state.last_ms if state.last_ms is not None else _GRACE_MS[1]
        return state.at_ms + round(min(random.uniform(*_GRACE_MS), max(0, interval_ms) * _GRACE_OF_INTERVAL))

    # -- going on

    def run_due(self) -> int:
        """Let entries go on whose time has come, at most a batch. Returns how many were looked at."""
        now_ms = self._roster.now_ms()
        due = self._due(now_ms)
        self._read_others(due)
        waiting = self._still_waiting(due, now_ms)
        steps: list[tuple[str, Move, Step]] = []
        for name in due:
            known = self.entries.get(name)
            if known is None or known.wake_ms is not None:  # another planner was there
                continue
            step = self._step(name, known, now_ms, still_waits=name in waiting)
            if step is not None:
                steps.append((name, *step))
        self._take(self._settle(steps))
        return len(due)

    def _due(self, now_ms: int) -> list[str]:
        due: list[str] = []
        while self._heap and len(due) < _BATCH and self._heap[0][0] <= now_ms:
            wake_ms, name = heapq.heappop(self._heap)
            if self._is_current(wake_ms, name):
                self.entries[name].wake_ms = None  # there may be more of the same in the heap
                due.append(name)
        already = set(due)
        while self._new and len(due) < _BATCH:
            name, known = self._new.popitem()
            if self.entries.get(name) is known and name not in already:
                known.wake_ms = None
                due.append(name)
        return due

    def _read_others(self, names: Iterable[str]) -> None:
        """Read where entries are that another planner should have planned."""
        stale = [
            (name, known.record.queue)
            for name in names
            if (known := self.entries[name]).state is not None
            and known.state.planner != self.id
            and known.record.queue is not None
        ]
        for (name, _), seen in zip(stale, self._store.seen(stale), strict=True):
            self._roster.on_state(name, seen)

    def _still_waiting(self, names: Iterable[str], now_ms: int) -> set[str]:
        """Return the entries whose messages nobody has transferred, long after their time."""
        overdue = [
            (name, known.state.task_id, known.record.queue)
            for name in names
            if (known := self.entries.get(name)) is not None
            and known.state is not None
            and known.record.queue is not None
            and known.state.task_id
            and known.state.at_ms is not None
            and known.state.at_ms < now_ms - TOLERATED_MS
        ]
        found = self._store.waiting([(task_id, queue) for _, task_id, queue in overdue])
        return {name for (name, _, _), waits in zip(overdue, found, strict=True) if waits}

    def _entry(self, known: Known) -> Entry:
        return Entry(
            known.definition, self._policy(known.definition), known.record.since_ms, paused=known.record.paused
        )

    def _step(
        self, name: str, known: Known, now_ms: int, *, still_waits: bool = False, gone: bool = False
    ) -> tuple[Move, Step] | None:
        """Return what to do with an entry; None if there is nothing to do, or if it was done at once."""
        try:
            if known.strays and not self._gather(name, known):
                return None
        except ResponseError as exc:
            self._fail(name, known, exc)
            return None
        entry = self._entry(known)
        try:
            move = next_move(entry, known.state, now_ms, still_waits=still_waits, gone=gone)
            if move is None and known.state is not None and known.state.parked:
                move = Move(None, last_ms=known.state.last_ms, runs=known.state.runs)  # it has ended, or rests
            if move is None:
                self._forget_error(name, known)
                self._wake(name, known, self._turn_ms(known.state) if known.state else None)
                if known.wake_ms is not None and known.wake_ms <= now_ms:
                    known.wake_ms = None
                return None
            occurrence = Occurrence(known.record.queue, "", None)
            if move.send_ms is not None:
                jitter = jitter_ms(name, move.send_ms, known.definition.timing.jitter_ms)
                occurrence = self._build(known.definition, move.send_ms, jitter, entry.policy.max_lateness_s)
            elif known.record.queue is None:  # a lazy one: where would it go?
                occurrence = self._build(known.definition, now_ms, 0, 0.0)
        except Exception as exc:  # whatever a task, a router or a receiver of a signal raises
            self._fail(name, known, exc)
            return None
        queue = occurrence.queue or known.record.queue or ""
        if not queue:
            self._fail(name, known, CannotSend("it sends no message, so that it has no queue to be planned in"))
            return None
        ahead = move.send_ms is not None and move.send_ms == move.at_ms
        state = State(
            known.definition.fingerprint,
            self.id,
            move.at_ms,
            occurrence.task_id if ahead and occurrence.offer else "",
            move.last_ms,
            move.runs,
            move.made_up,
        )
        offer = occurrence.offer if move.send_ms is not None else None
        return move, Step(
            name, queue, known.seen, state.dump(), withdraw=move.withdraw, must_wait=bool(move.withdraw), offer=offer
        )

    def _gather(self, name: str, known: Known) -> bool:
        """Take an entry out of queues to which it goes no more. Returns False if somebody else does so, too.

        Its state is parked there until it is planned in its queue: so whoever comes in between goes on with it.
        """
        while known.strays:
            if not self._take_out(name, known, *known.strays[0]):
                self._roster.refresh(name)
                return False
            del known.strays[0]  # not before: the server may refuse it now, and not later
        return True

    def _take_out(self, name: str, known: Known, queue: str, seen: Seen) -> bool:
        """Take the state of an entry out of one queue; returns False if it is another one by now."""
        if not seen.raw or (known.state is not None and not known.state.parked):
            return self._store.forget(name, queue, seen)
        try:
            parked = self._store.park(name, queue, seen)
        except ValueError:  # it cannot be read
            return self._store.forget(name, queue, seen)
        if parked is None:
            return False
        state, seen = parked
        known.parked.append((queue, seen))
        if known.state is None or (state.runs, state.last_ms or 0) > (known.state.runs, known.state.last_ms or 0):
            known.state = state
        return True

    def _settle(self, steps: list[tuple[str, Move, Step]]) -> list[tuple[str, Move, Step]]:
        """Write down to which queues entries go that are new, or go elsewhere; returns the steps that can be taken."""
        queues: dict[str, str] = {}
        before: dict[str, tuple[str | None, Seen]] = {}
        for name, _, step in steps:
            known = self.entries[name]
            old_queue = known.record.queue
            if step.queue == old_queue:
                continue
            before[name] = (old_queue, known.seen)
            if old_queue is None or self._roster.counts or known.record.app is None:
                queues[name] = step.queue
            else:
                self._wake(name, known, self._roster.now_ms() + _RETRY_MS[1])
        written, refused = self._roster.write_queues(queues) if queues else (set(), {})
        for name, error in refused.items():
            self._fail(name, self.entries[name], error)
        settled = []
        for name, move, step in steps:
            if name not in before:
                settled.append((name, move, step))
            elif name in written:
                known = self.entries[name]
                old_queue, old_seen = before[name]
                if old_queue is None and not known.seen.raw:
                    settled.append((name, move, replace(step, seen=known.seen)))
                else:
                    # Those from which it was taken out before know where it is.
                    strays = [(old_queue, old_seen), *known.parked]
                    known.strays = [(queue, seen) for queue, seen in strays if queue not in (None, step.queue)]
                    known.parked = []
                    self._roster.read_state(name, known)
        return settled

    def _take(self, steps: list[tuple[str, Move, Step]]) -> None:
        sent = time.monotonic()
        replies = self._store.plan([step for _, _, step in steps])
        again = []
        for (name, move, step), done in zip(steps, replies, strict=True):
            known = self.entries.get(name)
            if known is None:
                continue
            if isinstance(done, ResponseError):
                if isinstance(done, (ReadOnlyError, ConnectionError)) or "READONLY" in str(done):
                    raise ReadOnlyError(str(done))
                self._fail(name, known, done)
            elif done.outcome == scripts.DONE:
                self._on_planned(name, known, move, step, Seen(done.state, done.forgotten))
            elif done.outcome == scripts.GONE:
                # By the server's clock its time has come, or somebody cancelled it.
                retry = self._step(name, known, done.now_ms, gone=True)
                if retry is not None:
                    again.append((name, *retry))
            else:
                self._roster.refresh(name)
        if len(steps) == 1 and replies and not isinstance(replies[0], ResponseError):
            self._clock.observe(replies[0].now_ms * 1000, sent, time.monotonic())
        if again:
            self._take(self._settle(again))

    def _on_planned(self, name: str, known: Known, move: Move, step: Step, seen: Seen) -> None:
        known.seen, known.state = seen, State.parse(step.state)
        self._forget_error(name, known)
        while known.parked:
            self._roster.forget(name, *known.parked.pop())
        if move.passed:
            self._on_sent(known.definition)
        self._wake(name, known, move.at_ms)

    # -- errors

    def _forget_error(self, name: str, known: Known) -> None:
        known.failures = 0
        if known.error is not None:
            known.error = None
            self._roster.note_error(name, None)

    def _fail(self, name: str, known: Known, error: Exception) -> None:
        known.error = f"{type(error).__name__}: {error}" if not isinstance(error, DelayqError) else str(error)
        self._roster.note_error(name, known.error)
        self._wake(name, known, self._roster.now_ms() + min(_RETRY_MS[0] * 2**known.failures, _RETRY_MS[1]))
        known.failures = min(known.failures + 1, 10)
