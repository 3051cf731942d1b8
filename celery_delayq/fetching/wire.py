"""Wire: a connection on which any number of commands are under way, and whose replies are handled as they come.

Nothing here waits for a server, neither for a reply nor until it takes more bytes, except `has_reply`. redis-py opens
the connection (TLS, AUTH, Sentinel, credential providers).
"""

from __future__ import annotations

import math
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from redis import exceptions

from celery_delayq.basics.descriptors import ready
from celery_delayq.fetching.resp import make_reader, packed
from celery_delayq.queue.connections import LATE_S

#: How much is read at once, and at most in one `receive`, in bytes: other connections have their turn.
_READ, _MOST = 65_536, 1_048_576

#: How often `has_reply` looks whether a reply is overdue, in seconds.
_LOOK_S = 1.0

#: How long whoever reads or closes waits for another thread that writes, in seconds: that waits for nothing.
_WRITES_S = 1.0

#: What a socket that does not block raises if it would have to wait.
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


#: What to do with the reply to a command: bytes for a string, an exception for an error of the server, or of the lost
#: connection. It raises nothing.
OnReply = Callable[[Any], object]


class Wire:
    """One connection to one server.

    Any thread, and a signal handler, may `send` and `flush`; the thread that owns it does the rest. Replies come in the
    order of the commands. For each command, `on_reply` is called once: by `receive` with the reply, or by `close` with
    the error that ended the connection.

    Args:
        connection: one of redis-py that speaks the second protocol, open and without a reply under way. It belongs to
            the wire from now on. If it has a method `understood`, that is given each error of the server.
        timeout_s: how long the server may say nothing although it owes a reply, in seconds: for commands that wait
            there. By default, `socket_timeout` of the connection.

    Attributes:
        heard_at: when something was read last (monotonic).

    Every method but `close` raises `redis.ConnectionError` if the connection is lost. The owner closes it then.
    """

    def __init__(self, connection: Any, timeout_s: float | None = None) -> None:
        self.connection = connection
        self._understood: Callable[[Any], Any] = getattr(connection, "understood", lambda error: error)
        self._sock = connection._sock
        self._sock.setblocking(False)
        self._is_tls = isinstance(self._sock, ssl.SSLSocket)
        self._timeout_s: float = timeout_s or connection.socket_timeout or math.inf
        self._speak_s: float = math.inf if timeout_s else connection.health_check_interval or math.inf
        #: When there was nothing more to read (monotonic).
        self.heard_at = self._looked_at = time.monotonic()
        self._reader = make_reader()
        #: What has come and is not handled yet. What is done with a reply may receive more, which must not overtake.
        self._replies: deque[Any] = deque()
        #: Commands that are not written yet, with what to do with their replies.
        self._queued: deque[tuple[tuple[Any, ...], OnReply]] = deque()
        #: Whoever has it writes, what others queue meanwhile, too. Nobody waits for it, so a signal handler may write.
        #: A connection of TLS must not be read and written at the same time, so whoever reads that has it as well.
        self._lock = threading.Lock()
        #: What the server has not taken yet.
        self._unsent: deque[memoryview] = deque()
        #: What has no reply yet: when it was written (monotonic), and what to do with the reply.
        self._missing: deque[tuple[float, OnReply]] = deque()
        #: Whether TLS has decrypted more than was read, so that no poll tells of it.
        self._has_more = False
        #: Why the connection is lost: the text, since an error with its traceback would keep all its callers.
        self._error = ""
        self._is_closed = False

    def fileno(self) -> int:
        """Return the descriptor to poll; -1 once it is closed."""
        return -1 if self._is_closed else int(self._sock.fileno())

    @property
    def is_silent(self) -> bool:
        """Whether nothing was read for so long that the connection may be lost."""
        return time.monotonic() > self.heard_at + self._speak_s + LATE_S

    @property
    def missing(self) -> int:
        """The number of commands without a reply."""
        return len(self._missing) + len(self._queued)

    @property
    def should_speak(self) -> bool:
        """Whether nothing was read for `health_check_interval`, and no reply is awaited."""
        return not self.missing and time.monotonic() > self.heard_at + self._speak_s

    @property
    def unsent(self) -> int:
        """The number of commands that wait for `flush`; more than 0 also if the server has not taken all yet."""
        return len(self._queued) + len(self._unsent)

    def send(self, on_reply: OnReply, *command: Any) -> None:
        """Take a command. The next `flush` sends it, with all others in one write.

        Args:
            on_reply: what to do with the reply.
            command: its name and arguments, of bytes, text or numbers.
        """
        self.send_together([(command, on_reply)])

    def send_together(self, commands: Sequence[tuple[tuple[Any, ...], OnReply]]) -> None:
        """Take commands as `send` does; none of another thread comes between them."""
        self._check_open()
        self._queued.extend(commands)  # one step, with the GIL and without it
        if self._error:  # `close` may have been too early to see it
            found = False
            for command in commands:
                with suppress(ValueError):
                    self._queued.remove(command)
                    found = True
            if found:
                self._check_open()

    def flush(self) -> None:
        """Send what the server takes now; if another thread is just writing, that sends it."""
        while self.unsent and self._lock.acquire(blocking=False):
            try:
                self._check_open()
                self._write()
            except _NOT_NOW:
                return
            except BaseException as exc:  # nobody knows how much was written
                self._error = self._error or str(exc) or type(exc).__name__
                if isinstance(exc, OSError):
                    raise exceptions.ConnectionError(f"Redis closed the connection: {exc}") from exc
                raise
            finally:
                self._lock.release()

    def _write(self) -> None:
        commands = []
        while self._queued:
            command, on_reply = self._queued[0]
            self._missing.append((time.monotonic(), on_reply))
            self._queued.popleft()
            commands.append(command)
        if commands:
            self._unsent.append(memoryview(packed(commands)))
        while self._unsent:
            data = self._unsent[0]  # it stays if the socket takes nothing now
            sent = self._sock.send(data)
            if not sent:  # gevent's way to say so, with TLS
                raise BlockingIOError
            if sent < len(data):
                self._unsent[0] = data[sent:]
            else:
                self._unsent.popleft()

    def receive(self) -> None:
        """Handle what has come. An error in one `on_reply` does not keep the others from being called.

        Raises:
            redis.TimeoutError: a reply is overdue.
        """
        failed: Exception | None = None
        size = 0
        try:
            while size < _MOST or self._has_more:
                data = self._read()
                size += len(data)
                self._replies.extend(self._reader.feed(data))
                while self._replies and not self._is_closed:
                    try:
                        self._handle(self._replies.popleft())
                    except Exception as exc:
                        failed = failed or exc
                if self._is_closed:  # by what was done with a reply
                    break
                if len(data) < (1 if self._is_tls else _READ):  # TLS gives what was in one record
                    self._looked_at = time.monotonic()
                    break
        except BaseException as exc:  # some replies may be lost: the next ones would go to the wrong places
            self._error = self._error or str(exc) or type(exc).__name__
            raise
        if failed is not None:
            raise failed
        if self.is_overdue:
            raise exceptions.TimeoutError("Redis does not answer")

    def _read(self) -> bytes:
        if self._is_tls and not self._lock.acquire(timeout=_WRITES_S):
            raise exceptions.ConnectionError("another thread writes for too long")
        try:
            self._check_open()
            data: bytes = self._sock.recv(_READ)
            self._has_more = self._is_tls and self._sock.pending() > 0
        except _NOT_NOW:
            return b""
        except OSError as exc:
            raise exceptions.ConnectionError(f"Redis closed the connection: {exc}") from exc
        finally:
            if self._is_tls:
                self._lock.release()
                self.flush()  # what others have queued meanwhile
        if not data:
            raise exceptions.ConnectionError("Redis closed the connection")
        self.heard_at = time.monotonic()
        return data

    def _handle(self, reply: Any) -> None:
        try:
            _, on_reply = self._missing.popleft()
        except IndexError:
            raise exceptions.InvalidResponse(f"Redis sent an unexpected reply: {reply!r:.100}") from None
        on_reply(self._understood(reply) if isinstance(reply, exceptions.ResponseError) else reply)

    @property
    def owes_for_s(self) -> float:
        """How long the first command without a reply had waited for it when somebody last looked, in seconds; else 0.

        Whoever does not look for long, since a task runs in the thread that owns it, finds no server slow.
        """
        try:
            sent_at, _ = self._missing[0]
        except IndexError:
            return 0.0
        return max(0.0, self._looked_at - sent_at)

    @property
    def is_overdue(self) -> bool:
        """Whether the server says nothing although it owes a reply: for longer than `socket_timeout`, or for long."""
        owes_for_s = self.owes_for_s
        silent_for_s = min(owes_for_s, self._looked_at - self.heard_at)
        return silent_for_s > self._timeout_s or (self.is_silent and owes_for_s > LATE_S)

    def has_reply(self, wait_s: float) -> bool:
        """Return whether there is something to `receive` within some seconds: a reply, or the end of the connection."""
        until = time.monotonic() + wait_s
        while True:
            if self._error or self._replies or self._has_more or self._is_ready(until - time.monotonic()):
                return True
            self._looked_at = time.monotonic()
            if self.is_overdue:
                return True
            if time.monotonic() >= until:
                return False

    def _is_ready(self, wait_s: float) -> bool:
        """Wait until there is something to read, or a moment has passed. Send meanwhile what could not be sent."""
        wait_s = max(0.0, min(wait_s, _LOOK_S))
        is_readable, is_writable = ready([self._sock], [self._sock] if self._unsent else [], wait_s)
        if is_writable:
            self.flush()
        return is_readable

    def _check_open(self) -> None:
        if self._error:
            raise exceptions.ConnectionError(f"the connection was lost: {self._error}")

    def close(self, exc: BaseException) -> None:
        """Close the connection; whoever waits for a reply gets the error instead. Never raises."""
        self._error = self._error or str(exc) or type(exc).__name__
        has_lock = self._lock.acquire(timeout=_WRITES_S)  # not for ever: perhaps this interrupts who has it
        self._is_closed = True
        self.connection.disconnect()
        self._unsent.clear()
        self._replies.clear()
        if has_lock:
            self._lock.release()
        for waiting in (self._missing, self._queued):
            while waiting:
                try:
                    _, on_reply = waiting.popleft()
                except IndexError:
                    break
                on_reply(exc)
