"""Roster: what a planner knows about the periodic entries, and how it learns of changes.

Which definition counts
    Entries that were added at run time are in Redis, and the same for all. Those of the configuration are known to each
    planner from its own; while a deploy is under way, they differ. The configuration that was seen last for the first
    time counts (announce.lua): its planners write the records, and remove those of entries that it has no more. Another
    planner leaves an entry alone unless the record has the fingerprint of its own definition.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from logging import getLogger
from typing import Any

from redis.exceptions import ReadOnlyError, ResponseError

from celery_delayq.clock import ServerClock
from celery_delayq.errors import DelayqError
from celery_delayq.schedule.configured import Configured
from celery_delayq.schedule.entry import Definition
from celery_delayq.schedule.records import Record, Seen, State
from celery_delayq.schedule.store import ScheduleStore

logger = getLogger(__name__)

#: A configuration whose planners were silent for so long counts no more, in seconds.
CONFIGURATION_LIFETIME_S = 30.0


@dataclass(slots=True)
class Known:
    """What a planner knows about an entry.

    Attributes:
        definition: what it is.
        record: as stored, but without the definition, of which there may be very many.
        seen: its state in the queue of the record, as it was read.
        state: what that says; None if there is none.
        strays: states of it in other queues.
        parked: those that were taken out of there, until it is planned in its queue.
        wake_ms: when to look at it, unix time in ms by the server's clock; None if nothing is to come.
        error: why it could not be planned.
        failures: how often it could not be planned in a row.
    """

    definition: Definition
    record: Record
    seen: Seen = field(default_factory=Seen)
    state: State | None = None
    strays: list[tuple[str, Seen]] = field(default_factory=list)
    parked: list[tuple[str, Seen]] = field(default_factory=list)
    wake_ms: int | None = None
    error: str | None = None
    failures: int = 0


class Roster:
    """The entries that a planner may plan; for one thread at a time. Every method may raise `redis.RedisError`.

    Args:
        store: where the schedule is.
        configured: what the configuration of this process says.
        parse: makes a definition of a name and the data of a record; raises InvalidSchedule.
        on_read: called with a name and what is known when the state of an entry was read.
    """

    def __init__(
        self,
        store: ScheduleStore,
        configured: Configured,
        parse: Callable[[str, Mapping[str, Any]], Definition],
        on_read: Callable[[str, Known], None],
    ) -> None:
        self.entries: dict[str, Known] = {}
        self.clock = ServerClock()
        #: Whether the configuration of this process counts.
        self.counts = True
        self._store = store
        self._configured = configured
        self._parse = parse
        self._on_read = on_read
        #: The number of the last change that is known, and of the last that there was at the last look.
        self._changes = self._to_hear_of = 0
        #: Whether an entry of this configuration was changed or removed by a planner with another one.
        self._overruled = False
        self._errors: dict[str, str] = {}

    def now_ms(self) -> int:
        """Return the server's time, unix time in ms."""
        return int(-self.clock.seconds_until(0) * 1000)

    def look(self) -> bool:
        """Say that this planner lives. Returns whether everything is to be read again, since changes were missed.

        A change counts as missed only at the look after the next: its notification may be on its way.
        """
        counted = self.counts
        self._announce()
        missed = self._changes < self._to_hear_of or (self.counts and self._overruled)
        self._to_hear_of = self._store.changes()
        return self.counts != counted or missed or self._to_hear_of < self._changes

    def _announce(self) -> None:
        sent = time.monotonic()
        counts, now_ms = self._store.announce(
            self._configured.app, self._configured.fingerprint, CONFIGURATION_LIFETIME_S
        )
        self.clock.observe(now_ms * 1000, sent, time.monotonic())
        counted, self.counts = self.counts, counts == self._configured.fingerprint
        if counted and not self.counts:
            logger.warning(
                "The periodic tasks in the configuration of app %r differ from those of another worker that was "
                "deployed later: its configuration counts, and only what is the same in both is planned here.",
                self._configured.app,
            )

    def read(self) -> None:
        """Read all entries, and write those of the configuration, if it counts."""
        self._announce()
        # In this order: a state that is not seen was not there when the record was valid, see plan.lua.
        states = self._read_states()
        records, self._changes = self._store.records()
        self._errors = self._read_errors()
        self._overruled = False
        if self.counts and self._write_configured(records):
            records, self._changes = self._store.records()
        self.entries.clear()
        for name, raw in records.items():
            known = self._known(name, raw)
            if known is not None:
                self.entries[name] = known
                self._place(name, known, states)
        self._remove_strays(states, records)
        for name, error in self._configured.errors.items():
            self.note_error(name, error)
        for name in self._errors.keys() - records.keys() - self._configured.errors.keys():
            self.note_error(name, None)

    def _read_states(self) -> dict[str, dict[str, Seen]]:
        states = {}
        for queue in self._store.queues():
            try:
                states[queue] = self._store.states(queue)
            except ReadOnlyError:
                raise
            except ResponseError as exc:  # the server refuses that queue; its entries will say so
                logger.error("Cannot read the periodic tasks of queue %r: %s", queue, exc)
        return states

    def _read_errors(self) -> dict[str, str]:
        try:
            return self._store.errors()
        except ResponseError as exc:
            logger.error("Cannot read the errors of periodic tasks: %s", exc)
            return {}

    def _write_configured(self, records: Mapping[str, bytes]) -> bool:
        changes: list[tuple[str, bytes, Record | None]] = []
        now_ms = self.now_ms()
        for name, definition in self._configured.entries.items():
            raw = records.get(name, b"")
            record = self._record_of(name, raw) if raw else None
            if record is None:
                changes.append((name, raw, self._new_record(definition, now_ms)))
            elif record.app != self._configured.app:
                owner = f"app {record.app!r} has" if record.app is not None else "at run time was added"
                self.note_error(name, f"{owner} an entry of that name; that of the configuration does not run")
            elif record.fingerprint != definition.fingerprint:
                fresh = self._new_record(definition, record.since_ms)
                changes.append(
                    (name, raw, replace(fresh, queue=record.queue, earlier=record.earlier, paused=record.paused))
                )
        for name, raw in records.items():
            if name not in self._configured.entries and name not in self._configured.errors:
                record = self._record_of(name, raw)
                if record is not None and record.app == self._configured.app:
                    changes.append((name, raw, None))
        replies = self._store.write_records(changes)
        for (name, _, _), reply in zip(changes, replies, strict=True):
            if isinstance(reply, ResponseError):
                self.note_error(name, str(reply))
        return bool(changes)

    def _new_record(self, definition: Definition, since_ms: int) -> Record:
        data = definition.data() or {"task": definition.task, "text": repr(definition.schedule)}
        return Record(definition.fingerprint, since_ms, data, app=self._configured.app)

    def _record_of(self, name: str, raw: bytes) -> Record | None:
        try:
            return Record.parse(raw)
        except ValueError as exc:
            self.note_error(name, str(exc))
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
                self.note_error(name, str(exc.__cause__ or exc))
                return None
        else:
            own = self._configured.entries.get(name)
            if own is None or record.app != self._configured.app:
                return None
            if record.fingerprint != own.fingerprint:
                self._overruled = True
                return None
            definition = own
        return Known(definition, replace(record, definition=None), error=self._errors.get(name))

    def _place(self, name: str, known: Known, states: Mapping[str, Mapping[str, Seen]]) -> None:
        queue = known.record.queue
        others = {other for other, found in states.items() if other != queue and name in found}
        if others or known.record.earlier or (queue is not None and queue not in states):
            self.refresh(name, others)
            return
        in_queue = states.get(queue or "", {})
        known.seen = in_queue.get(name) or Seen(b"", in_queue[""].forgotten if "" in in_queue else b"0")
        self.read_state(name, known)

    def _remove_strays(self, states: Mapping[str, Mapping[str, Seen]], records: Mapping[str, bytes]) -> None:
        """Forget the states of entries that were removed."""
        for queue, found in states.items():
            for name, seen in found.items():
                if name and name not in records:
                    self.forget(name, queue, seen)

    def forget(self, name: str, queue: str, seen: Seen) -> None:
        """Forget the state of an entry in a queue; one that the server refuses must not stop the others."""
        try:
            self._store.forget(name, queue, seen)
        except ReadOnlyError:
            raise
        except ResponseError as exc:
            logger.error("Cannot withdraw what waits of periodic task %r in queue %r: %s", name, queue, exc)

    def on_change(self, number: int, name: str) -> None:
        """Take notice of the change of an entry, by its number; a gap in the numbers is what `look` finds."""
        if number <= self._changes:
            return
        if number == self._changes + 1:
            self._changes = number
        self.refresh(name)

    def refresh(self, name: str, also: Collection[str] = ()) -> None:
        """Read an entry again.

        Args:
            name: of the entry.
            also: queues in which it may have a state besides those that its record names.
        """
        before = self.entries.pop(name, None)
        raw = self._store.record(name)
        while True:
            known = self._known(name, raw) if raw else None
            own = known.record.queue if known else None
            others = sorted({*known.record.earlier, *also} - {own}) if known else []
            # Its own queue last: if it has been in two of them meanwhile, that is where it went.
            queues = others if own is None else [*others, own]
            seen = self._store.seen([(name, queue) for queue in queues])
            # In this order: a state that is not seen was not there when the record was valid, see plan.lua.
            again = self._store.record(name)
            if again == raw:
                break
            raw = again
        if known is not None:
            if own is not None:
                known.seen = seen.pop()
            known.strays = list(zip(others, seen, strict=True))
            self.entries[name] = known
            self.read_state(name, known)
        elif not raw:
            self._overruled = self._overruled or name in self._configured.entries
            self.note_error(name, None)
            queues = before.record.queues if before else []
            for queue, found in zip(queues, self._store.seen([(name, queue) for queue in queues]), strict=True):
                self.forget(name, queue, found)

    def on_state(self, name: str, seen: Seen) -> None:
        """Take notice of the state of an entry in its queue, which another planner may have changed."""
        known = self.entries.get(name)
        if known is not None and seen.raw != known.seen.raw:
            known.seen = seen
            self.read_state(name, known)
            if known.state is None or known.state.parked:  # it may have gone to another queue before
                self.refresh(name)

    def read_state(self, name: str, known: Known) -> None:
        """Take notice of the state of an entry, as it was seen."""
        try:
            known.state = State.parse(known.seen.raw) if known.seen.raw else None
        except ValueError as exc:
            logger.error("The state of periodic task %r cannot be read, it is planned anew: %s", name, exc)
            known.state = None
        self._on_read(name, known)

    def write_queues(self, queues: Mapping[str, str]) -> tuple[set[str], dict[str, ResponseError]]:
        """Write down to which queues entries go; a state in the queue before is a stray from then on.

        Returns those that were written, and those that the server refused. The others have changed, and are read again.
        """
        names = list(queues)
        # In this order: a state that is not seen was not there when the record was valid, see plan.lua.
        states = dict(zip(names, self._store.seen([(name, queues[name]) for name in names]), strict=True))
        records = [Record.parse(self.entries[name].record.raw).to(queues[name]) for name in names]
        replies = self._store.write_records(
            [(name, self.entries[name].record.raw, record) for name, record in zip(names, records, strict=True)]
        )
        written: set[str] = set()
        refused = {}
        for name, record, reply in zip(names, records, replies, strict=True):
            if isinstance(reply, ResponseError):
                refused[name] = reply
                continue
            done, number = reply
            if done:
                self._changes = number if number == self._changes + 1 else self._changes
                known = self.entries[name]
                known.record, known.seen = replace(record.stored(), definition=None), states[name]
                written.add(name)
            else:
                self.refresh(name)
        return written, refused

    def note_error(self, name: str, error: str | None) -> None:
        """Write an error down where people see it, and log it once."""
        if self._errors.get(name) == error:
            return
        if error is None:
            del self._errors[name]
        else:
            logger.error("Cannot plan periodic task %r: %s", name, error)
            self._errors[name] = error
        # A server without memory must not stop what is planned already.
        with suppress(ResponseError):
            self._store.set_error(name, error)
