"""Decision: what a planner has decided about an entry, and the call of `plan.lua` for that."""

from __future__ import annotations

from dataclasses import dataclass, replace

from celery_delayq.schedule.entry import Entry
from celery_delayq.schedule.message import Occurrence
from celery_delayq.schedule.records import State
from celery_delayq.schedule.scripts import Step
from celery_delayq.schedule.transitions import Transition


@dataclass(slots=True)
class Decision:
    """The decision about one entry.

    Attributes:
        name: name of the entry.
        move: its next move.
        step: the script call for the move.
        state: its state after the move.
        missed: how many of its runs the move leaves out.
        state_if_held: its state if the occurrence is left out, because another task holds its unique key.
    """

    name: str
    move: Transition
    step: Step
    state: State
    missed: int
    state_if_held: State | None = None


def decided(name: str, entry: Entry, planner: str, move: Transition, occurrence: Occurrence, missed: int) -> Decision:
    """Return the decision that an entry makes a move.

    Args:
        name: name of the entry.
        entry: the entry.
        planner: id of the planner.
        move: its next move.
        occurrence: the message to send, or only the queue.
        missed: how many of its runs the move leaves out.
    """
    queue = occurrence.queue or entry.record.queue or ""
    ahead = move.send_ms is not None and move.send_ms == move.at_ms
    offer = occurrence.offer if move.send_ms is not None else None
    if ahead and not occurrence.can_wait:
        offer = None  # it is built again when it is due
    task_id = occurrence.task_id if ahead and offer else ""
    fingerprint = entry.record.fingerprint
    state = State(fingerprint, planner, move.at_ms, task_id, move.last_ms, move.runs, move.made_up)
    state_if_held = None
    if offer is not None and offer.claim is not None and entry.state is not None:
        before = entry.state
        state_if_held = replace(state, at_ms=move.next_ms, last_ms=before.last_ms, runs=before.runs)
        offer = replace(offer, state_if_held=state_if_held.dump())
    must_wait = bool(move.withdraw)
    step = Step(name, queue, entry.seen, state.dump(), withdraw=move.withdraw, must_wait=must_wait, offer=offer)
    return Decision(name, move, step, state, missed, state_if_held)
