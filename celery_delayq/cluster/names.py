"""Names of the keys of a queue on Redis Cluster: all of them have to be in one hash slot, and the queue's alone.

The names themselves come from `queue.keys`; here is what a cluster asks of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from functools import lru_cache

from redis.crc import key_slot

from celery_delayq.basics.errors import ConfigurationError
from celery_delayq.queue.keys import QueueKeys

#: Stand for all separators and priorities, and for all consumers.
_SUFFIX = "\x06\x163"
_CONSUMER = "consumer"


def slot_of(key: str) -> int:
    """Return the hash slot of a key."""
    slot: int = key_slot(key.encode())
    return slot


def is_tagged(name: str) -> bool:
    """Return whether a name has a hash tag: only what is between its first braces decides about the slot.

    Source: the Redis Cluster specification, "Hash tags".
    """
    _, brace, rest = name.partition("{")
    return bool(brace) and rest.find("}") > 0


def priority_list(queue: str, suffix: str, keyprefix: str = "") -> str:
    """Return the name of a queue's list for a priority, without `keyprefix`. It is in the hash slot of the queue.

    Source: kombu 5.7 `transport.redis.Channel._q_for_pri`, which adds no braces.

    Args:
        queue: the queue.
        suffix: kombu's separator and the priority; empty for priority 0.
        keyprefix: the `global_keyprefix`: it takes part in deciding about the slot, so it is within the braces, too.
    """
    full = f"{keyprefix}{queue}"
    return f"{queue}{suffix}" if not suffix or is_tagged(full) else f"{{{full}}}{suffix}"


def queue_of(plain: str, keyprefix: str = "") -> str:
    """Return the queue of a list for a priority, see `priority_list`.

    Args:
        plain: the list, without `global_keyprefix`, separator and priority.
        keyprefix: the `global_keyprefix`.
    """
    between = plain[1:-1]
    added = plain == f"{{{between}}}" and between.startswith(keyprefix) and not is_tagged(between)
    return between.removeprefix(keyprefix) if added else plain


def check_name(name: str, keyprefix: str = "") -> None:
    """Make sure that all keys of a queue are in one hash slot, and no other queue's.

    A name without braces always passes, unless empty.

    Args:
        name: the queue, without `global_keyprefix`.
        keyprefix: the `global_keyprefix`.

    Raises:
        ConfigurationError: they are not.
    """
    shares_slot, other = _share_slot(name, keyprefix), queue_of(name, keyprefix)
    if shares_slot and other == name:
        return
    subject = f"queue name {name!r}" if name else "the empty queue name"
    prefix = f" with global_keyprefix {keyprefix!r}" if keyprefix else ""
    why = f"{'because of its braces, ' if name else ''}the keys of the queue would be in different hash slots"
    how = "with a whole hash tag"
    if shares_slot:
        why = f"its lists for priorities would be those of the queue {other!r}"
        how = "with more text after its hash tag"
    advice = f"Use a name without braces, or one {how}, such as '{{shop}}:orders'" if name else "Give the queue a name"
    raise ConfigurationError(f"{subject}{prefix} cannot be used on Redis Cluster: {why}. {advice}")


@lru_cache(maxsize=1024)
def _share_slot(name: str, keyprefix: str) -> bool:
    slot = slot_of(f"{keyprefix}{name}")
    return all(slot_of(key) == slot for key in keys_of(name, keyprefix))


def keys_of(name: str, keyprefix: str = "") -> Iterator[str]:
    """Yield the names of keys and channels of a queue: of its list, and of one for a priority, which stands for all.

    Args:
        name: the queue; with `global_keyprefix`, unless that is given.
        keyprefix: the `global_keyprefix`.
    """
    full = f"{keyprefix}{name}"
    for broker_list in (full, f"{keyprefix}{priority_list(name, _SUFFIX, keyprefix)}"):
        keys = QueueKeys.of(broker_list)
        yield from astuple(keys)
        yield keys.in_flight(_CONSUMER)
