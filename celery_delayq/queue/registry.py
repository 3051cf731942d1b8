"""The registry: the broker lists that may have tasks, and when each was last used. Knows only Redis.

Transfer loops and the inspector use the lists in the registry. The registry has its own hash slot, so no step is atomic
over the registry and a queue. Two rules make up for that:

- A process that stores a delayed message has registered the name at most `REGISTERED_FOR_S` earlier.
- When a name was not used for `LASTS_S`, which is much longer, a loop looks at its queue. If something waits there, the
  name counts as used now. Otherwise it leaves, unless somebody has registered it since the loop read the registry.

If a producer registers a name, and stores the message minutes later (it was suspended, or kept a `Producer.batch` of
kombu open), the message waits until its list is registered or consumed again.

Whoever publishes a task that is not delayed registers its list, too, so that tools know it; the task is published even
if that fails. The name stays as long as the list has messages. Loops neither hear of it nor serve it until the list has
a delayed message: a program may have thousands of such lists, with names that nobody uses again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from logging import getLogger
from typing import ClassVar

import redis
from redis import exceptions
from redis.client import NEVER_DECODE

from celery_delayq.queue import keys, scripts
from celery_delayq.queue.connections import CONNECTION_ERRORS, at_server_of, hurried, is_cluster, passing_refusal
from celery_delayq.queue.entry import pairs

logger = getLogger(__name__)

#: How long a process assumes that a name that it registered is still registered, in seconds.
REGISTERED_FOR_S = 60.0

#: How long a name stays after its last use at least, in seconds.
LASTS_S = 600

#: Maximum number of names that one call of `forget` looks at.
_MOST = 500

#: How many of the keys of a delayed queue exist if it is needed.
_SOME = range(1, 5)


class Registry:
    """The registry of a broker. Safe to share between threads if the client is.

    Every method raises `redis.RedisError` if the server is away or refuses a command.

    Args:
        client: any `redis.Redis`.
        keyprefix: kombu's `global_keyprefix`.
    """

    #: Keys of a wrong type that were logged already.
    _reported: ClassVar[set[str]] = set()

    def __init__(self, client: redis.Redis, keyprefix: str = "") -> None:
        self.client = hurried(client)
        self.key = keys.registry(keyprefix)
        #: For loops of all masters, which share it: one after the other, they need one connection.
        self.turn: AbstractContextManager[object] = nullcontext()

    def add(self, name: str) -> bool:
        """Register a name, and return whether that was possible. Announce it if it is new.

        If the key has another type, that is logged once, and the name is only announced. Then running loops learn it,
        and a worker that consumes the queue transfers it anyway. The same holds on a cluster while the registry's node
        is away or refuses the name: loops that know the name register it later.
        """
        try:
            scripts.register(self.key, names=[name]).run(self.client)
        except CONNECTION_ERRORS as exc:
            if not is_cluster(self.client):
                raise
            logger.debug("Cannot register %r: %s", name, exc)
            is_registered = False
        except exceptions.ResponseError as exc:
            if not is_wrong_type(exc) and not is_cluster(self.client):
                raise
            self._report(exc)  # on a cluster, the node of the queue may well take the message
            is_registered = is_wrong_type(exc)
        else:
            self._reported.discard(self.key)
            return True
        return self._announce(name) and is_registered

    def sent(self, name: str) -> None:
        """Register a name for tools only: of a list that has got a task that is not delayed."""
        scripts.register(self.key, names=[name], sent=True).run(self.client)

    def _announce(self, name: str) -> bool:
        """Tell running loops of a name; returns False if that was not possible on a cluster."""
        try:
            self.client.publish(self.key, name)
        except CONNECTION_ERRORS as exc:
            if not is_cluster(self.client):
                raise
            logger.debug("Cannot announce %r: %s", name, exc)
            return False
        return True

    def read(self) -> dict[str, int]:
        """Return the registered names, each with its last use (unix time in ms), the longest unused first.

        The last use is negative, and the name comes before others, if the list never had a delayed message: see `sent`.
        Names that are empty or not UTF-8 are skipped: no client of this package can add or use them.
        """
        found = self.client.execute_command("ZRANGE", self.key, 0, -1, "WITHSCORES", **{NEVER_DECODE: True})
        used = ((name_of(name), int(float(score))) for name, score in pairs(found))
        return {name: used_ms for name, used_ms in used if name}

    def forget(self, used: Mapping[str, int]) -> None:
        """Remove names that were not used for long, if nothing needs them. A bounded number per call.

        Args:
            used: names as they were read, see `read`; others stay.
        """
        seconds, _ = at_server_of(self.client, self.key).time()
        until_ms = (int(seconds) - LASTS_S) * 1000
        old = list(islice((name for name, used_ms in used.items() if abs(used_ms) < until_ms), _MOST))
        if not old:
            return
        with self.client.pipeline(transaction=False) as pipe:
            for name in old:
                queue = keys.QueueKeys.of(name)
                pipe.exists(queue.timeout_set, queue.dead, queue.failed, queue.schedule)
                pipe.exists(name)
            replies = iter(pipe.execute(raise_on_error=False))
            found = {name: (next(replies), next(replies)) for name in old}
        if delayed := [name for name in old if found[name][0] in _SOME]:
            scripts.register(self.key, names=delayed).run(self.client)
        # A name whose keys the server refuses stays, too.
        if ready := [name for name in old if found[name][0] not in _SOME and found[name] != (0, 0)]:
            scripts.register(self.key, names=ready, sent=True).run(self.client)
        if unused := [name for name in old if found[name] == (0, 0)]:
            scripts.forget(self.key, used=[(name, used[name]) for name in unused]).run(self.client)

    def _report(self, exc: Exception) -> None:
        # Who stores a message is told of a refusal that passes by itself; the queue is registered later.
        if passing_refusal(exc) or self.key in self._reported:
            return
        self._reported.add(self.key)
        logger.error(
            "Cannot register delayed queues in %r: %s. Delayed messages are stored, but only workers that consume "
            "or know their queue transfer them. If another program wrote the key, delete or rename it.",
            self.key,
            exc,
        )


def registered(client: redis.Redis, keyprefix: str = "") -> set[str]:
    """Return the names of the broker lists that may have tasks."""
    return set(Registry(client, keyprefix).read())


def is_wrong_type(exc: Exception) -> bool:
    """Return whether an error means that a key has the wrong type."""
    return "WRONGTYPE" in str(exc)


def name_of(sent: bytes | str) -> str:
    """Return a name that the server has sent; empty if it is not UTF-8."""
    try:
        return sent.decode() if isinstance(sent, bytes) else sent
    except UnicodeDecodeError:
        return ""
