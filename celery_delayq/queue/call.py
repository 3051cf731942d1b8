"""Call: a Lua script of this package with its input, and the one way to run it: by its digest, or else by its text.

The scripts are in `lua/`, one file each. Each file documents the guarantees of its script. Parts that several scripts
share are in `lua/lib`; a line `-- include: <name>` stands for such a part.
"""

from __future__ import annotations

import hashlib
import pkgutil
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

import redis
from redis.client import NEVER_DECODE
from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError

_INCLUDE = re.compile(r"^-- include: (\w+)\n", re.MULTILINE)

T = TypeVar("T")


@dataclass(frozen=True)
class Script:
    """A Lua script and its digest."""

    name: str
    text: str
    sha: str


@dataclass(frozen=True)
class Call(Generic[T]):
    """A call of a script, to be run at once, or with others in a pipeline.

    A reply may be lost after the script has run, so nothing here sends a call again, except if the server did not know
    the script. A client that retries by itself may run the script twice.

    Attributes:
        script: the script.
        keys: names of all keys that it touches.
        args: its arguments.
        read: returns the result that a reply stands for. Replies are bytes, even if the client decodes responses.
    """

    script: Script
    keys: Sequence[str]
    args: Sequence[bytes | str | int]
    read: Callable[[Any], T]

    def by_digest(self) -> tuple[Any, ...]:
        """Return the command for a caller who can send another one if the server answers NOSCRIPT."""
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)

    def by_text(self) -> tuple[Any, ...]:
        """Return the command that any server knows. It also makes the digest known."""
        return ("EVAL", self.script.text, len(self.keys), *self.keys, *self.args)

    def run(self, client: redis.Redis) -> T:
        """Run the script in one round trip, or in two if the server does not know it yet.

        Raises:
            redis.RedisError: any error of the server or the connection.
        """
        try:
            try:
                reply = client.execute_command(*self.by_digest(), **{NEVER_DECODE: True})
            except NoScriptError:
                reply = client.execute_command(*self.by_text(), **{NEVER_DECODE: True})
        except ResponseError as exc:
            raise unwrapped(exc) from exc.__cause__
        return self.read(reply)


@dataclass(frozen=True)
class Attempt:
    """A publication that its publisher repeats if it misses the reply; what makes it the same one: `lua/lib/once.lua`.

    Attributes:
        publisher: names the record of what it stored last, see `QueueKeys.published`.
        token: 16 bytes, the same ones each time that it is repeated.
    """

    publisher: str
    token: bytes


def run_each(client: redis.Redis, calls: Sequence[Call[T]]) -> list[T | Exception]:
    """Run scripts in one round trip, or in two. Atomic only for each call.

    Returns:
        For each call the result, or the server's error; on a cluster also the error of a lost connection, as others may
        go to other nodes.

    Raises:
        redis.ConnectionError: the connection was lost; nobody knows which calls were executed.
    """
    if not calls:
        return []
    replies = _send(client, [call.by_digest() for call in calls])
    unknown = [number for number, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
    if unknown:  # all by text: somebody may flush the scripts again
        again = _send(client, [calls[number].by_text() for number in unknown])
        for number, reply in zip(unknown, again, strict=True):
            replies[number] = reply
    replies = [unwrapped(reply) if isinstance(reply, ResponseError) else reply for reply in replies]
    results = zip(calls, replies, strict=True)
    return [reply if isinstance(reply, Exception) else call.read(reply) for call, reply in results]


def unwrapped(error: ResponseError) -> ResponseError:
    """Return the error of a script as Redis 7 sends it. Redis 6.2 wraps READONLY of a command within the script."""
    if "-READONLY" in str(error) and not isinstance(error, ReadOnlyError):
        return ReadOnlyError(str(error))
    return error


def _send(client: redis.Redis, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    with client.pipeline(transaction=False) as pipe:
        for command in commands:
            pipe.execute_command(*command, **{NEVER_DECODE: True})
        return pipe.execute(raise_on_error=False)


@cache
def load(name: str) -> Script:
    """Return the script `lua/<name>.lua`."""
    return script_of(name, _source(f"{name}.lua"))


def _source(*path: str) -> str:
    data = pkgutil.get_data(__package__, "/".join(("lua", *path)))
    assert data is not None  # the loaders of Python can read files
    return data.decode()


def script_of(name: str, text: str) -> Script:
    """Return the script with this text and what it includes, each part once."""
    included: set[str] = set()

    def part(line: re.Match[str]) -> str:
        if line[1] in included:
            return ""
        included.add(line[1])
        return _INCLUDE.sub(part, _source("lib", f"{line[1]}.lua"))

    text = _INCLUDE.sub(part, text)
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
