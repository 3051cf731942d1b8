"""UniqueKeys: what a consumer says about the unique keys of the messages that it holds, until they are acknowledged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby

import redis

from celery_delayq.fetching.held import Held
from celery_delayq.fetching.native import logger_for
from celery_delayq.queue.holds import MAX_HOLDS, What, hold
from celery_delayq.queue.keys import QueueKeys

logger = logger_for(__name__)


class UniqueKeys:
    """The unique keys of one consumer's messages.

    The server gives a key up in the step that acknowledges its message. What is said here never raises: a key that
    nobody gives up has an end.

    Args:
        held: tag -> message that the consumer holds.
        keys_of: returns the keys of a broker list.
    """

    def __init__(self, held: dict[str, Held], keys_of: Callable[[str], QueueKeys]) -> None:
        self._held = held
        self._keys_of = keys_of

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
        else:
            self._say(client, held.name, [held], "start")
        return held

    def ends(self, client: redis.Redis, held: Held) -> None:
        """Say that the task of a message is done."""
        self._say(client, held.name, [held], "done")

    def renew(self, client: redis.Redis) -> None:
        """Hold the keys of all messages for longer."""
        ours = sorted((held for held in tuple(self._held.values()) if held.holder is not None), key=_name)
        for name, messages in groupby(ours, key=_name):
            self._say(client, name, list(messages), "renew")

    def _say(self, client: redis.Redis, name: str, messages: list[Held], what: What) -> None:
        holders = [held.holder for held in messages if held.holder is not None]
        try:
            for at in range(0, len(holders), MAX_HOLDS):
                hold(client, self._keys_of(name), holders=holders[at : at + MAX_HOLDS], what=what)
        except Exception as exc:
            logger.debug("Cannot tell Redis about unique keys of %r: %s", name, exc)


def _name(held: Held) -> str:
    return held.name
