"""Script: a Lua script of this package, and the one way to run it: by its digest, and by its text if that is unknown.

The scripts are in `lua/`, one file each. Each file documents the guarantees of its script. Parts that several scripts
share are in `lua/lib`; a line `-- include: <name>` stands for such a part.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, TypeAlias

import redis
from redis.client import NEVER_DECODE
from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError

_LUA = files(__package__).joinpath("lua")
_INCLUDE = re.compile(r"^-- include: (\w+)\n", re.MULTILINE)


#: Keys and arguments of a script.
Call: TypeAlias = tuple[Sequence[str], Sequence[bytes | str | int]]


@dataclass(frozen=True)
class Script:
    """A Lua script and its digest.

    A reply may be lost after the script has run, so nothing here sends a call again, except if the server did not know
    the script. A client that retries by itself may run the script twice.
    """

    name: str
    text: str
    sha: str

    def by_digest(self, keys: Sequence[str], args: Sequence[bytes | str | int]) -> tuple[Any, ...]:
        """Return the command for a caller who can send another one if the server answers NOSCRIPT."""
        return ("EVALSHA", self.sha, len(keys), *keys, *args)

    def by_text(self, keys: Sequence[str], args: Sequence[bytes | str | int]) -> tuple[Any, ...]:
        """Return the command that any server knows. It also makes the digest known."""
        return ("EVAL", self.text, len(keys), *keys, *args)

    def run(self, client: redis.Redis, keys: Sequence[str], args: Sequence[bytes | str | int]) -> Any:
        """Run the script in one round trip, or in two if the server does not know it yet.

        Replies are bytes, even if the client decodes responses.

        Raises:
            redis.RedisError: any error of the server or the connection.
        """
        try:
            try:
                return client.execute_command(*self.by_digest(keys, args), **{NEVER_DECODE: True})
            except NoScriptError:
                return client.execute_command(*self.by_text(keys, args), **{NEVER_DECODE: True})
        except ResponseError as exc:
            raise unwrapped(exc) from exc.__cause__

    def run_each(self, client: redis.Redis, calls: Sequence[Call]) -> list[Any]:
        """Run the script several times in one round trip, or in two. Atomic only for each call.

        Returns:
            For each call the reply, or the server's error; on a cluster also the error of a lost connection, as others
            may go to other nodes.

        Raises:
            redis.ConnectionError: the connection was lost; nobody knows which calls were executed.
        """
        replies = _send(client, [self.by_digest(*call) for call in calls])
        unknown = [number for number, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:  # all by text: somebody may flush the scripts again
            again = _send(client, [self.by_text(*calls[number]) for number in unknown])
            for number, reply in zip(unknown, again, strict=True):
                replies[number] = reply
        return [unwrapped(reply) if isinstance(reply, ResponseError) else reply for reply in replies]


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
    return script_of(name, _LUA.joinpath(f"{name}.lua").read_text("utf-8"))


def script_of(name: str, text: str) -> Script:
    """Return the script with this text and what it includes, each part once."""
    included: set[str] = set()

    def part(line: re.Match[str]) -> str:
        if line[1] in included:
            return ""
        included.add(line[1])
        return _INCLUDE.sub(part, _LUA.joinpath("lib").joinpath(f"{line[1]}.lua").read_text("utf-8"))

    text = _INCLUDE.sub(part, text)
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
