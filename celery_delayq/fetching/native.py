"""Threads of the operating system, even if gevent or eventlet have replaced Python's threads by greenlets."""

from __future__ import annotations

import _thread
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache, partial
from logging import Logger, LoggerAdapter, getLogger
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    _Adapter = LoggerAdapter[Logger]
else:  # Python 3.10 has no generic one
    _Adapter = LoggerAdapter

T = TypeVar("T")

#: How long a native thread waits for the greenlet that does things for it, at most, in seconds; with eventlet.
_TURN_S = 0.1

#: How often a native thread looks whether it has been done, in seconds.
_LOOK_S = 0.01

#: How long there are no native threads until the greenlet ends, in seconds. A new one takes less to begin.
_QUIET_S = 5.0

#: Not empty while the greenlet runs.
_serving: list[bool] = []

#: What native threads want a greenlet to do; with eventlet. None of it waits, or fails.
_wanted: deque[Callable[[], None]] = deque()

#: The native threads, with eventlet: their identifiers.
_natives: set[int] = set()


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

    It may not wait for a lock that greenlets use: eventlet cannot wake a greenlet from another thread, so the one that
    waits, and with it the worker, would hang. So it logs with loggers of `logger_for`, and what else takes locks of
    other libraries, it does with `opened` or `start_beside`.
    """
    if not _has_eventlet():
        _original("start_new_thread")(target, ())
        return

    def run() -> None:
        ident = _original("get_ident")()
        _natives.add(ident)
        try:
            target()
        finally:
            _natives.discard(ident)

    # A greenlet belongs to the thread that starts it: a native thread cannot start this one.
    if not _is_native() and not _serving:
        _serving.append(True)
        threading.Thread(target=_serve, daemon=True).start()
    _original("start_new_thread")(run, ())


def _is_native() -> bool:
    """Return whether this is a native thread beside eventlet's greenlets."""
    return bool(_natives) and _original("get_ident")() in _natives


def _serve() -> None:
    """Do what native threads want, until there are none any more; with eventlet, in a greenlet."""
    idle_s = 0.0
    while idle_s < _QUIET_S:
        idle_s = 0.0 if _natives or _wanted else idle_s + _TURN_S
        while _wanted:
            _wanted.popleft()()
        time.sleep(_TURN_S)
    _serving.clear()


def start_beside(target: Callable[[], None]) -> None:
    """Run a function beside a native thread, which does not wait for it: in another one; with eventlet, in a greenlet.

    With eventlet, it may call what takes locks.
    """
    if _is_native():
        _wanted.append(threading.Thread(target=target, daemon=True).start)
    else:
        start_native_thread(target)


@contextmanager
def opened(open_it: Callable[[], AbstractContextManager[T]], begin: Callable[[T], object]) -> Iterator[T]:
    """Enter and leave a context manager; with eventlet, a greenlet does that for a native thread.

    So it may take locks. The native thread waits, as long as other greenlets compute.

    Args:
        open_it: returns the context manager.
        begin: called by the greenlet with the value, for what takes locks only the first time.
    """
    stack = ExitStack()
    value = _in_greenlet(lambda: stack.enter_context(open_it()))
    try:
        if _is_native():
            _in_greenlet(lambda: begin(value))
        yield value
    finally:
        _in_greenlet(stack.close)


def _in_greenlet(function: Callable[[], T]) -> T:
    """Call a function, and return what it returns; with eventlet, a greenlet calls it for a native thread."""
    if not _is_native():
        return function()
    returned: list[T] = []
    raised: list[BaseException] = []

    def call() -> None:
        try:
            returned.append(function())
        except BaseException as exc:
            raised.append(exc)

    start_beside(call)
    while not returned and not raised:
        time.sleep(_LOOK_S)
    if raised:
        raise raised[0]
    return returned[0]


def logger_for(name: str) -> Any:
    """Return a logger for code that may run in a native thread.

    With eventlet, a greenlet writes what such a thread logs: the locks of logging are eventlet's then.
    """
    logger = getLogger(name)
    return _HandedOver(logger, {}) if _has_eventlet() else logger


class _HandedOver(_Adapter):
    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if _is_native():
            _wanted.append(partial(self.logger.log, level, msg, *args, **kwargs))
        else:
            super().log(level, msg, *args, **kwargs)
