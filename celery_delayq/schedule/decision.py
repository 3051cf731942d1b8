"""Decision: what a planner has decided about an entry, and the call of `plan.lua` for that."""

from __future__ import annotations

from dataclasses import dataclass, replace

from celery_delayq.schedule.entry import Entry
from celery_delayq.schedule.records import State
from celery_delayq.schedule.scripts import Message, Step
from celery_delayq.schedule.transitions import Transition


@dataclass(slots=True)
class Decision:
    """The decision about one entry.

    Attributes:
        move: its next move.
        step: the script call for the move.
        state: its state after the move, unless another task holds the unique key of what it sends.
        missed: how many of its runs the move leaves out.
    """

    move: Transition
    step: Step
    state: State
    missed: int

    @property
    def name(self) -> str:
        """Name of the entry."""
        return self.step.entry


def decided(entry: Entry, planner: str, move: Transition, queue: str, message: Message | None, missed: int) -> Decision:
    """Return the decision that an entry makes a move.

    Args:
        entry: the entry.
        planner: id of the planner.
        move: its next move.
        queue: its queue after that.
        message: the message to send.
        missed: how many of its runs the move leaves out.
    """
    ahead = move.send_ms is not None and move.send_ms == move.at_ms
    if message is not None and ahead and not message.can_wait:
        message = None  # it is built again when it is due
    task_id = message.task_id if message is not None and ahead else ""
    state = State(entry.record.fingerprint, planner, move.at_ms, task_id, move.last_ms, move.runs, move.made_up)
    state_if_held = b""
    if message is not None and message.claim is not None and entry.state is not None:
        before = entry.state
        state_if_held = replace(state, at_ms=move.next_ms, last_ms=before.last_ms, runs=before.runs).dump()
    must_wait = bool(move.withdraw)
    step = Step(entry.name, queue, entry.seen, state.dump(), move.withdraw, must_wait, message, state_if_held)
    return Decision(move, step, state, missed)
