"""UniqueKeys: what a consumer says about the unique keys of the messages that it holds, until they are acknowledged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import redis

from celery_delayq.fetching.held import Held
from celery_delayq.fetching.native import logger_for
from celery_delayq.queue.holds import MAX_HOLDS, Holder, What, hold
from celery_delayq.queue.keys import QueueKeys

logger = logger_for(__name__)

#: The tasks of this process that are acknowledged as they start, and hold unique keys, with their lists. They outlive
#: the connections on which they came.
_running: dict[Holder, str] = {}


class UniqueKeys:
    """The unique keys of one consumer's messages, and of tasks whose messages are acknowledged already.

    The server gives a key up in the step that acknowledges its message. What is said here never raises: a key that
    nobody gives up has an end.

    Args:
        held: tag -> message that the consumer holds.
        lists: name -> keys of each list on which it has a lease.
    """

    def __init__(self, held: dict[str, Held], lists: Mapping[str, QueueKeys]) -> None:
        self._held = held
        self._lists = lists

    def starts(self, client: redis.Redis | None, tag: str) -> Held | None:
        """Say that the task of a message starts, if that holds a unique key.

        Args:
            client: any client. None if the acknowledgement of the message, which comes at once, says so.
            tag: of the message.

        Returns:
            The message; None if it holds no unique key, or is not held.
        """
        held = self._held.get(tag)
        if held is None or held.holder is None:
            return None
        if client is None:
            self._held[tag] = replace(held, starts=True)
            _running[held.holder] = held.name
        else:
            self._say(client, held.name, [held.holder], "start")
        return held

    def ends(self, client: redis.Redis, held: Held) -> None:
        """Say that the task of a message is done that was acknowledged as it started."""
        if held.holder is not None:
            self.leaves(held)
            self._say(client, held.name, [held.holder], "done")

    def leaves(self, held: Held) -> None:
        """Forget that the task of a message was about to start: the message goes elsewhere. Sends nothing."""
        if held.holder is not None:
            _running.pop(held.holder, None)

    def renew(self, client: redis.Redis) -> None:
        """Hold the keys of all messages and tasks for longer."""
        holders: dict[str, set[Holder]] = {}
        for held in tuple(self._held.values()):
            if held.holder is not None:
                holders.setdefault(held.name, set()).add(held.holder)
        for holder, name in tuple(_running.items()):
            holders.setdefault(name, set()).add(holder)
        for name, some in holders.items():
            self._say(client, name, list(some), "renew")

    def _say(self, client: redis.Redis, name: str, holders: list[Holder], what: What) -> None:
        keys = self._lists.get(name)
        if keys is None:
            return
        try:
            for at in range(0, len(holders), MAX_HOLDS):
                hold(client, keys, holders=holders[at : at + MAX_HOLDS], what=what)
        except Exception as exc:
            logger.debug("Cannot tell Redis about unique keys of %r: %s", name, exc)
