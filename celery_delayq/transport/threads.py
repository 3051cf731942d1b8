"""Threads in which methods wait for Redis while an event loop of asyncio goes on: `acancel` is `cancel` in one of them.

Celery, kombu and the scripts of this package block. What would not is a second copy of each. See decision 0023.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from kombu.exceptions import OperationalError

from celery_delayq.basics import deadline

if TYPE_CHECKING:  # which a producer without an event loop need not load
    from concurrent.futures import Future

P = ParamSpec("P")
R = TypeVar("R")

#: So many calls run at a time in a process, as many as Celery's `broker_pool_limit` by default; the others wait.
_MOST = 10

#: How long a thread waits for the next call, in seconds.
_IDLE_S = 10.0


class Threads:
    """A few threads for calls, which begin in order. All event loops of a process share them; idle ones end.

    They are daemons: a program that ends does not wait for them. A forked child has none, and starts its own.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self.forget()

    def forget(self) -> None:
        """Forget threads and calls: those of the parent of a forked child."""
        self._changed = threading.Condition()
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._number = self._idle = 0

    async def run(self, call: Callable[[], R]) -> R:
        """Return what a call returns, with the context variables of this coroutine; raise what it raises.

        A coroutine that is cancelled leaves a call that has begun to its end. One that has not begun never does.

        Raises:
            kombu.exceptions.OperationalError: the call did not begin before its `timeout` was over.
        """
        import asyncio
        from concurrent.futures import Future

        future: Future[R] = Future()
        result = asyncio.wrap_future(future)
        try:
            self._add(future, partial(copy_context().run, call))
            if deadline.is_set():
                await asyncio.wait({result}, timeout=deadline.left_s())
                if future.cancel():
                    raise OperationalError(f"none of {self._most} threads for coroutines was free in time")
            return await result
        finally:
            future.cancel()
            result.cancel()  # or asyncio would say that nobody has asked for the error of a call

    def _add(self, future: Future[Any], call: Callable[[], Any]) -> None:
        with self._changed:
            self._calls.append((future, call))
            if self._idle >= len(self._calls):
                self._changed.notify()
            elif self._number < self._most:
                threading.Thread(target=self._work, name="delayq-async", daemon=True).start()
                self._number += 1

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: self._calls, _IDLE_S)
                self._idle -= 1
                if not self._calls:
                    self._number -= 1
                    return
                future, call = self._calls.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as exc:
                    future.set_exception(exc)
            del future, call  # what the call returned belongs to its caller


#: Those of this process.
threads = Threads()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=threads.forget)


def in_a_thread(method: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Return a method for coroutines that does the same, in one of the threads.

    Its `timeout` begins at once, and includes the time until a thread is free.
    """

    @wraps(method)
    async def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with deadline.within(kwargs.get("timeout")):  # type: ignore[arg-type]
            return await threads.run(partial(method, *args, **kwargs))

    name, summary = method.__name__, (method.__doc__ or "").partition("\n")[0]
    call.__name__, call.__qualname__ = f"a{name}", method.__qualname__.replace(name, f"a{name}")
    call.__doc__ = f"{summary} `await` it; see `{name}`."
    return call
