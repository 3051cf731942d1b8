"""Threads of the operating system, even if gevent has replaced Python's threads by greenlets."""

from __future__ import annotations

import _thread
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import cache
from logging import getLogger
from typing import Any

logger = getLogger(__name__)


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
    _original("start_new_thread")(_run_natively, (target,))


def _run_natively(target: Callable[[], None]) -> None:
    try:
        target()
    finally:
        # gevent makes a hub for each thread that waits, with descriptors that only this closes.
        if has_greenlets():
            sys.modules["gevent"].get_hub().destroy(destroy_loop=True)


def native_lock() -> Any:
    """Return a lock for threads of the operating system, even if `threading` is monkey-patched."""
    return _original("allocate_lock")()


class Errands:
    """What may take long, and nobody waits for: one native thread does it, in order, while there is something to do.

    Any thread may add to it. More than `most` are dropped.
    """

    def __init__(self, most: int = 10_000) -> None:
        self._todo: deque[Callable[[], object]] = deque()
        self._most = most
        self._is_at_work = native_lock()

    def add(self, errand: Callable[[], object]) -> None:
        """Have something done soon. Never raises."""
        if len(self._todo) >= self._most:
            logger.error("Too many errands are queued: dropped %r", errand)
            return
        self._todo.append(errand)
        self._begin()

    def finish(self, timeout_s: float = 5.0) -> None:
        """Wait until all is done, at most so many seconds."""
        until = time.monotonic() + timeout_s
        while (self._todo or self._is_at_work.locked()) and time.monotonic() < until:
            time.sleep(0.02)

    def _begin(self) -> None:
        if self._todo and self._is_at_work.acquire(False):
            try:
                start_native_thread(self._run)
            except RuntimeError as exc:  # the process may have no more threads: the next one tries again
                self._is_at_work.release()
                logger.error("Cannot start a thread: %s", exc)

    def _run(self) -> None:
        try:
            while self._todo:
                errand = self._todo.popleft()
                try:
                    errand()
                except BaseException:  # of a user's function
                    logger.exception("%r failed", errand)
        finally:
            self._is_at_work.release()
        self._begin()  # one may have come since
