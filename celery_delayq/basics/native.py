"""Threads of the operating system, even if gevent has replaced Python's threads by greenlets."""

from __future__ import annotations

import _thread
import atexit
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import cache
from logging import getLogger
from typing import Any

from celery_delayq.basics.descriptors import Waker, close, ready

logger = getLogger(__name__)

#: How long the end of the process waits for a thread if there are greenlets, in seconds.
_EXIT_S = 2.0

#: How many descriptors have to be free for gevent's hub of a thread; it needs two.
_FREE = 4

#: How long a function that has failed is not run, in seconds.
_PAUSE_S = 1.0


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


class NativeLoop:
    """Runs a function in a daemon thread of the operating system while it is needed, even if there are greenlets.

    A greenlet would starve while another one computes for long. Any thread may call the methods, signal handlers, too.
    In a forked child of a process that has the thread, they do nothing.

    Args:
        run: returns when it is not needed any more, or when `is_exiting`. What it raises is logged, and it is run anew
            after a second.
        is_needed: whether it is. The function is run again if it is needed again as it returns.
    """

    def __init__(self, run: Callable[[], object], is_needed: Callable[[], object]) -> None:
        self._run = run
        self._is_needed = is_needed
        #: The process that has the thread.
        self._pid = os.getpid()
        #: The thread has it.
        self._at_work = native_lock()
        self._thread = 0
        self._waker: Waker | None = None
        #: Whether the process ends. Only with greenlets: the interpreter ends other daemon threads by itself.
        self.is_exiting = False

    def begin(self) -> None:
        """Run, unless it runs already, or is not needed.

        Raises:
            RuntimeError, OSError: the process may have no more threads, or no more descriptors.
        """
        if not self._is_needed() or not self._at_work.acquire(False):
            return
        try:
            self._pid, self._waker = os.getpid(), Waker()
            if has_greenlets():
                _check_descriptors(self._waker)
                atexit.register(self._at_exit)
            start_native_thread(self._work)
        except BaseException:
            self._end()
            raise

    def wake(self) -> None:
        """End the present `sleep`, or the next one."""
        waker = self._waker
        if waker is not None:
            waker.wake()

    @property
    def runs(self) -> bool:
        """Whether the thread exists."""
        return bool(self._at_work.locked())

    def wait(self, is_done: Callable[[], object], timeout_s: float) -> None:
        """Wait until something is done, or some seconds have passed. The thread itself does not wait."""
        until = time.monotonic() + timeout_s
        if os.getpid() == self._pid and native_ident() != self._thread:
            while not is_done() and time.monotonic() < until:
                time.sleep(0.005)

    def _at_exit(self) -> None:
        """End as the process ends: a thread that uses greenlets must not outlive the interpreter."""
        self.is_exiting = True
        self.wake()
        self.wait(lambda: not self.runs, _EXIT_S)

    def _end(self) -> None:
        atexit.unregister(self._at_exit)
        self._waker = None  # its pipe is closed. Nothing else may keep it, as an error may keep what calls had
        self._thread = 0
        self._at_work.release()

    # -- the thread

    def _work(self) -> None:
        self._thread = native_ident()
        try:
            while True:
                try:
                    self._run()
                    break
                except BaseException:
                    logger.exception("%r failed, and begins anew", self._run)
                if self.is_exiting:
                    break
                time.sleep(_PAUSE_S)
        finally:
            self._end()
        if not self.is_exiting:  # it may be needed since
            try:
                self.begin()
            except (RuntimeError, OSError) as exc:
                logger.error("Cannot start a thread: %s", exc)

    @property
    def waker_fd(self) -> int:
        """What can be read after `wake`; for the function."""
        assert self._waker is not None
        return self._waker.fileno()

    def sleep(self, seconds: float) -> None:
        """Wait until `wake` is called, some seconds at most; for the function."""
        ready([self.waker_fd], [], seconds)
        self.drain()

    def drain(self) -> None:
        """Forget that `wake` was called; for the function."""
        assert self._waker is not None
        self._waker.drain()


def _check_descriptors(some: Waker) -> None:
    """Raise OSError if the process has too few descriptors for gevent's hub of a thread: its library would abort it."""
    copies: list[int] = []
    try:
        for _ in range(_FREE):
            copies.append(os.dup(some.fileno()))
    finally:
        close(*copies)


class Errands:
    """What may take long, and nobody waits for: one native thread does it, in order, while there is something to do.

    Any thread may add to it. More than `most` are dropped.
    """

    def __init__(self, most: int = 10_000) -> None:
        self._todo: deque[Callable[[], object]] = deque()
        self._most = most
        self._loop = NativeLoop(self._do_all, lambda: self._todo)

    def add(self, errand: Callable[[], object]) -> None:
        """Have something done soon. Never raises."""
        if len(self._todo) >= self._most:
            logger.error("Too many errands are queued: dropped %r", errand)
            return
        self._todo.append(errand)
        try:
            self._loop.begin()
        except (RuntimeError, OSError) as exc:  # the process may have no more threads: the next one tries again
            logger.error("Cannot start a thread: %s", exc)

    def finish(self, timeout_s: float = 5.0) -> None:
        """Wait until all is done, at most so many seconds."""
        self._loop.wait(lambda: not self._todo and not self._loop.runs, timeout_s)

    def _do_all(self) -> None:
        while self._todo and not self._loop.is_exiting:
            errand = self._todo.popleft()
            try:
                errand()
            except BaseException:  # of a user's function
                logger.exception("%r failed", errand)
