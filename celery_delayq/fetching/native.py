"""Threads of the operating system, even if gevent or eventlet have replaced Python's threads by greenlets."""

from __future__ import annotations

import _thread
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import cache, partial
from logging import Logger, LoggerAdapter, getLogger
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    _Adapter = LoggerAdapter[Logger]
else:  # Python 3.10 has no generic one
    _Adapter = LoggerAdapter

#: How long a line in the log of a native thread waits for a greenlet to write it, in seconds; with eventlet.
_SAY_S = 0.1

#: How long there are no native threads until the greenlet ends, in seconds. A new one takes less to begin.
_QUIET_S = 5.0

#: Not empty while the greenlet runs.
_speaking: list[bool] = []

#: What native threads have logged and no greenlet has written yet; with eventlet.
_unsaid: deque[Callable[[], None]] = deque()

#: The threads that may not write to the log themselves: their identifiers.
_mute: set[int] = set()


def has_greenlets() -> bool:
    """Return whether gevent or eventlet may have replaced Python's threads."""
    return "gevent.monkey" in sys.modules or _has_eventlet()


def _has_eventlet() -> bool:
    return "eventlet.patcher" in sys.modules


def _original(name: str) -> Any:
    """Return a function of `_thread` as it was before monkey-patching."""
    if "gevent.monkey" in sys.modules:
        return sys.modules["gevent.monkey"].get_original("_thread", name)
    if _has_eventlet():
        return getattr(sys.modules["eventlet.patcher"].original("_thread"), name)
    return getattr(_thread, name)


@cache
def _get_ident() -> Any:
    return _original("get_ident")


def native_ident() -> int:
    """Return the identifier of this thread of the operating system, also in a greenlet."""
    return int(_get_ident()())


def start_native_thread(target: Callable[[], None]) -> None:
    """Run a function in a daemon thread of the operating system, even if `threading` is monkey-patched.

    What it runs must log with loggers of `logger_for`.
    """
    if not _has_eventlet():
        _original("start_new_thread")(target, ())
        return

    def run() -> None:
        ident = _original("get_ident")()
        _mute.add(ident)
        try:
            target()
        finally:
            _mute.discard(ident)

    # A greenlet belongs to the thread that starts it. One that a mute thread starts would be as mute.
    if _original("get_ident")() not in _mute and not _speaking:
        _speaking.append(True)
        threading.Thread(target=_speak, daemon=True).start()
    _original("start_new_thread")(run, ())


def _speak() -> None:
    """Write what native threads log, until there are none any more; with eventlet, in a greenlet."""
    idle_s = 0.0
    while idle_s < _QUIET_S:
        idle_s = 0.0 if _mute or _unsaid else idle_s + _SAY_S
        while _unsaid:
            _unsaid.popleft()()
        time.sleep(_SAY_S)
    _speaking.clear()


def logger_for(name: str) -> Any:
    """Return a logger for code that may run in a native thread.

    With eventlet, a greenlet writes what such a thread logs. The locks of logging are eventlet's then, and it cannot
    wake a greenlet from another thread: the greenlet that waited for the lock, and so the worker, would hang.
    """
    logger = getLogger(name)
    return _HandedOver(logger, {}) if _has_eventlet() else logger


class _HandedOver(_Adapter):
    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if _original("get_ident")() in _mute:
            _unsaid.append(partial(self.logger.log, level, msg, *args, **kwargs))
        else:
            super().log(level, msg, *args, **kwargs)
