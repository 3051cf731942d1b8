"""RareLists: lists that are rarely used. They share one connection, which hears of messages in them.

Most priorities of most queues are never used. A list that is used often is not rare, and takes a connection of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from logging import getLogger

from redis import exceptions

from celery_delayq.fetching.consumer import Consumer
from celery_delayq.queue.connections import CONNECTION_ERRORS, NOT_SERVING, refusals
from celery_delayq.transport.listener import Listener
from celery_delayq.transport.protocols import Cycle

logger = getLogger(__name__)


class RareLists:
    """Those of one connection. They belong to the thread that fetches.

    Args:
        cycle: the `Poller` of the connection.
    """

    def __init__(self, cycle: Cycle) -> None:
        self._cycle = cycle
        #: None until there is such a list.
        self._listener: Listener | None = None
        self._is_allowed = True
        self._will_check = False

    def may_have(self, name: str) -> bool:
        """Return whether a list may be one of them: the server allows it, and the list is not used often."""
        return self._is_allowed and (self._listener is None or not self._listener.is_busy(name))

    def is_empty(self, consumer: Consumer, name: str) -> bool:
        """Return whether a list was empty, and the server would have told that it no longer is."""
        return self._listener is not None and self._listener.is_awaited(consumer, name)

    def look(self, consumer: Consumer, names: list[str]) -> None:
        """Ask the server about those that it may have told of, in one command. Raises what `wait` raises."""
        if self._listener is not None and consumer.reader is not None:
            self.wait(consumer, names)

    def wait(self, consumer: Consumer, names: list[str]) -> bool:
        """Make the server tell of messages in these lists; returns False if it does not, or if there is one already.

        Raises:
            redis.ConnectionError: the server is away, or has no connection left.
        """
        try:
            if self._listener is None:
                self._listener = self.make_listener(consumer)
                self._cycle.add_slot(self._listener, self)
            listener = self._listener
            unknown = [name for name in names if not listener.is_awaited(consumer, name)]
            are_empty = not unknown or listener.await_all(consumer, self._together(unknown))
        except NOT_SERVING:
            raise
        except exceptions.ResponseError as exc:
            if "redirect to does not exist" in str(exc):  # the connection that listens was lost
                self.disconnect()
                return False
            if self._is_elsewhere(exc):
                raise
            if not refusals.note(exc, logger):
                self._on_refused(exc)
            return False
        if are_empty and not self._will_check:
            self._will_check = True
            self._cycle.call_later(listener.trust_s, self._check)
        return are_empty

    def make_listener(self, consumer: Consumer) -> Listener:
        """Open the connection that hears of messages."""
        return Listener(consumer.client.connection_pool)

    def _is_elsewhere(self, exc: exceptions.ResponseError) -> bool:
        """Return whether an error says that a list is on its way to another server."""
        return False

    def _together(self, names: list[str]) -> list[list[str]]:
        """Return the names in groups, each of which one command may ask about."""
        return [names]

    def on_readable(self, listener: Listener) -> None:
        """Hear which lists are no longer empty. The next fetch takes the messages."""
        self._with(listener.read)
        self._cycle.on_told()

    def keep(self) -> None:
        """Keep the connection: an idle one speaks. Call it about once a second."""
        if self._listener is not None and not self._with(self._listener.speak):
            self._cycle.on_told()

    def _with(self, action: Callable[[], None]) -> bool:
        """Do something with the connection; returns False if it is lost. Nothing is lost with it.

        The next fetch looks at all lists, and the next wait opens another connection.
        """
        try:
            action()
        except CONNECTION_ERRORS as exc:
            logger.debug("Lost a connection, opening another one: %s", exc)
            self.disconnect()
            return False
        return True

    def _check(self) -> None:
        """Make sure from time to time that the server still tells."""
        self._will_check = False
        self._cycle.wake()

    def _on_refused(self, exc: exceptions.ResponseError) -> None:
        logger.info(
            "Redis does not tell of messages in rarely used lists, so each list takes a connection: %s. Allow CLIENT "
            "TRACKING, CLIENT CACHING, CLIENT INFO and EXISTS",
            exc,
        )
        self._is_allowed = False
        self.disconnect()

    def disconnect(self) -> None:
        """Close the connection."""
        listener, self._listener = self._listener, None
        if listener is not None:
            self._cycle.remove_slot(listener)
            listener.disconnect()
