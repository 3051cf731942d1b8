"""Reading RESP, Redis' protocol (2 and 3), piece by piece: whoever reads never waits for the rest of a reply.

Source: https://redis.io/docs/latest/develop/reference/protocol-spec/ (Redis 8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from redis import exceptions
from redis.connection import DefaultParser


class Push(list[Any]):
    """What a server sends by itself (RESP3), and not as a reply to a command."""


#: What there is as long as a reply is incomplete. Every other object may be a reply.
_INCOMPLETE = object()


class Reader:
    """Gives replies as they are complete. Strings are bytes, errors are exceptions of redis-py, as objects.

    Its time is linear in what it is fed, however small the pieces are.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        #: Where the next part begins, and how long the buffer has to be before a look is worth it.
        self._at = self._needed = 0
        #: The aggregates that are not complete: how many parts are missing, the parts, what is made of them.
        self._open: list[tuple[int, list[Any], Callable[[list[Any]], Any]]] = []

    def feed(self, data: bytes) -> None:
        """Take what was received."""
        del self._buffer[: self._at]  # takes no time: the rest stays where it is
        self._needed, self._at = max(0, self._needed - self._at), 0
        self._buffer += data

    def replies(self) -> Iterator[Any]:
        """Yield the replies that are complete; each only once.

        Raises:
            redis.InvalidResponse: the server has sent something else; the reader is useless then.
        """
        while (reply := self._next()) is not _INCOMPLETE:
            yield reply

    def _next(self) -> Any:
        while True:
            value = self._part()
            if value is _INCOMPLETE:
                return value
            if isinstance(value, _Aggregate):
                if value.size:
                    self._open.append((value.size, [], value.made))
                    continue
                value = value.made([])
            while self._open:
                size, parts, made = self._open[-1]
                parts.append(value)
                if len(parts) < size:
                    break
                self._open.pop()
                value = made(parts)
            else:
                return value

    def _part(self) -> Any:
        """Return the next scalar, or the beginning of an aggregate."""
        if len(self._buffer) < self._needed:
            return _INCOMPLETE
        end = self._buffer.find(b"\r\n", self._at)
        if end < 0:
            return _INCOMPLETE
        kind, line = self._buffer[self._at], bytes(self._buffer[self._at + 1 : end])
        after = end + 2
        if kind in _TEXTS:
            if line == b"-1":
                self._at = after
                return None
            after += int(line)
            self._needed = after + 2
            if len(self._buffer) < self._needed:
                return _INCOMPLETE
            text = bytes(self._buffer[end + 2 : after])
            self._at = self._needed
            self._needed = 0
            return _TEXTS[kind](text)
        self._at, self._needed = after, 0
        if kind in _SCALARS:
            return _SCALARS[kind](line)
        if kind in _AGGREGATES:
            each, made = _AGGREGATES[kind]
            return None if line == b"-1" else _Aggregate(int(line) * each, made)
        raise exceptions.InvalidResponse(f"Redis sent {chr(kind)!r}, which begins no reply")


class _Aggregate:
    """The beginning of an aggregate."""

    def __init__(self, size: int, made: Callable[[list[Any]], Any]) -> None:
        self.size, self.made = size, made


def _error(line: bytes) -> Exception:
    error: Exception = DefaultParser.parse_error(line.decode("utf-8", "replace"))  # type: ignore[no-untyped-call]
    return error


def _pairs(parts: list[Any]) -> dict[Any, Any]:
    return dict(zip(parts[::2], parts[1::2], strict=True))


_TEXTS: dict[int, Callable[[bytes], Any]] = {
    ord("$"): bytes,
    ord("!"): _error,
    ord("="): lambda text: text[4:],
}
_SCALARS: dict[int, Callable[[bytes], Any]] = {
    ord("+"): bytes,
    ord("-"): _error,
    ord(":"): int,
    ord("_"): lambda line: None,
    ord("#"): lambda line: line == b"t",
    ord(","): float,
    ord("("): int,
}
#: How many parts each element has, and what becomes of them.
_AGGREGATES: dict[int, tuple[int, Callable[[list[Any]], Any]]] = {
    ord("*"): (1, list),
    ord("~"): (1, list),
    ord(">"): (1, Push),
    ord("%"): (2, _pairs),
}
