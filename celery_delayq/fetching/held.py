"""The messages that a consumer holds, and how they are rewritten for redelivery."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from celery_delayq.queue.holds import Holder

#: What is counted; a reason follows the first two.
RECOVERED, DEAD_LETTERS, LOST_LEASES = "recovered:", "dead_letters:", "lost_leases"


class Held(NamedTuple):
    """A message that a consumer holds.

    Attributes:
        name: of its broker list.
        message: its bytes.
        holder: if it holds a unique key.
        starts: whether its acknowledgement says that its task starts, and not that it is done.
        can_wait: whether its acknowledgement may wait a few ms for others, and its task run twice if the worker is
            killed meanwhile.
        ended: how its task has ended, if it has to run again: it has "killed" its process, or "rejected" its message.
    """

    name: str
    message: bytes
    holder: Holder | None = None
    starts: bool = False
    can_wait: bool = False
    ended: Literal["", "killed", "rejected"] = ""


@dataclass(frozen=True)
class Redelivery:
    """Functions that rewrite messages for redelivery; this package itself does not parse messages.

    Attributes:
        put_back: for messages that the consumer itself puts back.
        recover: for messages whose consumer is gone; also returns whether that is the record of a dead letter.
        holder_of: returns who holds a unique key by a message; None if nobody does.
        on_dead: called with the list's name and the record of each dead letter. In any thread; it must take no time.
        on_count: called with a list's name, what happened (`RECOVERED` or `DEAD_LETTERS` with a reason, or
            `LOST_LEASES`), and how often. In any thread; it must take no time, and raise nothing.
    """

    put_back: Callable[[bytes], bytes] = lambda message: message
    recover: Callable[[bytes], tuple[bytes, bool]] = lambda message: (message, False)
    holder_of: Callable[[bytes], Holder | None] = lambda message: None
    on_dead: Callable[[str, bytes], None] = lambda name, record: None
    on_count: Callable[[str, str, int], None] = lambda name, what, number: None
