"""Planner: keeps the next occurrence of every periodic entry planned. Any number of them may do so at once.

What it knows is in memory: the entries, where they are, and a heap of the times at which they go on. So nothing scans
all entries, but for the start and after lost notifications. What it does is one script an occurrence, which does
nothing if another planner was there first; then it reads where the entry is now.

Who plans
    The planner that planned the last occurrence of an entry plans the next as soon as its time has come. The others
    look a grace period later whether that happened; looking costs a read, in a pipeline for all entries at once.

Which definition counts
    Entries that were added at run time are in Redis, and the same for all. Those of the configuration are known to each
    planner from its own; while a deploy is under way, they differ. The configuration that was seen last for the first
    time counts (announce.lua): its planners write the records, and remove those of entries that it has no more. Another
    planner leaves an entry alone unless the record has the fingerprint of its own definition.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from logging import getLogger
from typing import Any

from redis.exceptions import ConnectionError, ReadOnlyError, ResponseError

from celery_delayq.clock import ServerClock
from celery_delayq.errors import DelayqError
from celery_delayq.schedule import scripts
from celery_delayq.schedule.configured import Configured
from celery_delayq.schedule.entry import Definition
from celery_delayq.schedule.message import CannotSend, Occurrence
from celery_delayq.schedule.moves import TOLERATED_MS, Entry, Move, Policy, next_move
from celery_delayq.schedule.occurrences import jitter_ms
from celery_delayq.schedule.store import Record, ScheduleStore, Seen, State, Step
from celery_delayq.transfer import CONNECTION_ERRORS

logger = getLogger(__name__)

#: A configuration whose planners were silent for so long counts no more, in seconds.
CONFIGURATION_LIFETIME_S = 30.0

#: Entries that go on in one pass, so that a change is noticed between two of them.
_BATCH = 200

#: After that time an entry that could not be planned is tried again, in ms.
_RETRY_MS = 30_000

#: How long another planner leaves an entry to the one that planned it last, in ms; at most this part of an interval.
_GRACE_MS, _GRACE_OF_INTERVAL = (500, 1000), 0.4


@dataclass(slots=True)
class Known:
    """What a planner knows about an entry.

    Attributes:
        definition: what it is.
        record: as stored.
        seen: its state in the queue of the record, as it was read.
        state: what that says; None if there is none.
        strays: states of it in other queues.
        wake_ms: when to look at it, unix time in ms by the server's clock; None if nothing is to come.
        error: why it could not be planned.
    """

    definition: Definition
    record: Record
    seen: Seen = field(default_factory=Seen)
    state: State | None = None
    strays: list[tuple[str, Seen]] = field(default_factory=list)
    wake_ms: int | None = None
    error: str | None = None


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
        clock: the server's time.
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
        clock: ServerClock | None = None,
    ) -> None:
        self.id = id
        self.entries: dict[str, Known] = {}
        self._store = store
        self._configured = configured
        self._parse = parse
        self._build = build
        self._policy = policy
        self._on_sent = on_sent
        self._clock = clock or ServerClock()
        self._heap: list[tuple[int, str]] = []
        self._changes = 0
        self._counts = False
        self._errors: dict[str, str] = {}

    # -- the time

    def seconds_until_next(self) -> float | None:
        """Return in how many seconds an entry goes on; None if none does."""
        while self._heap and not self._is_current(*self._heap[0]):
            heapq.heappop(self._heap)
        return self._clock.seconds_until(self._heap[0][0]) if self._heap else None

    def _now_ms(self) -> int:
        return int(-self._clock.seconds_until(0) * 1000)

    def _is_current(self, wake_ms: int, name: str) -> bool:
        known = self.entries.get(name)
        return known is not None and known.wake_ms == wake_ms

    def _wake(self, name: str, known: Known, wake_ms: int | None) -> None:
        known.wake_ms = wake_ms
        if wake_ms is not None:
            heapq.heappush(self._heap, (wake_ms, name))

    # -- what there is

    def look(self) -> None:
        """Say that this planner lives, and read everything again if changes were missed, or at first."""
        counted = self._counts
        self._announce()
        if self._counts != counted or self._store.changes() != self._changes:
            self.read()

    def _announce(self) -> None:
        sent = time.monotonic()
        counts, now_ms = self._store.announce(
            self._configured.app, self._configured.fingerprint, CONFIGURATION_LIFETIME_S
        )
        self._clock.observe(now_ms * 1000, sent, time.monotonic())
        self._counts = counts == self._configured.fingerprint

    def read(self) -> None:
        """Read all entries, and write those of the configuration, if it counts."""
        self._announce()
        # In this order: a state that is not seen was not there when the record was valid, see plan.lua.
        states = {queue: self._store.states(queue) for queue in self._store.queues()}
        records, self._changes = self._store.records()
        self._errors = self._store.errors()
        if self._counts and self._write_configured(records):
            records, self._changes = self._store.records()
        self.entries.clear()
        self._heap.clear()
        for name, raw in records.items():
            known = self._known(name, raw)
            if known is not None:
                self.entries[name] = known
                self._place(name, known, states)
        self._remove_strays(states, records)
        for name, error in self._configured.errors.items():
            self._note_error(name, error)
        for name in self._errors.keys() - records.keys() - self._configured.errors.keys():
            self._note_error(name, None)

    def _write_configured(self, records: Mapping[str, bytes]) -> bool:
        changes: list[tuple[str, bytes, Record | None]] = []
        now_ms = self._now_ms()
        for name, definition in self._configured.entries.items():
            raw = records.get(name, b"")
            record = self._record_of(name, raw) if raw else None
            if record is None:
                changes.append((name, raw, self._new_record(definition, now_ms)))
            elif record.app != self._configured.app:
                owner = f"app {record.app!r} has" if record.app is not None else "at run time was added"
                self._note_error(name, f"{owner} an entry of that name; that of the configuration does not run")
            elif record.fingerprint != definition.fingerprint:
                fresh = self._new_record(definition, record.since_ms)
                changes.append((name, raw, replace(fresh, queue=record.queue, paused=record.paused)))
        for name, raw in records.items():
            if name not in self._configured.entries and name not in self._configured.errors:
                record = self._record_of(name, raw)
                if record is not None and record.app == self._configured.app:
                    changes.append((name, raw, None))
        self._store.write_records(changes)
        return bool(changes)

    def _new_record(self, definition: Definition, since_ms: int) -> Record:
        data = definition.data() or {"task": definition.task, "text": repr(definition.schedule)}
        return Record(definition.fingerprint, since_ms, data, app=self._configured.app)

    def _record_of(self, name: str, raw: bytes) -> Record | None:
        try:
            return Record.parse(raw)
        except ValueError as exc:
            self._note_error(name, str(exc))
            return None

    def _known(self, name: str, raw: bytes) -> Known | None:
        """Return an entry that this planner may plan, None for others."""
        record = self._record_of(name, raw)
        if record is None:
            return None
        if record.app is None:
            try:
                definition = self._parse(name, record.definition or {})
            except DelayqError as exc:
                self._note_error(name, str(exc))
                return None
        else:
            own = self._configured.entries.get(name)
            if own is None or record.app != self._configured.app or record.fingerprint != own.fingerprint:
                return None
            definition = own
        return Known(definition, record, error=self._errors.get(name))

    def _place(self, name: str, known: Known, states: Mapping[str, Mapping[str, Seen]]) -> None:
        queue = known.record.queue
        in_queue = states.get(queue or "", {})
        known.seen = in_queue.get(name) or Seen(b"", in_queue[""].forgotten if "" in in_queue else b"0")
        known.strays = [(other, found[name]) for other, found in states.items() if other != queue and name in found]
        self._on_state_read(name, known)

    def _on_state_read(self, name: str, known: Known) -> None:
        try:
            known.state = State.parse(known.seen.raw) if known.seen.raw else None
        except ValueError as exc:
            logger.error("The state of periodic task %r cannot be read, it is planned anew: %s", name, exc)
            known.state = None
        state, now_ms = known.state, self._now_ms()
        if known.strays or state is None or state.fingerprint != known.definition.fingerprint:
            self._wake(name, known, now_ms)
        elif state.at_ms is None or known.record.paused or not known.definition.timing.enabled:
            self._wake(name, known, now_ms if next_move(self._entry(known), state, now_ms) else None)
        else:
            self._wake(name, known, self._turn_ms(state))

    def _turn_ms(self, state: State) -> int | None:
        """Return when this planner should look at an entry: at its time, or later if another planner planned it."""
        if state.at_ms is None or state.planner == self.id:
            return state.at_ms
        interval_ms = state.at_ms - state.last_ms if state.last_ms is not None else _GRACE_MS[1]
        return state.at_ms + round(min(random.uniform(*_GRACE_MS), max(0, interval_ms) * _GRACE_OF_INTERVAL))

    def _remove_strays(self, states: Mapping[str, Mapping[str, Seen]], records: Mapping[str, bytes]) -> None:
        """Forget the states of entries that were removed."""
        for queue, found in states.items():
            for name, seen in found.items():
                if name and name not in records:
                    self._store.forget(name, queue, seen)

    # -- changes

    def on_change(self, number: int, name: str) -> None:
        """Take notice of the change of an entry, by its number; a gap in the numbers is what `look` finds."""
        if number <= self._changes:
            return
        if number == self._changes + 1:
            self._changes = number
        self.refresh(name)

    def refresh(self, name: str) -> None:
        """Read an entry again."""
        before = self.entries.pop(name, None)
        raw = self._store.record(name)
        known = self._known(name, raw) if raw else None
        while known is not None:
            seen = [Seen()]
            if known.record.queue is not None:
                seen = self._store.seen([(name, known.record.queue)])
            again = self._store.record(name)
            if again == raw:
                break
            raw = again
            known = self._known(name, raw) if raw else None
        old_queue = before.record.queue if before else None
        if known is not None:
            known.seen = seen[0]
            self.entries[name] = known
            if old_queue is not None and old_queue != known.record.queue:
                known.strays = [(old_queue, self._store.seen([(name, old_queue)])[0])]
            self._on_state_read(name, known)
        elif not raw:
            self._note_error(name, None)
            if old_queue is not None:
                self._store.forget(name, old_queue, self._store.seen([(name, old_queue)])[0])

    # -- going on

    def run_due(self) -> int:
        """Let entries go on whose time has come, at most a batch. Returns how many were looked at."""
        now_ms = self._now_ms()
        due: list[str] = []
        while self._heap and len(due) < _BATCH and self._heap[0][0] <= now_ms:
            wake_ms, name = heapq.heappop(self._heap)
            if self._is_current(wake_ms, name):
                self.entries[name].wake_ms = None
                due.append(name)
        self._read_others(due)
        waiting = self._still_waiting(due, now_ms)
        steps: list[tuple[str, Move, Step]] = []
        for name in due:
            known = self.entries[name]
            if known.wake_ms is not None:  # another planner was there
                continue
            step = self._step(name, known, now_ms, still_waits=name in waiting)
            if step is not None:
                steps.append((name, *step))
        self._take(steps)
        return len(due)

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
            known = self.entries[name]
            if seen.raw != known.seen.raw:
                known.seen = seen
                self._on_state_read(name, known)

    def _still_waiting(self, names: Iterable[str], now_ms: int) -> set[str]:
        """Return the entries whose messages nobody has transferred, long after their time."""
        overdue = [
            (name, known.state.task_id, known.record.queue)
            for name in names
            if (known := self.entries[name]).state is not None
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
        if known.strays and not self._gather(name, known):
            return None
        entry = self._entry(known)
        try:
            move = next_move(entry, known.state, now_ms, still_waits=still_waits, gone=gone)
            if move is None:
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
        except CONNECTION_ERRORS:
            raise
        except Exception as exc:
            self._fail(name, known, exc)
            return None
        queue = occurrence.queue or known.record.queue or ""
        if queue != known.record.queue and not self._settle(name, known, queue):
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
        """Take an entry out of queues in which it is no more planned. Returns False if somebody else does."""
        while known.strays:
            queue, seen = known.strays.pop()
            state = self._store.forget(name, queue, seen)
            if state is None and seen.raw:
                # Who took it plans it elsewhere; if he does not come to it, we do.
                self._wake(name, known, self._now_ms() + _GRACE_MS[1])
                return False
            if state is not None and known.state is None:
                at_ms = None if state.at_ms is None else state.at_ms
                known.state = replace(state, at_ms=at_ms, task_id="", fingerprint="")
        return True

    def _settle(self, name: str, known: Known, queue: str) -> bool:
        """Write down to which queue an entry goes, and take it out of the one before."""
        if not queue:
            self._fail(name, known, CannotSend("it sends no message, so that it has no queue to be planned in"))
            return False
        record, old_queue = known.record, known.record.queue
        if old_queue is not None and not (self._counts or record.app is None):
            self._wake(name, known, self._now_ms() + _RETRY_MS)
            return False
        written, number = self._store.write_record(name, record.raw, replace(record, queue=queue))
        if not written:
            self.refresh(name)
            return False
        if number == self._changes + 1:
            self._changes = number
        known.record = replace(record, queue=queue).stored()
        if old_queue is None:
            known.seen = self._store.seen([(name, queue)])[0]
            if not known.seen.raw:
                return True
        else:
            known.strays = [(old_queue, known.seen)]
            known.seen = self._store.seen([(name, queue)])[0]
        self._on_state_read(name, known)
        return False

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
                self.refresh(name)
        if len(steps) == 1 and replies and not isinstance(replies[0], ResponseError):
            self._clock.observe(replies[0].now_ms * 1000, sent, time.monotonic())
        if again:
            self._take(again)

    def _on_planned(self, name: str, known: Known, move: Move, step: Step, seen: Seen) -> None:
        known.seen, known.state = seen, State.parse(step.state)
        if known.error is not None:
            known.error = None
            self._note_error(name, None)
        if move.passed:
            self._on_sent(known.definition)
        self._wake(name, known, move.at_ms)

    # -- errors

    def _fail(self, name: str, known: Known, error: Exception) -> None:
        known.error = f"{type(error).__name__}: {error}" if not isinstance(error, DelayqError) else str(error)
        self._note_error(name, known.error)
        self._wake(name, known, self._now_ms() + _RETRY_MS)

    def _note_error(self, name: str, error: str | None) -> None:
        """Write an error down where people see it, and log it once."""
        if self._errors.get(name) == error:
            return
        if error is None:
            del self._errors[name]
        else:
            logger.error("Cannot plan periodic task %r: %s", name, error)
            self._errors[name] = error
        self._store.set_error(name, error)
