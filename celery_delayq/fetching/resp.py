"""Writing and reading RESP 2, Redis' protocol. Whoever reads never waits for the rest of a reply.

Source: https://redis.io/docs/latest/develop/reference/protocol-spec/ (Redis 8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from redis import exceptions
from redis.connection import DefaultParser
from redis.utils import HIREDIS_AVAILABLE


def packed(commands: Iterable[Sequence[bytes | str | float]]) -> bytes:
    """Return what a server is sent for commands: each their name and arguments."""
    parts = []
    for command in commands:
        parts.append(b"*%d\r\n" % len(command))
        for part in command:
            data = part if isinstance(part, bytes) else str(part).encode()
            parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


class Reader(Protocol):
    """Gives replies as they are complete. Strings are bytes, errors are exceptions of redis-py, as objects."""

    def feed(self, data: bytes) -> list[Any]:
        """Take what was received; return the replies that are complete with it.

        Raises:
            redis.InvalidResponse: the server has sent something else; the reader is useless then.
        """


def make_reader() -> Reader:
    """Return a new reader: with hiredis, which redis-py uses as well where it is installed, or in Python."""
    return HiredisReader() if HIREDIS_AVAILABLE else PythonReader()


class HiredisReader:
    """A `Reader` in C."""

    def __init__(self) -> None:
        import hiredis

        self._reader = hiredis.Reader(
            protocolError=exceptions.InvalidResponse, replyError=DefaultParser.parse_error, notEnoughData=_INCOMPLETE
        )

    def feed(self, data: bytes) -> list[Any]:
        """Take what was received, see `Reader`."""
        self._reader.feed(data)
        return list(iter(self._reader.gets, _INCOMPLETE))


class PythonReader:
    """A `Reader` whose time is linear in what it is fed, however small the pieces are."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        #: How long the buffer has to be before a look is worth it.
        self._needed = 0
        #: The arrays that are not complete: how many parts there will be, and those that there are.
        self._arrays: list[tuple[int, list[Any]]] = []

    def feed(self, data: bytes) -> list[Any]:
        """Take what was received, see `Reader`."""
        buffer, found = self._buffer, []
        buffer += data
        size, at = len(buffer), 0
        while size >= self._needed:
            end = buffer.find(b"\r\n", at)
            if end < 0:
                break
            kind, line = buffer[at], bytes(buffer[at + 1 : end])
            after, value = end + 2, None
            if kind in _LINES:
                value = _LINES[kind](line)
            elif kind not in (_TEXT, _ARRAY):
                raise exceptions.InvalidResponse(f"Redis sent {chr(kind)!r}, which begins no reply")
            elif line == b"-1":
                pass
            elif kind == _TEXT:
                end = after + _size(line)
                self._needed = end + 2
                if size < self._needed:
                    self._needed -= at
                    break
                value = bytes(buffer[after:end])
                after, self._needed = end + 2, 0
            elif line == b"0":
                value = []
            else:
                self._arrays.append((_size(line), []))
                at = after
                continue
            at = after
            while self._arrays:
                count, parts = self._arrays[-1]
                parts.append(value)
                if len(parts) < count:
                    break
                self._arrays.pop()
                value = parts
            else:
                found.append(value)
        del buffer[:at]  # takes no time: the rest stays where it is
        return found


def _error(line: bytes) -> Exception:
    error: Exception = DefaultParser.parse_error(line.decode("utf-8", "replace"))  # type: ignore[no-untyped-call]
    return error


def _number(line: bytes) -> int:
    try:
        return int(line)
    except ValueError:
        raise exceptions.InvalidResponse(f"Redis sent {line!r:.100} in place of a number") from None


def _size(line: bytes) -> int:
    size = _number(line)
    if size < 0:
        raise exceptions.InvalidResponse(f"Redis sent {size} as a length")
    return size


#: What becomes of the rest of a line. Other lines say how long the text is that follows, or how many parts do.
_LINES: dict[int, Callable[[bytes], Any]] = {ord("+"): bytes, ord("-"): _error, ord(":"): _number}
_TEXT, _ARRAY = b"$*"

#: What hiredis gives instead of a reply that is not complete.
_INCOMPLETE = object()
