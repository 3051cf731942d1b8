"""One typed function per Lua script, so that keys, arguments and return codes have names.

Each returns a call, see `celery_delayq.queue.call.Call`: `scripts.resign(keys, transferrer=me).run(client)`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import redis

from celery_delayq.basics.times import EPOCH, to_datetime
from celery_delayq.queue import holds
from celery_delayq.queue.call import Attempt, Call, load
from celery_delayq.queue.holds import Holder
from celery_delayq.queue.keys import QueueKeys

#: Maximum limit of `transfer`: Lua's `unpack` fails at 8,000 values, and a call should take about 1 ms.
MAX_BATCH_SIZE = 1000


@dataclass(frozen=True)
class Transferred:
    """Result of `transfer`.

    Attributes:
        moved: number of messages that were moved to the broker list.
        dead: number of entries that became dead letters.
        head_due: when the next entry is due, see `Entry.due`; None if there is none.
        now: the server's time, aware, in microseconds.
        last_sign: last sign of life of the punctual transferrer, aware; 1970 if there was none.
        punctual: id of the punctual transferrer; empty if there is none.
        former: id of the one that was punctual before the call; empty if there was none.
        parts: the moved messages in due order, some at a time: when the first of them was due (1970 if it was
            always due), and how many they are.
    """

    moved: int
    dead: int
    head_due: datetime | None
    now: datetime
    last_sign: datetime
    punctual: str
    former: str = ""
    parts: tuple[tuple[datetime, int], ...] = ()

    @classmethod
    def of(cls, reply: Any) -> Transferred:
        """Return what a reply says."""
        moved, dead, head, now_us, last, punctual, former, *slices = reply
        parts = tuple(
            (to_datetime(score_to_ms(due) or 0), size)
            for size, due in zip(slices[::2], slices[1::2], strict=True)
            if size
        )
        head_ms = score_to_ms(head)
        head_due = None if head_ms is None else to_datetime(head_ms)
        now, last_sign = EPOCH + timedelta(microseconds=int(now_us)), to_datetime(int(last))
        after, before = punctual.decode("utf-8", "replace"), former.decode("utf-8", "replace")
        return cls(moved, dead, head_due, now, last_sign, after, before, parts)


def score_to_ms(score: bytes | str | float) -> int | None:
    """Return a score as a due time in ms; None if there is no entry (empty), or if it is never due."""
    value = math.inf if score in (b"", "") else float(score)
    if value == math.inf:
        return None
    return 0 if value == -math.inf else math.ceil(value)


def offer(
    keys: QueueKeys,
    *,
    due_ms: int | None,
    delay_ms: int = 0,
    message_key: bytes,
    payload: bytes,
    mirrored: bool,
    attempt: Attempt | None = None,
) -> Call[tuple[int, bool]]:
    """Store a message; see `offer.lua`.

    Returns its due time, unix time in ms, and whether no other entry waits.
    """
    due = "" if due_ms is None else due_ms
    names: list[str] = [*keys.waiting]
    args: list[bytes | str | int] = [due, delay_ms, message_key, payload, int(mirrored), keys.channel]
    if attempt is not None:
        names.append(keys.published(attempt.publisher))
        args.append(attempt.token)
    return Call(load("offer"), names, args, lambda reply: (int(reply[0]), bool(reply[1])))


def publish(keys: QueueKeys, *, message: bytes, attempt: Attempt) -> Call[bool]:
    """Put a message to the back of the broker list; see `publish.lua`. Returns False if it was stored before."""
    return Call(load("publish"), (keys.queue, keys.published(attempt.publisher)), (message, attempt.token), bool)


def offer_fetched(
    keys: QueueKeys,
    *,
    consumer: str,
    message: bytes,
    due_ms: int,
    is_from_now: bool = False,
    message_key: bytes,
    payload: bytes,
    mirrored: bool,
    holder: Holder | None = None,
) -> Call[tuple[bool, bool]]:
    """Move a message that a consumer has fetched to the delayed queue; see `offer_fetched.lua`.

    Returns whether it was in flight, and whether no other entry waits.
    """
    due = f"+{due_ms}" if is_from_now else due_ms
    names = (keys.in_flight(consumer), *keys.waiting, keys.holds)
    args = (message, due, message_key, payload, int(mirrored), keys.channel, holds.written([holder]))
    return Call(load("offer_fetched"), names, args, lambda reply: (bool(reply[0]), bool(reply[1])))


#: Maximum number of messages that one call of `offer_many` stores.
MAX_OFFERS = 100


def offer_many(keys: QueueKeys, *, messages: Sequence[tuple[int, bytes, bytes]], mirrored: bool) -> Call[bool]:
    """Store messages (due time in ms, message key, payload); see `offer_many.lua`.

    Returns whether no other entry waits.
    """
    parts = [part for message in messages for part in message]
    return Call(load("offer_many"), keys.waiting, (int(mirrored), keys.channel, *parts), bool)


def transfer(keys: QueueKeys, *, limit: int, transferrer: str, grace_ms: int, lead_ms: int) -> Call[Transferred]:
    """Move due messages to the broker list, see `transfer.lua`."""
    return Call(
        load("transfer"),
        (keys.queue, *keys.waiting, *keys.dead_letters, keys.transferrer, keys.holds),
        (limit, transferrer, grace_ms, keys.transferrer_channel, lead_ms),
        Transferred.of,
    )


def cancel(keys: QueueKeys, *, message_key: bytes, limit: int = 100) -> Call[tuple[int, int]]:
    """Remove the entries of a message id; see `cancel.lua`. Returns how many were removed, and how many are left."""
    return Call(load("cancel"), (*keys.waiting, keys.holds), (message_key, limit), lambda reply: (reply[0], reply[1]))


def resign(keys: QueueKeys, *, transferrer: str) -> Call[bool]:
    """Stop being the punctual transferrer, see `resign.lua`. Returns whether the caller was."""
    args = (transferrer, keys.transferrer_channel)
    return Call(load("resign"), (keys.timeout_set, keys.transferrer), args, bool)


#: Maximum number of messages that one call of `fetch` moves or `purge` removes, or that one call of `put_back` or
#: `recover` accepts.
MAX_FETCH, MAX_PUT_BACK = 1000, 100

#: Maximum number of leases that one call of `renew` extends.
MAX_RENEW = 50


@dataclass(frozen=True)
class Renewed:
    """Result of `renew` for one list.

    Attributes:
        renewed: whether the consumer has a lease; False if it was given up, or is not known.
        now_ms: the server's time, unix time in ms.
        silent: other consumers that have not renewed for half of this lease -> their scores, as stored.
        given_up: other consumers that were given up -> their scores.
        is_known: whether the server knows the consumer: it has a lease, or was given up.
    """

    renewed: bool
    now_ms: int
    silent: dict[str, bytes]
    given_up: dict[str, bytes]
    is_known: bool = True

    @property
    def ended(self) -> dict[str, bytes]:
        """The consumers in `silent` whose leases have ended."""
        return {other: score for other, score in self.silent.items() if float(score) <= self.now_ms}


def renew(
    lists: Sequence[QueueKeys], *, consumer: str, lease_ms: int, join: bool
) -> Call[list[Renewed | redis.ResponseError]]:
    """Begin or extend leases on lists, at most `MAX_RENEW`, in one hash slot; see `renew.lua`.

    Returns for each list the result, or the server's error.
    """
    return Call(load("renew"), [keys.consumers for keys in lists], (consumer, lease_ms, int(join)), _each_renewed)


def _each_renewed(reply: Any) -> list[Renewed | redis.ResponseError]:
    now_ms, *lists = reply
    return [found if isinstance(found, redis.ResponseError) else _renewed(int(now_ms), *found) for found in lists]


def _renewed(now_ms: int, renewed: int, *others: bytes) -> Renewed:
    silent: dict[str, bytes] = {}
    given_up: dict[str, bytes] = {}
    for name, score in zip(others[::2], others[1::2], strict=True):
        (silent if float(score) > 0 else given_up)[name.decode("utf-8", "replace")] = score
    return Renewed(renewed == 1, now_ms, silent, given_up, renewed >= 0)


def fetch(keys: QueueKeys, *, consumer: str, limit: int) -> Call[list[bytes] | None]:
    """Move messages to a consumer's in-flight list; see `fetch.lua`. Returns them, or None if it has no lease."""
    names = (keys.queue, keys.in_flight(consumer), keys.consumers)
    return Call(load("fetch"), names, (consumer, limit), lambda reply: reply)


def purge(keys: QueueKeys, *, limit: int, mark: bytes) -> Call[tuple[int, list[bytes]]]:
    """Remove at most `limit` messages, and `MAX_FETCH`, from the broker list; see `purge.lua`.

    Returns how many were removed, and those of them that contain the mark.
    """
    return Call(load("purge"), (keys.queue,), (limit, mark), lambda reply: (int(reply[0]), reply[1:]))


def put_back(
    keys: QueueKeys,
    *,
    consumer: str,
    messages: Sequence[tuple[bytes, bytes]],
    to_front: bool = True,
    dead: bool = False,
    holders: Sequence[Holder | None] = (),
    expires_ms: int | None = None,
) -> Call[int]:
    """Move messages out of a consumer's in-flight list; see `put_back.lua`. Returns how many were in it.

    They move to the front of the broker list (newest first), to its back, or to the dead letters. Each message is given
    as it was fetched, and as it should be stored: a dead letter as its record. `holders` has those of messages whose
    tasks give up their unique keys, in the same order. `expires_ms` is the TTL of the list that messages go back to.
    """
    names = (keys.in_flight(consumer), keys.queue, *keys.dead_letters, keys.holds)
    side = "DEAD" if dead else "RIGHT" if to_front else "LEFT"
    return Call(load("put_back"), names, (side, holds.written(holders), expires_ms or 0, *_parts(messages)), int)


def replace(keys: QueueKeys, *, consumer: str, message: bytes, new: bytes) -> Call[bool]:
    """Replace a message in a consumer's in-flight list; the new one is the oldest. Returns whether it was there."""
    in_flight = keys.in_flight(consumer)
    names = (in_flight, in_flight, *keys.dead_letters, keys.holds)
    return Call(load("put_back"), names, ("RIGHT", b"", 0, message, new), bool)


@dataclass(frozen=True)
class Recovered:
    """Result of `recover`.

    Attributes:
        given_up: whether the consumer was given up, by this call or earlier; False if it is alive.
        moved: for each message, whether it was moved.
        left: number of messages that the consumer still holds.
        score: its new score; empty if it was forgotten.
    """

    given_up: bool
    moved: list[bool]
    left: int
    score: bytes


def recover(
    keys: QueueKeys,
    *,
    consumer: str,
    score: bytes,
    gone: bool,
    alive_channel: str,
    messages: Sequence[tuple[bytes, bytes, bool]],
    holders: Sequence[Holder | None] = (),
) -> Call[Recovered]:
    """Put back the messages of a consumer that is gone; see `recover.lua`. The score is empty if it is not known.

    The channel is the consumer's if its process is known to have ended, otherwise empty. Messages are given newest
    first: each as it is stored, what should be stored, and whether that is the record of a dead letter. `holders` has
    those of messages whose tasks give up their unique keys, in the same order.
    """
    args = [part for raw, new, dead in messages for part in (raw, new, "D" if dead else "Q")]
    return Call(
        load("recover"),
        (keys.consumers, keys.in_flight(consumer), keys.queue, *keys.dead_letters, keys.holds),
        (consumer, score, int(gone), alive_channel, holds.written(holders), *args),
        lambda reply: Recovered(bool(reply[0]), _flags(reply[1]), *reply[2:]),
    )


def leave(keys: QueueKeys, *, consumer: str) -> Call[bool]:
    """End a lease; see `leave.lua`. Returns False if the consumer still holds messages."""
    return Call(load("leave"), (keys.consumers, keys.in_flight(consumer)), (consumer,), bool)


#: Maximum number of entries that one call of `page` returns, or that one call of `remove` or `release` accepts.
MAX_PAGE, MAX_REMOVED = 1000, 100


def find(keys: QueueKeys, *, message_key: bytes, after: bytes = b"") -> Call[tuple[list[tuple[int, bytes]], bytes]]:
    """Find entries of a message id; see `find.lua`.

    Returns due times (ms) and entries, and `after` for the next call; `after` is empty if there are no more.
    """

    def read(reply: Any) -> tuple[list[tuple[int, bytes]], bytes]:
        more, *found = reply
        return [(int(due), entry) for due, entry in zip(found[::2], found[1::2], strict=True)], more

    return Call(load("find"), (keys.timeout_set, keys.index, keys.repeated), (message_key, after), read)


def page(
    keys: QueueKeys,
    *,
    due_ms: int | None,
    last_due_ms: int | None,
    limit: int,
    skip: Literal["", "entry", "start"] = "",
    after: bytes = b"",
    marks: Sequence[Sequence[bytes]] = (),
) -> Call[tuple[int, list[tuple[bytes, bytes]]]]:
    """Return how many entries were read, and entries and scores in due order; see `page.lua`.

    Entries contain one mark of each group. A group that is empty, or has an empty mark, says nothing.
    """
    first_due: int | str = "-inf" if due_ms is None else due_ms
    last_due: int | str = "(+inf" if last_due_ms is None else last_due_ms
    apart = [mark for group in marks if group and all(group) for mark in (b"", *group)][1:]
    return Call(
        load("page"),
        (keys.timeout_set,),
        (first_due, last_due, limit, skip, after, *apart),
        lambda reply: (int(reply[0]), list(zip(reply[1::2], reply[2::2], strict=True))),
    )


def remove(keys: QueueKeys, *, entries: Sequence[bytes]) -> Call[list[bool]]:
    """Remove entries that have not changed; see `remove.lua`. Returns, for the first ones, whether each was removed."""
    return Call(load("remove"), (*keys.waiting, keys.holds), entries, _flags)


def release(keys: QueueKeys, *, messages: Sequence[tuple[bytes, bytes]]) -> Call[list[bool]]:
    """Move entries to the broker list; see `release.lua`. Returns, for the first ones, whether each was moved.

    Each entry is given as it was read, with the message to write.
    """
    return Call(load("release"), (keys.queue, *keys.waiting, keys.holds), _parts(messages), _flags)


#: Maximum number of entries that one call of `amend` changes.
MAX_AMENDED = 25


def amend(keys: QueueKeys, *, due_ms: int, messages: Sequence[tuple[bytes, bytes]]) -> Call[list[bool]]:
    """Change entries, each given as it was read, with its new payload; see `amend.lua`.

    Returns for each of the first ones whether it was as it was read: at most for `MAX_AMENDED`, and fewer while the
    delay list is in use.
    """
    args: list[bytes | str | int] = [keys.channel, due_ms, *_parts(messages[:MAX_AMENDED])]
    return Call(load("amend"), keys.waiting, args, _flags)


def register(registry: str, *, names: Sequence[str], sent: bool = False) -> Call[int]:
    """Note that broker lists are used now; see `register.lua`. Returns how many are new to transfer loops."""
    return Call(load("register"), (registry,), ("1" if sent else "", *names), int)


def forget(registry: str, *, used: Sequence[tuple[str, int]]) -> Call[int]:
    """Remove names that were last used at a time (ms); see `forget.lua`. Returns how many were removed."""
    return Call(load("forget"), (registry,), [part for one in used for part in one], int)


def restore(keys: QueueKeys, *, due_ms: int, message_key: bytes, payload: bytes, mirrored: bool) -> Call[bool]:
    """Store a message unless it waits already; see `restore.lua`. Returns whether it was stored.

    An entry of another program is the payload, without a message key.
    """
    return Call(load("restore"), keys.waiting, (due_ms, message_key, payload, int(mirrored), keys.channel), bool)


def _parts(pairs: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    return [part for pair in pairs for part in pair]


def _flags(reply: Any) -> list[bool]:
    return [bool(one) for one in reply]
