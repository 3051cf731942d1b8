"""Nodes of a Redis Cluster that do not answer, as far as this process knows: nobody should wait for the same one again.

A node that is gone refuses connections. One that hangs, or is cut off, accepts commands and never answers.

Safe in all threads without a lock: each use of the dict and the set is one operation, which is atomic with the GIL and
without it. If two threads find at the same moment that a node may be tried, both try it, and wait.
"""

from __future__ import annotations

import math
import time

from celery_delayq.cluster.node import Address

#: How long a node counts as hanging if nobody finds out that it answers again, in seconds.
FOR_S = 10.0

#: After that time, one caller may try the node. How long the others still avoid it, in seconds.
_TRIAL_S = 2.0

#: Node -> until when it counts as hanging (monotonic).
_until: dict[Address, float] = {}

#: Nodes that owe an answer.
_late: set[Address] = set()


def may_ask(address: Address) -> bool:
    """Return whether to send a command to a node. Of all who ask when its time is over, one may try."""
    until = _until.get(address)
    if until is None:
        return True
    now = time.monotonic()
    if now < until:
        return False
    _until[address] = now + _TRIAL_S
    return True


def is_avoided(address: Address) -> bool:
    """Return whether what any node can do should be done by another one."""
    return address in _late or time.monotonic() < _until.get(address, -math.inf)


def hangs(address: Address) -> None:
    """Record that a node did not answer in time."""
    _until[address] = time.monotonic() + FOR_S


def is_late(address: Address) -> None:
    """Record that somebody waits for an answer of a node, but has other things to do meanwhile."""
    _late.add(address)


def is_not_late(address: Address) -> None:
    """Record that nobody waits for an answer of a node any more."""
    _late.discard(address)


def is_any_late() -> bool:
    """Return whether somebody waits for an answer of any node."""
    return bool(_late)


def answers(address: Address) -> None:
    """Record that a node answers."""
    _until.pop(address, None)
    _late.discard(address)
