"""Known: what a planner knows about an entry. There may be very many, so it is lean."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from celery_delayq.schedule.entry import Definition
from celery_delayq.schedule.records import Record, Seen, State

NEVER_SEEN = Seen()


@dataclass(slots=True)
class Known:
    """What a planner knows about an entry.

    Attributes:
        definition: what it is.
        record: as stored, but without the definition and its bytes.
        is_stored: whether it is; an entry of the configuration is recorded when it is planned for the first time.
        seen: its state in the queue of the record, as it was read.
        state: what that says; None if there is none.
        strays: states of it in other queues.
        parked: those that were taken out of there, until it is planned in its queue.
        wake_ms: when to look at it, unix time in ms by the server's clock; None if nothing is to come.
        is_ripe: whether it is to be looked at as soon as possible.
        error: why it could not be planned.
        failures: how often it could not be planned in a row.
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
        """Return the queues in which the entry may have a state, its own last.

        Args:
            also: further ones besides those that its record names.
        """
        own = self.record.queue
        others = sorted({*self.record.earlier, *also} - {own})
        return others if own is None else [*others, own]
