"""Run the scripts of the schedule, with named keys, arguments and return codes; see `celery_delayq.queue.scripts`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from celery_delayq.queue.call import Call, load
from celery_delayq.queue.codec import message_key
from celery_delayq.queue.holds import UNTIL, Claim
from celery_delayq.queue.keys import QueueKeys, ScheduleKeys
from celery_delayq.schedule.records import Seen

#: Outcomes of `plan`.
DONE, LEFT_OUT, CHANGED, GONE, ELSEWHERE = 1, 2, 0, -1, -2


@dataclass(frozen=True)
class Message:
    """The message of an occurrence.

    Attributes:
        queue: its broker list.
        task_id: its id.
        due_ms: when it is due, unix time in ms.
        payload: its bytes.
        claim: the unique key that it claims. If another task holds that, the occurrence is left out.
        can_wait: whether it may be stored before its occurrence. Not if it claims a unique key. Not if it has other
            times than it was given: code of the app, or an option, set them, and they may count from now.
    """

    queue: str
    task_id: str
    due_ms: int
    payload: bytes
    claim: Claim | None = None
    can_wait: bool = True


@dataclass(frozen=True)
class Planned:
    """Result of one call of `plan`.

    Attributes:
        outcome: DONE; LEFT_OUT if another task holds the unique key; CHANGED if the state had changed; GONE if the
            message to withdraw was no longer waiting; ELSEWHERE if the task that holds the unique key may wait in
            another list.
        now_ms: the server's time, unix time in ms.
        state: the present state of the entry; empty if there is none. If ELSEWHERE, the name of that list.
        forgotten: how many states of the queue have been forgotten.
        alone: whether a message was offered, and no other waits in the queue.
    """

    outcome: int
    now_ms: int
    state: bytes
    forgotten: bytes
    alone: bool = False

    @classmethod
    def of(cls, reply: Sequence[Any]) -> Planned:
        """Parse the script's reply."""
        outcome, now_ms, state, forgotten, alone = reply
        return cls(int(outcome), int(now_ms), state, forgotten, bool(alone))


@dataclass(frozen=True, slots=True)
class Step:
    """A step of an entry, for one call of `plan`.

    Attributes:
        entry: its name.
        queue: the broker list of its messages.
        seen: its present state there.
        state: its next state; empty to forget it.
        withdraw: id of the message that must not run; empty for none.
        must_wait: whether that message must still wait.
        offer: the message to offer.
        state_if_held: its next state if another task holds the unique key of that.
        missed: how many missed runs it leaves out, for who counts these.
    """

    entry: str
    queue: str
    seen: Seen
    state: bytes
    withdraw: str = ""
    must_wait: bool = False
    offer: Message | None = None
    state_if_held: bytes = b""
    missed: int = 0


def plan(keys: QueueKeys, step: Step, *, mirrored: bool = False, there: QueueKeys | None = None) -> Call[Planned]:
    """Move an entry to its next occurrence; see `plan.lua`.

    `there` are the keys of the list in which the task waits that holds the unique key; by default, the same list.
    """
    there = there or keys
    offer = step.offer
    message: tuple[bytes | int, ...] = (b"", 0, b"")
    claimed: tuple[bytes | int | str, ...] = (b"", b"", 0, b"", b"")
    if offer:
        message = (message_key(offer.task_id), offer.due_ms, offer.payload)
        if claim := offer.claim:
            claimed = (claim.unique, UNTIL[claim.until], claim.ttl_ms, keys.queue, offer.task_id)
    withdraw = message_key(step.withdraw) if step.withdraw else b""
    return Call(
        load("plan"),
        (*keys.waiting, keys.schedule, keys.holds, there.timeout_set, there.index),
        (
            *(step.entry, step.seen.raw, step.seen.forgotten, step.state, withdraw, int(step.must_wait)),
            *(*message, int(mirrored), keys.channel, *claimed, there.queue, step.state_if_held),
        ),
        Planned.of,
    )


#: A change of a record: the entry, its record as it was read, and the new record.
Change: TypeAlias = tuple[str, bytes, bytes]


def record(keys: ScheduleKeys, *, changes: Sequence[Change]) -> Call[list[int]]:
    """Write the records of entries; see `record.lua`. Returns for each the number of the change; 0 if not changed."""
    args = (keys.channel, *(value for change in changes for value in change))
    return Call(load("record"), (keys.definitions,), args, list)


@dataclass(frozen=True)
class Announced:
    """The reply to a planner's sign of life.

    Attributes:
        configuration: the configuration that counts for its app.
        now_ms: the server's time, unix time in ms.
        since_ms: since when planners of its app have been running without a gap, unix time in ms.
        since_of_any_ms: the same for planners of any app, unix time in ms.
    """

    configuration: str
    now_ms: int
    since_ms: int
    since_of_any_ms: int


def announce(
    keys: ScheduleKeys,
    *,
    app: str,
    configuration: str,
    lifetime_ms: int,
    gap_ms: int = 0,
    previous_ms: int = 0,
) -> Call[Announced]:
    """Give a planner's sign of life; see `announce.lua`."""
    args = (app, configuration, lifetime_ms, gap_ms, previous_ms, keys.channel)
    return Call(
        load("announce"),
        (keys.configurations,),
        args,
        lambda reply: Announced(reply[0].decode(), *map(int, reply[1:])),
    )
