"""One typed function per Lua script, so that keys, arguments and return codes have names."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import redis

from celery_delayq.queue import holds
from celery_delayq.queue.attempt import Attempt
from celery_delayq.queue.holds import Holder
from celery_delayq.queue.keys import QueueKeys, RegistryKeys
from celery_delayq.queue.script import Call, load

#: Maximum limit of `transfer`: Lua's `unpack` fails at 8,000 values, and a call should take about 1 ms.
MAX_BATCH_SIZE = 1000


@dataclass(frozen=True)
class Transferred:
    """Result of one call of `transfer`.

    Attributes:
        moved: number of messages that were moved to the broker list.
        dead: number of entries that were moved to the dead list.
        head_due_ms: due time of the next entry, unix time in ms; None if there is none.
        now_us: the server's time, unix time in microseconds.
        last_sign_ms: last sign of life of the punctual transferrer, unix time in ms.
        punctual: id of the punctual transferrer; empty if there is none.
        former: id of the one that was punctual before the call; empty if there was none.
        parts: the moved messages in due order, some at a time: when the first of them was due (unix time in ms; 0 if it
            was always due), and how many they are.
    """

    moved: int
    dead: int
    head_due_ms: int | None
    now_us: int
    last_sign_ms: int
    punctual: str
    former: str = ""
    parts: tuple[tuple[int, int], ...] = ()


def score_to_ms(score: bytes | str | float) -> int | None:
    """Return a score as a due time in ms; None if there is no entry (empty), or if it is never due."""
    value = math.inf if score in (b"", "") else float(score)
    if value == math.inf:
        return None
    return 0 if value == -math.inf else math.ceil(value)


def offer_call(
    keys: QueueKeys,
    *,
    due_ms: int | None,
    delay_ms: int = 0,
    message_key: bytes,
    payload: bytes,
    mirrored: bool,
    attempt: Attempt | None = None,
) -> Call:
    """Return keys and arguments of `offer.lua`, for `run` or for a pipeline."""
    due = "" if due_ms is None else due_ms
    names: list[str] = [*keys.waiting]
    args: list[bytes | str | int] = [due, delay_ms, message_key, payload, int(mirrored), keys.channel]
    if attempt is not None:
        names.append(attempt.record(keys))
        args.append(attempt.token)
    return names, args


def offer(client: redis.Redis, keys: QueueKeys, **message: Any) -> tuple[int, bool]:
    """Store a message; see `offer.lua`. Arguments are those of `offer_call`.

    Returns its due time, unix time in ms, and whether no other entry waits.
    """
    due_ms, alone = load("offer").run(client, *offer_call(keys, **message))
    return int(due_ms), bool(alone)


def publish(client: redis.Redis, keys: QueueKeys, *, message: bytes, attempt: Attempt) -> bool:
    """Put a message to the back of the broker list; see `publish.lua`. Returns False if it was stored before."""
    return bool(load("publish").run(client, (keys.queue, attempt.record(keys)), (message, attempt.token)))


def offer_fetched(
    client: redis.Redis,
    keys: QueueKeys,
    *,
    consumer: str,
    message: bytes,
    due_ms: int,
    message_key: bytes,
    payload: bytes,
    mirrored: bool,
) -> tuple[bool, bool]:
    """Move a message that a consumer has fetched to the delayed queue; see `offer_fetched.lua`.

    Returns whether it was in flight, and whether no other entry waits.
    """
    moved, alone = load("offer_fetched").run(
        client,
        (keys.in_flight(consumer), *keys.waiting),
        (message, due_ms, message_key, payload, int(mirrored), keys.channel),
    )
    return bool(moved), bool(alone)


#: Maximum number of messages that one call of `offer_many` stores.
MAX_OFFERS = 100


def offer_many(
    client: redis.Redis, keys: QueueKeys, *, messages: Sequence[tuple[int, bytes, bytes]], mirrored: bool
) -> bool:
    """Store messages (due time in ms, message key, payload); see `offer_many.lua`.

    Returns whether no other entry waits.
    """
    return bool(load("offer_many").run(client, *offer_many_call(keys, messages=messages, mirrored=mirrored)))


def offer_many_call(keys: QueueKeys, *, messages: Sequence[tuple[int, bytes, bytes]], mirrored: bool) -> Call:
    """Return keys and arguments of `offer_many.lua`, for `run` or for a pipeline."""
    parts = [part for message in messages for part in message]
    return keys.waiting, (int(mirrored), keys.channel, *parts)


def transfer(
    client: redis.Redis, keys: QueueKeys, *, limit: int, transferrer: str, grace_ms: int, lead_ms: int
) -> Transferred:
    """Move due messages to the broker list, see `transfer.lua`."""
    moved, dead, head, now_us, last, punctual, former, *slices = load("transfer").run(
        client,
        (keys.queue, *keys.waiting, keys.dead, keys.transferrer, keys.holds),
        (limit, transferrer, grace_ms, keys.transferrer_channel, lead_ms),
    )
    parts = tuple((score_to_ms(due) or 0, size) for size, due in zip(slices[::2], slices[1::2], strict=True) if size)
    after, before = punctual.decode("utf-8", "replace"), former.decode("utf-8", "replace")
    return Transferred(moved, dead, score_to_ms(head), int(now_us), int(last), after, before, parts)


#: How long sums stay, in seconds: over each step of seconds, in blocks of time of so many. One block is one key, small
#: enough for Redis to store it compactly.
HISTORY = {60: (8 * 3600, 600), 600: (72 * 3600, 7200)}

#: How long totals stay that do not change, in seconds.
TOTALS_S = 30 * 86400


def count_call(keys: QueueKeys, *, now_s: int, numbers: Mapping[str, int]) -> Call:
    """Return keys and arguments of `count.lua`: add numbers, at the server's time `now_s`, unix time in s."""
    history = [(step_s, *HISTORY[step_s]) for step_s in HISTORY]
    return (
        (keys.metrics, *(keys.history(step_s, now_s - now_s % block_s) for step_s, _, block_s in history)),
        (
            TOTALS_S,
            *(part for step_s, kept_s, block_s in history for part in (now_s - now_s % step_s, kept_s + block_s)),
            *(part for number in numbers.items() for part in number),
        ),
    )


def count(client: redis.Redis, keys: QueueKeys, *, now_s: int, numbers: Mapping[str, int]) -> int:
    """Add numbers to the totals and the history of a queue; see `count.lua`. Returns how many."""
    return int(load("count").run(client, *count_call(keys, now_s=now_s, numbers=numbers)))


@dataclass(frozen=True)
class Measured:
    """Numbers of one broker list.

    Attributes:
        now_ms: the server's time, unix time in ms.
        ready: messages on the list.
        delayed: waiting messages, overdue ones included.
        overdue: those that are due.
        head_due_ms: when the first one is due, unix time in ms; None if none waits.
        dead: dead letters.
        punctual: id of the loop that moved messages last; empty if there is none.
        lasting: consumers whose leases last.
        ended: consumers whose leases have ended, and whose messages nobody has recovered yet.
        given_up: consumers that were given up lately.
        due: how many messages are due within each span.
        totals: what was counted so far.
    """

    now_ms: int
    ready: int = 0
    delayed: int = 0
    overdue: int = 0
    head_due_ms: int | None = None
    dead: int = 0
    punctual: str = ""
    lasting: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    given_up: tuple[str, ...] = ()
    due: tuple[int, ...] = ()
    totals: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, reply: Any) -> Measured:
        """Return what a reply says."""
        if len(reply) == 1:
            return cls(int(reply[0]))
        now, ready, delayed, overdue, head, dead, punctual, *consumers, due, totals = reply
        lasting, ended, given_up = (tuple(name.decode(errors="surrogateescape") for name in part) for part in consumers)
        counted = zip(totals[::2], totals[1::2], strict=True)
        return cls(
            int(now),
            ready,
            delayed,
            overdue,
            score_to_ms(head),
            dead,
            (punctual or b"").decode(errors="replace").partition(":")[2],
            lasting,
            ended,
            given_up,
            tuple(due),
            {name.decode(errors="replace"): int(n) for name, n in counted if n.isdigit()},
        )


def measure_call(keys: QueueKeys, *, spans_ms: Sequence[int]) -> Call:
    """Return keys and arguments of `measure.lua`."""
    return (keys.queue, keys.timeout_set, keys.dead, keys.transferrer, keys.consumers, keys.metrics), spans_ms


def measure(client: redis.Redis, keys: QueueKeys, *, spans_ms: Sequence[int]) -> Measured:
    """Return the numbers of a list; see `measure.lua`."""
    return Measured.of(load("measure").run(client, *measure_call(keys, spans_ms=spans_ms)))


def spread_call(keys: QueueKeys, *, edges_ms: Sequence[int]) -> Call:
    """Return keys and arguments of `spread.lua`."""
    return (keys.timeout_set,), edges_ms


def spread(client: redis.Redis, keys: QueueKeys, *, edges_ms: Sequence[int]) -> list[int]:
    """Count entries by their due times; see `spread.lua`. Returns an empty list if none waits."""
    return list(load("spread").run(client, *spread_call(keys, edges_ms=edges_ms)))


def cancel(client: redis.Redis, keys: QueueKeys, *, message_key: bytes, limit: int = 100) -> tuple[int, int]:
    """Remove the entries of a message id; see `cancel.lua`. Returns how many were removed, and how many are left."""
    return cast(
        "tuple[int, int]",
        tuple(load("cancel").run(client, (*keys.waiting, keys.holds), (message_key, limit))),
    )


def resign(client: redis.Redis, keys: QueueKeys, *, transferrer: str) -> bool:
    """Stop being the punctual transferrer, see `resign.lua`. Returns whether the caller was."""
    return bool(
        load("resign").run(client, (keys.timeout_set, keys.transferrer), (transferrer, keys.transferrer_channel))
    )


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
    client: redis.Redis, lists: Sequence[QueueKeys], *, consumer: str, lease_ms: int, join: bool
) -> list[Renewed | redis.ResponseError]:
    """Begin or extend leases on lists, at most `MAX_RENEW`, in one hash slot; see `renew.lua`.

    Returns for each list the result, or the server's error.
    """
    args = (consumer, lease_ms, int(join))
    now_ms, *replies = load("renew").run(client, [keys.consumers for keys in lists], args)
    return [reply if isinstance(reply, redis.ResponseError) else _renewed(int(now_ms), *reply) for reply in replies]


def _renewed(now_ms: int, renewed: int, *others: bytes) -> Renewed:
    silent: dict[str, bytes] = {}
    given_up: dict[str, bytes] = {}
    for name, score in zip(others[::2], others[1::2], strict=True):
        (silent if float(score) > 0 else given_up)[name.decode("utf-8", "replace")] = score
    return Renewed(renewed == 1, now_ms, silent, given_up, renewed >= 0)


def fetch(client: redis.Redis, keys: QueueKeys, *, consumer: str, limit: int) -> list[bytes] | None:
    """Move messages to a consumer's in-flight list; see `fetch.lua`. Returns them, or None if it has no lease."""
    return cast("list[bytes] | None", load("fetch").run(client, *fetch_call(keys, consumer=consumer, limit=limit)))


def fetch_call(keys: QueueKeys, *, consumer: str, limit: int) -> Call:
    """Return keys and arguments of `fetch.lua`, for a connection that reads the reply later."""
    return (keys.queue, keys.in_flight(consumer), keys.consumers), (consumer, limit)


def purge(client: redis.Redis, keys: QueueKeys, *, limit: int, mark: bytes) -> tuple[int, list[bytes]]:
    """Remove at most `limit` messages, and `MAX_FETCH`, from the broker list; see `purge.lua`.

    Returns how many were removed, and those of them that contain the mark.
    """
    removed, *marked = load("purge").run(client, (keys.queue,), (limit, mark))
    return int(removed), marked


def put_back(
    client: redis.Redis,
    keys: QueueKeys,
    *,
    consumer: str,
    messages: Sequence[tuple[bytes, bytes]],
    to_front: bool = True,
    dead: bool = False,
    holders: Sequence[Holder | None] = (),
) -> int:
    """Move messages out of a consumer's in-flight list; see `put_back.lua`. Returns how many were in it.

    They move to the front of the broker list (newest first), to its back, or to the dead list. Each message is given
    as it was fetched, and as it should be stored. `holders` has those of messages whose tasks give up their unique
    keys, in the same order.
    """
    destination = keys.dead if dead else keys.queue
    side = "RIGHT" if to_front or dead else "LEFT"
    args = [part for message in messages for part in message]
    return int(
        load("put_back").run(
            client, (keys.in_flight(consumer), destination, keys.holds), (side, holds.written(holders), *args)
        )
    )


def replace(client: redis.Redis, keys: QueueKeys, *, consumer: str, message: bytes, new: bytes) -> bool:
    """Replace a message in a consumer's in-flight list; the new one is the oldest. Returns whether it was there."""
    in_flight = keys.in_flight(consumer)
    return bool(load("put_back").run(client, (in_flight, in_flight, keys.holds), ("RIGHT", b"", message, new)))


#: Maximum number of letters that one call of `requeue_dead` or `purge_dead` takes.
MAX_TAKEN = 50


def requeue_dead(
    client: redis.Redis, keys: QueueKeys, *, first: int, last: int, letters: Sequence[tuple[bytes, bytes]]
) -> list[bool]:
    """Move letters from the dead list to the back of the broker list; see `requeue_dead.lua`.

    They are searched for between two positions. Each is given as it is stored, with the message to write. Returns for
    each whether it was there.
    """
    args = [part for letter in letters for part in letter]
    taken = load("requeue_dead").run(client, (keys.dead, keys.queue), (first, last, os.urandom(16), *args))
    return [bool(one) for one in taken]


def purge_dead(client: redis.Redis, keys: QueueKeys, *, first: int, last: int, letters: Sequence[bytes]) -> list[bool]:
    """Remove letters from the dead list; see `purge_dead.lua`. Returns for each whether it was there.

    They are searched for between two positions.
    """
    taken = load("purge_dead").run(client, (keys.dead,), (first, last, os.urandom(16), *letters))
    return [bool(one) for one in taken]


@dataclass(frozen=True)
class Recovered:
    """Result of one call of `recover`.

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
    client: redis.Redis,
    keys: QueueKeys,
    *,
    consumer: str,
    score: bytes,
    gone: bool,
    alive_channel: str,
    messages: Sequence[tuple[bytes, bytes, bool]],
    holders: Sequence[Holder | None] = (),
) -> Recovered:
    """Put back the messages of a consumer that is gone; see `recover.lua`. The score is empty if it is not known.

    The channel is the consumer's if its process is known to have ended, otherwise empty. Messages are given newest
    first: each as it is stored, as it should be stored, and whether it moves to the dead list. `holders` has those of
    messages whose tasks give up their unique keys, in the same order.
    """
    args = [part for raw, new, dead in messages for part in (raw, new, "D" if dead else "Q")]
    given_up, moved, left, new_score = load("recover").run(
        client,
        (keys.consumers, keys.in_flight(consumer), keys.queue, keys.dead, keys.holds),
        (consumer, score, int(gone), alive_channel, holds.written(holders), *args),
    )
    return Recovered(bool(given_up), [bool(one) for one in moved], left, new_score)


def leave(client: redis.Redis, keys: QueueKeys, *, consumer: str) -> bool:
    """End a lease; see `leave.lua`. Returns False if the consumer still holds messages."""
    return bool(load("leave").run(client, (keys.consumers, keys.in_flight(consumer)), (consumer,)))


#: Maximum number of entries that one call of `page` returns, or that one call of `remove` or `release` accepts.
MAX_PAGE, MAX_REMOVED = 1000, 100


def find(
    client: redis.Redis, keys: QueueKeys, *, message_key: bytes, after: bytes = b""
) -> tuple[list[tuple[int, bytes]], bytes]:
    """Find entries of a message id; see `find.lua`.

    Returns due times (ms) and entries, and `after` for the next call; `after` is empty if there are no more.
    """
    more, *found = load("find").run(client, (keys.timeout_set, keys.index, keys.repeated), (message_key, after))
    return [(int(due), entry) for due, entry in zip(found[::2], found[1::2], strict=True)], more


def page(
    client: redis.Redis,
    keys: QueueKeys,
    *,
    due_ms: int | None,
    last_due_ms: int | None,
    limit: int,
    skip: Literal["", "entry", "start"] = "",
    after: bytes = b"",
    marks: Sequence[Sequence[bytes]] = (),
) -> tuple[int, list[tuple[bytes, bytes]]]:
    """Return how many entries were read, and entries and scores in due order; see `page.lua`.

    Entries contain one mark of each group. A group that is empty, or has an empty mark, says nothing.
    """
    first_due: int | str = "-inf" if due_ms is None else due_ms
    last_due: int | str = "(+inf" if last_due_ms is None else last_due_ms
    apart = [mark for group in marks if group and all(group) for mark in (b"", *group)][1:]
    read, *found = load("page").run(client, (keys.timeout_set,), (first_due, last_due, limit, skip, after, *apart))
    return int(read), list(zip(found[::2], found[1::2], strict=True))


def remove(client: redis.Redis, keys: QueueKeys, *, entries: Sequence[bytes]) -> list[bool]:
    """Remove entries that have not changed; see `remove.lua`. Returns, for the first ones, whether each was removed."""
    removed = load("remove").run(client, (*keys.waiting, keys.holds), entries)
    return [bool(one) for one in removed]


def release(client: redis.Redis, keys: QueueKeys, *, messages: Sequence[tuple[bytes, bytes]]) -> list[bool]:
    """Move entries to the broker list; see `release.lua`. Returns, for the first ones, whether each was moved.

    Each entry is given as it was read, with the message to write.
    """
    args = [part for message in messages for part in message]
    moved = load("release").run(client, (keys.queue, *keys.waiting, keys.holds), args)
    return [bool(one) for one in moved]


#: Maximum number of entries that one call of `amend` changes.
MAX_AMENDED = 25


def amend(
    client: redis.Redis, keys: QueueKeys, *, due_ms: int | None, messages: Sequence[tuple[bytes, bytes]]
) -> list[int | None]:
    """Change entries, each given as it was read, with its new payload; see `amend.lua`.

    Returns for each of the first ones its due time, or None if it is no longer as it was read: at most for
    `MAX_AMENDED`, and fewer while the delay list is in use.
    """
    dues = load("amend").run(client, *amend_call(keys, due_ms=due_ms, messages=messages[:MAX_AMENDED]))
    return [int(due) if due else None for due in dues]


def amend_call(keys: QueueKeys, *, due_ms: int | None, messages: Sequence[tuple[bytes, bytes]]) -> Call:
    """Return keys and arguments of `amend.lua`; see `amend`."""
    args = [part for message in messages for part in message]
    return keys.waiting, (keys.channel, "" if due_ms is None else due_ms, *args)


def tidy(client: redis.Redis, keys: QueueKeys, *, places: Sequence[bytes]) -> tuple[int, int]:
    """Forget places of entries that no longer wait; see `tidy.lua`.

    Returns how many were forgotten, and how many more places than entries are left.
    """
    forgotten, surplus = load("tidy").run(client, (keys.timeout_set, keys.index, keys.repeated, keys.holds), places)
    return int(forgotten), int(surplus)


def retire(client: redis.Redis, keys: RegistryKeys, *, names: Sequence[str]) -> int:
    """Take names out of the registry; see `retire.lua`. Returns how many were in it."""
    return int(load("retire").run(client, (keys.names, keys.retired), names))


def settle(client: redis.Redis, keys: RegistryKeys, *, retired: Sequence[tuple[str, int]]) -> int:
    """Forget that names were retired at a time (ms); see `settle.lua`. Returns how many were still retired."""
    args = [part for name in retired for part in name]
    return int(load("settle").run(client, (keys.retired,), args))


def restore_call(keys: QueueKeys, *, due_ms: int, message_key: bytes, payload: bytes, mirrored: bool) -> Call:
    """Return keys and arguments of `restore.lua`. An entry of another program is the payload, without a message key."""
    return (
        keys.waiting,
        (due_ms, message_key, payload, int(mirrored), keys.channel),
    )


def restore(client: redis.Redis, keys: QueueKeys, **message: Any) -> bool:
    """Store a message unless it waits already; see `restore.lua`. Arguments are those of `restore_call`.

    Returns whether it was stored.
    """
    return bool(load("restore").run(client, *restore_call(keys, **message)))
