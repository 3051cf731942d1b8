"""The registry: names of the broker lists that may have waiting messages. Knows only Redis.

Transfer loops and the inspector use the lists in the registry. So a name must be there while a message waits, and
should leave when none does. But the registry has its own hash slot, so no step is atomic over the registry and a queue.
Three rules make up for that; docs/internals.md goes through the cases.

- A process that stores a message has registered the name at most `REGISTERED_FOR_S` earlier.
- If a queue is empty, its name is retired: one step removes it from the registry and notes the server's time. Loops
  serve retired names too.
- Much later than `REGISTERED_FOR_S`, a loop checks again. If a message waits, the name is registered again. Otherwise
  it is forgotten: by then, every process that registered it before it was retired has stored its message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from logging import getLogger
from typing import Any, ClassVar

import redis
from redis import exceptions
from redis.client import NEVER_DECODE

from celery_delayq.queue import keys, scripts
from celery_delayq.queue.connections import CONNECTION_ERRORS, at_server_of, hurried, is_cluster, passing_refusal
from celery_delayq.queue.entry import pairs

logger = getLogger(__name__)

#: How long a process assumes that a name that it registered is still registered, in seconds.
REGISTERED_FOR_S = 60.0

#: Maximum number of names that one call of `clear` retires, and maximum number that it settles.
_MOST = 100


@dataclass(frozen=True)
class Retired:
    """The retired names.

    Attributes:
        now_ms: the server's time, unix time in ms; 0 if there is none.
        at_ms: name -> when it was retired, unix time in ms.
    """

    now_ms: int
    at_ms: dict[str, int]

    def only(self, wanted: Callable[[str], bool]) -> Retired:
        """Return some of them: those with wanted names."""
        return Retired(self.now_ms, {name: at_ms for name, at_ms in self.at_ms.items() if wanted(name)})


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
        self.keys = keys.RegistryKeys.of(keyprefix)

    def add(self, name: str) -> bool:
        """Register a name, and return whether that was possible. Announce it if it is new.

        If the key has another type, that is logged once, and the name is only announced. Then running loops learn it,
        and a worker that consumes the queue transfers it anyway. The same holds on a cluster while the registry's node
        is away or refuses the name: loops that know the name register it later.
        """
        is_registered = True
        try:
            is_new = self.client.sadd(self.keys.names, name)
        except CONNECTION_ERRORS as exc:
            if not is_cluster(self.client):
                raise
            logger.debug("Cannot register %r: %s", name, exc)
            is_new, is_registered = 1, False
        except exceptions.ResponseError as exc:
            if not is_wrong_type(exc) and not is_cluster(self.client):
                raise
            self._report(exc)  # on a cluster, the node of the queue may well take the message
            is_new, is_registered = 1, is_wrong_type(exc)
        else:
            self._reported.discard(self.keys.names)
        if is_new:
            is_registered &= self._announce(name)
        return is_registered

    def _announce(self, name: str) -> bool:
        """Tell running loops of a name; returns False if that was not possible on a cluster."""
        try:
            self.client.publish(self.keys.names, name)
        except CONNECTION_ERRORS as exc:
            if not is_cluster(self.client):
                raise
            logger.debug("Cannot announce %r: %s", name, exc)
            return False
        return True

    def refresh(self) -> None:
        """Make sure that the next call reads what is there; this class always does, see `SharedRegistry`."""

    def names(self) -> set[str]:
        """Return the registered names.

        Names that are empty or not UTF-8 are skipped: no client of this package can add or use them.
        """
        members = self.client.execute_command("SMEMBERS", self.keys.names, **{NEVER_DECODE: True})
        return {name for name in map(_text, members) if name}

    def retired(self) -> Retired:
        """Return the names that are retired and not settled yet."""
        found = self.client.execute_command("ZRANGE", self.keys.retired, 0, -1, "WITHSCORES", **{NEVER_DECODE: True})
        if not found:
            return Retired(0, {})
        seconds, microseconds = at_server_of(self.client, self.keys.retired).time()
        at_ms = {_text(name): int(float(score)) for name, score in pairs(found)}
        return Retired(int(seconds) * 1000 + int(microseconds) // 1000, {n: at for n, at in at_ms.items() if n})

    def clear(self, idle: Iterable[str], retired: Retired, idle_s: float) -> None:
        """Retire idle names, and settle retired names, if nothing needs them. A bounded number per call.

        Args:
            idle: registered names whose queues have been empty for a while.
            retired: the retired names, as they were read before.
            idle_s: how long a name stays retired before it is settled, in seconds; more than `REGISTERED_FOR_S`.
        """
        ripe_ms = retired.now_ms - idle_s * 1000
        settled = list(islice((item for item in retired.at_ms.items() if item[1] <= ripe_ms), _MOST))
        wanted = list(islice(idle, _MOST))
        held = self._held([name for name, _ in settled] + wanted)
        if leaving := [name for name in wanted if name not in held]:
            scripts.retire(self.keys, names=leaving).run(self.client)
        for name, _ in settled:
            if name in held:
                self.add(name)
            else:
                self._forget_places(name)
        if settled:
            scripts.settle(self.keys, retired=settled).run(self.client)

    def _held(self, names: list[str]) -> set[str]:
        """Return the names that are still needed: they have waiting messages, dead letters or periodic tasks."""
        with self.client.pipeline(transaction=False) as pipe:
            for name in names:
                queue = keys.QueueKeys.of(name)
                pipe.exists(queue.timeout_set, queue.dead, queue.schedule)
            found = pipe.execute(raise_on_error=False)
        # A name whose keys the server refuses is left as it is.
        return {name for name, count in zip(names, found, strict=True) if count}

    def _forget_places(self, name: str) -> None:
        try:
            scripts.tidy(keys.QueueKeys.of(name), places=[]).run(self.client)
        except exceptions.ResponseError as exc:
            logger.debug("Cannot tidy the index of %r: %s", name, exc)

    def _report(self, exc: Exception) -> None:
        # Who stores a message is told of a refusal that passes by itself; the queue is registered later.
        if passing_refusal(exc) or self.keys.names in self._reported:
            return
        self._reported.add(self.keys.names)
        logger.error(
            "Cannot register delayed queues in %r: %s. Delayed messages are stored, but only workers that consume "
            "or know their queue transfer them. If another program wrote the key, delete or rename it.",
            self.keys.names,
            exc,
        )


def registered(client: redis.Redis, keyprefix: str = "") -> set[str]:
    """Return the names of the broker lists that may have waiting messages."""
    return Registry(client, keyprefix).names()


def is_wrong_type(exc: Exception) -> bool:
    """Return whether an error means that a key has the wrong type."""
    return str(exc).startswith("WRONGTYPE")


def _text(name: Any) -> str:
    """Return a name as a string; empty if it is not UTF-8."""
    try:
        return str(name, "utf-8")
    except UnicodeDecodeError:
        return ""
