"""Fetchers: fetch the messages of a channel's queues, with a fetcher for each server. A single server has one.

For the nodes of a Redis Cluster, see `NodeFetchers`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from logging import getLogger
from typing import Any

from redis import exceptions

from celery_delayq.basics.errors import LeaseLost
from celery_delayq.fetching.conversation import PATIENCE_S
from celery_delayq.queue.connections import CONNECTION_ERRORS, is_full
from celery_delayq.transport.connector import Connector
from celery_delayq.transport.delivery import Delivery
from celery_delayq.transport.fetcher import Fetcher
from celery_delayq.transport.protocols import Channel
from celery_delayq.transport.station import Station

logger = getLogger(__name__)

#: How long a server that had no messages is asked after the others, in seconds.
_EMPTY_S = 0.1

#: When a server that has no connection left is asked again, in seconds.
_FULL_S = 1.0


class Fetchers:
    """Those of one channel. They belong to the consuming thread.

    Args:
        channel: a `DelayedChannel`.

    Attributes:
        delivery: of what they have fetched.
        patience_s: how long the thread waits at most until a server has ended waits, in seconds.
    """

    patience_s = PATIENCE_S

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.delivery = Delivery(channel, self)
        #: Server -> fetcher, in the order in which they are asked; one that had messages goes to the end.
        self._fetchers: dict[str, Fetcher] = {}
        #: When one had messages last (monotonic).
        self._found_at = 0.0
        self._is_ending_waits = False
        #: The consumed queues, each once; None after they have changed.
        self._consumed: list[str] | None = None
        self._paused: frozenset[str] = frozenset()
        #: Whether leases on paused lists may be missing.
        self._has_new_lists = True

    @property
    def _all(self) -> list[Fetcher]:
        return list(self._fetchers.values())

    # -- which servers

    def consumed_at(self, server: str) -> list[str]:
        """Return the consumed queues whose lists are at a server, each once."""
        if self._consumed is None:
            self._consumed = list(dict.fromkeys(self._channel.task_queues.values()))
        return self._consumed

    def queues_at(self, server: str) -> list[str]:
        """Return those of them that are not paused."""
        queues = self.consumed_at(server)
        return [queue for queue in queues if queue not in self._paused] if self._paused else queues

    def station(self, server: str) -> Station:
        """Return the station at a server."""
        transport = self._channel.connection
        return transport.stations.at(
            server, lambda: Station(transport, server, Connector(transport.client), self._channel.plain_client)
        )

    def _server_of(self, queue: str) -> str:
        """Return the server that has the lists of a queue."""
        return ""

    def _follow(self) -> None:
        """Have a fetcher for each server that has queues of this channel, and none for others."""
        self._at("")

    def _at(self, server: str) -> Fetcher:
        fetcher = self._fetchers.get(server)
        if fetcher is None:
            fetcher = self._fetchers[server] = Fetcher(self._channel, self, server)
            self._has_new_lists = True
            self.attempt(fetcher, Fetcher.on_queues_changed)
        return fetcher

    def on_queues_changed(self) -> None:
        """Follow a change of `channel.task_queues`, or of the paused ones."""
        self._consumed = None
        self._has_new_lists = True
        self._try_each(Fetcher.on_queues_changed)

    def _follow_paused(self) -> None:
        """Fetch no more from queues that are paused now, and from those again that are not."""
        paused = self._channel.connection.paused.names(self._channel)
        if paused != self._paused:
            self._paused = paused
            self.on_queues_changed()
            self._follow()
        if self._has_new_lists:
            self._has_new_lists = False
            if self._paused:
                self._try_each(Fetcher.join_paused)

    # -- what a server may do to a fetcher

    def lose(self, fetcher: Fetcher, exc: Exception) -> None:
        """Handle that the connection to a server is lost: raise `exc`, and the caller has to reconnect."""
        raise exc

    def is_elsewhere(self, exc: exceptions.ResponseError) -> bool:
        """Return whether an error says that a list is on its way to another server, so that it is tried again soon."""
        return False

    def attempt(self, fetcher: Fetcher, action: Callable[[Fetcher], Any]) -> Any:
        """Do something with a fetcher; returns False if its server is lost, or has no connection left.

        Raises:
            LeaseLost: see `fill`.
            redis.ConnectionError: see `lose`.
            Exception: the callback of a consumer has raised it.
        """
        try:
            return action(fetcher)
        except LeaseLost:
            raise
        except CONNECTION_ERRORS as exc:
            if exc is self.delivery.callback_error:
                raise
            if is_full(exc):
                fetcher.full_until = time.monotonic() + _FULL_S
                self._on_full(fetcher)
            else:
                self.lose(fetcher, exc)
        except exceptions.ResponseError as exc:
            if exc is self.delivery.callback_error or not self.is_elsewhere(exc):
                raise
        return False

    def _try_each(self, action: Callable[[Fetcher], Any]) -> None:
        for fetcher in self._all:
            self.attempt(fetcher, action)

    def _on_full(self, fetcher: Fetcher) -> None:
        """Leave the connections that there are to the loops and watchdogs, and look for messages once a second."""
        self._channel.connection.cycle.wake_in(_FULL_S)
        if fetcher.is_sparing:
            return
        logger.error(
            "%s has no connection left for this worker: its limit maxclients%s is reached. The worker looks for "
            "messages there once a second. Raise maxclients, or see docs/redis.md",
            f"Redis node {fetcher.server}" if fetcher.server else "Redis",
            fetcher.maxclients(),
        )
        self.attempt(fetcher, Fetcher.spare_connections)

    def _is_full(self, fetcher: Fetcher) -> bool:
        """Return whether a server has refused a connection just now, so that nothing is fetched there for a moment."""
        if not fetcher.is_sparing and self._channel.connection.is_full(fetcher.server):
            self._on_full(fetcher)  # its connections that wait may keep those out that leases and transfers need
        pauses = time.monotonic() < fetcher.full_until
        if pauses:
            self._channel.connection.cycle.wake_in(_FULL_S)
        return pauses

    # -- what they do together

    @property
    def has_queues(self) -> bool:
        """Whether there is any queue to fetch from."""
        return bool(self._channel.task_queues) and bool(self._channel.ack_emulation)

    @property
    def is_consuming(self) -> bool:
        """Whether they wait for messages, or have undelivered ones."""
        return any(fetcher.is_consuming for fetcher in self._all)

    @property
    def is_starved(self) -> bool:
        """Whether the last fetch ended because there was no credit."""
        return any(fetcher.is_starved for fetcher in self._all)

    @property
    def on_the_way(self) -> int:
        """The number of messages that are fetched but not delivered, or may be on their way."""
        return len(self.delivery) + sum(fetcher.rounds.on_the_way for fetcher in self._all)

    def fill(self) -> None:
        """Ask one server after the other for messages until there is something to deliver.

        Only if none has messages, this waits on the servers. One that had none is asked again when others have had
        some, but not within `_EMPTY_S`: while they have many, that would cost more than the messages themselves.

        Raises:
            LeaseLost: others have given the consumer up; the caller has to reconnect.
            redis.ConnectionError: the connection to a single server is lost.
        """
        self._follow()
        self._follow_paused()
        if self.delivery.has_next:
            return
        now = time.monotonic()
        for fetcher in sorted(self._all, key=lambda it: it.empty_since is not None and now < it.empty_since + _EMPTY_S):
            if self._fetchers.get(fetcher.server) is not fetcher:  # another one's messages have shown that it is lost
                continue
            if not self.queues_at(fetcher.server) or self._is_full(fetcher):
                continue
            if fetcher.rounds.is_empty:
                since = fetcher.empty_since = fetcher.empty_since or now
                if self._found_at <= since or now < since + _EMPTY_S:
                    continue
                fetcher.empty_since = None
            self.ask(fetcher)
            if fetcher.is_sparing:
                self._channel.connection.cycle.wake_in(_FULL_S)
            if fetcher.rounds.on_the_way:
                return  # the others are asked when it has answered, or is late
        for fetcher in self._all:
            if fetcher.rounds.is_empty and not self._is_full(fetcher):
                self.attempt(fetcher, Fetcher.wait)

    def ask(self, fetcher: Fetcher) -> None:
        """Ask one server for messages, see `Fetcher.ask`."""
        self.attempt(fetcher, Fetcher.ask)

    def on_found(self, fetcher: Fetcher) -> None:
        """Record that a server had messages: the others are asked first."""
        self._found_at = time.monotonic()
        fetcher.empty_since = None
        if self._fetchers.get(fetcher.server) is fetcher:  # a new dict: another thread may look at it, see `unsettle`
            self._fetchers = {**self._without(fetcher), fetcher.server: fetcher}

    def _without(self, fetcher: Fetcher) -> dict[str, Fetcher]:
        return {server: other for server, other in self._fetchers.items() if other is not fetcher}

    def send_acks(self, *, is_busy: bool) -> bool:
        """Send the acknowledgements that wait, unless more will follow soon; see `Conversation.flush`."""
        still_wait = [fetcher.send_acks(is_busy=is_busy) for fetcher in self._all]
        return any(still_wait)

    def get(self, queue: str) -> Any:
        """Return one message of a queue as a kombu message, even if others consume the queue; None if it is empty."""
        fetcher = self._at(self._server_of(queue))
        try:
            return fetcher.get(queue)
        except CONNECTION_ERRORS as exc:
            self.lose(fetcher, exc)
            raise

    def tidy(self) -> None:
        """Handle replies, and end the leases on lists that are no longer fetched from, see `Fetcher.tidy`."""
        self._try_each(Fetcher.tidy)

    def unsettle(self) -> None:
        """Look at all lists again at the next fetch. Safe in any thread."""
        for fetcher in self._all:
            fetcher.unsettle()

    def spare_connections(self) -> None:
        """Do without connections that wait, for a while, see `Fetcher.spare_connections`."""
        self._try_each(Fetcher.spare_connections)

    # -- what one of them wants of the others

    def make_way(self, asker: Fetcher) -> None:
        """Wait for no message, and give back all, because one has to be delivered alone."""
        for fetcher in self._all:
            if fetcher is not asker:
                self.attempt(fetcher, Fetcher.make_way)
        asker.make_way()

    def end_waits(self, asker: Fetcher) -> None:
        """Wait for no message, because there is no credit left: a task may run in this thread next, for long."""
        if self._is_ending_waits:  # what arrives meanwhile is taken
            return
        self._is_ending_waits = True
        try:
            for fetcher in self._all:
                if fetcher is not asker:
                    self.attempt(fetcher, Fetcher.end_waits)
            self.attempt(asker, Fetcher.end_waits)
        finally:
            self._is_ending_waits = False

    # -- the end

    def close(self) -> None:
        """Stop waiting for messages, and put undelivered ones back. Never raises."""
        for fetcher in self._all:
            fetcher.close()
