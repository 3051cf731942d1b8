"""Entry: what a planner knows about an entry. It is small, because there may be very many entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from celery_delayq.schedule.definition import Definition
from celery_delayq.schedule.records import Record, Seen, State

_NEVER_SEEN = Seen()


@dataclass(slots=True)
class Entry:
    """What a planner knows about an entry.

    Attributes:
        definition: its definition.
        record: its stored record, without the definition and without the bytes.
        is_stored: whether the record is stored. An entry of the configuration is first stored when it is planned.
        seen: its state in the queue of the record, as it was read.
        state: the parsed `seen`, or the state with which it left its former queue; None if there is none.
        strays: its states in other queues; see `Entries.gather`.
        wake_ms: when to look at it next, unix time in ms by the server's clock; 0 for now, None for never.
        failures: how many times in a row it could not be planned.
    """

    definition: Definition
    record: Record
    is_stored: bool = True
    seen: Seen = _NEVER_SEEN
    state: State | None = None
    strays: Sequence[tuple[str, Seen]] = ()
    wake_ms: int | None = None
    failures: int = 0

    @property
    def name(self) -> str:
        """Its name."""
        return self.definition.name

    @property
    def is_idle(self) -> bool:
        """Whether it is paused or disabled."""
        return self.record.paused or not self.definition.timing.enabled

    @property
    def delay_ms(self) -> int:
        """How long after its occurrence it moves on, in ms.

        Its message is due later than the occurrence, by jitter and countdown; until then, it can be withdrawn. If the
        next occurrence is earlier, the entry moves on at that time: the next message may be due before this one.
        """
        state, definition = self.state, self.definition
        if state is None or state.at_ms is None or definition.is_asked:
            return 0
        delay_ms = max(0, definition.delay_ms(state.at_ms))
        if not delay_ms or not state.task_id:
            return delay_ms
        try:
            next_ms = definition.times.after(state.at_ms)
        except Exception:  # of a user's class: the planner notes it when it decides
            return 0
        return delay_ms if next_ms is None else min(delay_ms, next_ms - state.at_ms)

    @property
    def moves_on_ms(self) -> int | None:
        """When it moves on from its occurrence, unix time in ms; None if none is planned."""
        if self.state is None or self.state.at_ms is None:
            return None
        return self.state.at_ms + self.delay_ms
