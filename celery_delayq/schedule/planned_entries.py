"""PlannedEntries: what a planner knows about the periodic entries, and how it learns of changes.

Which definition counts
    Entries that were added at run time are in Redis, and the same for all planners. Entries of the configuration come
    from each planner's own configuration; during a deploy, these differ. Then the newest configuration counts: the one
    that was first seen last (announce.lua). Its planners write the records, and remove records of entries that it no
    longer has. Other planners touch an entry only if its record has the fingerprint of their own definition.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from logging import getLogger
from sys import intern
from typing import Any

from redis.exceptions import ReadOnlyError, ResponseError

from celery_delayq.errors import InvalidSchedule
from celery_delayq.queue.connections import refusals
from celery_delayq.schedule.attendance import Attendance
from celery_delayq.schedule.configured import Configured
from celery_delayq.schedule.entry import Definition, why_invalid
from celery_delayq.schedule.planned_entry import NEVER_SEEN, PlannedEntry
from celery_delayq.schedule.records import Record, Seen, State
from celery_delayq.schedule.store import NodeLost, ScheduleStore

logger = getLogger(__name__)

#: Maximum number of entries that are added, or read again, at once.
_PAGE = 1000


class PlannedEntries:
    """The entries that a planner may plan. For one thread at a time. Every method may raise `redis.RedisError`.

    Args:
        store: store of the schedule.
        attendance: attendance of this planner.
        configured: entries in the configuration of this process.
        parse: builds a definition from a name and the data of a record; raises InvalidSchedule.
        on_read: called with the name and the `PlannedEntry` of an entry when its state was read.
        is_back: whether this process had a planner before, which has logged the errors that are stored.
    """

    def __init__(
        self,
        store: ScheduleStore,
        attendance: Attendance,
        configured: Configured,
        parse: Callable[[str, Mapping[str, Any]], Definition],
        on_read: Callable[[str, PlannedEntry], None],
        *,
        is_back: bool = False,
    ) -> None:
        self.entries: dict[str, PlannedEntry] = {}
        #: Whether the configuration of this process counted at the last complete read.
        self._counted = True
        self._store = store
        self._attendance = attendance
        self._configured = configured
        self._parse = parse
        self._on_read = on_read
        #: Number of the last known change, and of the last change at the previous look.
        self._changes = self._to_hear_of = 0
        #: Numbers of later changes that this planner made itself.
        self._own_changes: set[int] = set()
        #: Whether a planner with another configuration changed or removed an entry of this one.
        self._overruled = False
        #: Whether a node was away when something was read or forgotten there.
        self._has_gaps = False
        #: Name -> error, as stored, and as logged by this process.
        self._errors: dict[str, str] = {}
        self._logged: dict[str, str] | None = None if is_back else {}

    def look(self) -> bool:
        """Give a sign of life. Returns whether all entries must be read again, because changes were missed.

        A change counts as missed only at the second look, because its notification may still be on its way.
        """
        self._attendance.announce()
        counts = self._attendance.counts
        missed = self._changes < self._to_hear_of or (counts and self._overruled) or self._has_gaps
        self._to_hear_of = self._store.changes()
        return counts != self._counted or missed or self._to_hear_of < self._changes

    # -- reading everything

    def reading(self) -> Iterator[None]:
        """Read all entries in parts. If our configuration counts, also write its changed entries.

        Old knowledge about an entry stays until the entry has been read again.
        """
        self._attendance.announce()
        self._counted, self._has_gaps = self._attendance.counts, False
        # In this order: a state that is not seen was not there when the record was valid, see plan.lua.
        states = yield from self._read_states()
        self._changes = self._store.changes()
        self._own_changes.clear()
        self._errors = self._read_errors()
        if self._logged is None:
            self._logged = dict(self._errors)
        self._overruled = False
        found: set[str] = set()
        for page in self._store.pages():
            self._take_in({name: self._known(name, record) for name, record in self._up_to_date(page).items()}, states)
            found.update(page)
            yield
        yield from self._take_in_new(found, states)
        # They were removed, or added during the read.
        self.refresh([name for name, planned in self.entries.items() if planned.is_stored and name not in found])
        self._remove_strays(states, found)
        for name, error in self._configured.errors.items():
            self.note_error(name, error)
        for name in self._errors.keys() - found - self.entries.keys() - self._configured.errors.keys():
            self.note_error(name, None)

    def _read_states(self) -> Generator[None, None, dict[str, dict[str, Seen]]]:
        states: dict[str, dict[str, Seen]] = {}
        for queue in self._store.queues():
            found: dict[str, Seen] = {}
            try:
                for page in self._store.states(queue):
                    found.update(page)
                    yield
                states[queue] = found
            except NodeLost as exc:
                self._miss(queue, exc)
            except ReadOnlyError:
                raise
            except ResponseError as exc:  # the server refuses that queue; its entries will show the error
                logger.error("Cannot read the periodic tasks of queue %r: %s", queue, exc)
        return states

    def _miss(self, queue: str, error: NodeLost) -> None:
        """Read everything again at the next look: the node of a queue is away."""
        logger.debug("Cannot read or write the periodic tasks of queue %r: %s", queue, error)
        self._has_gaps = True

    def _read_errors(self) -> dict[str, str]:
        try:
            return self._store.errors()
        except ResponseError as exc:
            logger.error("Cannot read the errors of periodic tasks: %s", exc)
            return {}

    def _up_to_date(self, page: dict[str, bytes]) -> dict[str, Record]:
        """Return the records of a page. If our configuration counts, first write its changed records.

        Removed entries are taken out of the page.
        """
        records: dict[str, Record] = {}
        changes: list[tuple[str, bytes, Record | None]] = []
        for name, raw in page.items():
            record = self._record_of(name, raw)
            if record is not None:
                records[name] = record
            else:
                self.entries.pop(name, None)
            if self._attendance.counts:
                changed = self._configured_record(name, record)
                if changed != record:
                    changes.append((name, raw, changed))
        for (name, _, record), reply in zip(changes, self._store.write_records(changes), strict=True):
            if isinstance(reply, ResponseError):
                self.note_error(name, str(reply), reply)
                continue
            records.pop(name, None)
            if not reply:
                self.refresh([name])
                continue
            self._on_written(reply)
            if record is not None:
                records[name] = record
            else:
                del page[name]
                self.entries.pop(name, None)
        return records

    def _configured_record(self, name: str, record: Record | None) -> Record | None:
        """Return the record that an entry should have by the configuration."""
        definition = self._configured.entries.get(name)
        if definition is None:
            removed = record is not None and record.app == self._configured.app
            return None if removed and name not in self._configured.errors else record
        if record is None:
            return self._new_record(definition, self._attendance.now_ms())
        if record.app != self._configured.app:
            owner = f"defined by app {record.app!r}" if record.app is not None else "added at run time"
            self.note_error(
                name,
                f"an entry of this name was {owner}: the entry in this configuration does not run. Rename one of them",
            )
        elif record.fingerprint != definition.fingerprint:
            fresh = self._new_record(definition, record.since_ms)
            return replace(fresh, queue=record.queue, earlier=record.earlier, paused=record.paused)
        return record

    def _new_record(self, definition: Definition, since_ms: int) -> Record:
        data = definition.data() or {"task": definition.task, "text": definition.shown}
        return Record(definition.fingerprint, since_ms, data, app=self._configured.app)

    def _take_in_new(self, found: Collection[str], states: Mapping[str, Mapping[str, Seen]]) -> Iterator[None]:
        """Add the entries of the configuration that are not recorded yet."""
        now_ms = self._attendance.now_ms()
        names = [name for name in self._configured.entries if name not in found]
        for start in range(0, len(names), _PAGE):
            fresh: dict[str, PlannedEntry | None] = {}
            for name in names[start : start + _PAGE]:
                planned = self.entries.get(name)
                if not self._attendance.counts:
                    fresh[name] = None
                elif planned is None or planned.is_stored:
                    fresh[name] = self._fresh(self._configured.entries[name], now_ms)
            self._take_in(fresh, states)
            yield

    def _fresh(self, definition: Definition, since_ms: int) -> PlannedEntry:
        record = Record(definition.fingerprint, since_ms, None, app=self._configured.app)
        return PlannedEntry(definition, record, is_stored=False, error=self._errors.get(definition.name))

    def _record_of(self, name: str, raw: bytes) -> Record | None:
        try:
            return Record.parse(raw)
        except ValueError as exc:
            self.note_error(name, str(exc))
            return None

    def _known(self, name: str, record: Record | None) -> PlannedEntry | None:
        """Return the entry if this planner may plan it, otherwise None."""
        if record is None:
            return None
        if record.app is None:
            try:
                definition = self._parse(name, record.definition or {})
            except InvalidSchedule as exc:
                self.note_error(name, why_invalid(exc))
                return None
        else:
            own = self._configured.entries.get(name)
            if own is None or record.app != self._configured.app:
                return None
            if record.fingerprint != own.fingerprint:
                self._overruled = True
                return None
            definition = own
        return PlannedEntry(definition, self._lean(record), error=self._errors.get(name))

    def _lean(self, record: Record) -> Record:
        """Return a record without the parts that need much memory. Equal strings are shared."""
        queue = None if record.queue is None else self._store.queue(record.queue).name
        own = record.app == self._configured.app
        app = self._configured.app if own else record.app
        return replace(record, definition=None, raw=b"", app=app, queue=queue, earlier=record.earlier or ())

    def _take_in(self, entries: Mapping[str, PlannedEntry | None], states: Mapping[str, Mapping[str, Seen]]) -> None:
        """Add entries with their records and states; forget entries that are None."""
        unclear: dict[str, set[str]] = {}
        for name, planned in entries.items():
            if planned is None:
                self.entries.pop(name, None)
                continue
            self.entries[name] = planned
            queue = planned.record.queue
            others = {other for other, found in states.items() if other != queue and name in found}
            if others or planned.record.earlier or (queue is not None and queue not in states):
                unclear[name] = others
                continue
            in_queue = states.get(queue or "", {})
            planned.seen = in_queue.get(name) or in_queue.get("", NEVER_SEEN)
            self.read_state(name, planned)
        self.refresh(list(unclear), unclear)

    def _remove_strays(self, states: Mapping[str, Mapping[str, Seen]], found: Collection[str]) -> None:
        """Forget the states of removed entries."""
        strays = [
            (name, queue, seen)
            for queue, of_queue in states.items()
            for name, seen in of_queue.items()
            if name and name not in found and name not in self.entries
        ]
        records = self._store.records_of([name for name, _, _ in strays])
        for (name, queue, seen), raw in zip(strays, records, strict=True):
            if not raw:
                self.forget(name, queue, seen)

    def forget(self, name: str, queue: str, seen: Seen) -> None:
        """Forget the state of an entry in a queue. If the server refuses, the others must still be forgotten."""
        try:
            self._store.forget(name, queue, seen)
        except NodeLost as exc:
            self._miss(queue, exc)
        except ReadOnlyError:
            raise
        except ResponseError as exc:
            logger.error("Cannot withdraw the waiting message of periodic task %r in queue %r: %s", name, queue, exc)

    # -- changes

    def on_changes(self, changes: Iterable[tuple[int, str]]) -> None:
        """Process announced changes, given by numbers and names. `look` detects gaps in the numbers."""
        news = []
        for number, name in changes:
            if number > self._changes and number not in self._own_changes:
                news.append(name)
                if number == self._changes + 1:
                    self._go_on_from(number)
        self.refresh(list(dict.fromkeys(news)))

    def _on_written(self, number: int) -> None:
        """Note a change that this planner made itself."""
        if number == self._changes + 1:
            self._go_on_from(number)
        else:
            self._own_changes.add(number)

    def _go_on_from(self, number: int) -> None:
        while number + 1 in self._own_changes:
            number += 1
            self._own_changes.discard(number)
        self._changes = number

    def refresh_placed(self, names: Sequence[str]) -> dict[str, tuple[bytes, Record]]:
        """Read entries again that others have recorded, or given a queue, in the meantime.

        Args:
            names: names of entries that have no queue yet.

        Returns the records of the other entries, as stored and parsed.
        """
        unchanged: dict[str, tuple[bytes, Record]] = {}
        changed = []
        for name, raw in zip(names, self._store.records_of(names), strict=True):
            planned = self.entries[name]
            record = self._as_known(planned, raw)
            if not planned.is_stored and not self._attendance.counts:
                del self.entries[name]
            elif record is None:
                changed.append(name)
            else:
                unchanged[name] = raw, record
        self.refresh(changed)
        return unchanged

    def refresh(self, names: Sequence[str], also: Mapping[str, Collection[str]] | None = None) -> None:
        """Read entries again.

        Args:
            names: names of the entries.
            also: for each entry, queues that may hold a state of it, in addition to those in its record.
        """
        for start in range(0, len(names), _PAGE):
            self._refresh(names[start : start + _PAGE], also or {})

    def _refresh(self, names: Sequence[str], also: Mapping[str, Collection[str]]) -> None:
        before = {name: self.entries.pop(name, None) for name in names}
        raws = dict(zip(names, self._store.records_of(names), strict=True))
        while raws:
            found = {name: self._read_anew(name, raw, before[name]) for name, raw in raws.items()}
            # Read its own queue last: if it was in two queues in the meantime, it moved to this one.
            queues = {name: planned.queues(also.get(name, ())) if planned else [] for name, planned in found.items()}
            seen = iter(self._store.seen([(name, queue) for name in raws for queue in queues[name]], partly=True))
            of_entry = {name: [next(seen) for _ in queues[name]] for name in raws}
            # In this order: a state that is not seen was not there when the record was valid, see plan.lua.
            again = dict(zip(raws, self._store.records_of(list(raws)), strict=True))
            for name, planned in found.items():
                if again[name] == raws[name]:
                    self._on_refreshed(name, planned, queues[name], of_entry[name], before[name], raws[name])
            raws = {name: raw for name, raw in again.items() if raw != raws[name]}

    def _read_anew(self, name: str, raw: bytes, before: PlannedEntry | None) -> PlannedEntry | None:
        if raw:
            return self._known(name, self._record_of(name, raw))
        if before is not None and not before.is_stored and self._attendance.counts:
            return self._fresh(before.definition, before.record.since_ms)
        return None

    def _on_refreshed(
        self,
        name: str,
        planned: PlannedEntry | None,
        queues: Sequence[str],
        seen: list[Seen],
        before: PlannedEntry | None,
        raw: bytes,
    ) -> None:
        if planned is not None:
            if planned.record.queue is not None:
                planned.seen = seen.pop()
            planned.strays = list(zip(queues, seen, strict=False))
            self.entries[name] = planned
            self.read_state(name, planned)
        elif not raw:
            self._overruled = self._overruled or name in self._configured.entries
            self.note_error(name, None)
            queues = before.record.queues if before else []
            states = self._store.seen([(name, queue) for queue in queues], partly=True)
            for queue, found in zip(queues, states, strict=True):
                self.forget(name, queue, found)

    def on_state(self, name: str, seen: Seen) -> None:
        """Process the state of an entry in its queue; another planner may have changed it."""
        planned = self.entries.get(name)
        if planned is not None and (seen.raw != planned.seen.raw or not planned.seen.is_known):
            planned.seen = seen
            self.read_state(name, planned)
            if seen.is_known and (
                planned.state is None or planned.state.parked
            ):  # it may have moved to another queue before
                self.refresh([name])

    def read_state(self, name: str, planned: PlannedEntry) -> None:
        """Process the state of an entry, as it was read."""
        try:
            planned.state = State.parse(planned.seen.raw) if planned.seen.raw else None
        except ValueError as exc:
            logger.error("Cannot parse the state of periodic task %r, planning it again: %s", name, exc)
            planned.state = None
        if planned.state is not None:
            planned.state = self._lean_state(planned.state, planned.record)
        self._on_read(name, planned)

    @staticmethod
    def _lean_state(state: State, record: Record) -> State:
        """Return a state that shares equal strings."""
        same = state.fingerprint == record.fingerprint
        fingerprint = record.fingerprint if same else state.fingerprint
        return replace(state, planner=intern(state.planner), fingerprint=fingerprint)

    def write_queues(
        self, queues: Mapping[str, str], records: Mapping[str, tuple[bytes, Record]]
    ) -> tuple[set[str], dict[str, ResponseError]]:
        """Record the queues of entries. A state in a former queue becomes a stray.

        Args:
            queues: the queue of each entry.
            records: the result of `refresh_placed`.

        Returns the entries that were written, and those that the server refused. All others have changed, and are read
        again.
        """
        names = list(queues)
        # In this order: a state that is not seen was not there when the record was valid, see plan.lua.
        seen = self._store.seen([(name, queues[name]) for name in names], partly=True)
        states = dict(zip(names, seen, strict=True))
        unread = [name for name in names if name not in records]
        raws = dict(zip(unread, self._store.records_of(unread), strict=True))
        changes = []
        for name in names:
            planned = self.entries[name]
            raw, record = records.get(name) or (raws[name], self._as_known(planned, raws[name]))
            if record is not None:
                whole = record if planned.is_stored else self._new_record(planned.definition, record.since_ms)
                changes.append((name, raw, whole.to(queues[name])))
        written: set[str] = set()
        refused = {}
        for (name, _, record), reply in zip(changes, self._store.write_records(changes), strict=True):
            if isinstance(reply, ResponseError):
                refused[name] = reply
            elif reply:
                self._on_written(reply)
                planned = self.entries[name]
                planned.record, planned.is_stored, planned.seen = self._lean(record), True, states[name]
                written.add(name)
        self.refresh([name for name in names if name not in written and name not in refused])
        return written, refused

    def _as_known(self, planned: PlannedEntry, raw: bytes) -> Record | None:
        """Return the record of an entry, or None if it has changed."""
        if not planned.is_stored:
            return None if raw else planned.record
        try:
            record = Record.parse(raw)
        except ValueError:
            return None
        return record if self._lean(record) == planned.record else None

    # -- errors

    def note_error(self, name: str, error: str | None, cause: object = None) -> None:
        """Store an error for `delayq.schedule`. Each process logs it once, also if it is stored already.

        Args:
            name: of the entry.
            error: what to show; None if all is well again.
            cause: the exception, if the server refuses something for now: that is said once for all entries.
        """
        logged = {} if self._logged is None else self._logged
        if error is None:
            logged.pop(name, None)
        elif logged.get(name) != error and not refusals.note(cause, logger):
            logger.error("Cannot plan periodic task %r: %s", name, error)
            logged[name] = error
        if self._errors.get(name) == error:
            return
        # If the server is out of memory, entries that are already planned must still run. The error is stored later.
        with suppress(ResponseError):
            self._store.set_error(name, error)
            if error is None:
                del self._errors[name]
            else:
                self._errors[name] = error
