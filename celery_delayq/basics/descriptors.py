"""Descriptors: wait for some, be woken by another thread, end connections, and close what a forked child inherited."""

from __future__ import annotations

import _socket
import os
import select
import socket
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

#: What a forked child closes, by `id`. Safe in all threads without a lock: each use of the dict is one operation, which
#: is atomic with the GIL and without it.
_known: dict[int, weakref.ref[Any]] = {}


def remember(it: Any) -> None:
    """Make a connection known, or anything else with a method `close_copy`, for a forked child."""
    key = id(it)
    _known[key] = weakref.ref(it, lambda _: _known.pop(key, None))


def all_known() -> list[Any]:
    """Return what is known and still exists. Safe in any thread."""
    return [it for it in (reference() for reference in _known.copy().values()) if it is not None]


def _after_fork() -> None:
    """Close the child's copies. No other thread runs in a child yet."""
    for it in all_known():
        with suppress(Exception):
            it.close_copy()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Waker:
    """A pipe that wakes a poller.

    The pipe is closed only when no reference to it is left. If it were closed earlier, a thread that is about to write
    could hit a reused descriptor.
    """

    def __init__(self) -> None:
        #: The thread that polls.
        self.thread = threading.get_ident()
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)
        self._closes = weakref.finalize(self, close, self._read_fd, self._write_fd)
        self._closes.atexit = False
        remember(self)

    def close_copy(self) -> None:
        """Close what a forked child has inherited; its numbers may become those of other files."""
        self._closes()
        self._read_fd = self._write_fd = -1

    def fileno(self) -> int:
        """Return the file descriptor to poll."""
        return self._read_fd

    def wake(self) -> None:
        """Make the pipe readable. Safe in any thread and signal handler."""
        with suppress(OSError):  # a full pipe wakes the poller, too
            os.write(self._write_fd, b"x")

    def drain(self) -> None:
        """Empty the pipe."""
        with suppress(BlockingIOError):
            os.read(self._read_fd, 4096)


def close(*fds: int) -> None:
    """Close descriptors now: gevent's `os.close` leaves it to the hub of this thread, which may have ended by then."""
    monkey = sys.modules.get("gevent.monkey")
    close_one = os.close if monkey is None else monkey.get_original("os", "close")
    for fd in fds:
        close_one(fd)


def interrupt(sock: Any) -> None:
    """Wake the reader of a socket, if there is one; this ends the connection. Safe in any thread and signal handler."""
    if sock is None:
        return
    with suppress(OSError, TypeError):  # gevent's has no real one any more if it is closed
        # Not the method of `SSLSocket`: it first turns off TLS, and another thread might send just then. Nor that of
        # gevent's socket, which has the real one in `_sock`: it is for the thread of its hub.
        _socket.socket.shutdown(getattr(sock, "_sock", sock), socket.SHUT_RDWR)


def ready(to_read: Sequence[Any], to_write: Sequence[Any], wait_s: float) -> tuple[bool, bool]:
    """Wait for some seconds at most; return whether any file can be read, and whether any can be written.

    Files and descriptors, as with `select.select`, which takes no descriptors above 1,023. A file that has ended can be
    read.
    """
    if not hasattr(select, "poll"):
        readable, writable, _ = select.select(to_read, to_write, [], wait_s)
        return bool(readable), bool(writable)
    masks: dict[int, int] = {}
    for files, mask in ((to_read, select.POLLIN), (to_write, select.POLLOUT)):
        for file in files:
            fd = file if isinstance(file, int) else file.fileno()
            masks[fd] = masks.get(fd, 0) | mask
    poll = select.poll()
    for fd, mask in masks.items():
        poll.register(fd, mask)
    events = [event for _, event in poll.poll(wait_s * 1000)]
    return any(event & ~select.POLLOUT for event in events), any(event & select.POLLOUT for event in events)
