"""Planner: keeps the next occurrence of every periodic entry planned. Any number of them may do so at once.

What it knows is in memory: the entries, where they are, and a heap of the times at which they go on. So nothing scans
all entries, but for the start and after lost notifications. What it does is one script an occurrence, which does
nothing if another planner was there first; then it reads where the entry is now.

Who plans
    The planner that planned the last occurrence of an entry plans the next as soon as its time has come. The others
    look a grace period later whether that happened; looking costs a read, in a pipeline for all entries at once.

What comes first
    Of all that can go on, what has to be done soonest: a message that is due already, then the entry whose following
    occurrence is next. So an entry of each second does not wait for thousands of each minute, nor for new ones.
    Entries are read in parts; what is known goes on in between.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from redis.exceptions import ConnectionError, ReadOnlyError, ResponseError

from celery_delayq.errors import DelayqError
from celery_delayq.schedule import scripts
from celery_delayq.schedule.attendance import Attendance
from celery_delayq.schedule.configured import Configured
from celery_delayq.schedule.entry import Definition
from celery_delayq.schedule.known import Known
from celery_delayq.schedule.message import CannotSend, Occurrence
from celery_delayq.schedule.moves import Entry, Move, Policy, missed_until, next_move
from celery_delayq.schedule.occurrences import jitter_ms, usual_interval_ms
from celery_delayq.schedule.records import Record, Seen, State, Step
from celery_delayq.schedule.roster import Roster
from celery_delayq.schedule.store import ScheduleStore

#: Entries that go on in one pass: so long does one wait that has to go on sooner.
_BATCH = 100

#: After that time an entry that could not be planned is tried again, in ms: at first, and after many times.
_RETRY_MS = (1000, 30_000)

#: How long another planner leaves an entry to the one that planned it last, in ms; at most this part of an interval.
_GRACE_MS, _GRACE_OF_INTERVAL = (500, 1000), 0.4


@dataclass(slots=True)
class _Decision:
    """What is to be done with an entry.

    Attributes:
        name: of the entry.
        move: where it goes.
        step: the call that does it.
        state: where it is then.
    """

    name: str
    move: Move
    step: Step
    state: State


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
        is_back: whether this process had a planner before, and lost the connection.
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
        is_back: bool = False,
    ) -> None:
        self.id = id
        self._store = store
        self._build = build
        self._policy = policy
        self._on_sent = on_sent
        self._attendance = Attendance(store, configured, is_back=is_back)
        self._roster = Roster(store, self._attendance, configured, parse, self._on_read)
        #: The reading of all entries that is under way.
        self._reading: Iterator[None] | None = None
        #: Entries by when they go on, unix time in ms.
        self._heap: list[tuple[int, str]] = []
        #: Those that can go on, by when they have to, unix time in ms; in any order where that is the same, so that
        #: several planners do not all begin with the same one.
        self._ripe: list[tuple[int, float, str]] = []
        #: Entries whose time had come when they were read.
        self._overdue: set[str] = set()

    @property
    def entries(self) -> dict[str, Known]:
        """The entries that this planner plans, by name."""
        return self._roster.entries

    @property
    def is_up_to_date(self) -> bool:
        """Whether all entries were read, and those whose time had come by then have gone on; new ones may not."""
        return self._reading is None and not self._overdue

    # -- the time

    def seconds_until_next(self) -> float | None:
        """Return in how many seconds an entry goes on; None if none does."""
        if self._reading is not None or self._ripe:
            return 0.0
        while self._heap and not self._is_current(*self._heap[0]):
            heapq.heappop(self._heap)
        return self._attendance.clock.seconds_until(self._heap[0][0]) if self._heap else None

    def _is_current(self, wake_ms: int, name: str) -> bool:
        known = self.entries.get(name)
        return known is not None and known.wake_ms == wake_ms

    def _wake(self, name: str, known: Known, wake_ms: int | None) -> None:
        known.wake_ms, known.is_ripe = wake_ms, False
        if wake_ms is not None:
            heapq.heappush(self._heap, (wake_ms, name))

    def _ripen(self, name: str, known: Known, now_ms: int) -> None:
        known.wake_ms, known.is_ripe = None, True
        heapq.heappush(self._ripe, (self._until_ms(known, now_ms), random.random(), name))

    @staticmethod
    def _until_ms(known: Known, now_ms: int) -> int:
        """Return when an entry has to have gone on, unix time in ms."""
        state = known.state
        usual_ms = usual_interval_ms(known.definition.schedule)
        if state is None or state.at_ms is None:
            return now_ms + usual_ms
        if state.at_ms > now_ms:  # it has changed: what waits must not run
            return min(state.at_ms, now_ms + usual_ms)
        if not state.task_id:
            return state.at_ms
        return state.at_ms + (usual_ms if state.last_ms is None else state.at_ms - state.last_ms)

    # -- what there is

    def look(self) -> None:
        """Say that this planner lives, and begin to read everything again if changes were missed."""
        if self._roster.look() and self._reading is None:
            self.begin_reading()

    def begin_reading(self) -> None:
        """Begin to read all entries, and to write those of the configuration, if it counts; `run_due` goes on."""
        self._reading = self._roster.reading()
        self._read_on()

    def read(self) -> None:
        """Read all entries, and write those of the configuration, if it counts."""
        self.begin_reading()
        while self._reading is not None:
            self._read_on()

    def _read_on(self) -> None:
        if self._reading is not None and next(self._reading, self) is self:
            self._reading = None

    def on_changes(self, changes: Iterable[tuple[int, str]]) -> None:
        """Take notice of changes of entries: their numbers and names."""
        self._roster.on_changes(changes)

    def _on_read(self, name: str, known: Known) -> None:
        state, now_ms = known.state, self._attendance.now_ms()
        if state is not None and state.at_ms is not None and state.at_ms <= now_ms and self._reading is not None:
            self._overdue.add(name)
        if known.strays or state is None or state.fingerprint != known.record.fingerprint:
            self._ripen(name, known, now_ms)
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
        """Let entries go on that can, at most a batch, and read some if that is under way.

        Returns how many were looked at; 0 if there is nothing more to do now.
        """
        names = self._pick(self._attendance.now_ms())
        if names:
            self._go_on(names)
            self._overdue.difference_update(names)
        if self._reading is None:
            return len(names)
        self._read_on()
        return len(names) + 1

    def _pick(self, now_ms: int) -> list[str]:
        """Return a batch of what can go on, what has to go on soonest first."""
        while self._heap and self._heap[0][0] <= now_ms:
            wake_ms, name = heapq.heappop(self._heap)
            if self._is_current(wake_ms, name):
                self._ripen(name, self.entries[name], now_ms)
        names: list[str] = []
        while self._ripe and len(names) < _BATCH:
            name = heapq.heappop(self._ripe)[2]
            known = self.entries.get(name)
            if known is not None and known.is_ripe:
                known.is_ripe = False  # there may be more of the same
                names.append(name)
            elif known is None:
                self._overdue.discard(name)
        return names

    def _go_on(self, names: Sequence[str]) -> None:
        self._read_others(names)
        names = self._untouched(names)
        if not names:
            return
        # At once where entries are to be added: only a configuration that counts may do so.
        self._attendance.give_sign(at_once=not all(self.entries[name].is_stored for name in names))
        records = self._roster.refresh_placed([name for name in names if self.entries[name].record.queue is None])
        names = self._untouched(names)
        now_ms = self._attendance.now_ms()
        waiting = self._still_waiting(names, now_ms)
        decisions = [
            decision
            for name in names
            if (known := self.entries.get(name)) is not None
            and (decision := self._decide(name, known, now_ms, still_waits=name in waiting)) is not None
        ]
        self._take(self._settle(decisions, records))

    def _untouched(self, names: Sequence[str]) -> list[str]:
        """Return the entries that are still to go on, and not later, or anew, since another planner was there."""
        return [
            name
            for name in names
            if (known := self.entries.get(name)) is not None and known.wake_ms is None and not known.is_ripe
        ]

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
        """Return the entries whose messages nobody has transferred, although their time was before planners came."""
        overdue = [
            (name, known.state.task_id, known.record.queue)
            for name in names
            if (known := self.entries.get(name)) is not None
            and known.state is not None
            and known.record.queue is not None
            and known.state.task_id
            and known.state.at_ms is not None
            and known.state.at_ms <= missed_until(now_ms, self._attendance.attended_ms(known.record))
        ]
        found = self._store.waiting([(task_id, queue) for _, task_id, queue in overdue])
        return {name for (name, _, _), waits in zip(overdue, found, strict=True) if waits}

    def _entry(self, known: Known) -> Entry:
        record = known.record
        policy = self._policy(known.definition)
        return Entry(known.definition, policy, record.since_ms, record.fingerprint, paused=record.paused)

    def _decide(
        self, name: str, known: Known, now_ms: int, *, still_waits: bool = False, gone: bool = False
    ) -> _Decision | None:
        """Return what to do with an entry; None if there is nothing to do, or if it was done at once."""
        try:
            if known.strays and not self._gather(name, known):
                return None
        except ResponseError as exc:
            self._fail(name, known, exc)
            return None
        entry = self._entry(known)
        try:
            attended_ms = self._attendance.attended_ms(known.record)
            move = next_move(entry, known.state, now_ms, attended_ms=attended_ms, still_waits=still_waits, gone=gone)
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
            known.record.fingerprint,
            self.id,
            move.at_ms,
            occurrence.task_id if ahead and occurrence.offer else "",
            move.last_ms,
            move.runs,
            move.made_up,
        )
        offer = occurrence.offer if move.send_ms is not None else None
        must_wait = bool(move.withdraw)
        step = Step(name, queue, known.seen, state.dump(), withdraw=move.withdraw, must_wait=must_wait, offer=offer)
        return _Decision(name, move, step, state)

    def _gather(self, name: str, known: Known) -> bool:
        """Take an entry out of queues to which it goes no more. Returns False if somebody else does so, too.

        Its state is parked there until it is planned in its queue: so whoever comes in between goes on with it.
        """
        while known.strays:
            if not self._take_out(name, known, *known.strays[0]):
                self._roster.refresh([name])
                return False
            known.strays = known.strays[1:]  # not before: the server may refuse it now, and not later
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
        known.parked = [*known.parked, (queue, seen)]
        if known.state is None or (state.runs, state.last_ms or 0) > (known.state.runs, known.state.last_ms or 0):
            known.state = state
        return True

    def _settle(self, decisions: list[_Decision], records: Mapping[str, tuple[bytes, Record]]) -> list[_Decision]:
        """Write down to which queues entries go that are new, or go elsewhere; returns the steps that can be taken."""
        queues: dict[str, str] = {}
        before: dict[str, tuple[str | None, Seen]] = {}
        for decision in decisions:
            name, queue = decision.name, decision.step.queue
            known = self.entries[name]
            old_queue = known.record.queue
            if queue == old_queue:
                continue
            before[name] = (old_queue, known.seen)
            if old_queue is None or self._attendance.counts or known.record.app is None:
                queues[name] = queue
            else:
                self._wake(name, known, self._attendance.now_ms() + _RETRY_MS[1])
        written, refused = self._roster.write_queues(queues, records) if queues else (set(), {})
        for name, error in refused.items():
            self._fail(name, self.entries[name], error)
        settled = []
        for decision in decisions:
            name = decision.name
            if name not in before:
                settled.append(decision)
            elif name in written:
                known = self.entries[name]
                old_queue, old_seen = before[name]
                if old_queue is None and not known.seen.raw:
                    decision.step = replace(decision.step, seen=known.seen)
                    settled.append(decision)
                else:
                    # Those from which it was taken out before know where it is.
                    strays = [*([(old_queue, old_seen)] if old_queue is not None else []), *known.parked]
                    known.strays = [(queue, seen) for queue, seen in strays if queue != decision.step.queue]
                    known.parked = ()
                    self._roster.read_state(name, known)
        return settled

    def _take(self, decisions: list[_Decision]) -> None:
        sent = time.monotonic()
        replies = self._store.plan([decision.step for decision in decisions])
        again: list[_Decision] = []
        changed: list[str] = []
        for decision, done in zip(decisions, replies, strict=True):
            name = decision.name
            known = self.entries.get(name)
            if known is None:
                continue
            if isinstance(done, ResponseError):
                if isinstance(done, (ReadOnlyError, ConnectionError)) or "READONLY" in str(done):
                    raise ReadOnlyError(str(done))
                self._fail(name, known, done)
            elif done.outcome == scripts.DONE:
                self._on_planned(known, decision, done)
            elif done.outcome == scripts.GONE:
                # By the server's clock its time has come, or somebody cancelled it.
                retry = self._decide(name, known, done.now_ms, gone=True)
                if retry is not None:
                    again.append(retry)
            else:
                changed.append(name)
        if len(decisions) == 1 and replies and not isinstance(replies[0], ResponseError):
            self._attendance.clock.observe(replies[0].now_ms * 1000, sent, time.monotonic())
        if changed:
            self._roster.refresh(changed)
        if again:
            self._take(self._settle(again, {}))

    def _on_planned(self, known: Known, decision: _Decision, done: scripts.Planned) -> None:
        known.seen, known.state = Seen(decision.step.state, done.forgotten), decision.state
        self._forget_error(decision.name, known)
        parked, known.parked = known.parked, ()
        for queue, seen in parked:
            self._roster.forget(decision.name, queue, seen)
        if decision.move.passed:
            self._on_sent(known.definition)
        self._wake(decision.name, known, decision.move.at_ms)

    # -- errors

    def _forget_error(self, name: str, known: Known) -> None:
        known.failures = 0
        if known.error is not None:
            known.error = None
            self._roster.note_error(name, None)

    def _fail(self, name: str, known: Known, error: Exception) -> None:
        known.error = f"{type(error).__name__}: {error}" if not isinstance(error, DelayqError) else str(error)
        self._roster.note_error(name, known.error)
        self._wake(name, known, self._attendance.now_ms() + min(_RETRY_MS[0] * 2**known.failures, _RETRY_MS[1]))
        known.failures = min(known.failures + 1, 10)
