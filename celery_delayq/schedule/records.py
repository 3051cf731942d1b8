"""Record, State, Seen, Step: what an entry is, where it is, as it was read, and where it goes; as stored in Redis."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from sys import intern
from typing import Any

from celery_delayq.schedule.occurrences import LATEST_MS
from celery_delayq.schedule.scripts import Offer

_dump = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode


@dataclass(frozen=True, slots=True)
class Record:
    """What an entry is.

    Attributes:
        fingerprint: of the definition; two definitions with the same one are the same.
        since_ms: when the entry was recorded, unix time in ms: from then on its times count.
        definition: as data; None if it cannot be data, so that only the configuration has it.
        app: the name of the app whose configuration has the entry; None if it was added at run time.
        queue: the broker list of its messages; None until the first planner has found out.
        earlier: those before; a planner that was killed may have left a state there.
        paused: whether it is paused.
    """

    fingerprint: str
    since_ms: int
    definition: Mapping[str, Any] | None
    app: str | None = None
    queue: str | None = None
    earlier: Sequence[str] = ()
    paused: bool = False
    #: As stored; empty if it is not, or not kept.
    raw: bytes = field(default=b"", compare=False)

    def dump(self) -> bytes:
        """Return the record as it is stored."""
        return _dump({name: getattr(self, name) for name in _FIELDS}).encode()

    def to(self, queue: str) -> Record:
        """Return the record of an entry that goes to another queue."""
        earlier = ({*self.earlier} | ({self.queue} if self.queue is not None else set())) - {queue}
        return replace(self, queue=queue, earlier=sorted(earlier))

    @property
    def queues(self) -> list[str]:
        """The queues in which the entry may have a state."""
        return [*([self.queue] if self.queue is not None else []), *self.earlier]

    @classmethod
    def parse(cls, raw: bytes) -> Record:
        """Return the record that is stored as `raw`.

        Raises:
            ValueError: it is none.
        """
        try:
            found = cls(**json.loads(raw), raw=raw)
            valid = (
                _are((found.fingerprint, *found.earlier), str)
                and all(value is None or isinstance(value, str) for value in (found.app, found.queue))
                and isinstance(found.earlier, (list, tuple))
                and isinstance(found.definition, (dict, type(None)))
                and isinstance(found.paused, bool)
                and _are_times((found.since_ms,))
            )
        except _UNREADABLE as exc:
            raise ValueError(f"no record of a periodic task: {exc}") from exc
        if not valid:
            raise ValueError("no record of a periodic task: a field has a wrong type, or is out of range")
        return found


_FIELDS = [one.name for one in fields(Record) if one.name != "raw"]


@dataclass(frozen=True, slots=True)
class State:
    """Where an entry is.

    Attributes:
        fingerprint: of the definition by which the occurrence was planned; a parked one has one that nothing else has.
        planner: who planned it.
        at_ms: the occurrence, unix time in ms; None if none is planned.
        task_id: the id of the message that was offered for it; empty if it is sent when it is due.
        last_ms: the occurrence before; None if there was none.
        runs: how many occurrences were sent, without the one that is planned.
        made_up: how many missed occurrences were made up for since the last one that was not missed.
        parked: whether the entry is on its way to another queue; nothing waits for it here.
    """

    fingerprint: str
    planner: str
    at_ms: int | None
    task_id: str = ""
    last_ms: int | None = None
    runs: int = 0
    made_up: int = 0
    parked: bool = False

    def dump(self) -> bytes:
        """Return the state as it is stored."""
        placed = (self.fingerprint, self.planner, self.at_ms, self.task_id, self.last_ms)
        return _dump((*placed, self.runs, self.made_up, self.parked)).encode()

    @classmethod
    def parse(cls, raw: bytes) -> State:
        """Return the state that is stored as `raw`.

        Raises:
            ValueError: it is none.
        """
        try:
            found = cls(*json.loads(raw))
        except _UNREADABLE as exc:
            raise ValueError(f"no state of a periodic task: {exc}") from exc
        if not (
            _are((found.fingerprint, found.planner, found.task_id), str)
            and _are_times([value for value in (found.at_ms, found.last_ms) if value is not None])
            and _are((found.runs, found.made_up), int)
            and isinstance(found.parked, bool)
        ):
            raise ValueError("no state of a periodic task: a field has a wrong type, or is out of range")
        # There may be very many, of few planners.
        return replace(found, planner=intern(found.planner))


#: What JSON and a dataclass raise for bytes that somebody else wrote.
_UNREADABLE = (TypeError, ValueError, RecursionError)


def _are(values: Iterable[object], kind: type) -> bool:
    return all(isinstance(value, kind) for value in values)


def _are_times(values: Iterable[object]) -> bool:
    return all(isinstance(value, int) and 0 <= value <= LATEST_MS for value in values)


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of an entry in one queue, as it was read.

    Attributes:
        raw: as stored; empty if there is none.
        forgotten: how many states of the queue were forgotten then; see `plan.lua`.
    """

    raw: bytes = b""
    forgotten: bytes = b"0"


@dataclass(frozen=True, slots=True)
class Step:
    """One call of `plan.lua`: an entry, where it is, and where it goes to."""

    entry: str
    queue: str
    seen: Seen
    state: bytes
    withdraw: str = ""
    must_wait: bool = False
    offer: Offer | None = None
