"""The `timeout` of a call: connections keep to it, and whoever waits for something else.

It belongs to the thread or greenlet of the call, and to a thread in which `DelayQ` runs it for a coroutine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from functools import wraps
from typing import ParamSpec, TypeAlias, TypeVar

from celery_delayq.basics.times import seconds

P = ParamSpec("P")
R = TypeVar("R")

#: How long a call may take: seconds, or a timedelta; None for as long as its connections allow.
Timeout: TypeAlias = float | timedelta | None

#: When the call has to end, monotonic time in seconds.
_until: ContextVar[float | None] = ContextVar("celery_delayq.deadline", default=None)


def is_set() -> bool:
    """Return whether the call has a `timeout`."""
    return _until.get() is not None


def left_s() -> float:
    """Return how many seconds the call has left, 0 or less if it should have ended; infinite without `timeout`."""
    until = _until.get()
    return math.inf if until is None else until - time.monotonic()


def at_most(span_s: float | None) -> float | None:
    """Return a time to wait, in seconds, or what the call has left if that is less. Without an end, None.

    At least a millisecond, since 0 means not to wait at all.
    """
    if not is_set():
        return span_s
    return max(0.001, min(left_s(), math.inf if span_s is None else span_s))


def raise_rather_than_wait(exc: Exception, pause_s: float) -> None:
    """Raise an error if the call should end before the end of a pause: kombu calls it before the next attempt."""
    if left_s() <= pause_s:
        raise exc


@contextmanager
def within(timeout: Timeout) -> Iterator[None]:
    """Let what the block does end within a time. A block within another one ends with it, if that is sooner.

    Raises:
        TypeError: `timeout` is neither a number nor a timedelta.
        ValueError: it is not above 0.
    """
    if timeout is None:
        yield
        return
    given = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if seconds(given, "timeout", "a number of seconds, or a timedelta") <= 0:
        raise ValueError(f"timeout must be above 0, not {timeout!r}")
    before, until = _until.get(), time.monotonic() + given
    token = _until.set(until if before is None else min(before, until))
    try:
        yield
    finally:
        _until.reset(token)


def ends_in_time(method: Callable[P, R]) -> Callable[P, R]:
    """Let a method end within its keyword argument `timeout`."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with within(kwargs.get("timeout")):  # type: ignore[arg-type]
            return method(*args, **kwargs)

    # An error of the arguments names it without the base class of `DelayQ` that has it.
    method.__qualname__ = method.__name__
    return call
