"""Threads of the operating system, even if gevent or eventlet have replaced Python's threads by greenlets."""

from __future__ import annotations

import _thread
import sys
from collections.abc import Callable
from typing import Any


def has_greenlets() -> bool:
    """Return whether gevent or eventlet may have replaced Python's threads."""
    return "gevent.monkey" in sys.modules or "eventlet.patcher" in sys.modules


def start_native_thread(target: Callable[[], None]) -> None:
    """Run a function in a daemon thread of the operating system, even if `threading` is monkey-patched."""
    start: Any = _thread.start_new_thread
    if "gevent.monkey" in sys.modules:
        start = sys.modules["gevent.monkey"].get_original("_thread", "start_new_thread")
    elif "eventlet.patcher" in sys.modules:
        start = sys.modules["eventlet.patcher"].original("_thread").start_new_thread
    start(target, ())
