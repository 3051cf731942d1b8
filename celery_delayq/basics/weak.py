"""What a thread calls although it must not keep it."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any


def call_of(owner: Callable[[], Any], name: str, *args: Any) -> Any:
    """Call a method, and return what it returns; None if its owner is collected.

    Args:
        owner: a weak reference.
        name: of the method, perhaps that of an attribute: `program.chores`.
        args: of the method.
    """
    it = owner()
    if it is None:
        return None
    method = attrgetter(name)(it)
    del it  # it may be collected while the method waits
    return method(*args)
