"""Replicas: writes that a caller takes for done wait until replicas have them, so that they survive a failover.

Redis answers a write before its replicas have it. If the master dies in between, the write is lost. `WAIT` answers when
enough replicas have all earlier writes of its connection. So it is sent in the same pipeline as the write.

What a worker does by itself does not wait: if a failover loses that, it happens again, and no task is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import redis
from kombu.exceptions import OperationalError

from celery_delayq.basics.errors import DelayqError


class NotReplicated(DelayqError, OperationalError):
    """A write was executed, but too few replicas have it. If the master dies now, it may be lost.

    Celery's retry of a publication sends the message again, which stores it once.
    """


@dataclass(frozen=True)
class Replicas:
    """How many replicas must have a write, and how long to wait for them.

    Attributes:
        count: the number of replicas; 0 to wait for none.
        timeout_ms: the longest wait, in ms.
    """

    count: int
    timeout_ms: int

    @property
    def command(self) -> tuple[str, int, int]:
        """The command for the end of a pipeline."""
        return "WAIT", self.count, self.timeout_ms

    def check(self, reply: Any) -> None:
        """Check the reply to `command`.

        Raises:
            NotReplicated: too few replicas have the writes, or the server did not say how many.
        """
        if isinstance(reply, int) and reply >= self.count:
            return
        have = f"{reply} of {self.count} replicas have it" if isinstance(reply, int) else f"Redis cannot wait: {reply}"
        raise NotReplicated(
            f"it is stored, but may be lost if the Redis master dies now ({have} after "
            f"{self.timeout_ms / 1000:g} s). Check the replicas of this Redis, or lower the transport option replicas"
        )


class ReplicatedClient:
    """A client whose writes wait for replicas. It has what scripts need; to read, use the client itself.

    Args:
        client: any `redis.Redis`.
        replicas: how many replicas must have each write.
    """

    def __init__(self, client: redis.Redis, replicas: Replicas) -> None:
        self._client = client
        self._replicas = replicas

    def execute_command(self, *command: Any, **options: Any) -> Any:
        """Execute a command, see redis-py.

        Raises:
            NotReplicated: the command was executed, but too few replicas have it.
        """
        with self.pipeline() as pipe:
            pipe.execute_command(*command, **options)
            return pipe.execute()[0]

    @contextmanager
    def pipeline(self, *, transaction: bool = False) -> Iterator[_ReplicatedPipeline]:
        """Give a pipeline without a transaction: in one, WAIT does not wait."""
        assert not transaction
        with self._client.pipeline(transaction=False) as pipe:
            yield _ReplicatedPipeline(pipe, self._replicas)


class _ReplicatedPipeline:
    def __init__(self, pipe: Any, replicas: Replicas) -> None:
        self._pipe = pipe
        self._replicas = replicas

    def execute_command(self, *command: Any, **options: Any) -> None:
        self._pipe.execute_command(*command, **options)

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        self._pipe.execute_command(*self._replicas.command)
        *replies, waited = self._pipe.execute(raise_on_error=False)
        refused = [reply for reply in replies if isinstance(reply, Exception)]
        if refused and raise_on_error:
            raise refused[0]
        if len(refused) < len(replies):  # otherwise nothing was written
            self._replicas.check(waited)
        return list(replies)
