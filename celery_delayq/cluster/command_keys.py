"""Which arguments of a command are keys. They decide which node it goes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

from redis import exceptions

from celery_delayq.queue.connections import as_text

#: Returns the keys among the arguments of a command.
_Pick: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]

#: How many keys an error names.
_KEYS_NAMED = 5


def _numbered(place: int, before: int = 0) -> _Pick:
    """Return the function for commands whose keys follow their number, which is at a place.

    Args:
        place: 0 for the first argument.
        before: how many keys there are at the beginning, too.
    """

    def keys(args: Sequence[Any]) -> Sequence[Any]:
        count = int(args[place]) if len(args) > place else 0
        return [*args[:before], *args[place + 1 : place + 1 + count]]

    return keys


def _streams(args: Sequence[Any]) -> Sequence[Any]:
    names = [as_text(arg).upper() for arg in args]
    rest = args[names.index("STREAMS") + 1 :] if "STREAMS" in names else ()
    return rest[: len(rest) // 2]


def _at(*bounds: int | None) -> _Pick:
    """Return the function for commands whose keys are a slice of their arguments."""
    return itemgetter(slice(*bounds))


_NONE, _ALL, _FIRST, _TWO, _SECOND = _at(0), _at(None), _at(1), _at(2), _at(1, 2)
_ALL_BUT_FIRST, _ALL_BUT_LAST, _EVERY_OTHER = _at(1, None), _at(-1), _at(None, None, 2)

#: Name of a command -> returns its keys. The key of any other command is its first argument.
_KEYS: dict[str, _Pick] = {
    **dict.fromkeys(
        (
            *("ACL", "ASKING", "AUTH", "BGREWRITEAOF", "BGSAVE", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DBSIZE"),
            *("DEBUG", "DISCARD", "ECHO", "EXEC", "FAILOVER", "FLUSHALL", "FLUSHDB", "FUNCTION", "HELLO", "INFO"),
            *("KEYS", "LASTSAVE", "LATENCY", "LOLWUT", "MODULE", "MONITOR", "MULTI", "PING", "PSUBSCRIBE", "PUBLISH"),
            *("PUBSUB", "PUNSUBSCRIBE", "QUIT", "RANDOMKEY", "READONLY", "READWRITE", "REPLICAOF", "RESET", "ROLE"),
            *("SAVE", "SCAN", "SCRIPT", "SELECT", "SHUTDOWN", "SLAVEOF", "SLOWLOG", "SUBSCRIBE", "SWAPDB", "TIME"),
            *("UNSUBSCRIBE", "UNWATCH", "WAIT", "WAITAOF"),
        ),
        _NONE,
    ),
    **dict.fromkeys(
        (
            *("DEL", "EXISTS", "MGET", "PFCOUNT", "PFMERGE", "SDIFF", "SDIFFSTORE", "SINTER", "SINTERSTORE", "SUNION"),
            *("SUNIONSTORE", "TOUCH", "UNLINK", "WATCH"),
        ),
        _ALL,
    ),
    **dict.fromkeys(("BLPOP", "BRPOP", "BZPOPMAX", "BZPOPMIN"), _ALL_BUT_LAST),
    **dict.fromkeys(
        (
            *("BLMOVE", "BRPOPLPUSH", "COPY", "GEOSEARCHSTORE", "LCS", "LMOVE", "RENAME", "RENAMENX", "RPOPLPUSH"),
            *("SMOVE", "ZRANGESTORE"),
        ),
        _TWO,
    ),
    **dict.fromkeys(("EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "FCALL", "FCALL_RO"), _numbered(1)),
    **dict.fromkeys(("BLMPOP", "BZMPOP"), _numbered(1)),
    **dict.fromkeys(("LMPOP", "SINTERCARD", "ZDIFF", "ZINTER", "ZINTERCARD", "ZMPOP", "ZUNION"), _numbered(0)),
    **dict.fromkeys(("ZDIFFSTORE", "ZINTERSTORE", "ZUNIONSTORE"), _numbered(1, before=1)),
    **dict.fromkeys(("MSET", "MSETNX"), _EVERY_OTHER),
    **dict.fromkeys(("MEMORY", "OBJECT", "XGROUP", "XINFO"), _SECOND),
    **dict.fromkeys(("XREAD", "XREADGROUP"), _streams),
    "BITOP": _ALL_BUT_FIRST,
}


def words_of(args: Sequence[Any]) -> list[Any]:
    """Return the words of a command. redis-py passes "SCRIPT LOAD" as one string, or as two."""
    return [*as_text(args[0]).upper().split(), *args[1:]]


def keys_of(*args: Any) -> Sequence[Any]:
    """Return the keys of a command, as redis-py's `execute_command` gets it."""
    name, *rest = words_of(args)
    return _KEYS.get(name, _FIRST)(rest)


def cross_slot(commands: Iterable[tuple[Any, ...]]) -> exceptions.ClusterCrossSlotError:
    """Return the error that says that the keys of commands are in several hash slots."""
    commands = list(commands)
    names = ", ".join(dict.fromkeys(words_of(args)[0] for args in commands))
    keys = list(dict.fromkeys(as_text(key) for args in commands for key in keys_of(*args)))
    more = f" and {len(keys) - _KEYS_NAMED} more" if len(keys) > _KEYS_NAMED else ""
    named = ", ".join(map(repr, keys[:_KEYS_NAMED]))
    return exceptions.ClusterCrossSlotError(f"{names}: the keys {named}{more} are in several hash slots of the cluster")
