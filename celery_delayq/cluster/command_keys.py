"""Which argument of a command is its key. It decides which node the command goes to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from redis import exceptions

from celery_delayq.queue.connections import as_text

#: Commands without a key.
_WITHOUT_KEY = frozenset(
    ("ACL", "CLIENT", "CLUSTER", "CONFIG", "FLUSHALL", "INFO", "PING", "PUBLISH", "PUBSUB", "SCAN", "SCRIPT", "WAIT")
)

#: Commands whose keys follow their number.
_SCRIPTS = frozenset(("EVAL", "EVALSHA"))

#: How many keys an error names.
_KEYS_NAMED = 5


def name_of(args: Sequence[Any]) -> str:
    """Return the first word of a command. redis-py passes "SCRIPT LOAD" as one string, or as two."""
    return as_text(args[0]).upper().partition(" ")[0]


def key_of(args: Sequence[Any]) -> Any:
    """Return the first key of a command; None if it has none.

    If a command has several keys, its node makes sure that they share a hash slot.

    Args:
        args: the command, as redis-py's `execute_command` gets it. Only those are known that this package, kombu and
            Celery send.
    """
    name = name_of(args)
    if name in _WITHOUT_KEY or len(args) < 2:
        return None
    if name not in _SCRIPTS:
        return args[1]
    return args[3] if int(args[2]) else None


def cross_slot(commands: Iterable[Sequence[Any]]) -> exceptions.ClusterCrossSlotError:
    """Return the error that says that the keys of the commands of a transaction are in several hash slots."""
    commands = list(commands)
    names = ", ".join(dict.fromkeys(map(name_of, commands)))
    keys = list(dict.fromkeys(as_text(key) for key in map(key_of, commands) if key is not None))
    more = f" and {len(keys) - _KEYS_NAMED} more" if len(keys) > _KEYS_NAMED else ""
    named = ", ".join(map(repr, keys[:_KEYS_NAMED]))
    return exceptions.ClusterCrossSlotError(f"{names}: the keys {named}{more} are in several hash slots of the cluster")
