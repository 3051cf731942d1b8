"""Ready: the messages in a broker list, which no consumer has taken yet. It reads them, and takes some back.

New messages come to the left end of the list, and consumers take from the right one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

import redis

from celery_delayq.queue.call import Call, load
from celery_delayq.queue.holds import Holder, written
from celery_delayq.queue.keys import QueueKeys

#: Maximum number of messages that one call of `take_back` removes.
MAX_TAKEN_BACK = 20

#: An end of a list: of the newest messages, or of the oldest ones.
End = Literal["newest", "oldest"]


@dataclass(frozen=True)
class Place:
    """How far somebody has read a list from its newest message on.

    Attributes:
        skip: how many messages were read.
        taken: how many had been taken back from the list by then; None if nothing was read.
    """

    skip: int = 0
    taken: int | None = None


#: The newest message.
START = Place()


@dataclass(frozen=True)
class Slice:
    """Some messages of a list.

    Attributes:
        skipped: how many messages come before them, from the end at which the reading began.
        read: how many messages were read.
        left: how many come behind them.
        taken: how many had been taken back from the list.
        found: those that contain what was looked for, and the last one; each with the number of those before it.
    """

    skipped: int
    read: int
    left: int
    taken: int
    found: list[tuple[int, bytes]]

    @classmethod
    def of(cls, reply: Any) -> Slice:
        """Return what a reply says."""
        skipped, read, left, taken, *found = reply
        return cls(skipped, read, left, taken, list(zip(found[::2], found[1::2], strict=True)))

    @property
    def place(self) -> Place:
        """Where the next slice begins."""
        return Place(self.skipped + self.read, self.taken)


def ready(
    keys: QueueKeys,
    *,
    end: End,
    skip: int,
    taken: int | None = None,
    limit: int,
    marks: Sequence[Sequence[bytes]] = (),
) -> Call[Slice]:
    """Read messages of a broker list from an end on; see `ready.lua`, and `scripts.page` for the marks."""
    apart = [mark for group in marks if group and all(group) for mark in (b"", *group)][1:]
    side = "L" if end == "newest" else "R"
    args = (side, skip, "" if taken is None else taken, limit, *apart)
    return Call(load("ready"), (keys.queue, keys.taken), args, Slice.of)


def take_back(
    keys: QueueKeys,
    *,
    messages: Sequence[tuple[int, bytes]],
    holders: Sequence[Holder | None] = (),
    instead: Sequence[bytes] = (),
) -> Call[list[bool]]:
    """Remove messages from a broker list, at most `MAX_TAKEN_BACK`; see `take_back.lua`.

    Each is given with the number of newer ones when it was read, ascending. `holders` has those of messages whose tasks
    give up their unique keys, and `instead` what may take their places, in the same order. Returns for each whether it
    was removed.
    """
    args: list[bytes | int] = [
        part
        for (number, message), other in zip_longest(messages, instead, fillvalue=b"")
        for part in (number, message, other)
    ]
    return Call(
        load("take_back"),
        (keys.queue, keys.taken, keys.holds),
        (written(holders), *args),
        lambda reply: [bool(one) for one in reply],
    )


class Ready:
    """The part of `DelayedQueue` for messages that are in the list.

    Attributes:
        client: reads.
        writer: changes.
        keys: of the queue.
    """

    client: redis.Redis
    writer: redis.Redis
    keys: QueueKeys

    def ready(self, place: Place = START, *, limit: int, marks: Sequence[Sequence[bytes]] = ()) -> Slice:
        """Return messages from the newest one on, or from where the last slice ended. One bounded call.

        A message that stays in the list is never missed, whatever comes and goes. Some may come twice.

        Args:
            place: `Slice.place` of the last slice.
            limit: maximum number of messages to read, 1 to 1,000. Large messages count as several.
            marks: see `Waiting.search`. The server does the search.
        """
        call = ready(self.keys, end="newest", skip=place.skip, taken=place.taken, limit=limit, marks=marks)
        return call.run(self.client)

    def oldest_ready(self, skip: int = 0, *, limit: int, marks: Sequence[Sequence[bytes]] = ()) -> Slice:
        """Return messages from the oldest one on, as consumers take them. One bounded call.

        Args:
            skip: how many of the oldest messages to skip. What consumers take meanwhile counts, too.
            limit: see `ready`.
            marks: see `ready`.
        """
        return ready(self.keys, end="oldest", skip=skip, limit=limit, marks=marks).run(self.client)

    def take_back(
        self,
        messages: Sequence[tuple[int, bytes]],
        holders: Sequence[Holder | None],
        instead: Sequence[bytes] = (),
    ) -> list[bool]:
        """Remove messages before a consumer takes them. One atomic script per twenty.

        Args:
            messages: as they were read with `ready`, each with the number of those before it, in this order.
            holders: of each the holder of a unique key that its task gives up, or None.
            instead: of each what takes its place if it is more than 10,000 messages away from both ends of the list:
                removing it would block Redis for some ms. Empty bytes: it is removed anyway.

        Returns:
            For each, whether it was removed. Otherwise a consumer has taken it, or it has moved: look again.
        """
        removed: list[bool] = []
        for start in reversed(range(0, len(messages), MAX_TAKEN_BACK)):  # so that the others stay where they are
            part = slice(start, start + MAX_TAKEN_BACK)
            call = take_back(self.keys, messages=messages[part], holders=holders[part], instead=instead[part])
            removed[:0] = call.run(self.writer)
        return removed
