"""Station: what a connection needs at one server to fetch tasks.

That is a consumer, its watchdog, and the lists that are rarely used.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection
from functools import partial

import redis

from celery_delayq.basics.weak import call_of
from celery_delayq.fetching.consumer import Consumer
from celery_delayq.fetching.held import Redelivery
from celery_delayq.fetching.watchdog import Watchdog
from celery_delayq.fetching.wire import Wire
from celery_delayq.queue.connections import Connect
from celery_delayq.transport import redelivery
from celery_delayq.transport.protocols import Connection
from celery_delayq.transport.rare_lists import RareLists


class Station:
    """All channels of a connection share it. It belongs to the thread that fetches.

    Args:
        transport: the `Transport` of the connection.
        server: its name; "" is that of a single server.
        connect: see `Consumer`.
        client: for the consumer, see `Consumer`.

    Attributes:
        consumer, watchdog, rare_lists: those of the server.
    """

    def __init__(
        self,
        transport: Connection,
        server: str,
        connect: Connect,
        client: redis.Redis,
    ) -> None:
        self.consumer = Consumer(
            connect,
            client,
            lease_s=transport.options["lease"],
            redelivery=Redelivery(
                redelivery.put_back,
                partial(redelivery.recover, delivery_limit=transport.options["delivery_limit"]),
                redelivery.holder_of,
                partial(call_of, weakref.ref(transport), "program.tell_dead"),
                partial(call_of, weakref.ref(transport), "program.on_count"),
            ),
            expires_ms=transport.expires_ms,
            on_asking=partial(call_of, weakref.ref(self), "poll"),
            slot_of=transport.slot_of,
            collects=transport.program.acknowledges_together,
        )
        self._cycle = transport.cycle
        self.rare_lists = RareLists(transport.cycle, self.consumer.conversation, transport.slot_of)
        self.watchdog = Watchdog(
            self.consumer,
            transport.keeper(server, connect),
            on_lost=partial(call_of, weakref.ref(transport.cycle), "wake"),
            on_paused=partial(call_of, weakref.ref(transport), "paused.tell"),
        )
        self.watchdog.start()
        transport.ends_with(self.consumer)

    def close(self, keep: Collection[str]) -> None:
        """Close the consumer, see `Consumer.close`. What cannot be done now is left to the watchdog."""
        if self.consumer.is_closed:
            self.consumer.keep_only(keep)
            return
        if self.consumer.close(keep=keep):
            self.watchdog.stop()
        self.consumer.disconnect()

    def retire(self) -> None:
        """Fetch nothing any more, without a command to the server, which may hang.

        What was delivered can still be acknowledged. The watchdog does the rest, and renews the leases until then.
        """
        self.consumer.retire()
        self.consumer.disconnect()

    def poll(self, wire: Wire, is_asking: bool) -> None:
        """Have the connection that fetches polled while an answer is awaited, see `Conversation`."""
        if is_asking:
            self._cycle.add_slot(wire, self)
        else:
            self._cycle.remove_slot(wire)

    def on_readable(self, wire: Wire) -> None:
        """Handle what has come on the connection that fetches."""
        self.consumer.conversation.read()
