"""Planner: keeps the next occurrence of every periodic entry planned. Any number of planners may run at once.

A planner keeps in memory the entries, their states, and a heap of the times at which they must move on. So it scans all
entries only at the start and after lost notifications. It runs one script per occurrence. If another planner was
faster, the script does nothing, and the planner reads the new state of the entry.

Who plans
    The planner that planned the last occurrence of an entry plans the next one as soon as its time comes. A grace
    period later, the other planners check that this happened. A check costs one read, in a pipeline for all entries.

What comes first
    The most urgent entries come first: those with a message that is due already, then those whose next occurrence is
    earliest. So an entry that runs every second does not wait for thousands that run every minute, or for new ones.
    Entries are read in parts, and planned entries are processed in between.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from logging import getLogger
from typing import Any

from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError, ReadOnlyError, RedisError, ResponseError

from celery_delayq.escapes import told
from celery_delayq.queue.connections import LOST
from celery_delayq.schedule import scripts
from celery_delayq.schedule.attendance import Attendance
from celery_delayq.schedule.configured import Configured
from celery_delayq.schedule.entry import Definition
from celery_delayq.schedule.message import CannotSend, Occurrence
from celery_delayq.schedule.occurrences import following, jitter_ms, usual_interval_ms
from celery_delayq.schedule.planned_entries import PlannedEntries
from celery_delayq.schedule.planned_entry import PlannedEntry
from celery_delayq.schedule.records import Record, Seen, State, Step
from celery_delayq.schedule.store import NodeLost, ScheduleStore
from celery_delayq.schedule.transitions import (
    PeriodicEntry,
    Policy,
    Transition,
    left_out,
    missed_until,
    next_transition,
)
from celery_delayq.transport.replicas import NotReplicated

logger = getLogger(__name__)

#: Maximum number of entries in one pass. A more urgent entry waits for at most one pass.
_BATCH = 100

#: When to retry an entry that could not be planned, in ms: after the first failure, and after many failures.
_RETRY_MS = (1000, 30_000)

#: When to try an entry again whose node of a cluster is away, in ms.
_AWAY_MS = (1000, 2000)

#: How long other planners leave an entry to its last planner, in ms; and the maximum as a fraction of the interval.
_GRACE_MS, _GRACE_OF_INTERVAL = (500, 1000), 0.4


@dataclass(slots=True)
class _Decision:
    """The decision about one entry.

    Attributes:
        name: name of the entry.
        move: its next move.
        step: the script call for the move.
        state: its state after the move.
        missed: how many of its runs the move leaves out.
        state_if_held: its state if the occurrence is left out, because another task holds its unique key.
    """

    name: str
    move: Transition
    step: Step
    state: State
    missed: int
    state_if_held: State | None = None


class Planner:
    """Plans the entries of one Redis database. For one thread at a time. Every method may raise `redis.RedisError`.

    Args:
        store: store of the schedule.
        configured: entries in the configuration of this process.
        parse: builds a definition from a name and the data of a record; raises InvalidSchedule.
        build: lets Celery build the message of an occurrence: definition, occurrence (ms), jitter (ms), lateness (s).
        policy: returns what to do with missed runs of an entry.
        id: a readable, unique id.
        on_sent: called with the definition when this planner's occurrence of it was sent.
        on_missed: called with the broker list and the name of an entry, and how many of its runs were missed and left
            out.
        is_back: whether this process had a planner before and lost the connection.
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
        on_missed: Callable[[str, str, int], None] | None = None,
        is_back: bool = False,
    ) -> None:
        self.id = id
        self._store = store
        self._build = build
        self._policy = policy
        self._on_sent = on_sent
        self._on_missed = on_missed
        self._attendance = Attendance(store, configured, is_back=is_back)
        self._planned = PlannedEntries(store, self._attendance, configured, parse, self._on_read, is_back=is_back)
        #: The running read of all entries, if any.
        self._reading: Iterator[None] | None = None
        #: Entries by the time of their next step, unix time in ms.
        self._heap: list[tuple[int, str]] = []
        #: Entries that are ready, by their deadlines, unix time in ms. Equal deadlines are in random order, so that
        #: several planners do not all begin with the same entry.
        self._ripe: list[tuple[int, float, str]] = []
        #: Entries that were overdue when they were read.
        self._overdue: set[str] = set()
        #: Whether a node was away at this look, and at the one before.
        self._is_away = self._was_away = False

    @property
    def entries(self) -> dict[str, PlannedEntry]:
        """The entries that this planner plans, by name."""
        return self._planned.entries

    @property
    def is_up_to_date(self) -> bool:
        """Whether all entries were read, and all that were overdue then were processed. New entries may be pending."""
        return self._reading is None and not self._overdue

    # -- the time

    def seconds_until_next(self) -> float | None:
        """Return the seconds until the next entry is ready; None if there is none."""
        if self._reading is not None or self._ripe:
            return 0.0
        while self._heap and not self._is_current(*self._heap[0]):
            heapq.heappop(self._heap)
        return self._attendance.clock.seconds_until(self._heap[0][0]) if self._heap else None

    def _is_current(self, wake_ms: int, name: str) -> bool:
        planned = self.entries.get(name)
        return planned is not None and planned.wake_ms == wake_ms

    def _wake(self, name: str, planned: PlannedEntry, wake_ms: int | None) -> None:
        planned.wake_ms, planned.is_ripe = wake_ms, False
        if wake_ms is not None:
            heapq.heappush(self._heap, (wake_ms, name))

    def _ripen(self, name: str, planned: PlannedEntry, now_ms: int) -> None:
        planned.wake_ms, planned.is_ripe = None, True
        heapq.heappush(self._ripe, (self._until_ms(planned, now_ms), random.random(), name))

    @staticmethod
    def _until_ms(planned: PlannedEntry, now_ms: int) -> int:
        """Return the deadline of an entry's next step, unix time in ms."""
        state = planned.state
        usual_ms = usual_interval_ms(planned.definition.schedule)
        if state is None or state.at_ms is None:
            return now_ms + usual_ms
        due_ms = state.at_ms + _delay_ms(planned)
        if due_ms > now_ms:  # the entry has changed: the waiting message must not run
            return min(due_ms, now_ms + usual_ms)
        if not state.task_id:
            return due_ms
        return due_ms + (usual_ms if state.last_ms is None else state.at_ms - state.last_ms)

    # -- reading

    def look(self) -> None:
        """Give a sign of life. If changes were missed, start to read all entries again."""
        if self._planned.look() and self._reading is None:
            self.begin_reading()
        if self._was_away and not self._is_away:
            logger.info("The periodic tasks of all Redis nodes are planned again")
        self._was_away, self._is_away = self._is_away, False

    def begin_reading(self) -> None:
        """Start to read all entries and, if our configuration counts, to write its entries. `run_due` continues it."""
        self._reading = self._planned.reading()
        self._read_on()

    def read(self) -> None:
        """Read all entries and, if our configuration counts, write its entries."""
        self.begin_reading()
        while self._reading is not None:
            self._read_on()

    def _read_on(self) -> None:
        if self._reading is not None and next(self._reading, self) is self:
            self._reading = None

    def on_changes(self, changes: Iterable[tuple[int, str]]) -> None:
        """Process announced changes of entries, given as numbers and names."""
        self._planned.on_changes(changes)

    def _on_read(self, name: str, planned: PlannedEntry) -> None:
        state, now_ms = planned.state, self._attendance.now_ms()
        if not planned.seen.is_known:
            self._leave(name, planned)
            return
        at_ms = None if state is None else state.at_ms
        if at_ms is not None and at_ms + _delay_ms(planned) <= now_ms and self._reading is not None:
            self._overdue.add(name)
        if planned.strays or state is None or state.fingerprint != planned.record.fingerprint:
            self._ripen(name, planned, now_ms)
        elif state.at_ms is None or planned.record.paused or not planned.definition.timing.enabled:
            try:
                move = next_transition(self._entry(planned), state, now_ms)
            except Exception as exc:  # a schedule may raise anything
                self._fail(name, planned, exc)
            else:
                self._wake(name, planned, now_ms if move else None)
        else:
            self._wake(name, planned, self._turn_ms(planned))

    def _turn_ms(self, planned: PlannedEntry) -> int | None:
        """Return when to look at an entry: at its time, or a grace period later if another planner planned it."""
        state = planned.state
        if state is None or state.at_ms is None:
            return None
        time_ms = state.at_ms + _delay_ms(planned)
        if state.planner == self.id:
            return time_ms
        interval_ms = state.at_ms - state.last_ms if state.last_ms is not None else _GRACE_MS[1]
        return time_ms + round(min(random.uniform(*_GRACE_MS), max(0, interval_ms) * _GRACE_OF_INTERVAL))

    # -- processing

    def run_due(self) -> int:
        """Process at most one batch of ready entries, and continue a running read.

        Returns the number of processed entries; 0 if there is nothing more to do now.
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
        """Return a batch of ready entries, the most urgent first."""
        while self._heap and self._heap[0][0] <= now_ms:
            wake_ms, name = heapq.heappop(self._heap)
            if self._is_current(wake_ms, name):
                self._ripen(name, self.entries[name], now_ms)
        names: list[str] = []
        while self._ripe and len(names) < _BATCH:
            name = heapq.heappop(self._ripe)[2]
            planned = self.entries.get(name)
            if planned is not None and planned.is_ripe:
                planned.is_ripe = False  # the heap may contain the entry several times
                names.append(name)
            elif planned is None:
                self._overdue.discard(name)
        return names

    def _go_on(self, names: Sequence[str]) -> None:
        self._read_others(names)
        names = self._untouched(names)
        if not names:
            return
        # Give it at once if entries must be added: only a configuration that counts may add entries.
        self._attendance.give_sign(at_once=not all(self.entries[name].is_stored for name in names))
        records = self._planned.refresh_placed([name for name in names if self.entries[name].record.queue is None])
        names = self._untouched(names)
        now_ms = self._attendance.now_ms()
        waiting = self._still_waiting(names, now_ms)
        decisions = [
            decision
            for name in self._untouched(names)
            if (planned := self.entries.get(name)) is not None
            and (decision := self._decide(name, planned, now_ms, still_waits=name in waiting)) is not None
        ]
        self._take(self._settle(decisions, records))

    def _untouched(self, names: Sequence[str]) -> list[str]:
        """Return the entries that still need processing now, and that no other planner has processed."""
        return [
            name
            for name in names
            if (planned := self.entries.get(name)) is not None and planned.wake_ms is None and not planned.is_ripe
        ]

    def _read_others(self, names: Iterable[str]) -> None:
        """Read the states of entries that another planner should have planned."""
        stale = [
            (name, planned.record.queue)
            for name in names
            if (
                not (planned := self.entries[name]).seen.is_known
                or (planned.state is not None and planned.state.planner != self.id)
            )
            and planned.record.queue is not None
        ]
        for (name, _), seen in zip(stale, self._store.seen(stale, partly=True), strict=True):
            self._planned.on_state(name, seen)

    def _still_waiting(self, names: Iterable[str], now_ms: int) -> set[str]:
        """Return the entries whose messages were due before planners came, but were not transferred yet."""
        overdue = [
            (name, planned.state.task_id, planned.record.queue)
            for name in names
            if (planned := self.entries.get(name)) is not None
            and planned.state is not None
            and planned.record.queue is not None
            and planned.state.task_id
            and planned.state.at_ms is not None
            and planned.state.at_ms <= missed_until(now_ms, self._attendance.attended_ms(planned.record))
        ]
        found = self._store.waiting([(task_id, queue) for _, task_id, queue in overdue])
        for (name, _, _), waits in zip(overdue, found, strict=True):
            if waits is None:
                self._leave(name, self.entries[name])
        return {name for (name, _, _), waits in zip(overdue, found, strict=True) if waits}

    def _entry(self, planned: PlannedEntry) -> PeriodicEntry:
        record = planned.record
        policy = self._policy(planned.definition)
        return PeriodicEntry(planned.definition, policy, record.since_ms, record.fingerprint, paused=record.paused)

    def _decide(
        self, name: str, planned: PlannedEntry, now_ms: int, *, still_waits: bool = False, gone: bool = False
    ) -> _Decision | None:
        """Return the decision about an entry; None if there is nothing to do, or if it was done at once."""
        try:
            if planned.strays and not self._gather(name, planned):
                return None
        except NodeLost:
            self._leave(name, planned)
            return None
        except (ResponseError, NotReplicated) as exc:
            self._fail(name, planned, exc)
            return None
        try:
            entry, delay_ms = self._entry(planned), _delay_ms(planned)
            attended_ms = self._attendance.attended_ms(planned.record)
            move = next_transition(
                entry,
                planned.state,
                now_ms - delay_ms,
                attended_ms=attended_ms - delay_ms,
                still_waits=still_waits,
                gone=gone,
            )
            if move is None and planned.state is not None and planned.state.parked:
                # It has ended, or is idle.
                move = Transition(None, last_ms=planned.state.last_ms, runs=planned.state.runs)
            if move is None:
                self._forget_error(name, planned)
                self._wake(name, planned, self._turn_ms(planned))
                if planned.wake_ms is not None and planned.wake_ms <= now_ms:
                    planned.wake_ms = None
                return None
            occurrence = Occurrence(planned.record.queue, "", None)
            if move.send_ms is not None:
                jitter = jitter_ms(name, move.send_ms, planned.definition.timing.jitter_ms)
                occurrence = self._build(planned.definition, move.send_ms, jitter, entry.policy.max_lateness_s)
            elif planned.record.queue is None:  # a lazy entry: build a message to learn its queue
                occurrence = self._build(planned.definition, now_ms, 0, 0.0)
            missed = 0
            if planned.state is not None and self._on_missed is not None:
                missed = left_out(entry, planned.state, move, now_ms)
        except OperationalError as exc:
            if isinstance(exc.__cause__, LOST):  # its queue could not be declared
                self._leave(name, planned)
            else:
                self._fail(name, planned, exc)
            return None
        except Exception as exc:  # a task, a router or a signal receiver may raise anything
            self._fail(name, planned, exc)
            return None
        queue = occurrence.queue or planned.record.queue or ""
        if not queue:
            self._fail(name, planned, CannotSend("its task sends no message, so there is no queue to plan it in"))
            return None
        ahead = move.send_ms is not None and move.send_ms == move.at_ms
        offer = occurrence.offer if move.send_ms is not None else None
        if ahead and not occurrence.can_wait:
            offer = None  # it is built again when it is due
        task_id = occurrence.task_id if ahead and offer else ""
        fingerprint = planned.record.fingerprint
        state = State(fingerprint, self.id, move.at_ms, task_id, move.last_ms, move.runs, move.made_up)
        state_if_held = None
        if offer is not None and offer.claim is not None and planned.state is not None:
            before = planned.state
            state_if_held = replace(state, at_ms=move.next_ms, last_ms=before.last_ms, runs=before.runs)
            offer = replace(offer, state_if_held=state_if_held.dump())
        must_wait = bool(move.withdraw)
        step = Step(name, queue, planned.seen, state.dump(), withdraw=move.withdraw, must_wait=must_wait, offer=offer)
        return _Decision(name, move, step, state, missed, state_if_held)

    def _gather(self, name: str, planned: PlannedEntry) -> bool:
        """Take an entry out of its former queues. Returns False if another planner is doing so too.

        Its state stays parked there until it is planned in its new queue. So another planner can continue in between.
        """
        while planned.strays:
            if not self._take_out(name, planned, *planned.strays[0]):
                self._planned.refresh([name])
                return False
            planned.strays = planned.strays[1:]  # only now: if the server refuses, it is tried again later
        return True

    def _take_out(self, name: str, planned: PlannedEntry, queue: str, seen: Seen) -> bool:
        """Take the state of an entry out of one queue. Returns False if the state has changed."""
        is_planned = planned.state is not None and not planned.state.parked
        if not seen.raw or (is_planned and self._store.is_kept(name, planned.record.queue or "", planned.seen)):
            return self._store.forget(name, queue, seen)
        try:
            parked = self._store.park(name, queue, seen)
        except ValueError:  # the state cannot be parsed
            return self._store.forget(name, queue, seen)
        if parked is None:
            return False
        state, seen = parked
        if not is_planned and not self._store.may_leave(name, queue, seen):
            return False
        planned.parked = [*planned.parked, (queue, seen)]
        if is_planned:  # a failover may still undo that
            return True
        if planned.state is None or state.progress > planned.state.progress:
            planned.state = state
        return True

    def _settle(self, decisions: list[_Decision], records: Mapping[str, tuple[bytes, Record]]) -> list[_Decision]:
        """Record the queues of entries that are new or have moved. Return the steps that can be taken."""
        queues: dict[str, str] = {}
        before: dict[str, tuple[str | None, Seen]] = {}
        for decision in decisions:
            name, queue = decision.name, decision.step.queue
            planned = self.entries[name]
            old_queue = planned.record.queue
            if queue == old_queue:
                continue
            before[name] = (old_queue, planned.seen)
            if old_queue is None or self._attendance.counts or planned.record.app is None:
                queues[name] = queue
            else:
                self._wake(name, planned, self._attendance.now_ms() + _RETRY_MS[1])
        written, refused = self._planned.write_queues(queues, records) if queues else (set(), {})
        for name, error in refused.items():
            self._fail(name, self.entries[name], error)
        settled = []
        for decision in decisions:
            name = decision.name
            if name not in before:
                settled.append(decision)
            elif name in written:
                planned = self.entries[name]
                old_queue, old_seen = before[name]
                if old_queue is None and not planned.seen.raw:
                    decision.step = replace(decision.step, seen=planned.seen)
                    settled.append(decision)
                else:
                    # The states parked in its former queues show where it is.
                    strays = [*([(old_queue, old_seen)] if old_queue is not None else []), *planned.parked]
                    planned.strays = [(queue, seen) for queue, seen in strays if queue != decision.step.queue]
                    planned.parked = ()
                    self._planned.read_state(name, planned)
        return settled

    def _take(self, decisions: list[_Decision]) -> None:
        sent = time.monotonic()
        replies = self._store.plan([decision.step for decision in decisions])
        again: list[_Decision] = []
        changed: list[str] = []
        for decision, done in zip(decisions, replies, strict=True):
            name = decision.name
            planned = self.entries.get(name)
            if planned is None:
                continue
            if isinstance(done, NodeLost):
                self._leave(name, planned)
            elif isinstance(done, RedisError):
                if isinstance(done, (ReadOnlyError, ConnectionError)):
                    raise ReadOnlyError(str(done))
                self._fail(name, planned, done)
            elif done.outcome in (scripts.DONE, scripts.LEFT_OUT):
                self._on_planned(planned, decision, done)
            elif done.outcome == scripts.GONE:
                # By the server's clock it is due, or somebody cancelled it.
                retry = self._decide(name, planned, done.now_ms, gone=True)
                if retry is not None:
                    again.append(retry)
            else:
                changed.append(name)
        if len(decisions) == 1 and replies and isinstance(replies[0], scripts.Planned):
            self._attendance.clock.observe(replies[0].now_ms * 1000, sent, time.monotonic())
        if changed:
            self._planned.refresh(changed)
        if again:
            self._take(self._settle(again, {}))

    def _on_planned(self, planned: PlannedEntry, decision: _Decision, done: scripts.Planned) -> None:
        if decision.missed and self._on_missed is not None:
            self._on_missed(decision.step.queue, decision.name, decision.missed)
        is_left_out = done.outcome == scripts.LEFT_OUT
        planned.seen = Seen(done.state, done.forgotten)
        planned.state = decision.state_if_held if is_left_out else decision.state
        self._forget_error(decision.name, planned)
        self._forget_parked(decision, planned)
        if is_left_out:
            logger.debug("Another task holds the unique key of periodic task %r: a run is left out", decision.name)
        elif decision.move.passed:
            self._on_sent(planned.definition)
        self._wake(decision.name, planned, self._turn_ms(planned))

    def _forget_parked(self, decision: _Decision, planned: PlannedEntry) -> None:
        """Forget where an entry was before, once no failover can undo where it is now."""
        name = decision.name
        if not planned.parked or not self._store.is_kept(name, decision.step.queue, planned.seen):
            return  # tried again with the next occurrence
        parked, planned.parked = planned.parked, ()
        for queue, seen in parked:
            self._planned.forget(name, queue, seen)

    # -- errors

    def _leave(self, name: str, planned: PlannedEntry) -> None:
        """Leave an entry for a moment: its node is away. A step that was sent may have been taken, or not."""
        if not self._is_away and not self._was_away:
            logger.warning("A Redis node does not answer: its periodic tasks are planned when it is back")
        self._is_away = True
        self._wake(name, planned, self._attendance.now_ms() + round(random.uniform(*_AWAY_MS)))

    def _forget_error(self, name: str, planned: PlannedEntry) -> None:
        planned.failures = 0
        if planned.error is not None:
            planned.error = None
            self._planned.note_error(name, None)

    def _fail(self, name: str, planned: PlannedEntry, error: Exception) -> None:
        planned.error = told(error)
        self._planned.note_error(name, planned.error, error)
        self._wake(name, planned, self._attendance.now_ms() + min(_RETRY_MS[0] * 2**planned.failures, _RETRY_MS[1]))
        planned.failures = min(planned.failures + 1, 10)


def _delay_ms(planned: PlannedEntry) -> int:
    """Return how long after its occurrence an entry moves on, in ms.

    Its message is due later than the occurrence, by jitter and countdown; until then, it can be withdrawn. If the next
    occurrence is earlier, the entry moves on at that time: the next message may be due before this one.
    """
    state, definition = planned.state, planned.definition
    if state is None or state.at_ms is None or definition.is_asked:
        return 0
    delay_ms = max(0, definition.delay_ms(state.at_ms))
    if not delay_ms or not state.task_id:
        return delay_ms
    try:
        next_ms = following(definition.schedule, definition.timing.window, state.at_ms)
    except Exception:  # of a user's class: `_decide` notes it
        return 0
    return delay_ms if next_ms is None else min(delay_ms, next_ms - state.at_ms)
