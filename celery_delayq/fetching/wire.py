"""Wire: a connection on which any number of commands are under way, and whose replies are handled as they come.

Nothing here waits for a server, neither for a reply nor until it takes more bytes, except `has_reply`. redis-py opens
the connection (TLS, AUTH, Sentinel, credential providers).
"""

from __future__ import annotations

import math
import select
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from redis import exceptions

from celery_delayq.fetching.resp import Push, Reader
from celery_delayq.queue.connections import has_spoken, should_speak, was_silent

#: How much is read at once, and at most in one `receive`, in bytes: other connections have their turn.
_READ, _MOST = 65_536, 1_048_576

#: How often `has_reply` looks whether a reply is overdue, in seconds.
_LOOK_S = 1.0

#: What a socket that does not block raises if it would have to wait.
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class OnReply(Protocol):
    """What to do with the reply to a command. It raises nothing."""

    def __call__(self, reply: Any, /) -> object:
        """Take the reply: bytes for a string, an exception for an error of the server, or of the lost connection."""
        ...


class Wire:
    """One connection to one server.

    Any thread may `send` and `flush`; the thread that owns it does the rest. Replies come in the order of the commands.
    For each command, `on_reply` is called exactly once: by `receive` with the reply, or by `close` with the error that
    ended the connection.

    Args:
        connection: one of redis-py, open and without a reply under way. It belongs to the wire from now on.
        on_push: called with what the server sends by itself (RESP3).

    Every method but `close` raises `redis.ConnectionError` if the connection is lost. The owner closes it then.
    """

    def __init__(self, connection: Any, on_push: Callable[[Push], object] = lambda push: None) -> None:
        self._connection = connection
        self._sock = connection._sock
        self._sock.setblocking(False)
        self._on_push = on_push
        self._timeout_s: float = connection.socket_timeout or math.inf
        self._reader = Reader()
        #: Guards what follows, and the socket: one of TLS must not be read and written at the same time.
        self._lock = threading.Lock()
        #: What was sent and has no reply yet: when that is overdue (monotonic), and what to do with it.
        self._missing: deque[tuple[float, OnReply]] = deque()
        self._commands: list[tuple[Any, ...]] = []
        #: What the server has not taken yet.
        self._unsent: deque[memoryview] = deque()
        self._error: BaseException | None = None

    def fileno(self) -> int:
        """Return the descriptor to poll; -1 once it is closed."""
        return -1 if self._error is not None else int(self._sock.fileno())

    @property
    def is_silent(self) -> bool:
        """Whether the server may not hear any more, see `was_silent`."""
        return was_silent(self._connection)

    @property
    def should_speak(self) -> bool:
        """Whether nothing was read for long, see `should_speak`."""
        return should_speak(self._connection)

    @property
    def missing(self) -> int:
        """The number of commands without a reply."""
        return len(self._missing)

    @property
    def unsent(self) -> int:
        """The number of commands that wait for `flush`; more than 0 also if the server has not taken all yet."""
        return len(self._commands) + len(self._unsent)

    def send(self, on_reply: OnReply, *command: Any) -> None:
        """Take a command. The next `flush` sends it, with all others in one write.

        Args:
            on_reply: what to do with the reply.
            command: its name and arguments, of bytes, text or numbers.
        """
        with self._lock:
            self._check_open()
            self._commands.append(command)
            self._missing.append((time.monotonic() + self._timeout_s, on_reply))

    def flush(self) -> None:
        """Send what the server takes now."""
        with self._lock:
            self._check_open()
            try:
                self._write()
            except _NOT_NOW:
                pass
            except BaseException as exc:  # nobody knows how much was written
                self._error = exc
                if isinstance(exc, OSError):
                    raise exceptions.ConnectionError(f"Redis closed the connection: {exc}") from exc
                raise

    def _write(self) -> None:
        if self._commands:
            commands, self._commands = self._commands, []
            self._unsent.extend(map(memoryview, self._connection.pack_commands(commands)))
        while self._unsent:
            sent = self._sock.send(self._unsent[0])
            rest = self._unsent.popleft()[sent:]
            if rest:
                self._unsent.appendleft(rest)

    def receive(self) -> None:
        """Handle what has come. An error in one `on_reply` does not keep the others from being called.

        Raises:
            redis.TimeoutError: a reply is overdue.
        """
        failed: Exception | None = None
        size = 0
        while size < _MOST or self._pending():
            data = self._read()
            self._reader.feed(data)
            size += len(data)
            for reply in self._reader.replies():
                try:
                    self._handle(reply)
                except Exception as exc:
                    failed = failed or exc
            if len(data) < _READ and not self._pending():
                break
        if failed is not None:
            raise failed
        if self._is_overdue:
            raise exceptions.TimeoutError("Redis does not answer")

    @property
    def _is_overdue(self) -> bool:
        try:
            until, _ = self._missing[0]
        except IndexError:
            return False
        return time.monotonic() > until or self.is_silent

    def _read(self) -> bytes:
        with self._lock:
            self._check_open()
            try:
                data: bytes = self._sock.recv(_READ)
            except _NOT_NOW:
                return b""
            except OSError as exc:
                raise exceptions.ConnectionError(f"Redis closed the connection: {exc}") from exc
        if not data:
            raise exceptions.ConnectionError("Redis closed the connection")
        has_spoken(self._connection)
        return data

    def _pending(self) -> bool:
        """Return whether TLS has decrypted more than was read, so that no poll tells of it."""
        return isinstance(self._sock, ssl.SSLSocket) and self._sock.pending() > 0

    def _handle(self, reply: Any) -> None:
        if isinstance(reply, Push):
            self._on_push(reply)
            return
        try:
            _, on_reply = self._missing.popleft()
        except IndexError:
            raise exceptions.InvalidResponse(f"Redis sent a reply that nobody waits for: {reply!r:.100}") from None
        on_reply(reply)

    def has_reply(self, wait_s: float) -> bool:
        """Return whether there is something to `receive` within some seconds: a reply, or the end of the connection."""
        until = time.monotonic() + wait_s
        while True:
            if self.fileno() < 0 or self._pending() or self._is_ready(until - time.monotonic()) or self._is_overdue:
                return True
            if time.monotonic() >= until:
                return False

    def _is_ready(self, wait_s: float) -> bool:
        """Wait until there is something to read, or a moment has passed. Send meanwhile what could not be sent."""
        wait_s = max(0.0, min(wait_s, _LOOK_S))
        if not hasattr(select, "poll"):
            readable, writable, _ = select.select([self._sock], [self._sock] if self._unsent else [], [], wait_s)
            is_readable, is_writable = bool(readable), bool(writable)
        else:
            poll = select.poll()
            poll.register(self._sock.fileno(), select.POLLIN | (select.POLLOUT if self._unsent else 0))
            events = poll.poll(math.ceil(wait_s * 1000))
            is_readable = any(event & ~select.POLLOUT for _, event in events)
            is_writable = any(event & select.POLLOUT for _, event in events)
        if is_writable:
            self.flush()
        return is_readable

    def _check_open(self) -> None:
        if self._error is not None:
            raise exceptions.ConnectionError(f"the connection was lost: {self._error}") from self._error

    def close(self, exc: BaseException) -> None:
        """Close the connection; whoever waits for a reply gets the error instead. Never raises."""
        with self._lock:
            self._error = self._error or exc
            self._commands, self._unsent = [], deque()
            missing, self._missing = self._missing, deque()
            self._connection.disconnect()
        for _, on_reply in missing:
            on_reply(exc)
