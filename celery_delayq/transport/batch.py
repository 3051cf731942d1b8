"""A batch: messages that a channel collects and sends in one pipeline. Each message gets its own result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from redis.client import NEVER_DECODE
from redis.exceptions import NoScriptError, RedisError

from celery_delayq.queue import codec, scripts
from celery_delayq.queue.call import Call
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.transport.replicas import NotReplicated, Replicas

#: A script call with this many bytes of messages takes no further message.
_CALL_BYTES = 64 * 1024

#: A message for a delayed queue: when it is due, its key, and itself.
_Message = tuple[int, bytes, bytes]


@dataclass
class _Command:
    """A command, named like redis-py's method. Publishing a message takes one command or a few."""

    name: str
    args: tuple[Any, ...]

    def add_to(self, pipe: Any) -> None:
        getattr(pipe, self.name)(*self.args)

    def outcome(self, reply: Any) -> Exception | None:
        return reply if isinstance(reply, RedisError) else None


@dataclass
class _Call:
    """A script call for messages of one delayed queue."""

    queue: DelayedQueue
    messages: list[_Message] = field(default_factory=list)
    bytes: int = 0

    def has_room(self) -> bool:
        return len(self.messages) < scripts.MAX_OFFERS and self.bytes < _CALL_BYTES

    def add(self, message: _Message) -> None:
        self.messages.append(message)
        self.bytes += len(message[2])

    def add_to(self, pipe: Any) -> None:
        # Not `execute_command`, which would prefix the keys again.
        pipe.pipeline_execute_command(*self._call().by_digest(), **{NEVER_DECODE: True})

    def outcome(self, reply: Any) -> Exception | None:
        try:
            if isinstance(reply, NoScriptError):
                reply = self._call().run(self.queue.writer)
        except (RedisError, NotReplicated) as exc:
            return exc
        if isinstance(reply, RedisError):
            return reply
        if reply:  # no other entry waits, see `DelayedQueue.offer`
            try:
                self.queue.register(again=True)
            except RedisError as exc:  # no `ResponseError`: it would say that nothing was stored
                return RedisError(f"stored, but maybe not known to transfer loops: {exc}")
        return None

    def _call(self) -> Call[bool]:
        return scripts.offer_many(self.queue.keys, messages=self.messages, mirrored=self.queue.mirror_list)


class Batch:
    """Commands that publish messages. They are collected in order until they are sent.

    Attributes:
        bytes: the approximate size of the commands.
    """

    def __init__(self) -> None:
        self._commands: list[_Command | tuple[DelayedQueue, _Message]] = []
        self.bytes = 0

    @property
    def size(self) -> int:
        """The number of commands; an offer counts as one."""
        return len(self._commands)

    def truncate(self, size: int) -> None:
        """Drop all commands except the first `size`."""
        del self._commands[size:]

    def add(self, name: str, *args: Any) -> None:
        """Add a command, named like redis-py's method. kombu 5.7 calls this, see its `PublishBatch`."""
        self._commands.append(_Command(name, args))
        self.bytes += sum(len(arg) for arg in args if isinstance(arg, (bytes, str)))

    def offer(self, queue: DelayedQueue, *, due_ms: int, message_id: str, payload: bytes) -> None:
        """Add a message for a delayed queue that is already registered."""
        self._commands.append((queue, (due_ms, codec.message_key(message_id), payload)))
        self.bytes += len(payload)

    def send(self, client: Any, replicas: Replicas | None = None) -> list[Exception | None]:
        """Send everything in one round trip, without a retry. The batch is empty afterwards, whatever happens.

        Messages for one delayed queue share a script call, which stores all of them or none. So a message may be stored
        before a message for another queue that was added earlier. If the server does not know the script yet, a call
        stores nothing and is repeated on its own.

        Args:
            client: the client of kombu's channel, which adds the key prefix.
            replicas: the replicas that must have the messages; None for none.

        Returns:
            For each command the server's error, or None.

        Raises:
            redis.RedisError: the connection was lost; nobody knows which commands were executed.
            NotReplicated: the commands were executed, but too few replicas have the messages.
        """
        calls = _joined(self._commands)
        outcomes: list[Exception | None] = [None] * len(self._commands)
        self._commands, self.bytes = [], 0
        if not calls:
            return []
        with client.pipeline(transaction=False) as pipe:
            for call, _ in calls:
                call.add_to(pipe)
            if replicas is not None:
                pipe.pipeline_execute_command(*replicas.command)
            replies = pipe.execute(raise_on_error=False)
        waited = replies.pop() if replicas is not None else None
        for (call, places), reply in zip(calls, replies, strict=True):
            outcome = call.outcome(reply)
            for place in places:
                outcomes[place] = outcome
        if replicas is not None and not all(isinstance(reply, RedisError) for reply in replies):
            replicas.check(waited)  # otherwise nothing is known to be written
        return outcomes


def _joined(commands: Sequence[_Command | tuple[DelayedQueue, _Message]]) -> list[tuple[_Call | _Command, list[int]]]:
    """Join offers of one queue into script calls. Return each call or command with the places that it stands for.

    Offers of one queue keep their order.
    """
    joined: list[tuple[_Call | _Command, list[int]]] = []
    latest: dict[DelayedQueue, tuple[_Call, list[int]]] = {}
    for place, command in enumerate(commands):
        if isinstance(command, _Command):
            joined.append((command, [place]))
            continue
        queue, message = command
        call, places = latest.get(queue, (None, []))
        if call is None or not call.has_room():
            call, places = latest[queue] = (_Call(queue), [])
            joined.append((call, places))
        call.add(message)
        places.append(place)
    return joined


@contextmanager
def collecting(channel: Any) -> Iterator[Batch]:
    """Let a channel collect its published messages within the block. Messages not sent by then are dropped."""
    channel.batch = batch = Batch()
    try:
        yield batch
    finally:
        channel.batch = None
