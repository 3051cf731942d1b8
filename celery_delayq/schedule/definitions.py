"""Definitions: which definition of an entry counts, and what is recorded of it.

Entries that were added at run time are in Redis, and the same for all planners. Entries of the configuration come
from each planner's own configuration; during a deploy, these differ. Then the newest configuration counts: the one
that was first seen last (announce.lua). Its planners write the records, and remove records of entries that it no
longer has. Other planners touch an entry only if its record has the fingerprint of their own definition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from celery_delayq.basics.errors import InvalidSchedule
from celery_delayq.schedule.configured import Configured
from celery_delayq.schedule.definition import Definition, why_invalid
from celery_delayq.schedule.entry import Entry
from celery_delayq.schedule.problems import Problems
from celery_delayq.schedule.records import Record


class Definitions:
    """Makes entries of records, and records of the entries in the configuration of this process.

    Args:
        configured: entries in the configuration of this process.
        parse: builds a definition from a name and the data of a record; raises InvalidSchedule.
        problems: where errors are noted.

    Attributes:
        overruled: whether a planner with another configuration changed or removed an entry of this one.
    """

    def __init__(
        self,
        configured: Configured,
        parse: Callable[[str, Mapping[str, Any]], Definition],
        problems: Problems,
    ) -> None:
        self.overruled = False
        self.configured = configured
        self._parse = parse
        self._problems = problems

    def record_of(self, name: str, raw: bytes) -> Record | None:
        """Return a record by its stored bytes; None if it cannot be parsed, which is noted."""
        try:
            return Record.parse(raw)
        except ValueError as exc:
            self._problems.note(name, str(exc))
            return None

    def entry_of(self, name: str, record: Record | None) -> Entry | None:
        """Return the entry if this planner may plan it, otherwise None."""
        if record is None:
            return None
        if record.app is None:
            try:
                definition = self._parse(name, record.definition or {})
            except InvalidSchedule as exc:
                self._problems.note(name, why_invalid(exc))
                return None
        else:
            own = self.configured.entries.get(name)
            if own is None or record.app != self.configured.app:
                return None
            if record.fingerprint != own.fingerprint:
                self.overruled = True
                return None
            definition = own
        return Entry(definition, record.lean())

    def as_known(self, entry: Entry, raw: bytes) -> Record | None:
        """Return the record of an entry, or None if it has changed."""
        if not entry.is_stored:
            return None if raw else entry.record
        try:
            record = Record.parse(raw)
        except ValueError:
            return None
        return record if record.lean() == entry.record else None

    def configured_record(self, name: str, record: Record | None, now_ms: int) -> Record | None:
        """Return the record that an entry should have by the configuration."""
        definition = self.configured.entries.get(name)
        if definition is None:
            removed = record is not None and record.app == self.configured.app
            return None if removed and name not in self.configured.errors else record
        if record is None:
            return self.new_record(definition, now_ms)
        if record.app != self.configured.app:
            owner = f"defined by app {record.app!r}" if record.app is not None else "added at run time"
            self._problems.note(
                name,
                f"an entry of this name was {owner}: the entry in this configuration does not run. Rename one of them",
            )
        elif record.fingerprint != definition.fingerprint:
            return replace(record, fingerprint=definition.fingerprint, definition=_data_of(definition))
        return record

    def new_record(self, definition: Definition, since_ms: int) -> Record:
        """Return the record of an entry of the configuration that has none yet."""
        return Record(definition.fingerprint, since_ms, _data_of(definition), app=self.configured.app)


def _data_of(definition: Definition) -> dict[str, Any]:
    return definition.data() or {"task": definition.task, "text": definition.shown}
