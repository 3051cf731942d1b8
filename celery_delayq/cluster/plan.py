"""Plan: what the nodes get for a command as the caller gave it. Most go to one node as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from redis import exceptions

from celery_delayq.cluster.command_keys import cross_slot, keys_of, words_of
from celery_delayq.cluster.exchange import NodeCommand
from celery_delayq.cluster.merging import Merge, all_know, any_sha, in_order, same, union, unless_error
from celery_delayq.cluster.router import Router
from celery_delayq.queue.connections import as_text

#: Commands for all masters, and how to make one reply of theirs.
_EVERYWHERE: dict[tuple[str, ...], Merge] = {
    ("DBSIZE",): unless_error(sum),
    ("FLUSHALL",): unless_error(same),
    ("FLUSHDB",): unless_error(same),
    ("KEYS",): unless_error(union),
    ("SCRIPT", "EXISTS"): unless_error(all_know),
    ("SCRIPT", "FLUSH"): unless_error(same),
    ("SCRIPT", "LOAD"): any_sha,
}

#: Commands that are sent to each node for its keys, with the sum of the replies.
_SUMMED = frozenset({"DEL", "EXISTS", "TOUCH", "UNLINK"})


@dataclass(eq=False)
class Planned:
    """A command as the caller gave it, and what nodes get for it."""

    parts: list[NodeCommand]
    merge: Merge = same

    @property
    def reply(self) -> Any:
        """The reply to the command; an error is one, too."""
        return self.merge([part.reply for part in self.parts])


def plan(router: Router, args: tuple[Any, ...], options: dict[str, Any]) -> Planned:
    """Return a command with what nodes get for it.

    Args:
        router: knows the nodes.
        args: the command, as redis-py's `execute_command` gets it.
        options: for the parser of its reply.

    Raises:
        redis.exceptions.ClusterCrossSlotError: its keys are in several slots.
        redis.ResponseError: it is about one node, and there is no telling which.
        redis.RedisError, ConfigurationError: it is for all masters, and they are not known yet.
    """
    words = words_of(args)
    merge = _everywhere(words)
    if merge is not None:
        return Planned([NodeCommand(args, options, node.address) for node in router.topology.masters()], merge)
    keys = keys_of(*args)
    slots: dict[int, list[int]] = {}
    for place, key in enumerate(keys):
        slots.setdefault(router.slot_of(key), []).append(place)
    if len(slots) < 2:
        if words[0] == "SCAN" and router.home is None:
            raise exceptions.ResponseError("SCAN goes over the keys of one node of the cluster: use scan_iter")
        return Planned([NodeCommand(args, options, next(iter(slots), None))])
    parts = [NodeCommand((args[0], *(keys[at] for at in places)), options, slot) for slot, places in slots.items()]
    if words[0] in _SUMMED:
        return Planned(parts, unless_error(sum))
    if words[0] == "MGET":
        return Planned(parts, unless_error(partial(in_order, list(slots.values()))))
    raise cross_slot([args])


def is_wait(args: Sequence[Any]) -> bool:
    """Return whether a command is WAIT."""
    return bool(words_of(args)[0] == "WAIT")


def is_script_load(args: Sequence[Any]) -> bool:
    """Return whether a command is SCRIPT LOAD."""
    return _everywhere(words_of(args)) is any_sha


def _everywhere(words: Sequence[Any]) -> Merge | None:
    return _EVERYWHERE.get((words[0],)) or _EVERYWHERE.get((words[0], as_text(words[1]).upper() if words[1:] else ""))
