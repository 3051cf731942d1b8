"""Sentinel: each process leaves a master as soon as Redis Sentinel has named another one.

If a master dies, its connections end. If it hangs, or its machine is cut off, they last. After a planned failover, it
goes on as a master for some seconds, and what it takes is lost. So each process that has a connection to a master,
workers and publishers alike, listens to Sentinel's `+switch-master`, and then ends its connections to the old master.
All loops, Celery and kombu find the new one as after any lost connection.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from logging import getLogger
from typing import Any

import redis
from kombu.transport import redis as kombu_redis
from redis import exceptions
from redis.sentinel import SentinelManagedConnection

from celery_delayq.options.settings import HEALTH_CHECK_S, sentinel_options
from celery_delayq.queue.connections import Outage, address_of, as_text
from celery_delayq.queue.keeper import Keeper
from celery_delayq.queue.subscription import Heard, Subscription
from celery_delayq.transport.channel import DelayedChannel
from celery_delayq.transport.known import Known, close_sentinels, is_any, known, leave

logger = getLogger(__name__)

_CHANNEL = "+switch-master"

#: How often Sentinel is asked for the master, in seconds, in case that a message was lost.
_ASK_S = 1.0

#: A process listens so long after its first connection: a short script need not. What Sentinel said before counts, too.
_LISTEN_AFTER_S = 1.0

#: How long a process listens that has no connection to a master any more, in seconds.
_IDLE_S = 10.0


class Managed(Known):
    """Makes a connection known, and its process listen; for subclasses of redis-py's connections."""

    connection_pool: Any

    def connect_to(self, address: Any) -> Any:
        """Connect, see redis-py."""
        watch(self.connection_pool.sentinel_manager, self.connection_pool.service_name)
        return super().connect_to(address)  # type: ignore[misc]


class KnownConnection(Managed, SentinelManagedConnection):
    """A connection to a master that Sentinel has named."""


class KnownSSLConnection(Managed, kombu_redis.SentinelManagedSSLConnection):
    """The same with TLS."""


class DelayedSentinelChannel(DelayedChannel, kombu_redis.SentinelChannel):
    """A channel to the master that Redis Sentinel names."""

    connection_class = KnownConnection
    connection_class_ssl = KnownSSLConnection

    def _get_pool(self, asynchronous: bool = False) -> Any:
        pool = super()._get_pool(asynchronous)
        for sentinel in pool.sentinel_manager.sentinels:
            sentinel.connection_pool.connection_class = known(sentinel.connection_pool.connection_class)
        return pool

    def _disconnect_pools(self) -> None:
        pool = self._async_pool
        super()._disconnect_pools()
        close_sentinels(pool)

    #: The user's `sentinel_kwargs`.
    _sentinel_kwargs: Mapping[str, Any] | None = None

    @property
    def sentinel_kwargs(self) -> dict[str, Any]:
        """Options of the connections to the sentinels, see kombu."""
        conninfo = self.connection.client
        tls = {"ssl": True, **conninfo.ssl} if conninfo.asks_for_tls else {}
        return {
            **tls,
            **sentinel_options(self.socket_timeout, self.socket_connect_timeout),
            "socket_keepalive": self.socket_keepalive,
            "socket_keepalive_options": self.socket_keepalive_options,
            **(self._sentinel_kwargs or {}),
        }

    @sentinel_kwargs.setter
    def sentinel_kwargs(self, given: Mapping[str, Any] | None) -> None:
        self._sentinel_kwargs = given


#: The name of a master, and its sentinels -> who listens to them: one in each process. If two threads connect at
#: the same moment, both may start one: the other one costs a connection, and ends when nobody needs it.
_watches: dict[Any, SentinelWatch] = {}


def watch(manager: Any, master_name: str) -> None:
    """Make this process listen to sentinels, unless it does. A forked child listens with connections of its own.

    Args:
        manager: the `redis.sentinel.Sentinel` of a connection pool; its clients are used.
        master_name: Sentinel's name of the master.
    """
    places = (one.connection_pool.connection_kwargs for one in manager.sentinels)
    key = master_name, *sorted((str(place.get("host")), int(place.get("port") or 0)) for place in places)
    found = _watches.get(key)
    if found is None or not found.listens:
        try:
            _watches[key] = SentinelWatch(manager, master_name)
        except (RuntimeError, OSError) as exc:  # no thread or descriptor is left: the next connection tries again
            logger.warning("Cannot listen to Redis Sentinel: %s. A failover is noticed later", exc)


class SentinelWatch:
    """Listens to one Sentinel at a time while this process has connections to a master: a duty of a keeper.

    Args:
        manager, master_name: see `watch`.

    Attributes:
        outage: whether it is interrupted.
    """

    def __init__(self, manager: Any, master_name: str) -> None:
        self.outage = Outage(logger, "Listening to Redis Sentinel", "A failover is noticed later")
        # With connections of its own: kombu closes those of the manager with its channel.
        pools = [
            redis.ConnectionPool(
                pool.connection_class, **{"health_check_interval": HEALTH_CHECK_S, **pool.connection_kwargs}
            )
            for pool in (sentinel.connection_pool for sentinel in manager.sentinels)
        ]
        self._sentinels = itertools.cycle(pools)  # after each error, the next one
        self._master_name = master_name
        self._pid = os.getpid()
        self._needed_at = time.monotonic()
        self._has_ended = False
        # What belongs to one connection.
        self._sentinel: redis.Redis = redis.Redis(connection_pool=pools[0])
        self._lets_listen = True
        #: The master, as this sentinel knows it.
        self._known = ("", 0)
        self._ask_at = 0.0
        self._keeper = Keeper(self._connect, begins_after_s=_LISTEN_AFTER_S)
        self._keeper.add(self)

    @property
    def listens(self) -> bool:
        """Whether it listens, or will soon, in this process."""
        return not self._has_ended and self._pid == os.getpid() and self._keeper.has(self)

    @contextmanager
    def _connect(self) -> Iterator[redis.Redis]:
        pool = next(self._sentinels)
        try:
            yield redis.Redis(connection_pool=pool)
        finally:
            pool.disconnect()

    # -- in the thread of the keeper, see `Duty`

    @property
    def is_over(self) -> bool:
        """Whether no connection to a master has been left for a while."""
        if is_any(Managed):
            self._needed_at = time.monotonic()
        elif time.monotonic() > self._needed_at + _IDLE_S:
            # Whoever connects from now on starts another one. Whoever has connected just before needs this one.
            self._has_ended = True
            self._has_ended = not is_any(Managed)
        return self._has_ended

    def connected(self, client: redis.Redis) -> None:
        """Begin anew with a sentinel, unless that does not let us listen."""
        if client is self._sentinel and not self._lets_listen:
            raise exceptions.ConnectionError(f"{address_of(client)} lets nobody listen")
        self._sentinel, self._lets_listen = client, False

    def subscribed(self, subscription: Subscription) -> None:
        """Listen, and learn what this sentinel said while nobody listened."""
        self._lets_listen = True
        with _or_another():
            subscription.subscribe(_CHANNEL)
            replicas = self._sentinel.sentinel_slaves(self._master_name)
        # Only its own names of servers are compared: another sentinel may call the same server by another name.
        self._known = self._ask()
        for replica in replicas:
            self._leave((replica["ip"], int(replica["port"])), self._known)

    def heard(self, heard: Heard) -> None:
        """Leave a master when another one is named."""
        if heard.channel == _CHANNEL and heard.said:
            name, *old = heard.said.split(" ")[:3]
            if name == self._master_name:
                self._leave(_address(*old), self._ask())

    def work(self, until: float) -> float:
        """Ask for the master from time to time."""
        if time.monotonic() >= self._ask_at:
            before, self._known = self._known, self._ask()
            self._leave(before, self._known)
            self.outage.ends()
            self._ask_at = time.monotonic() + _ASK_S
        return self._ask_at

    def disconnected(self) -> None:
        """Nothing has to be forgotten."""

    def end(self) -> None:
        """Nothing is left to do."""

    def _ask(self) -> tuple[str, int]:
        """Return the address of the master.

        Raises:
            redis.ConnectionError: this sentinel does not know it, see `_or_another`.
        """
        with _or_another():
            address: Any = self._sentinel.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", self._master_name)
        if not address:
            raise exceptions.ConnectionError(f"{address_of(self._sentinel)} does not know {self._master_name!r}")
        return _address(*address)

    def _leave(self, old: tuple[str, int], new: tuple[str, int]) -> None:
        """End the connections to a former master, unless it is the master again."""
        if old == new:
            return
        ended = leave(*old)
        if ended:
            logger.info("Sentinel names %s:%d now; ended %d connections to %s:%d", *new, ended, *old)


@contextmanager
def _or_another() -> Iterator[None]:
    """What a sentinel refuses counts as a lost connection: the keeper turns to the next one."""
    try:
        yield
    except exceptions.ResponseError as exc:
        raise exceptions.ConnectionError(str(exc)) from exc


def _address(host: bytes | str, port: bytes | str) -> tuple[str, int]:
    return as_text(host), int(port)
