"""Holds: which task holds which unique key. Of the tasks with one key, at most one waits.

A hold is a field of a HASH, of which a queue has one for all of its priorities. The scripts that move a message give
its key up, or say how long it is held from then on: `lua/lib/holds.lua` has the layout. An entry knows its key: the
index has it beside its place. A message on its way to a worker carries it as a property.

A hold counts only as long as its task waits, or until its time has come. So a key is free again, whatever happened to
its task: if another program removed it, for example. Nobody has to clean up.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import redis
from redis.client import NEVER_DECODE

from celery_delayq.queue import codec
from celery_delayq.queue.call import Attempt, Call, load
from celery_delayq.queue.keys import QueueKeys

#: Size in bytes of what represents a unique key.
UNIQUE_SIZE = 16

#: How long a task holds its key.
Until: TypeAlias = Literal["due", "start", "done", "period"]

#: What happens if another task holds the key.
Conflict: TypeAlias = Literal["keep", "replace", "extend"]

#: What a task does that has left its delayed queue.
What: TypeAlias = Literal["start", "renew", "done"]

#: Maximum number of holds that one call of `hold` changes.
MAX_HOLDS = 100

#: How scripts write these.
_CONFLICT: dict[Conflict, bytes] = {"keep": b"k", "replace": b"r", "extend": b"e"}
UNTIL: dict[Until, bytes] = {"due": b"w", "start": b"s", "done": b"d", "period": b"p"}
_UNTIL_OF = {written: until for until, written in UNTIL.items()}
#: A hold without its names. Only scripts read who holds it, and the TTL.
_HEAD = struct.Struct(">17xcc8xQH")
_CLAIM = struct.Struct(">16s16sBcQc")


def unique_of(key: str) -> bytes:
    """Return the 16 bytes that represent a unique or throttled key.

    Raises:
        TypeError: the key is not a string.
    """
    if not isinstance(key, str):
        raise TypeError(f"a unique key must be a str, not {key!r}")
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=UNIQUE_SIZE).digest()


@dataclass(frozen=True)
class Hold:
    """The record of a unique key.

    Attributes:
        until: how long the task holds it.
        waits: whether the task waits in a delayed queue, or did when it was asked last. Not if it holds the key for a
            period.
        ends_ms: until when the key outlives the task in its queue or a worker, if nobody gives it up, unix time in ms;
            0 while it waits.
        broker_list: the list that the task is, or was, on its way to.
        task_id: of the task.
    """

    until: Until
    waits: bool
    ends_ms: int
    broker_list: str
    task_id: str

    @classmethod
    def of(cls, raw: bytes) -> Hold | None:
        """Read a hold; None if it is not one."""
        if len(raw) < _HEAD.size:
            return None
        until, state, ends_ms, size = _HEAD.unpack_from(raw)
        names = raw[_HEAD.size :]
        if until not in _UNTIL_OF or len(names) < size:
            return None
        name, task_id = (part.decode("utf-8", "replace") for part in (names[:size], names[size:]))
        return cls(_UNTIL_OF[until], state == b"w", ends_ms, name, task_id)


@dataclass(frozen=True)
class Holder:
    """A message that holds a unique key, or did.

    Attributes:
        unique: the 16 bytes that represent the key.
        message_key: the 16 bytes that represent the task's id.
        turn: 0 to 255; another one for each retry of a task.
    """

    unique: bytes
    message_key: bytes
    turn: int = 0

    @classmethod
    def of(cls, key: str, task_id: str, turn: int = 0) -> Holder:
        """Return the holder of a key; see `unique_of`."""
        return cls(unique_of(key), codec.message_key(task_id), turn)

    @property
    def name(self) -> bytes:
        """The 17 bytes by which a hold names it."""
        return self.message_key + bytes((self.turn,))


def written(holders: Sequence[Holder | None]) -> bytes:
    """Return the holders of messages as `lua/lib/done_with.lua` reads them."""
    if not any(holders):
        return b""
    return b"".join(bytes(2 * UNIQUE_SIZE + 1) if one is None else one.unique + one.name for one in holders)


@dataclass(frozen=True)
class Claim:
    """A task that shall hold a unique key.

    Attributes:
        key: the key.
        until: how long the task holds it.
        ttl_ms: how long the key outlives the task in its queue or a worker, if nobody gives it up; or the period; in
            ms.
        conflict: what happens if another task holds the key.
    """

    key: str
    until: Until
    ttl_ms: int
    conflict: Conflict

    @property
    def unique(self) -> bytes:
        """What represents the key."""
        return unique_of(self.key)


@dataclass(frozen=True)
class Pace:
    """A throttled key: its turns are at least an interval apart.

    Attributes:
        key: the key.
        interval_us: in microseconds.
    """

    key: str
    interval_us: int

    def turns(self, keys: QueueKeys) -> str:
        """Return the name of the STRING of its turns, for a task in a queue."""
        return keys.turns(unique_of(self.key))


@dataclass(frozen=True)
class Offered:
    """What became of a message that claims a unique key.

    Attributes:
        outcome: `stored`; `held`: another task holds the key, and nothing was stored; `extend`: that task is due
            earlier; `repeated`: an entry of this message id waits already; `elsewhere`: that task may wait in another
            list, see `offer_unique`.
        alone: it was stored, and no other entry waits.
        task_id: of the task that holds the key.
        entry: the entry of the task that is due earlier.
        broker_list: the list that it waits for; if `elsewhere`, empty if that is no list of ours.
    """

    outcome: Literal["stored", "held", "extend", "repeated", "elsewhere"]
    alone: bool = False
    task_id: str = ""
    entry: bytes = b""
    broker_list: str = ""

    @classmethod
    def of(cls, reply: Any, task_id: str) -> Offered:
        """Return what a reply to the offer of a task says."""
        outcome, *more = reply
        if outcome == b"elsewhere":
            try:
                return cls("elsewhere", broker_list=more[0].decode())
            except UnicodeDecodeError:
                return cls("elsewhere")
        texts = [part.decode("utf-8", "surrogateescape") if isinstance(part, bytes) else part for part in more]
        if outcome == b"stored":
            return cls("stored", alone=bool(texts[0]), task_id=task_id)
        if outcome == b"held":
            return cls("held", task_id=texts[0])
        if outcome == b"extend":
            return cls("extend", entry=more[0], broker_list=texts[1])
        return cls("repeated")


def offer_unique(
    keys: QueueKeys,
    *,
    claim: Claim,
    task_id: str,
    turn: int = 0,
    due_ms: int | None,
    payload: bytes,
    mirrored: bool,
    pace: Pace | None = None,
    tail: bytes = b"",
    attempt: Attempt | None = None,
    there: QueueKeys | None = None,
) -> Call[Offered]:
    """Store a message that claims a unique key; see `DelayedQueue.offer_unique`, and `offer_unique.lua`.

    `there` are the keys of the list in which the holder waits, if that is another list: the outcome of the call before
    it was `elsewhere`.
    """
    claimed = _CLAIM.pack(
        claim.unique,
        codec.message_key(task_id),
        turn,
        UNTIL[claim.until],
        claim.ttl_ms,
        _CONFLICT[claim.conflict],
    )
    record = keys.published("" if attempt is None else attempt.publisher)
    names: list[str] = [*keys.waiting, keys.holds, keys.queue, record]
    args: list[bytes | str | int] = [
        "" if due_ms is None else due_ms,
        claimed,
        payload,
        int(mirrored),
        keys.channel,
        task_id,
        b"" if attempt is None else attempt.token,
    ]
    if pace is not None or there is not None:
        names.append(keys.turns(b"") if pace is None else pace.turns(keys))
        args += ["" if pace is None else pace.interval_us, tail]
    if there is not None:
        names += [there.timeout_set, there.index, there.delay_list]
        args.append(there.queue)
    return Call(load("offer_unique"), names, args, lambda reply: Offered.of(reply, task_id))


def offer_throttled(
    keys: QueueKeys,
    *,
    pace: Pace,
    due_ms: int | None,
    message_key: bytes,
    payload: bytes,
    mirrored: bool,
    tail: bytes = b"",
    attempt: Attempt | None = None,
) -> Call[tuple[int, bool]]:
    """Store a message that is due at a key's next turn; see `DelayedQueue.offer_throttled`, and `offer_throttled.lua`.

    Returns when it is due, unix time in ms, and whether no other entry waits. Zeros if it was stored before, and no
    longer waits.
    """
    due = "" if due_ms is None else due_ms
    names: list[str] = [*keys.waiting, pace.turns(keys)]
    args: list[bytes | str | int] = [due, pace.interval_us, message_key, payload, int(mirrored), keys.channel, tail]
    if attempt is not None:
        names.append(keys.published(attempt.publisher))
        args.append(attempt.token)
    return Call(load("offer_throttled"), names, args, lambda reply: (int(reply[0]), bool(reply[1])))


def hold(keys: QueueKeys, *, holders: Sequence[Holder], what: What) -> Call[int]:
    """Say what tasks of a list do that hold unique keys, at most `MAX_HOLDS`; see `hold.lua`.

    Returns how many keys were given up.
    """
    args = [part for one in holders for part in (one.unique, one.name)]
    return Call(load("hold"), (keys.holds,), (what, *args), int)


def acknowledge(keys: QueueKeys, *, consumer: str, message: bytes, holder: Holder, what: What) -> Call[bool]:
    """Remove a message of a task that holds a unique key from a consumer's in-flight list; see `acknowledge.lua`.

    The message is given as it was fetched. Returns whether it was in flight.
    """
    args = (message, holder.unique, holder.name, what)
    return Call(load("acknowledge"), (keys.in_flight(consumer), keys.holds), args, bool)


def move(keys: QueueKeys, *, there: QueueKeys, due_ms: int, entry: bytes, payload: bytes) -> Call[tuple[bool, bool]]:
    """Move an entry, given as it was read, to the delayed queue of another list, with a new payload; see `move.lua`.

    Returns whether it was moved, and whether no other entry waits there.
    """
    names = (*keys.waiting, keys.holds, *there.waiting, there.holds)
    args = (there.channel, there.queue, due_ms, entry, payload)
    return Call(load("move"), names, args, lambda reply: (bool(reply[0]), bool(reply[1])))


def holds_of(client: redis.Redis, keys: Sequence[QueueKeys], key: str) -> list[Hold]:
    """Return the records of a unique key in the queues of some lists, current or not; one round trip."""
    found = _each(client, keys, "HGET", key)
    return [read for raw in found if raw is not None and (read := Hold.of(raw)) is not None]


def forget(client: redis.Redis, keys: Sequence[QueueKeys], key: str) -> bool:
    """Give up a unique key in the queues of some lists; one round trip. Returns whether it was held."""
    return any(_each(client, keys, "HDEL", key))


def _each(client: redis.Redis, keys: Sequence[QueueKeys], command: str, key: str) -> list[Any]:
    with client.pipeline(transaction=False) as pipe:
        for name in dict.fromkeys(one.holds for one in keys):
            pipe.execute_command(command, name, unique_of(key), **{NEVER_DECODE: True})
        return pipe.execute()
