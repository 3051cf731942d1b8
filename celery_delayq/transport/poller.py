"""Poller: kombu's poller of Redis connections, with those that wait for tasks."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kombu.transport import redis as kombu_redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from celery_delayq.transport.fetcher import Fetcher
from celery_delayq.transport.slots import Slot

#: Longest single wait, in seconds, of a consumer without an event loop; then it looks whether all is well.
_LONGEST_POLL_S = 1.0


class Waker:
    """A pipe that wakes a poller.

    It is closed when nobody can reach it any more: a thread that is about to write might hit a descriptor that is used
    again otherwise.
    """

    def __init__(self) -> None:
        #: The thread that polls.
        self.thread = threading.get_ident()
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)
        weakref.finalize(self, _close, self._read_fd, self._write_fd, os.getpid()).atexit = False

    def fileno(self) -> int:
        """Return what to poll."""
        return self._read_fd

    def wake(self) -> None:
        """Make it readable. Safe in any thread and signal handler."""
        with suppress(OSError):  # full, which will do
            os.write(self._write_fd, b"x")

    def drain(self) -> None:
        """Make it unreadable."""
        with suppress(BlockingIOError):
            os.read(self._read_fd, 4096)


def _close(read_fd: int, write_fd: int, pid: int) -> None:
    if os.getpid() == pid:  # a forked child may have closed them, and use their numbers for others
        os.close(read_fd)
        os.close(write_fd)


class Poller(kombu_redis.MultiChannelPoller):
    """Fetches before it polls, and delivers a message a turn, as kombu does.

    kombu's own part of it serves fanout queues, and queues that are consumed without acknowledgement.

    Overrides of `MultiChannelPoller` (kombu 5.6 and 5.7): `on_poll_start`, `on_readable`, `handle_event`, `get`,
    `fds`, `close`, `maybe_restore_messages`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._slots: dict[int, tuple[Slot, Fetcher]] = {}
        self._waker: Waker | None = None
        #: How to stop polling a file descriptor; an event loop has its own way.
        self.unregister: Callable[[int], Any] = lambda fd: self.poller.unregister(fd)
        #: How to be called in some seconds; without an event loop, nobody waits longer than a second anyway.
        self.call_later: Callable[[float, Callable[[], None]], Any] = lambda delay_s, callback: None
        self._wakes_later = False

    # -- slots

    def add_slot(self, slot: Slot, fetcher: Fetcher) -> None:
        """Poll the connection of a slot."""
        fd = slot.fileno()
        self._slots[fd] = (slot, fetcher)
        self.poller.register(fd, self.eventflags)

    def remove_slot(self, slot: Slot) -> None:
        """Poll it no more. To be called before it is disconnected: its descriptor may belong to another one then."""
        fd = slot.fileno()
        if fd in self._slots and self._slots[fd][0] is slot:
            self._stop_polling(fd)
        self._slots = {fd: entry for fd, entry in self._slots.items() if entry[0] is not slot}

    def _stop_polling(self, fd: int) -> None:
        with suppress(KeyError, ValueError, OSError):
            self.unregister(fd)

    def _fetchers(self) -> list[Fetcher]:
        return [channel.fetcher for channel in list(self._channels) if channel.fetcher.has_queues]

    @property
    def is_consuming(self) -> bool:
        """Whether one of the channels waits for messages, or has some that were not delivered."""
        return any(channel.fetcher.is_consuming for channel in list(self._channels))

    def wake(self) -> None:
        """Make it fetch or deliver now. Safe in any thread."""
        waker = self._waker
        if waker is not None:
            waker.wake()

    def wake_in(self, delay_s: float) -> None:
        """Make it fetch in so many seconds; once, however often it is asked until then. For the thread that polls."""
        if not self._wakes_later:
            self._wakes_later = True
            self.call_later(delay_s, self._wake_now)

    def _wake_now(self) -> None:
        self._wakes_later = False
        self.wake()

    def on_acknowledged(self) -> None:
        """Take note that a message less is held: the thread that fetches may be waiting for that."""
        waker = self._waker
        from_another_thread = waker is not None and waker.thread != threading.get_ident()
        if from_another_thread and any(fetcher.is_starved for fetcher in self._fetchers()):
            self.wake()

    # -- kombu's hooks

    @property
    def fds(self) -> dict[int, Any]:
        """File descriptors that an event loop is to poll."""
        found: dict[int, Any] = {**super().fds, **self._slots}
        if self._waker is not None:
            found[self._waker.fileno()] = self._waker
        return found

    def on_poll_start(self) -> None:
        """Fetch, and wait for what cannot be fetched yet, see kombu."""
        self._fill()
        super().on_poll_start()

    def _fill(self) -> None:
        for channel in list(self._channels):
            channel.fetcher.tidy()
            channel.expiry.keep()
        for fetcher in self._fetchers():
            if self._waker is None:
                self._waker = Waker()
                self.poller.register(self._waker.fileno(), self.eventflags)
            try:
                found = fetcher.fill()
            except ResponseError as exc:  # of a list by name it is dealt with; a lease may be refused, for example
                raise RedisConnectionError(str(exc)) from exc
            if found:
                self._waker.wake()

    def on_readable(self, fileno: int) -> Any:
        """Read, and deliver a message, see kombu; returns whether one was, where that is ours to say."""
        if self._waker is not None and fileno == self._waker.fileno():
            self._waker.drain()
            return self._deliver()
        if fileno in self._slots:
            slot, fetcher = self._slots[fileno]
            fetcher.on_readable(slot)
            return self._deliver()
        return super().on_readable(fileno)

    def _deliver(self) -> bool:
        delivered = any(fetcher.deliver() for fetcher in self._fetchers())
        if any(fetcher.has_fetched for fetcher in self._fetchers()):
            self.wake()
        return delivered

    def handle_event(self, fileno: int, event: int) -> Any:
        """Handle what happened to a file descriptor, see kombu; returns something true if a message was delivered."""
        if fileno in self._slots or (self._waker is not None and fileno == self._waker.fileno()):
            return self.on_readable(fileno)
        return super().handle_event(fileno, event)

    def get(self, callback: Any, timeout: float | None = None) -> Any:
        """Deliver one message, see kombu."""
        if any(fetcher.has_fetched for fetcher in self._fetchers()) and self._deliver():
            return None
        self._fill()  # kombu 5.6 does not call `on_poll_start` here
        if self._slots:
            timeout = _LONGEST_POLL_S if timeout is None else min(timeout, _LONGEST_POLL_S)
        return super().get(callback, timeout=timeout)

    def maybe_restore_messages(self) -> None:
        """Restore what workers with kombu's own transport left, see kombu."""
        for channel in list(self._channels):
            if channel.fetcher.has_queues:
                with suppress(*channel.connection_errors):
                    channel.restore_visible()
                return
        super().maybe_restore_messages()

    def close(self) -> None:
        """Forget everything."""
        for fd in list(self._slots):
            self._stop_polling(fd)
        self._slots.clear()
        waker, self._waker = self._waker, None
        if waker is not None:
            self._stop_polling(waker.fileno())
        super().close()
