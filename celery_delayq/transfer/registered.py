"""RegisteredQueues: which queues a transfer loop knows: those of the registry, and those that were announced since."""

from __future__ import annotations

from collections.abc import Callable
from logging import getLogger

import redis
from redis import exceptions

from celery_delayq.queue import keys
from celery_delayq.queue.connections import CONNECTION_ERRORS, refusals
from celery_delayq.queue.registry import Registry

logger = getLogger(__name__)


class RegisteredQueues:
    """Those of one loop; they outlive its connections. For the loop's thread.

    Args:
        keyprefix: kombu's `global_keyprefix`.
        registry: where to read which queues there are; by default, the loop does that with its own client.
        serves: returns whether a list is at the loop's server.
    """

    def __init__(
        self, keyprefix: str = "", registry: Registry | None = None, serves: Callable[[str], bool] = lambda name: True
    ) -> None:
        self._keyprefix = keyprefix
        self._is_own = registry is None
        self._registry = registry
        self._serves = serves
        #: The channel on which new names are announced.
        self.channel = keys.registry(keyprefix)
        #: Whether the registry could be read when that was last tried.
        self.is_read = False
        #: Names of the broker lists that may have waiting messages.
        self.names: set[str] = set()
        self._error = ""

    def connect(self, client: redis.Redis) -> None:
        """Use another client from now on: one of the loop's server."""
        if self._is_own:
            self._registry = Registry(client, self._keyprefix)

    def read(self) -> bool:
        """Read the registry, and remove what is of no use any more. If the server refuses, all names are kept.

        Returns:
            Whether the registry was read.

        Raises:
            redis.ConnectionError: the loop's own connection is lost.
        """
        assert self._registry is not None
        self.is_read = False
        try:
            used = {name: used_ms for name, used_ms in self._registry.read().items() if self._serves(name)}
            self.names, self.is_read = set(used), True
            self._registry.forget(used)
        except (*CONNECTION_ERRORS, exceptions.ResponseError) as exc:
            self._report(exc)
        else:
            self._error = ""
        return self.is_read

    def _report(self, exc: Exception) -> None:
        # A registry that is not the loop's own waits less for the same server than the loop does, which notices itself
        # that it is away.
        if isinstance(exc, CONNECTION_ERRORS) and self._is_own and self._serves(self.channel):
            raise exc
        if str(exc) != self._error and not refusals.note(exc, logger):
            what = "remove names of empty queues from" if self.is_read else "read the names of delayed queues in"
            logger.error("Cannot %s %r: %s", what, self.channel, exc)
        self._error = str(exc)
