"""Stations: what a connection needs at each server to fetch tasks, and what it needed before."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what only a consumer needs is imported when one needs it
    from celery_delayq.fetching.consumer import Consumer
    from celery_delayq.fetching.held import Held
    from celery_delayq.transport.station import Station


class Stations:
    """Those of one connection; "" is the name of a single server.

    The thread that fetches makes and leaves them. Any thread may ask who holds a message.

    Attributes:
        consumers: those of the connection, and former ones whose messages tasks may still work on.
    """

    def __init__(self) -> None:
        self._stations: dict[str, Station] = {}
        #: Stations that are closed or retired: tasks from there may still run.
        self._former: list[Station] = []
        self.consumers: tuple[Consumer, ...] = ()

    def _on_changed(self) -> None:
        self.consumers = tuple(station.consumer for station in (*self._stations.values(), *self._former))

    def __bool__(self) -> bool:
        """Whether the connection fetches tasks."""
        return bool(self._stations)

    def at(self, server: str, make: Callable[[], Station]) -> Station:
        """Return the station at a server, which all channels share; made on first use."""
        if server not in self._stations:
            self._stations[server] = make()
            self._on_changed()
        return self._stations[server]

    def is_full(self, server: str) -> bool:
        """Return whether a server has no connection left for the watchdog of its station."""
        station = self._stations.get(server)
        return station is not None and station.watchdog.outage.is_full

    # -- who holds a message

    @property
    def is_isolated(self) -> bool:
        """Whether a message is delivered alone."""
        return any(consumer.isolation.is_on for consumer in self.consumers)

    def holder(self, delivery_tag: str) -> Consumer | None:
        """Return the consumer that holds a message; None if none does."""
        for consumer in self.consumers:
            if delivery_tag in consumer.held:
                return consumer
        return None

    def held(self, delivery_tag: str) -> Held | None:
        """Return a message that a consumer holds; None if none does."""
        for consumer in self.consumers:
            held = consumer.held.get(delivery_tag)
            if held is not None:
                return held
        return None

    def check_former(self) -> None:
        """Make sure that others have not taken over messages of a former station.

        Raises:
            LeaseLost: they have; the caller has to reconnect.
        """
        for station in self._former:
            if station.consumer.is_lost:
                station.consumer.check()

    # -- the end

    def retire(self, server: str, consumer: Consumer | None) -> None:
        """Fetch nothing with a consumer any more, see `Station.retire`. Another one may be at its server by now."""
        if server in self._stations and self._stations[server].consumer is consumer:
            with self._leaving([server]) as (station, *_):
                station.retire()

    def close(self, running_tags: Callable[[], Collection[str]]) -> None:
        """Close all, see `Station.close`."""
        if not self._stations and not self._former:
            return
        keep = running_tags()
        with self._leaving(list(self._stations)) as stations:
            for station in stations:
                station.close(keep)

    @contextmanager
    def _leaving(self, servers: list[str]) -> Iterator[list[Station]]:
        """Fetch no more at these stations. They become the first of the former ones, which the block closes.

        The threads of a pool may ask at any moment who holds a message: its consumer is always one of `consumers`.
        """
        self._former = [*map(self._stations.pop, servers), *self._former]
        self._on_changed()
        try:
            yield self._former
        finally:
            self._former = [station for station in self._former if not station.consumer.is_done]
            self._on_changed()

    def forget(self) -> None:
        """Forget what belongs to the parent of a forked child, see `known`."""
        self._stations, self._former, self.consumers = {}, [], ()
