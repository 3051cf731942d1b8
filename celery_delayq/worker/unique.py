"""Tells the broker when a task that holds a unique key starts, and when it is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery_delayq.transport.channel import DelayedChannel
from celery_delayq.transport.keyed import UNIQUE_PROPERTY


def tell_about(message: Any, options: dict[str, Any], current: Callable[[], Any], *, is_solo: bool) -> None:
    """Let the callbacks of a task tell its channel, if its message holds a unique key.

    A message that is acknowledged late says it by that: the task is done. One that is acknowledged early says that it
    starts. In a solo pool, each message is acknowledged late, whatever is wanted: Celery leaves that to its event loop,
    which waits for the task.

    Args:
        message: the task's message.
        options: what its request passes to the pool; changed here.
        current: returns the channel of the worker's present connection.
        is_solo: whether it is a solo pool.
    """
    if UNIQUE_PROPERTY not in (message.properties or {}) or not isinstance(message.channel, DelayedChannel):
        return
    request = options["accept_callback"].__self__
    if request.task.acks_late or is_solo:
        options["accept_callback"] = _Then(
            options["accept_callback"], lambda: message.channel.starts(message.delivery_tag, is_early=False)
        )
        return
    held = message.channel.starts(message.delivery_tag, is_early=True)

    def ends() -> None:
        channel = current()
        if held is not None:
            (channel if isinstance(channel, DelayedChannel) else message.channel).ends(held)

    for name in ("callback", "error_callback"):
        options[name] = _Then(options[name], ends)
    options["timeout_callback"] = _Timeout(options["timeout_callback"], ends)


class _Then:
    """Calls a method of a request, then something else. It looks like the method, for those who look at its request."""

    def __init__(self, method: Any, then: Callable[[], object]) -> None:
        self.__self__ = method.__self__
        self._method = method
        self._then = then

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self._method(*args, **kwargs)
        self._then()
        return result


class _Timeout(_Then):
    """`Request.on_timeout`; after a soft time limit, the task goes on."""

    def __call__(self, soft: bool, timeout: float) -> Any:
        if soft:
            return self._method(soft, timeout)
        return super().__call__(soft, timeout)
