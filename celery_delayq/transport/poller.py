"""Poller: kombu's poller of Redis connections, extended by the connections that wait for tasks."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING, Any

import kombu
from kombu.transport import redis as kombu_redis
from kombu.utils.eventio import poll
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from celery_delayq.basics.descriptors import Waker
from celery_delayq.basics.weak import call_of
from celery_delayq.queue.connections import CONNECTION_ERRORS, NOT_SERVING, refusals

if TYPE_CHECKING:  # which a producer need not load
    from celery_delayq.transport.fetchers import Fetchers
    from celery_delayq.transport.protocols import Owner, Pollable, Polled

#: Longest single wait of a consumer, in seconds. After that, it checks that all is well.
_LONGEST_POLL_S = 1.0

#: Interval at which replies are read, and what is no longer needed is ended: leases, and connections, in seconds.
_TIDY_S = 1.0

#: How soon `turn_soon` begins a turn, and for how long a timer goes on with that, in seconds.
_SOON_S, _TICKS_FOR_S = 0.0025, 0.05

#: How many messages one turn delivers at most in a worker, and when it delivers no further one, in seconds: a task of
#: the pool "solo" is acknowledged after its turn.
_MOST_A_TURN, _DELIVER_S = 8, 0.001

#: Pause until a channel of a cluster whose node is lost subscribes at another one, in seconds.
_RESUBSCRIBE_S = 0.1

#: Pause until a worker that Redis refuses something for now tries again, in seconds.
_REFUSED_S = 1.0

logger = getLogger(__name__)


class Poller(kombu_redis.MultiChannelPoller):
    """Fetches before it polls, and delivers one message per turn, as kombu does; in a worker, some.

    kombu's own code serves fanout queues and queues that are consumed without acknowledgement.

    Overrides of `MultiChannelPoller` (kombu 5.6 and 5.7): `on_poll_start`, `on_readable`, `handle_event`, `get`,
    `fds`, `close`, `maybe_restore_messages`, `_register`, `_register_LISTEN`, `_on_connection_disconnect`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._poller: Any = None
        self._slots: dict[int, tuple[Pollable, Owner]] = {}
        self._waker: Waker | None = None
        #: Stops polling a file descriptor; None without an event loop.
        self.unregister: Callable[[int], Any] | None = None
        #: Calls a function after a delay in seconds; an event loop sets this. Without one, no wait exceeds a second.
        self.call_later: Callable[[float, Callable[[], None]], Any] = lambda delay_s, callback: None
        #: Whether one turn may deliver several messages. A program that consumes without a worker may end after each.
        self.delivers_some = False
        #: The descriptors that the event loop polls.
        self._polled: set[int] = set()
        #: When it wakes next by itself (monotonic).
        self._wakes_at = 0.0
        #: A timer begins a turn every few ms until the first time, the next at the second one (monotonic).
        self._turns_until = self._ticks_at = 0.0
        #: Whether `get` has asked before kombu calls `on_poll_start`.
        self._has_filled = False
        self._tidy_at = 0.0

    @property
    def poller(self) -> Any:
        """What polls, see kombu; it has a descriptor, so there is none until it is needed."""
        if self._poller is None:
            self._poller = poll()
        return self._poller

    @poller.setter
    def poller(self, poller: Any) -> None:
        self._poller = poller

    def _on_connection_disconnect(self, connection: Any) -> None:
        """Stop polling a connection, see kombu; it may be lost after the poller was closed, or before it polls."""
        if self._poller is not None:
            super()._on_connection_disconnect(connection)

    # -- slots

    def add_slot(self, slot: Pollable, owner: Owner) -> None:
        """Poll a connection that waits; its owner reads from it, and may say that it has delivered."""
        fd = slot.fileno()
        self._polled.discard(fd)
        self._slots[fd] = (slot, owner)
        with suppress(ValueError):  # the event loop may be closed: whoever closes the connection reads by itself
            self.poller.register(fd, self.eventflags)
        slot.connection.stop_polling = partial(call_of, weakref.ref(self), "stop_polling")  # threads may have it

    def remove_slot(self, slot: Pollable) -> None:
        """Stop polling a slot. Call this before it disconnects: later, its descriptor may belong to another file."""
        for fd, (polled, _) in list(self._slots.items()):
            if polled is slot:
                if slot.fileno() == fd:  # otherwise it is lost, was not polled any more, and another file may have that
                    self.stop_polling(fd)
                del self._slots[fd]

    def stop_polling(self, fd: int) -> None:
        """Stop polling a file descriptor."""
        self._polled.discard(fd)
        with suppress(KeyError, ValueError, OSError):
            if self.unregister is not None:
                self.unregister(fd)
            elif self._poller is not None:
                self._poller.unregister(fd)

    def _all_channels(self) -> list[Polled]:
        return list(self._channels)  # of kombu; others may add to it meanwhile

    def _made_fetchers(self) -> list[Fetchers]:
        return [made for channel in self._all_channels() if (made := channel.made_fetchers) is not None]

    def _fetchers(self) -> list[Fetchers]:
        return [fetchers for fetchers in self._made_fetchers() if fetchers.has_queues]

    @property
    def is_consuming(self) -> bool:
        """Whether one of the channels waits for messages, or has undelivered ones."""
        return any(fetcher.is_consuming for fetcher in self._made_fetchers())

    def wake(self) -> None:
        """Make the poller fetch or deliver now. Safe in any thread."""
        waker = self._waker
        if waker is not None:
            waker.wake()

    def wake_in(self, delay_s: float) -> None:
        """Make the poller fetch after a delay in seconds, or earlier. For the polling thread."""
        now = time.monotonic()
        if not now < self._wakes_at <= now + delay_s:
            self._wakes_at = now + delay_s
            self.call_later(delay_s, self.wake)
            self.wake()  # the event loop has already chosen how long it polls in this turn

    def turn_soon(self) -> None:
        """Begin another turn of the event loop within a few ms. It costs less than `wake_in` if it is called often."""
        now = time.monotonic()
        self._turns_until = now + _TICKS_FOR_S
        if now >= self._ticks_at:  # none is set, or the event loop has too many timers to look at all of them
            self._tick(self._ticks_at)
            self.wake()

    def _tick(self, due_at: float) -> None:
        """Let a timer end the next poll: each sets the next one before the event loop chooses how long it polls."""
        now = time.monotonic()
        if now < self._turns_until and due_at == self._ticks_at:
            self._ticks_at = now + _SOON_S
            self.call_later(_SOON_S, partial(self._tick, self._ticks_at))

    def on_credit(self) -> None:
        """Record that more messages may be fetched: one was acknowledged, or has waited until it was due."""
        waker = self._waker
        from_another_thread = waker is not None and waker.thread != threading.get_ident()
        if from_another_thread and any(fetcher.is_starved for fetcher in self._fetchers()):
            self.wake()

    def on_told(self) -> None:
        """Record that the server told of messages in rarely used lists: all channels look at theirs. In any thread."""
        for fetcher in self._made_fetchers():
            fetcher.unsettle()
        self.wake()

    # -- kombu's hooks

    @property
    def fds(self) -> dict[int, Any]:
        """The file descriptors that an event loop has to poll."""
        # kombu 5.6 keeps the descriptors of connections that were lost.
        connected = {sock.fileno() for sock in self._chan_to_sock.values()}
        found: dict[int, Any] = {fd: it for fd, it in super().fds.items() if fd in connected}
        # Nor those of slots: another file may have the number, that of a child process, for example.
        found |= {fd: it for fd, it in self._slots.items() if it[0].fileno() == fd}
        if self._waker is not None:
            found[self._waker.fileno()] = self._waker
        return found

    def turn(self, loop: Any, on_readable: Callable[[int], object]) -> None:
        """Begin a turn of the event loop: deliver, ask for more, and have it poll the descriptors that are new.

        Source: kombu 5.7 `transport.redis.Transport.register_with_event_loop.on_poll_start`.
        """
        self._deliver()
        self.on_poll_start()
        fds = self.fds
        for fd in fds:
            if fd not in self._polled or fd not in loop.readers:  # kombu itself stops polling some
                loop.add_reader(fd, on_readable, fd)
        self._polled = set(fds)

    def on_poll_start(self) -> None:
        """Fetch, and start waiting for messages that are not there yet, see kombu."""
        if not self._has_filled:
            self._fill()
        super().on_poll_start()
        if kombu.VERSION < (5, 7):  # its event loop may poll for 10 s; only in between, Celery looks whether to stop
            self.wake_in(_LONGEST_POLL_S)

    def _fill(self) -> None:
        is_time_to_tidy = time.monotonic() >= self._tidy_at
        if is_time_to_tidy:
            self._tidy_at = time.monotonic() + _TIDY_S
        for channel in self._all_channels():
            if is_time_to_tidy:
                channel.bind_postponed()
            channel.wait_for_replies()
            channel.expiry.keep()
            if is_time_to_tidy:
                if (made := channel.made_fetchers) is not None:
                    made.tidy()
                channel.close_idle()
                channel.keep_subscription()
        all_made = self._made_fetchers()
        for fetchers in all_made:
            if not fetchers.has_queues:
                continue
            if self._waker is None:
                self._waker = Waker()
                self.poller.register(self._waker.fileno(), self.eventflags)
            try:
                fetchers.fill()
            except ResponseError as exc:  # not about a list, which the fetcher handles, but a lease, for example
                if isinstance(exc, NOT_SERVING) or not refusals.note(exc, logger):
                    raise RedisConnectionError(str(exc)) from exc
                self.wake_in(_REFUSED_S)
        # Of those without queues, too: their last tasks end.
        is_busy = any(made.delivery.has_next for made in all_made)
        for made in all_made:
            if made.send_acks(is_busy=is_busy):
                self.turn_soon()
        if is_busy:
            self.wake()

    def on_readable(self, fileno: int) -> Any:
        """Read, and deliver a message, see kombu. For our own descriptors, returns whether a message was delivered."""
        if self._waker is not None and fileno == self._waker.fileno():
            self._waker.drain()
            return self._deliver()
        if fileno in self._slots:
            slot, owner = self._slots[fileno]
            has_delivered = bool(owner.on_readable(slot))
            return self._deliver() or has_delivered
        return super().on_readable(fileno) if self._is_known(fileno) else None

    def _is_known(self, fileno: int) -> bool:
        """Return whether kombu knows a descriptor: one that was lost in this very turn it does not; 5.6 would raise."""
        return fileno in self._fd_to_chan

    def _deliver(self) -> bool:
        """Deliver a message, or in a worker some: a turn of its loop costs more than a delivery."""
        consuming, delivered = self._fetchers(), False
        until = time.monotonic() + _DELIVER_S
        for _ in range(_MOST_A_TURN):
            if not any(fetchers.delivery.deliver() for fetchers in consuming):
                break
            delivered = True
            if not self.delivers_some or time.monotonic() >= until:
                break
        return delivered

    def handle_event(self, fileno: int, event: int) -> Any:
        """Handle an event on a file descriptor, see kombu; returns a true value if a message was delivered."""
        if fileno in self._slots or (self._waker is not None and fileno == self._waker.fileno()):
            return self.on_readable(fileno)
        return super().handle_event(fileno, event) if self._is_known(fileno) else None

    def get(self, callback: Any, timeout: float | None = None) -> Any:
        """Deliver one message, see kombu."""
        if self._deliver():
            return None
        self._fill()
        if self._deliver():
            return None
        rest_s = self._wakes_at - time.monotonic()
        if self._slots or rest_s > 0:
            longest_s = min(_LONGEST_POLL_S, rest_s) if rest_s > 0 else _LONGEST_POLL_S
            timeout = longest_s if timeout is None else min(timeout, longest_s)
        if time.monotonic() < self._turns_until:  # no timer does without an event loop
            timeout = _SOON_S if timeout is None else min(timeout, _SOON_S)
        self._has_filled = True
        try:
            return super().get(callback, timeout=timeout)
        finally:
            self._has_filled = False

    def subscribe(self, channel: Any) -> None:
        """Subscribe a channel to all fanout queues that it consumes.

        kombu does so only when it polls, so that a worker would miss what it is told the moment it is ready.
        """
        channel._in_listen = None  # it may have subscribed to some of them
        self._register_LISTEN(channel)

    def _register(self, channel: Any, client: Any, type: str) -> None:
        """Poll a connection of kombu's, see kombu."""
        super()._register(channel, client, type)
        self._polled.discard(client.connection._sock.fileno())
        client.connection.stop_polling = self.stop_polling

    def _register_LISTEN(self, channel: Any) -> None:
        """Subscribe a channel, see kombu; on a cluster, at the next turn if its node is lost."""
        try:
            super()._register_LISTEN(channel)
        except CONNECTION_ERRORS:
            if not hasattr(channel, "leave_home"):
                raise
            channel.leave_home()
            self.wake_in(_RESUBSCRIBE_S)

    def maybe_restore_messages(self) -> None:
        """Restore the messages that workers with kombu's own transport left, see kombu."""
        for channel in self._all_channels():
            if channel.made_fetchers is not None and channel.made_fetchers.has_queues:
                with suppress(*channel.connection_errors):
                    channel.restore_visible()
                return
        super().maybe_restore_messages()

    def close(self) -> None:
        """Stop polling all slots and the waker, and close, see kombu."""
        for fd in list(self._slots):
            self.stop_polling(fd)
        self._slots.clear()
        waker, self._waker = self._waker, None
        if waker is not None:
            self.stop_polling(waker.fileno())
        super().close()
