"""RoundTrip: commands that go to a node on one connection, in one round trip. None of them is sent twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from redis import exceptions

from celery_delayq.cluster.node import Node
from celery_delayq.queue.connections import LOST
from celery_delayq.queue.redirection import is_redirection, understood

#: See `redis.Redis.parse_response`.
Parse: TypeAlias = Callable[..., Any]

#: Has a node execute the next command although the slot is still on its way there.
ASKING = ("ASKING",)


class _Unsent:
    """Stands for the reply to a command that was not sent."""


UNSENT: Any = _Unsent()


@dataclass(eq=False)
class Command:
    """A command, and its reply or error.

    Attributes:
        options: for the parser of its reply.
        slot: the hash slot of its key; None for the home node.
        name: by which its reply is parsed; by default, its first word.
    """

    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    slot: int | None = None
    name: str = ""
    reply: Any = UNSENT


@dataclass(eq=False)
class Wait:
    """The WAIT at the end of a pipeline. Each node to which the pipeline sends anything gets it.

    Attributes:
        replies: those of the nodes that have served anything.
    """

    args: tuple[Any, ...]
    options: dict[str, Any]
    replies: list[Any] = field(default_factory=list)

    @property
    def reply(self) -> Any:
        """The reply to the whole pipeline: the least, or an error."""
        # Whoever waits for a lost node knows: the replies to its commands are errors, too.
        heard = [reply for reply in self.replies if not isinstance(reply, LOST)]
        errors = [reply for reply in heard if isinstance(reply, Exception)]
        return errors[0] if errors else min(heard, default=0)


class RoundTrip:
    """The commands for one node. For one thread; `open`, `send` and `read` are called once, `close` always.

    Args:
        node: the node.
        parse: parses replies.
        wait: is sent at the end; its owner gets the reply.
    """

    def __init__(self, node: Node, parse: Parse, wait: Wait | None = None) -> None:
        self.node = node
        self.commands: list[Command] = []
        #: The error that ended the connection.
        self.lost: Exception | None = None
        self._parse = parse
        self._wait = wait
        self._last = [] if wait is None else [Command(wait.args, wait.options)]
        self._connection: Any = None
        self._packed: Any = None
        self._is_unread = False

    @property
    def _all(self) -> Sequence[Command]:
        return [*self.commands, *self._last]

    def run(self) -> None:
        """Do all, see `open`."""
        try:
            self.open()
            self.send()
            self.read()
        finally:
            self.close()

    def open(self) -> None:
        """Get a connection.

        Raises:
            NotSent: none could be opened.
            redis.ConnectionError: the pool has none left.
            redis.DataError: an argument is neither text nor bytes nor a number.
        """
        self._connection = self.node.connection()
        self._packed = self._connection.pack_commands([command.args for command in self._all])

    def send(self) -> None:
        """Send the commands. If that fails, the error is the reply to each."""
        self._is_unread = True
        try:
            self._connection.send_packed_command(self._packed)
        except LOST as exc:
            self.fail(exc)

    def read(self) -> None:
        """Read the replies. An error is one, too."""
        for command in self._all if self.lost is None else ():
            try:
                command.reply = self._parse(self._connection, command.name or command.args[0], **command.options)
            except exceptions.ResponseError as exc:
                command.reply = understood(exc)
            except LOST as exc:
                self.fail(exc)
                break
        self._is_unread = self.lost is not None
        if self._wait is not None and any(
            command.args != ASKING and not is_redirection(command.reply) for command in self.commands
        ):
            self._wait.replies.append(self._last[0].reply)

    def fail(self, exc: Exception) -> None:
        """Make an error the reply to all commands without a reply."""
        self.lost = exc
        for command in self._all:
            if command.reply is UNSENT:
                command.reply = exc

    def close(self) -> None:
        """Give the connection back; if not all replies were read, disconnect it first."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._is_unread:
            connection.disconnect()
        self.node.client.connection_pool.release(connection)
