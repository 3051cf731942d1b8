"""KnownQueues: which queues a transfer loop knows: those of the registry, and those that were announced since."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from logging import getLogger

import redis
from redis import exceptions

from celery_delayq.queue import keys
from celery_delayq.queue.connections import CONNECTION_ERRORS, refusals
from celery_delayq.queue.registry import Registry, Retired
from celery_delayq.queue.shared_registry import FRESH_S

logger = getLogger(__name__)


class KnownQueues:
    """Those of one loop; they outlive its connections. For the loop's thread.

    Args:
        keyprefix: kombu's `global_keyprefix`.
        shared: the registry that all loops of the process share; by default, this one reads it with its own client.
        serves: returns whether a list is at the loop's server.
    """

    def __init__(
        self, keyprefix: str = "", shared: Registry | None = None, serves: Callable[[str], bool] = lambda name: True
    ) -> None:
        self._keyprefix = keyprefix
        self._shared = shared
        self._serves = serves
        self._registry: Registry
        #: The channel on which new names are announced.
        self.channel = keys.RegistryKeys.of(keyprefix).names
        #: Whether the registry could be read when that was last tried.
        self.is_read = False
        #: What was read last.
        self._registered: set[str] = set()
        self._retired = Retired(0, {})
        #: Queues that were announced since then, or shortly before -> when, by the monotonic clock.
        self._announced: dict[str, float] = {}
        self._error = ""

    @property
    def names(self) -> set[str]:
        """Names of the broker lists that may have waiting messages."""
        return self._registered | self._retired.at_ms.keys() | self._announced.keys()

    def connect(self, client: redis.Redis) -> None:
        """Use another client from now on, and make sure that the next reading is new.

        Args:
            client: of the loop's server.
        """
        self._registry = self._shared or Registry(client, self._keyprefix)
        self._registry.refresh()

    def announce(self, name: str) -> None:
        """Record that a name was announced. It stays until a reading is certainly newer."""
        self._announced[name] = time.monotonic()

    def read(self) -> bool:
        """Read the registry. Returns False if the server refused: then all names are kept.

        Raises:
            redis.ConnectionError: the loop's own connection is lost.
        """
        self.is_read = False
        read_since = time.monotonic() - FRESH_S  # by another loop, if they share the registry
        try:
            registered = set(filter(self._serves, self._registry.names()))
            retired = self._registry.retired().only(self._serves)
        except (*CONNECTION_ERRORS, exceptions.ResponseError) as exc:
            self._report("read the names of delayed queues in", exc)
            return False
        self._registered, self._retired = registered, retired
        self._announced = {name: at for name, at in self._announced.items() if at > read_since}
        self.is_read, self._error = True, ""
        return True

    def is_in_registry(self, name: str) -> bool:
        """Return whether a name was in the registry when that was read."""
        return name in self._registered or name in self._retired.at_ms

    def clear(self, idle: Iterable[str], idle_s: float) -> None:
        """Remove from the registry, as it was read, the names of queues that have been empty for a while.

        Args:
            idle: those names.
            idle_s: see `Registry.clear`.

        Raises:
            redis.ConnectionError: see `read`.
        """
        try:
            self._registry.clear(self._registered.intersection(idle), self._retired, idle_s)
        except (*CONNECTION_ERRORS, exceptions.ResponseError) as exc:
            self._report("remove names of empty queues from", exc)

    def _report(self, what: str, exc: Exception) -> None:
        # A shared registry waits less for the same server than the loop does, which notices itself that it is away.
        is_own = self._shared is None and self._serves(self.channel)
        if isinstance(exc, CONNECTION_ERRORS) and is_own:
            raise exc
        if str(exc) != self._error and not refusals.note(exc, logger):
            logger.error("Cannot %s %r: %s", what, self.channel, exc)
        self._error = str(exc)
