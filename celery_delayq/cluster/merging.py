"""How the replies of several nodes to one command become one reply. An error is a reply, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

#: Returns one reply for those of several nodes.
Merge: TypeAlias = Callable[[list[Any]], Any]


def error_in(replies: Iterable[Any]) -> Exception | None:
    """Return the first error among replies; None if there is none."""
    return next((reply for reply in replies if isinstance(reply, Exception)), None)


def unless_error(merge: Merge) -> Merge:
    """Return a function that merges replies unless one of them is an error; then that is the reply."""
    return lambda replies: error_in(replies) or merge(replies)


def same(replies: list[Any]) -> Any:
    """Return the first reply: all are the same, or there is only one."""
    return replies[0]


def union(replies: list[Any]) -> Any:
    """Return what is in any of the replies, each value once."""
    return list(dict.fromkeys(value for values in replies for value in values))


def all_know(replies: list[Any]) -> Any:
    """Return for each script of SCRIPT EXISTS whether all nodes have it."""
    return [all(known) for known in zip(*replies, strict=True)]


def any_sha(replies: list[Any]) -> Any:
    """Return the reply to SCRIPT LOAD; an error only if each node has one."""
    # A node that is down will not know the script. Whoever runs one has to expect NOSCRIPT anyway.
    return next((reply for reply in replies if not isinstance(reply, Exception)), error_in(replies))


def in_order(places: Sequence[Sequence[int]], replies: list[Any]) -> Any:
    """Put the values of replies to parts of an MGET in order.

    Args:
        places: for each reply, the places of its values.
        replies: lists of values.
    """
    values: list[Any] = [None] * sum(map(len, places))
    for part, reply in zip(places, replies, strict=True):
        for place, value in zip(part, reply, strict=True):
            values[place] = value
    return values
