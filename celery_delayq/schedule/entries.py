"""Entries: what a planner knows about the periodic entries, and how it learns of changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from logging import getLogger

from redis.exceptions import ReadOnlyError, ResponseError

from celery_delayq.schedule.attendance import Attendance
from celery_delayq.schedule.definitions import Definitions
from celery_delayq.schedule.entry import Entry
from celery_delayq.schedule.problems import Problems
from celery_delayq.schedule.records import Record, Seen, State
from celery_delayq.schedule.scripts import DONE, GONE, Step
from celery_delayq.schedule.store import NodeLost, ScheduleStore

logger = getLogger(__name__)

#: Maximum number of entries that are read at once.
_PAGE = 1000

_NOWHERE = State("", "", None)


class Entries:
    """The entries that a planner may plan. For one thread at a time. Every method may raise `redis.RedisError`.

    Args:
        store: store of the schedule.
        attendance: attendance of this planner.
        definitions: which definition of an entry counts.
        problems: where errors are noted.
        on_read: called with an entry when its state was read.
    """

    def __init__(
        self,
        store: ScheduleStore,
        attendance: Attendance,
        definitions: Definitions,
        problems: Problems,
        on_read: Callable[[Entry], None],
    ) -> None:
        self.entries: dict[str, Entry] = {}
        #: Whether the configuration of this process counted at the last complete read.
        self._counted = True
        self._store = store
        self._attendance = attendance
        self._definitions = definitions
        self._configured = definitions.configured
        self._problems = problems
        self._on_read = on_read
        #: Number of the last known change, and of the last change at the previous look.
        self._changes = self._to_hear_of = 0
        #: Numbers of later changes that this planner made itself.
        self._own_changes: set[int] = set()
        #: Whether a node was away when something was read or forgotten there.
        self._has_gaps = False

    def look(self) -> bool:
        """Give a sign of life. Returns whether all entries must be read again, because changes were missed.

        A change counts as missed only at the second look, because its notification may still be on its way.
        """
        self._attendance.announce()
        counts = self._attendance.counts
        missed = self._changes < self._to_hear_of or (counts and self._definitions.overruled) or self._has_gaps
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
        where: dict[str, set[str]] = {}
        for queue in self._store.queues():
            with self._spared("read the periodic tasks", queue):
                for names in self._store.names(queue):
                    for name in names:
                        where.setdefault(name, set()).add(queue)
                    yield
        self._changes = self._store.changes()
        self._own_changes.clear()
        self._problems.read()
        self._definitions.overruled = False
        found: set[str] = set()
        for page in self._store.pages():
            self._write_configuration(page)
            self.refresh(list(page), where)
            found.update(page)
            yield
        new = [name for name in self._configured.entries if name not in found]
        for name in new:
            if name in self.entries and self.entries[name].is_stored:  # somebody has removed its record
                del self.entries[name]
        for start in range(0, len(new), _PAGE):
            self.refresh(new[start : start + _PAGE], where)
            yield
        # They were removed, or added during the read.
        self.refresh([name for name, entry in self.entries.items() if entry.is_stored and name not in found])
        self._forget_removed({name: where[name] for name in where.keys() - found - self.entries.keys()})
        for name, error in self._configured.errors.items():
            self._problems.note(name, error)
        self._problems.forget_except(found | self.entries.keys() | self._configured.errors.keys())

    @contextmanager
    def _spared(self, what: str, queue: str) -> Iterator[None]:
        """If the node of a queue is away, read everything again at the next look. A queue that is refused is left out.

        The entries of such a queue show the error; others go on.
        """
        try:
            yield
        except NodeLost as exc:
            logger.debug("Cannot %s of queue %r: %s", what, queue, exc)
            self._has_gaps = True
        except ReadOnlyError:
            raise
        except ResponseError as exc:
            logger.error("Cannot %s of queue %r: %s", what, queue, exc)

    def _write_configuration(self, page: dict[str, bytes]) -> None:
        """If our configuration counts, write its changed records. Removed entries are taken out of the page."""
        changes: list[tuple[str, bytes, Record | None]] = []
        now_ms = self._attendance.now_ms()
        for name, raw in page.items() if self._attendance.counts else ():
            record = self._definitions.record_of(name, raw)
            changed = self._definitions.configured_record(name, record, now_ms)
            if changed != record:
                changes.append((name, raw, changed))
        for (name, _, record), reply in zip(changes, self._store.write_records(changes), strict=True):
            if isinstance(reply, ResponseError):
                self._problems.note(name, str(reply), reply)
            elif reply:
                self._on_written(reply)
                if record is None:
                    del page[name]
                    self.entries.pop(name, None)

    def _forget_removed(self, where: Mapping[str, Collection[str]]) -> None:
        """Forget the states of removed entries, given by name and queues."""
        states = [(name, queue) for name, queues in where.items() for queue in queues]
        found = self._store.seen(states, partly=True)
        records = self._store.records_of([name for name, _ in states])
        for (name, queue), seen, raw in zip(states, found, records, strict=True):
            if not raw:
                self._forget(name, queue, seen)

    def _forget(self, name: str, queue: str, seen: Seen) -> None:
        """Forget the state of an entry in a queue. If the server refuses, the others must still be forgotten."""
        with self._spared(f"withdraw the waiting message of periodic task {name!r}", queue):
            self._store.forget(name, queue, seen)

    # -- changes

    def on_changes(self, changes: Iterable[tuple[int, str]]) -> None:
        """Process announced changes, given by numbers and names. `look` detects gaps in the numbers."""
        news = []
        for number, name in changes:
            if number > self._changes and number not in self._own_changes:
                news.append(name)
                if number == self._changes + 1:
                    self._on_written(number)
        self.refresh(list(dict.fromkeys(news)))

    def _on_written(self, number: int) -> None:
        """Note a change that this planner knows of: it made it itself, or it is the next one."""
        self._own_changes.add(number)
        while self._changes + 1 in self._own_changes:
            self._changes += 1
            self._own_changes.discard(self._changes)

    def refresh_placed(self, names: Sequence[str]) -> None:
        """Read entries that have no queue yet again, if others have recorded them, or given them one, meanwhile."""
        changed = []
        for name, raw in zip(names, self._store.records_of(names), strict=True):
            entry = self.entries[name]
            if not entry.is_stored and not self._attendance.counts:
                del self.entries[name]
            elif self._definitions.as_known(entry, raw) is None:
                changed.append(name)
        self.refresh(changed)

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
            queues: dict[str, list[str]] = {name: [] for name in raws}
            for name, entry in found.items():
                if entry is not None:
                    # Read its own queue last: if it was in two queues in the meantime, it moved to this one.
                    own = entry.record.queues
                    queues[name] = [*sorted({*also.get(name, ())}.difference(own)), *own]
            seen = iter(self._store.seen([(name, queue) for name in raws for queue in queues[name]], partly=True))
            of_entry = {name: [next(seen) for _ in queues[name]] for name in raws}
            # In this order: a state that is not seen was not there when the record was valid, see plan.lua.
            again = dict(zip(raws, self._store.records_of(list(raws)), strict=True))
            for name, entry in found.items():
                if again[name] != raws[name]:
                    continue
                if entry is not None:
                    if entry.record.queue is not None:
                        entry.seen = of_entry[name].pop()
                    strays = zip(queues[name], of_entry[name], strict=False)
                    # Whoever planned it in its own queue has gathered it: only a failover has left another state.
                    entry.strays = [it for it in strays if not entry.seen.raw or it[1].raw or not it[1].is_known]
                    self.entries[name] = entry
                    self.read_state(entry)
                elif not raws[name]:
                    self._definitions.overruled |= name in self._configured.entries
                    self._problems.note(name, None)
                    known = before[name]
                    self._forget_removed({name: known.record.queues if known else []})
            raws = {name: raw for name, raw in again.items() if raw != raws[name]}

    def _read_anew(self, name: str, raw: bytes, before: Entry | None) -> Entry | None:
        if raw:
            return self._definitions.entry_of(name, self._definitions.record_of(name, raw))
        definition = self._configured.entries.get(name)
        if definition is None or not self._attendance.counts or (before is not None and before.is_stored):
            return None
        since_ms = self._attendance.now_ms() if before is None else before.record.since_ms
        record = Record(definition.fingerprint, since_ms, None, app=self._configured.app)
        return Entry(definition, record, is_stored=False)

    def on_state(self, name: str, seen: Seen) -> None:
        """Process the state of an entry in its queue; another planner may have changed it."""
        entry = self.entries.get(name)
        if entry is not None and (seen.raw != entry.seen.raw or not entry.seen.is_known):
            entry.seen = seen
            self.read_state(entry)
            if seen.is_known and not seen.raw:  # it may have moved to another queue
                self.refresh([name])

    def read_state(self, entry: Entry) -> None:
        """Process the state of an entry, as it was read."""
        self.parse_state(entry)
        self._on_read(entry)

    def parse_state(self, entry: Entry) -> None:
        """Set the state of an entry by what was read of it."""
        raw = entry.seen.raw or entry.record.last.encode()
        try:
            state = State.parse(raw) if raw else None
        except ValueError as exc:
            logger.error("Cannot parse the state of periodic task %r, planning it again: %s", entry.name, exc)
            state = None
        if state is not None and state.fingerprint == entry.record.fingerprint:
            state = replace(state, fingerprint=entry.record.fingerprint)  # share equal strings
        entry.state = state

    # -- the queue of an entry

    def write_queues(self, queues: Mapping[str, str]) -> tuple[set[str], dict[str, ResponseError]]:
        """Record the queues of entries. A state in a former queue becomes a stray, which `gather` takes out of it.

        Returns the entries that were written, and those that the server refused. All others have changed, and are read
        again.
        """
        # In this order: a state that is not seen was not there when the record was valid, see plan.lua.
        seen = self._store.seen(list(queues.items()), partly=True)
        raws = self._store.records_of(list(queues))
        changes: list[tuple[str, bytes, Record]] = []
        states: dict[str, Seen] = {}
        for (name, queue), there, raw in zip(queues.items(), seen, raws, strict=True):
            entry = self.entries[name]
            record = self._definitions.as_known(entry, raw)
            if record is not None and there.raw and entry.record.queue is not None:
                # A failover has undone that it left this queue before.
                self._forget(name, queue, there)
            elif record is not None:
                whole = record
                if not entry.is_stored:
                    whole = replace(self._definitions.new_record(entry.definition, record.since_ms), last=record.last)
                # Not its state in the former queue: a failover may undo what it has sent there, see `gather`.
                earlier = sorted({*whole.queues} - {queue})
                changes.append((name, raw, replace(whole, queue=queue, earlier=earlier)))
                states[name] = there
        written: set[str] = set()
        refused = {}
        for (name, _, record), reply in zip(changes, self._store.write_records(changes), strict=True):
            if isinstance(reply, ResponseError):
                refused[name] = reply
            elif reply:
                self._on_written(reply)
                entry = self.entries[name]
                if entry.record.queue is not None:
                    entry.strays = [(entry.record.queue, entry.seen)]
                entry.record, entry.is_stored, entry.seen = record.lean(), True, states[name]
                written.add(name)
        self.refresh([name for name in queues if name not in written and name not in refused])
        return written, refused

    def gather(self, entry: Entry) -> bool:
        """Take an entry out of its former queues. Returns False if somebody else has changed it meanwhile.

        So before an entry is planned in a queue, no other queue has a state from which it can still be planned. The
        record always says from where it goes on in its own queue, also to a planner that finds it in between.

        Raises:
            NotReplicated: a failover could undo what it has sent in such a queue; see `ScheduleStore.check_kept`.
        """
        # Several have a state only after a failover: then the latest counts.
        entry.strays = sorted(
            entry.strays, key=lambda stray: (bool(stray[1].raw), (stray[1].state or _NOWHERE).at_ms or 0)
        )
        while entry.strays:
            if not self._take_out(entry, *entry.strays[0], is_last=len(entry.strays) == 1):
                self.refresh([entry.name])
                return False
            entry.strays = entry.strays[1:]  # only now: if the server refuses, it is tried again later
        self.parse_state(entry)
        return True

    def _take_out(self, entry: Entry, queue: str, seen: Seen, *, is_last: bool) -> bool:
        state, own = seen.state, entry.seen.state
        is_later = state is not None and own is not None and 0 < (own.at_ms or 0) < (state.at_ms or 0)
        if state is None or not is_last or (entry.seen.raw and not is_later):
            return self._store.forget(entry.name, queue, seen)
        if not self._store.check_kept(entry.name, queue, seen):
            return False
        if own is not None:
            return self._go_on_from(entry, queue, seen, state)
        # Never back from "sent": somebody may be about to forget the state, after he has recorded that.
        if entry.record.last != state.on_leaving(sent=True):
            if not self._keep_last(entry, queue, state.on_leaving(sent=False)):
                return False
            outcome = self._store.leave(entry.name, queue, seen, state.task_id)
            if outcome != GONE:
                return outcome == DONE
            if not self._store.check_kept(entry.name, queue, seen):  # it was sent after the check before
                return False
        if not self._keep_last(entry, queue, state.on_leaving(sent=True)):
            return False
        return self._store.leave(entry.name, queue, seen, "") == DONE

    def _go_on_from(self, entry: Entry, queue: str, seen: Seen, state: State) -> bool:
        """Put a state of another queue in place of an earlier one: a failover has undone that this queue was left."""
        outcome = self._store.leave(entry.name, queue, seen, state.task_id)
        sent = outcome == GONE
        if sent:
            if not self._store.check_kept(entry.name, queue, seen):
                return False
            outcome = self._store.leave(entry.name, queue, seen, "")
        if outcome != DONE:
            return False
        own, own_queue = entry.seen.state, entry.record.queue or ""
        later = state.on_leaving(sent=sent).encode()
        step = Step(entry.name, own_queue, entry.seen, later, withdraw=own.task_id if own else "")
        (done,) = self._store.plan([step])
        if isinstance(done, Exception):
            raise done
        entry.seen = Seen(done.state, done.forgotten)
        return done.outcome == DONE

    def _keep_last(self, entry: Entry, queue: str, last: str) -> bool:
        """Record the state with which an entry leaves a queue, and check that a replica has that.

        Returns False if the record has changed.
        """
        if not entry.is_stored:
            entry.record = replace(entry.record, last=last)
        (raw,) = self._store.records_of([entry.name])
        record = self._definitions.as_known(entry, raw)
        if record is None:
            return False
        if record.last != last:
            record = replace(record, last=last)
            number = self._store.write_record(entry.name, raw, record)
            if not number:
                return False
            self._on_written(number)
            entry.record, raw = record.lean(), record.dump()
        return self._store.check_kept(entry.name, queue, raw)
