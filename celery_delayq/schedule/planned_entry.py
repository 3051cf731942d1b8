"""PlannedEntry: what a planner knows about an entry. It is small, because there may be very many entries."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from celery_delayq.schedule.entry import Definition
from celery_delayq.schedule.records import Record, Seen, State

NEVER_SEEN = Seen()


@dataclass(slots=True)
class PlannedEntry:
    """What a planner knows about an entry.

    Attributes:
        definition: its definition.
        record: its stored record, without the definition and without the bytes.
        is_stored: whether the record is stored. An entry of the configuration is first stored when it is planned.
        seen: its state in the queue of the record, as it was read.
        state: the parsed `seen`; None if there is no state.
        strays: its states in other queues.
        parked: states that were taken out of other queues, kept until the entry is planned in its own queue.
        wake_ms: when to look at it next, unix time in ms by the server's clock; None for never.
        is_ripe: whether to look at it as soon as possible.
        error: why it could not be planned.
        failures: how many times in a row it could not be planned.
    """

    definition: Definition
    record: Record
    is_stored: bool = True
    seen: Seen = NEVER_SEEN
    state: State | None = None
    strays: Sequence[tuple[str, Seen]] = ()
    parked: Sequence[tuple[str, Seen]] = ()
    wake_ms: int | None = None
    is_ripe: bool = False
    error: str | None = None
    failures: int = 0

    def queues(self, also: Collection[str]) -> list[str]:
        """Return the queues that may hold a state of the entry, its own queue last.

        Args:
            also: queues in addition to those in its record.
        """
        own = self.record.queue
        others = sorted({*self.record.earlier, *also} - {own})
        return others if own is None else [*others, own]
