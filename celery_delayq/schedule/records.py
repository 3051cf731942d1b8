"""Record, State, Seen: the definition of an entry and its present state, both as stored."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from sys import intern
from typing import Any

from celery_delayq.basics.text import told
from celery_delayq.schedule.occurrences import LATEST_MS

_dump = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode


@dataclass(frozen=True, slots=True)
class Record:
    """The record of an entry: its definition.

    Attributes:
        fingerprint: fingerprint of the definition. Equal fingerprints mean equal definitions.
        since_ms: when the entry was recorded, unix time in ms. Its times count from here on.
        definition: the definition as data; None if it has no such form, and exists only in the configuration.
        app: name of the app whose configuration has the entry; None if it was added at run time.
        queue: broker list of its messages; None until the first planner has determined it.
        earlier: former queues. A planner that was killed may have left a state there.
        last: the state with which it left its former queue, as stored; empty if it has never left one. Without a state
            in its present queue, it goes on from there.
        paused: whether it is paused.
    """

    fingerprint: str
    since_ms: int
    definition: Mapping[str, Any] | None
    app: str | None = None
    queue: str | None = None
    earlier: Sequence[str] = ()
    last: str = ""
    paused: bool = False
    #: The stored bytes; empty if it is not stored, or if they are not kept.
    raw: bytes = field(default=b"", compare=False)

    def dump(self) -> bytes:
        """Return the bytes to store."""
        return _dump({name: getattr(self, name) for name in _FIELDS}).encode()

    def lean(self) -> Record:
        """Return the record without the parts that need much memory."""
        return replace(self, definition=None, raw=b"", earlier=self.earlier or ())

    @property
    def queues(self) -> list[str]:
        """The queues that may hold a state of the entry, its own queue last."""
        own = [] if self.queue is None else [self.queue]
        return [*sorted({*self.earlier}.difference(own)), *own]

    @classmethod
    def parse(cls, raw: bytes) -> Record:
        """Return the record that is stored as `raw`.

        Raises:
            ValueError: `raw` is not a valid record.
        """
        try:
            found = cls(**json.loads(raw), raw=raw)
            valid = (
                _are((found.fingerprint, found.last, *found.earlier), str)
                and all(value is None or isinstance(value, str) for value in (found.app, found.queue))
                and all(map(_is_utf8, found.queues))  # they are names of keys, and JSON can have others
                and isinstance(found.earlier, (list, tuple))
                and isinstance(found.definition, (dict, type(None)))
                and isinstance(found.paused, bool)
                and _are_times((found.since_ms,))
            )
        except _UNREADABLE as exc:
            raise ValueError(f"not a valid record of a periodic task: {told(exc)}") from exc
        if not valid:
            raise ValueError("not a valid record of a periodic task: a field has a wrong type or is out of range")
        # There may be very many records, but few apps and queues.
        return replace(found, app=found.app and intern(found.app), queue=found.queue and intern(found.queue))


_FIELDS = [one.name for one in fields(Record) if one.name != "raw"]


@dataclass(frozen=True, slots=True)
class State:
    """The state of an entry: its planned occurrence.

    Attributes:
        fingerprint: fingerprint of the definition that the occurrence was planned by. Empty if it has left a queue.
        planner: id of the planner that planned it.
        at_ms: the occurrence, unix time in ms; None if none is planned.
        task_id: id of the message that was offered for it; empty if the message is sent when it is due.
        last_ms: the previous occurrence, unix time in ms; None if there was none.
        runs: number of occurrences that were sent, not counting the planned one.
        made_up: number of missed occurrences that were made up for since the last one that was not missed.
    """

    fingerprint: str
    planner: str
    at_ms: int | None
    task_id: str = ""
    last_ms: int | None = None
    runs: int = 0
    made_up: int = 0

    def on_leaving(self, *, sent: bool) -> str:
        """Return the state with which an entry leaves its queue, as stored.

        Args:
            sent: whether its message was transferred already; otherwise its occurrence is planned again.
        """
        return replace(self, fingerprint="", task_id=self.task_id if sent else "").dump().decode()

    def dump(self) -> bytes:
        """Return the bytes to store."""
        placed = (self.fingerprint, self.planner, self.at_ms, self.task_id, self.last_ms)
        return _dump((*placed, self.runs, self.made_up)).encode()

    @classmethod
    def parse(cls, raw: bytes) -> State:
        """Return the state that is stored as `raw`.

        Raises:
            ValueError: `raw` is not a valid state.
        """
        try:
            found = cls(*json.loads(raw))
        except _UNREADABLE as exc:
            raise ValueError(f"not a valid state of a periodic task: {told(exc)}") from exc
        if not (
            _are((found.fingerprint, found.planner, found.task_id), str)
            and _are_times([value for value in (found.at_ms, found.last_ms) if value is not None])
            and _are((found.runs, found.made_up), int)
        ):
            raise ValueError("not a valid state of a periodic task: a field has a wrong type or is out of range")
        # There may be very many states, but few planners.
        return replace(found, planner=intern(found.planner))


#: Errors that JSON and a dataclass raise for bytes that another program wrote.
_UNREADABLE = (TypeError, ValueError, RecursionError)


def _are(values: Iterable[object], kind: type) -> bool:
    return all(isinstance(value, kind) for value in values)


def _is_utf8(text: str) -> bool:
    return text == text.encode("utf-8", "replace").decode()


def _are_times(values: Iterable[object]) -> bool:
    return all(isinstance(value, int) and 0 <= value <= LATEST_MS for value in values)


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of an entry in one queue, as it was read.

    Attributes:
        raw: the stored bytes; empty if there is no state.
        forgotten: how many states of the queue had been forgotten at that time; see `plan.lua`.
    """

    raw: bytes = b""
    forgotten: bytes = b"0"

    @property
    def is_known(self) -> bool:
        """Whether it could be read; see `UNKNOWN`."""
        return self != UNKNOWN

    @property
    def state(self) -> State | None:
        """The state; None if there is none, or if it cannot be parsed."""
        try:
            return State.parse(self.raw) if self.raw else None
        except ValueError:
            return None


#: A state at a node of a cluster that is away. No step from it is ever accepted: it is no number.
UNKNOWN = Seen(b"", b"?")
