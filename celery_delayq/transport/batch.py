"""A batch: messages that a channel collects and sends in one pipeline, with an answer for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from redis.client import NEVER_DECODE
from redis.exceptions import NoScriptError, RedisError

from celery_delayq import scripts
from celery_delayq.delayed_queue import DelayedQueue

_OFFER = scripts.load("offer")


@dataclass(frozen=True)
class _Offer:
    """What an offer takes to be sent: its delayed queue, and keys and arguments of the script."""

    queue: DelayedQueue
    keys: Sequence[str]
    args: Sequence[bytes | str | int]


class Batch:
    """Commands that publish messages, collected in order until they are sent.

    Attributes:
        bytes: about how many bytes they have.
    """

    def __init__(self) -> None:
        self._commands: list[_Offer | tuple[Any, ...]] = []
        self.bytes = 0

    @property
    def size(self) -> int:
        """How many commands there are."""
        return len(self._commands)

    def truncate(self, size: int) -> None:
        """Forget all commands but the first ones."""
        del self._commands[size:]

    def add(self, name: str, *args: Any) -> None:
        """Add a command by the name of redis-py's method; kombu 5.7 calls this, see its `PublishBatch`."""
        self._add((name, *args), args)

    def offer(self, queue: DelayedQueue, keys: Sequence[str], args: Sequence[bytes | str | int]) -> None:
        """Add an offer to a delayed queue, see `scripts.offer_command`."""
        self._add(_Offer(queue, keys, args), args)

    def _add(self, command: _Offer | tuple[Any, ...], args: Sequence[Any]) -> None:
        self._commands.append(command)
        self.bytes += sum(len(arg) for arg in args if isinstance(arg, (bytes, str)))

    def send(self, client: Any) -> list[RedisError | None]:
        """Send everything in one round trip, without a retry; the batch is empty afterwards, whatever happens.

        The script is loaded in the same pipeline. Where it is unknown nevertheless, since somebody flushed the scripts
        at that very moment, nothing was offered, and the offer is sent again by itself.

        Args:
            client: that of kombu's channel, which prefixes keys.

        Returns:
            For each command what the server said against it, or None.

        Raises:
            redis.RedisError: the connection was lost: nobody knows which commands were carried out.
        """
        commands, self._commands, self.bytes = self._commands, [], 0
        if not commands:
            return []
        with client.pipeline(transaction=False) as pipe:
            pipe.script_load(_OFFER.text)
            for command in commands:
                if isinstance(command, _Offer):
                    # Not `evalsha`: its keys have their prefix already.
                    pipe.pipeline_execute_command(
                        "EVALSHA", _OFFER.sha, len(command.keys), *command.keys, *command.args, **{NEVER_DECODE: True}
                    )
                else:
                    getattr(pipe, command[0])(*command[1:])
            replies = pipe.execute(raise_on_error=False)[1:]
        return [_outcome(command, reply) for command, reply in zip(commands, replies, strict=True)]


def _outcome(command: _Offer | tuple[Any, ...], reply: Any) -> RedisError | None:
    if not isinstance(command, _Offer):
        return reply if isinstance(reply, RedisError) else None
    try:
        if isinstance(reply, NoScriptError):
            reply = _OFFER.run(command.queue.client, command.keys, command.args)
        if isinstance(reply, RedisError):
            return reply
        if reply[1]:  # alone, see `DelayedQueue.offer`
            command.queue.register(again=True)
    except RedisError as exc:
        return exc
    return None


@contextmanager
def collecting(channel: Any) -> Iterator[Batch]:
    """Let a channel collect what is published on it while the block lasts; what was not sent then is dropped."""
    channel.batch = batch = Batch()
    try:
        yield batch
    finally:
        channel.batch = None
