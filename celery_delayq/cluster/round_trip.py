"""RoundTrip: commands that go to a node on one connection, in one round trip. None of them is sent twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from redis import exceptions

from celery_delayq.cluster.node import Node
from celery_delayq.queue.connections import LOST
from celery_delayq.queue.redirection import understood

#: See `redis.Redis.parse_response`.
Parse: TypeAlias = Callable[..., Any]

#: Has a node execute the next command although the slot is still on its way there.
ASKING = ("ASKING",)


#: Stands for the reply to a command that was not sent.
UNSENT: Any = object()


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


class RoundTrip:
    """The commands for one node. For one thread; `open`, `send` and `read` are called once, `close` always.

    Args:
        node: the node.
        parse: parses replies.
        wait: a WAIT, which is sent at the end.
    """

    def __init__(self, node: Node, parse: Parse, wait: Command | None = None) -> None:
        self.node = node
        self.commands: list[Command] = []
        self.wait = wait
        #: The error that ended the connection.
        self.lost: Exception | None = None
        self._parse = parse
        self._connection: Any = None
        self._packed: Any = None
        self._is_unread = False

    @property
    def _all(self) -> Sequence[Command]:
        return self.commands if self.wait is None else [*self.commands, self.wait]

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
