"""UniqueKeys: what a consumer says about the unique keys of the messages that it holds, until they are acknowledged."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from logging import getLogger
from typing import Any

import redis

from celery_delayq.fetching.held import Held
from celery_delayq.queue.call import Call
from celery_delayq.queue.holds import MAX_HOLDS, Holder, What, hold
from celery_delayq.queue.keys import QueueKeys

logger = getLogger(__name__)

# Both are safe in all threads without a lock: each use is one operation of a dict, which is atomic with the GIL and
# without it.

#: The tasks of this process that are acknowledged as they start, and hold unique keys, with the keys of their queues.
#: They outlive the connections on which they came.
_running: dict[Holder, QueueKeys] = {}

#: Those that are done, and the server has not been told.
_ended: dict[Holder, QueueKeys] = {}


def ended(held: Held) -> None:
    """Say later that a task is done that was acknowledged as it started: the next watchdog does."""
    if held.holder is not None and (keys := _running.pop(held.holder, None)) is not None:
        _ended[held.holder] = keys


def _on_told(holder: Holder, reply: Any) -> None:
    if not isinstance(reply, BaseException):
        _ended.pop(holder, None)


class UniqueKeys:
    """The unique keys of one consumer's messages, and of tasks whose messages are acknowledged already.

    The server gives a key up in the step that acknowledges its message. What is said here never raises: a key that
    nobody gives up has an end.

    Args:
        held: tag -> message that the consumer holds.
        keys_of: returns the keys of a list.
        tell: calls a script, and another function with the reply; nothing waits for that. If the server is away, it may
            do nothing.
    """

    def __init__(
        self,
        held: dict[str, Held],
        keys_of: Callable[[str], QueueKeys],
        tell: Callable[[Callable[[Any], object], Call[Any]], object],
    ) -> None:
        self._held = held
        self._keys_of = keys_of
        self._tell = tell

    def starts(self, tag: str, *, with_ack: bool) -> Held | None:
        """Say that the task of a message starts, if that holds a unique key.

        Args:
            tag: of the message.
            with_ack: whether the acknowledgement of the message, which comes at once, says so.

        Returns:
            The message; None if it holds no unique key, or is not held.
        """
        held = self._held.get(tag)
        if held is None or held.holder is None:
            return None
        keys = self._keys_of(held.name)
        if with_ack:
            self._held[tag] = held._replace(starts=True)
            _running[held.holder] = keys
        else:
            self._tell(lambda reply: None, hold(keys, holders=[held.holder], what="start"))
        return held

    def ends(self, held: Held) -> None:
        """Say that the task of a message is done that was acknowledged as it started."""
        ended(held)
        holder = held.holder
        if holder is not None and (keys := _ended.get(holder)) is not None:
            self._tell(partial(_on_told, holder), hold(keys, holders=[holder], what="done"))

    def leaves(self, held: Held) -> None:
        """Forget that the task of a message was about to start: the message goes elsewhere. Sends nothing."""
        if held.holder is not None:
            _running.pop(held.holder, None)

    def renew(self, client: redis.Redis) -> None:
        """Hold the keys of all messages and tasks for longer."""
        for holder, keys in _ended.copy().items():
            if self._say(client, keys, [holder], "done"):
                _ended.pop(holder, None)
        holders: dict[QueueKeys, set[Holder]] = {}
        for held in tuple(self._held.values()):
            if held.holder is not None:
                holders.setdefault(self._keys_of(held.name), set()).add(held.holder)
        for holder, keys in _running.copy().items():
            holders.setdefault(keys, set()).add(holder)
        for keys, some in holders.items():
            self._say(client, keys, list(some), "renew")

    def _say(self, client: redis.Redis, keys: QueueKeys, holders: list[Holder], what: What) -> bool:
        try:
            for at in range(0, len(holders), MAX_HOLDS):
                hold(keys, holders=holders[at : at + MAX_HOLDS], what=what).run(client)
        except Exception as exc:
            logger.debug("Cannot tell Redis about unique keys of %r: %s", keys.queue, exc)
            return False
        return True
