"""Threads of the operating system, even if gevent has replaced Python's threads by greenlets."""

from __future__ import annotations

import _thread
import sys
from collections.abc import Callable
from functools import cache
from typing import Any


def has_greenlets() -> bool:
    """Return whether gevent may have replaced Python's threads."""
    return "gevent.monkey" in sys.modules


def _original(name: str) -> Any:
    """Return a function of `_thread` as it was before monkey-patching."""
    if has_greenlets():
        return sys.modules["gevent.monkey"].get_original("_thread", name)
    return getattr(_thread, name)


@cache
def _get_ident() -> Any:
    return _original("get_ident")


def native_ident() -> int:
    """Return the identifier of this thread of the operating system, also in a greenlet."""
    return int(_get_ident()())


def start_native_thread(target: Callable[[], None]) -> None:
    """Run a function in a daemon thread of the operating system, even if `threading` is monkey-patched."""
    _original("start_new_thread")(target, ())
