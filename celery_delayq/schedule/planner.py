"""Planner: keeps the next occurrence of every periodic entry. Any number of planners may run at once.

A planner keeps in memory the entries, their states, and the times at which they must move on. So it scans all
entries only at the start and after lost notifications. It runs one script per occurrence. If another planner was
faster, the script does nothing, and the planner reads the new state of the entry.

Who plans
    The planner that planned the last occurrence of an entry plans the next one as soon as its time comes. A grace
    period later, the other planners check that this happened. A check costs one read, in a pipeline for all entries.

What comes first
    The most urgent entries, see `Agenda`. Entries are read in parts, and planned entries are processed in between.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from logging import getLogger
from typing import Any

from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError, ReadOnlyError, RedisError, ResponseError

from celery_delayq.basics.text import told
from celery_delayq.options.settings import ScheduleSettings
from celery_delayq.queue.connections import LOST
from celery_delayq.schedule import scripts
from celery_delayq.schedule.agenda import Agenda
from celery_delayq.schedule.attendance import Attendance
from celery_delayq.schedule.configured import Configured
from celery_delayq.schedule.definition import Definition
from celery_delayq.schedule.definitions import Definitions
from celery_delayq.schedule.entries import Entries
from celery_delayq.schedule.entry import Entry
from celery_delayq.schedule.message import CannotSend
from celery_delayq.schedule.problems import Problems
from celery_delayq.schedule.records import Seen, State
from celery_delayq.schedule.scripts import Message, Step
from celery_delayq.schedule.store import NodeLost, ScheduleStore
from celery_delayq.schedule.transitions import Transition, left_out, missed_until, next_transition
from celery_delayq.transport.replicas import NotReplicated

logger = getLogger(__name__)

#: Maximum number of entries in one pass. A more urgent entry waits for at most one pass.
_BATCH = 100

#: When to retry an entry that could not be planned, in ms: after the first failure, and after many failures.
_RETRY_MS = (1000, 30_000)

#: When to try an entry again whose node of a cluster is away, in ms.
_AWAY_MS = (1000, 2000)

#: How long other planners leave an entry to the one that moves it to another queue, in ms.
_ASIDE_MS = (20, 200)

#: How long other planners leave an entry to its last planner, in ms; and the maximum as a fraction of the interval.
_GRACE_MS, _GRACE_OF_INTERVAL = (500, 1000), 0.4


class Planner:
    """Plans the entries of one Redis database. For one thread at a time. Every method may raise `redis.RedisError`.

    Args:
        store: store of the schedule.
        configured: entries in the configuration of this process.
        parse: builds a definition from a name and the data of a record; raises InvalidSchedule.
        build: lets Celery build the message of an occurrence, see `Builder.build`.
        policy: returns what to do with missed runs of an entry, see `policy_of`.
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
        build: Callable[[Definition, int, float], Message | None],
        policy: Callable[[Definition], ScheduleSettings],
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
        self._problems = Problems(store, is_back=is_back)
        definitions = Definitions(configured, parse, self._problems)
        self._known = Entries(store, self._attendance, definitions, self._problems, self._on_read)
        #: Processes announced changes of entries, given as numbers and names.
        self.on_changes = self._known.on_changes
        #: The entries that this planner plans, by name.
        self.entries = self._known.entries
        self._agenda = Agenda(self.entries)
        #: The running read of all entries, if any.
        self._reading: Iterator[None] | None = None
        #: Entries that were overdue when they were read.
        self._overdue: set[str] = set()
        #: Whether a node was away at this look, and at the one before.
        self._is_away = self._was_away = False

    @property
    def is_up_to_date(self) -> bool:
        """Whether all entries were read, and all that were overdue then were processed. New entries may be pending."""
        return self._reading is None and not self._overdue

    # -- the time

    def seconds_until_next(self) -> float | None:
        """Return the seconds until the next entry is ready; None if there is none."""
        next_ms = 0 if self._reading is not None else self._agenda.next_ms
        return self._attendance.clock.seconds_until(next_ms) if next_ms else next_ms

    # -- reading

    def look(self) -> None:
        """Give a sign of life. If changes were missed, start to read all entries again."""
        if self._known.look() and self._reading is None:
            self.begin_reading()
        if self._was_away and not self._is_away:
            logger.info("The periodic tasks of all Redis nodes are planned again")
        self._was_away, self._is_away = self._is_away, False

    def begin_reading(self) -> None:
        """Start to read all entries and, if our configuration counts, to write its entries. `run_due` continues it."""
        self._reading = self._known.reading()
        self._read_on()

    def read(self) -> None:
        """Read all entries and, if our configuration counts, write its entries."""
        self.begin_reading()
        while self._reading is not None:
            self._read_on()

    def _read_on(self) -> None:
        if self._reading is not None and next(self._reading, self) is self:
            self._reading = None

    def _on_read(self, entry: Entry) -> None:
        state, now_ms, moves_on_ms = entry.state, self._attendance.now_ms(), entry.moves_on_ms
        if not entry.seen.is_known:
            self._leave(entry)
            return
        if moves_on_ms is not None and moves_on_ms <= now_ms and self._reading is not None:
            self._overdue.add(entry.name)
        if entry.record.queue is not None and not entry.seen.raw and self._reading is None:
            # Another planner moves it just now, or was killed.
            self._agenda.wake(entry, now_ms + round(random.uniform(*_ASIDE_MS)))
        elif entry.strays or state is None or state.fingerprint != entry.record.fingerprint:
            self._agenda.wake_now(entry, now_ms)
        elif state.at_ms is None or entry.is_idle:
            try:
                move = next_transition(entry, state, now_ms, policy=self._policy(entry.definition))
            except Exception as exc:  # a schedule may raise anything
                self._fail(entry, exc)
            else:
                self._agenda.wake(entry, now_ms if move else None)
        else:
            self._agenda.wake(entry, self._turn_ms(entry))

    def _turn_ms(self, entry: Entry) -> int | None:
        """Return when to look at an entry: at its time, or a grace period later if another planner planned it."""
        state, moves_on_ms = entry.state, entry.moves_on_ms
        if state is None or state.at_ms is None or moves_on_ms is None or state.planner == self.id:
            return moves_on_ms
        interval_ms = state.at_ms - state.last_ms if state.last_ms is not None else _GRACE_MS[1]
        return moves_on_ms + round(min(random.uniform(*_GRACE_MS), max(0, interval_ms) * _GRACE_OF_INTERVAL))

    # -- processing

    def run_due(self) -> int:
        """Process at most one batch of ready entries, and continue a running read.

        Returns the number of processed entries; 0 if there is nothing more to do now.
        """
        names = self._agenda.pick(self._attendance.now_ms(), _BATCH)
        if names:
            self._go_on(names)
            self._overdue.difference_update(names)
        if self._reading is None:
            self._overdue &= self.entries.keys()
            return len(names)
        self._read_on()
        return len(names) + 1

    def _go_on(self, names: Sequence[str]) -> None:
        self._read_others(names)
        names = self._untouched(names)
        if not names:
            return
        # Give it at once if entries must be added: only a configuration that counts may add entries.
        self._attendance.give_sign(at_once=not all(self.entries[name].is_stored for name in names))
        self._known.refresh_placed([name for name in names if self.entries[name].record.queue is None])
        names = self._untouched(names)
        now_ms = self._attendance.now_ms()
        waiting = self._still_waiting(names, now_ms)
        steps = [
            step
            for name in self._untouched(names)
            if (entry := self.entries.get(name)) is not None
            and (step := self._decide(entry, now_ms, still_waits=name in waiting)) is not None
        ]
        self._take(self._settle(steps))

    def _untouched(self, names: Sequence[str]) -> list[str]:
        """Return the entries that still need processing now, and that no other planner has processed."""
        return [name for name in names if (entry := self.entries.get(name)) is not None and entry.wake_ms is None]

    def _read_others(self, names: Iterable[str]) -> None:
        """Read the states of entries that another planner should have planned."""
        stale = [
            (name, entry.record.queue)
            for name in names
            if (
                not (entry := self.entries[name]).seen.is_known
                or (entry.state is not None and entry.state.planner != self.id)
            )
            and entry.record.queue is not None
        ]
        for (name, _), seen in zip(stale, self._store.seen(stale, partly=True), strict=True):
            self._known.on_state(name, seen)

    def _still_waiting(self, names: Iterable[str], now_ms: int) -> set[str]:
        """Return the entries whose messages were due before planners came, but were not transferred yet."""
        overdue = [
            (name, entry.state.task_id, entry.record.queue)
            for name in names
            if (entry := self.entries.get(name)) is not None
            and entry.state is not None
            and entry.record.queue is not None
            and entry.state.task_id
            and entry.state.at_ms is not None
            and entry.state.at_ms <= missed_until(now_ms, self._attendance.attended_ms(entry.record))
        ]
        found = self._store.waiting([(task_id, queue) for _, task_id, queue in overdue])
        for (name, _, _), waits in zip(overdue, found, strict=True):
            if waits is None:
                self._leave(self.entries[name])
        return {name for (name, _, _), waits in zip(overdue, found, strict=True) if waits}

    def _decide(self, entry: Entry, now_ms: int, *, still_waits: bool = False, gone: bool = False) -> Step | None:
        """Return the next step of an entry; None if there is nothing to do, or if it was done at once."""
        try:
            if entry.strays and not self._known.gather(entry):
                return None
        except NodeLost:
            self._leave(entry)
            return None
        except (ResponseError, NotReplicated) as exc:
            self._fail(entry, exc)
            return None
        try:
            policy, delay_ms = self._policy(entry.definition), entry.delay_ms
            attended_ms = self._attendance.attended_ms(entry.record)
            move = next_transition(
                entry,
                entry.state,
                now_ms - delay_ms,
                policy=policy,
                attended_ms=attended_ms - delay_ms,
                still_waits=still_waits,
                gone=gone,
            )
            if move is None and entry.state is not None and not entry.seen.raw:
                # It has ended, or is idle, and has left another queue.
                move = Transition(None, last_ms=entry.state.last_ms, runs=entry.state.runs)
            if move is None:
                self._forget_error(entry)
                turn_ms = self._turn_ms(entry) or 0
                self._agenda.wake(entry, turn_ms if turn_ms > now_ms else None)
                return None
            message, queue = None, entry.record.queue
            if move.send_ms is not None or queue is None:
                # A lazy entry without a queue: build a message to learn its queue.
                at_ms = now_ms if move.send_ms is None else move.send_ms
                message = self._build(entry.definition, at_ms, policy.max_lateness_s)
                queue = message.queue if message is not None else queue
            missed = 0
            if entry.state is not None and self._on_missed is not None:
                missed = left_out(entry, entry.state, move, now_ms)
        except OperationalError as exc:
            if isinstance(exc.__cause__, LOST):  # its queue could not be declared
                self._leave(entry)
            else:
                self._fail(entry, exc)
            return None
        except Exception as exc:  # a task, a router or a signal receiver may raise anything
            self._fail(entry, exc)
            return None
        if queue is None:
            self._fail(entry, CannotSend("its task sends no message, so there is no queue to plan it in"))
            return None
        return self._step(entry, move, queue, None if move.send_ms is None else message, missed)

    def _step(self, entry: Entry, move: Transition, queue: str, message: Message | None, missed: int) -> Step:
        ahead = move.send_ms is not None and move.send_ms == move.at_ms
        if message is not None and ahead and not message.can_wait:
            message = None  # it is built again when it is due
        task_id = message.task_id if message is not None and ahead else ""
        state = State(entry.record.fingerprint, self.id, move.at_ms, task_id, move.last_ms, move.runs, move.made_up)
        if_held = b""
        if message is not None and message.claim is not None and entry.state is not None:
            before = entry.state
            if_held = replace(state, at_ms=move.next_ms, last_ms=before.last_ms, runs=before.runs).dump()
        must_wait = bool(move.withdraw)
        return Step(entry.name, queue, entry.seen, state.dump(), move.withdraw, must_wait, message, if_held, missed)

    def _settle(self, steps: list[Step]) -> list[Step]:
        """Record the queues of entries that are new or have moved. Return the steps that can be taken."""
        moved = {step.entry: step.queue for step in steps if step.queue != self.entries[step.entry].record.queue}
        queues: dict[str, str] = {}
        for name, queue in moved.items():
            entry = self.entries[name]
            if entry.record.queue is None or self._attendance.counts or entry.record.app is None:
                queues[name] = queue
            else:
                self._agenda.wake(entry, self._attendance.now_ms() + _RETRY_MS[1])
        written, refused = self._known.write_queues(queues) if queues else (set(), {})
        for name, error in refused.items():
            self._fail(self.entries[name], error)
        settled = []
        for step in steps:
            if step.entry not in moved:
                settled.append(step)
            elif step.entry in written:
                entry = self.entries[step.entry]
                if not entry.strays and not entry.seen.raw:
                    settled.append(replace(step, seen=entry.seen))
                else:
                    self._known.read_state(entry)
                    self._agenda.wake_now(entry, self._attendance.now_ms())
        return settled

    def _take(self, steps: list[Step]) -> None:
        sent = time.monotonic()
        replies = self._store.plan(steps)
        again: list[Step] = []
        changed: list[str] = []
        for step, done in zip(steps, replies, strict=True):
            entry = self.entries.get(step.entry)
            if entry is None:
                continue
            if isinstance(done, NodeLost):
                self._leave(entry)
            elif isinstance(done, RedisError):
                if isinstance(done, (ReadOnlyError, ConnectionError)):
                    raise ReadOnlyError(str(done))
                self._fail(entry, done)
            elif done.outcome in (scripts.DONE, scripts.LEFT_OUT):
                self._on_planned(entry, step, done)
            elif done.outcome == scripts.GONE:
                # By the server's clock it is due, or somebody cancelled it.
                retry = self._decide(entry, done.now_ms, gone=True)
                if retry is not None:
                    again.append(retry)
            else:
                changed.append(step.entry)
        if len(replies) == 1 and isinstance(replies[0], scripts.Planned):
            self._attendance.clock.observe(replies[0].now_ms * 1000, sent, time.monotonic())
        if changed:
            self._known.refresh(changed)
        if again:
            self._take(self._settle(again))

    def _on_planned(self, entry: Entry, step: Step, done: scripts.Planned) -> None:
        if step.missed and self._on_missed is not None:
            self._on_missed(step.queue, entry.name, step.missed)
        runs = entry.state.runs if entry.state is not None else 0
        entry.seen = Seen(done.state, done.forgotten)
        self._known.parse_state(entry)
        self._forget_error(entry)
        if done.outcome == scripts.LEFT_OUT:
            logger.debug("Another task holds the unique key of periodic task %r: a run is left out", entry.name)
        elif entry.state is not None and entry.state.runs > runs:
            self._on_sent(entry.definition)
        self._agenda.wake(entry, self._turn_ms(entry))

    # -- errors

    def _leave(self, entry: Entry) -> None:
        """Leave an entry for a moment: its node is away. A step that was sent may have been taken, or not."""
        if not self._is_away and not self._was_away:
            logger.warning("A Redis node does not answer: its periodic tasks are planned when it is back")
        self._is_away = True
        self._agenda.wake(entry, self._attendance.now_ms() + round(random.uniform(*_AWAY_MS)))

    def _forget_error(self, entry: Entry) -> None:
        entry.failures = 0
        self._problems.note(entry.name, None)

    def _fail(self, entry: Entry, error: Exception) -> None:
        self._problems.note(entry.name, told(error), error)
        self._agenda.wake(entry, self._attendance.now_ms() + min(_RETRY_MS[0] * 2**entry.failures, _RETRY_MS[1]))
        if not isinstance(error, NotReplicated):  # it rests until a replica is back, which may be soon
            entry.failures = min(entry.failures + 1, 10)
