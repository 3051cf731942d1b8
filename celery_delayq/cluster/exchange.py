"""Exchange: commands that go to a node on one connection, in one round trip. None of them is sent twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from redis import exceptions

from celery_delayq.cluster.connecting import connection_to
from celery_delayq.cluster.merging import any_sha, error_in
from celery_delayq.cluster.redirection import is_redirection, understood
from celery_delayq.cluster.topology import Address, Node
from celery_delayq.queue.connections import LOST

#: See `redis.Redis.parse_response`.
Parse: TypeAlias = Callable[..., Any]

#: Has a node execute the next command although the slot is still on its way there.
ASKING = ("ASKING",)


class _Unsent:
    """Stands for the reply to a command that was not sent."""


UNSENT: Any = _Unsent()


@dataclass(eq=False)
class NodeCommand:
    """A command that is sent to one node, and its reply or error.

    Attributes:
        where: a hash slot; the address of a node; None for the home node.
    """

    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    where: int | Address | None = None
    reply: Any = UNSENT


@dataclass(eq=False)
class Attached:
    """A command of a pipeline for each node to which the pipeline sends anything: SCRIPT LOAD before it, WAIT after it.

    Attributes:
        replies: those of the nodes.
        idle: those to a WAIT of nodes that had refused all that was sent there.
    """

    args: tuple[Any, ...]
    options: dict[str, Any]
    is_wait: bool
    replies: list[Any] = field(default_factory=list)
    idle: list[Any] = field(default_factory=list)

    @property
    def reply(self) -> Any:
        """The reply to the whole pipeline."""
        if not self.is_wait:
            return any_sha(self.replies) if self.replies else None
        # Whoever waits for a lost node knows: the replies to its commands are errors, too.
        heard = [reply for reply in self.replies or self.idle if not isinstance(reply, LOST)]
        return error_in(heard) or min(heard, default=self.replies[0] if self.replies else 0)


class Exchange:
    """The commands for one node. For one thread; `open`, `send` and `read` are called once, `close` always.

    Args:
        node: the node.
        parse: parses replies.
        attached: those that are no WAIT go first.
    """

    def __init__(self, node: Node, parse: Parse, attached: Iterable[Attached] = ()) -> None:
        self.node = node
        #: The error that ended the connection.
        self.lost: Exception | None = None
        #: The commands in order; those that are attached with whose they are.
        self._commands: list[tuple[NodeCommand, Attached | None]] = []
        self._parse = parse
        self._connection: Any = None
        self._packed: Any = None
        self._is_unread = False
        for load in attached:
            if not load.is_wait:
                self.attach(load)

    @property
    def commands(self) -> list[NodeCommand]:
        """The commands, without those that are attached."""
        return [command for command, owner in self._commands if owner is None]

    def add(self, *commands: NodeCommand) -> None:
        """Add commands."""
        self._commands += [(command, None) for command in commands]

    def attach(self, attached: Attached) -> None:
        """Add an attached command."""
        self._commands.append((NodeCommand(attached.args, attached.options), attached))

    def open(self) -> None:
        """Get a connection.

        Raises:
            NotSent: none could be opened.
            redis.ConnectionError: the pool has none left.
            redis.DataError: an argument is neither text nor bytes nor a number.
        """
        self._connection = connection_to(self.node)
        self._packed = self._connection.pack_commands([command.args for command, _ in self._commands])

    def send(self) -> None:
        """Send the commands. If that fails, the error is the reply to each."""
        self._is_unread = True
        try:
            self._connection.send_packed_command(self._packed)
        except LOST as exc:
            self.fail(exc)

    def read(self) -> None:
        """Read the replies. An error is one, too."""
        for command, _ in self._commands if self.lost is None else ():
            try:
                command.reply = self._parse(self._connection, command.args[0], **command.options)
            except exceptions.ResponseError as exc:
                command.reply = understood(exc)
            except LOST as exc:
                self.fail(exc)
                break
        self._is_unread = self.lost is not None
        self._settle()

    def _settle(self) -> None:
        """Give the replies to attached commands to their owners."""
        has_served = False
        for command, owner in self._commands:
            if owner is None:
                has_served |= command.args != ASKING and not is_redirection(command.reply)
            elif owner.is_wait and not has_served:
                owner.idle.append(command.reply)
            else:
                owner.replies.append(command.reply)

    def fail(self, exc: Exception) -> None:
        """Make an error the reply to all commands without a reply."""
        self.lost = exc
        for command, _ in self._commands:
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
