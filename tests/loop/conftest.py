"""Transfer loops in this process, on a real server, without Celery."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.keeper import Keeper
from celery_delayq.queue.registry import Registry
from celery_delayq.queue.scripts import Transferred
from celery_delayq.transfer.loop import TransferLoop
from celery_delayq.transfer.settings import TransferSettings
from examples.private_redis import PrivateRedis
from tests.processes import threads
from tests.support import wait_until

#: Longer than any test: whatever happens does not happen because a loop looked by itself.
NEVER_S = 300.0


class Pass(NamedTuple):
    """One script call of a loop."""

    loop: str
    queue: str
    done: Transferred


class CountedConnect:
    """Connects a loop, with options as of `Loops.client`, and counts how often it tried."""

    def __init__(self, loops: Loops, **options: object) -> None:
        self.attempts = 0
        self._loops = loops
        self._options = options

    def __call__(self) -> redis.Redis:
        self.attempts += 1
        return self._loops.client(**self._options)


class Loops:
    """Makes loops, records their passes, and stops them."""

    def __init__(self, server: PrivateRedis) -> None:
        self.server = server
        self.passes: list[Pass] = []
        self._loops: list[TransferLoop] = []

    def make(
        self,
        id: str = "one",
        queues: Callable[[], Iterable[str]] = tuple,
        *,
        connect: Callable[[], redis.Redis] | None = None,
        db: int = 0,
        keyprefix: str = "",
        chores: Callable[[redis.Redis, Callable[[str], bool]], Any] = lambda client, serves: None,
        interval_s: float = NEVER_S,
        grace_s: float = 0.1,
        batch_size: int = 100,
        lead_s: float = 0.0,
        may_begin: Callable[[], bool] = lambda: True,
        serves: Callable[[str], bool] = lambda name: True,
        slot_of: Callable[[str], int] = lambda key: 0,
        registry: Registry | None = None,
    ) -> TransferLoop:
        """Return a loop; unless told otherwise, it never looks without a reason."""

        def on_pass(queue: DelayedQueue, done: Transferred) -> None:
            self.passes.append(Pass(id, queue.name, done))

        loop = TransferLoop(
            Keeper(connect or (lambda: self.client(db=db))),
            queues,
            keyprefix=keyprefix,
            settings=TransferSettings(grace_s, interval_s, batch_size, lead_s),
            on_pass=on_pass,
            id=id,
            may_begin=may_begin,
            serves=serves,
            slot_of=slot_of,
            registry=registry,
            chores=chores,
        )
        self._loops.append(loop)
        return loop

    def start(self, id: str = "one", queues: Callable[[], Iterable[str]] = tuple, **options: object) -> TransferLoop:
        """Start a loop and wait until it listens for new queues; takes what `make` takes."""
        loop = self.make(id, queues, **options)  # type: ignore[arg-type]
        registry = f"{options.get('keyprefix', '')}delayq:queues"
        before = self.listeners(registry)
        loop.start()
        wait_until(lambda: self.listeners(registry) > before, f"loop {id} listens")
        return loop

    def client(self, **options: object) -> redis.Redis:
        """Return a client as kombu makes them: it does not retry by itself."""
        return self.server.client(retry=Retry(NoBackoff(), 0), **options)

    def listeners(self, channel: str) -> int:
        """Return how many loops listen on a channel."""
        with self.server.client() as client:
            ((_, count),) = client.pubsub_numsub(channel)
        return int(count)

    def wait_for(self, queue: DelayedQueue, listeners: int = 1) -> None:
        """Wait until that many loops watch a queue."""
        wait_until(
            lambda: self.listeners(queue.keys.channel) == listeners,
            f"{listeners} loops watch {queue.name}",
        )

    def moved(self, *ids: str) -> int:
        """Return how many messages all loops have moved, or those with the given ids."""
        return sum(p.done.moved for p in list(self.passes) if not ids or p.loop in ids)

    def stop(self) -> None:
        """Stop all loops."""
        for loop in self._loops:
            loop.stop()


@pytest.fixture(autouse=True)
def no_loop_is_left_behind() -> Iterator[None]:
    """Fail if a loop's thread outlives its test."""
    before = threads(os.getpid())
    yield
    wait_until(lambda: threads(os.getpid()) <= before, "the threads of all loops have ended")


@pytest.fixture
def loops(redis_server: PrivateRedis, client: redis.Redis) -> Iterator[Loops]:
    """Loops on the session's Redis, which is empty at first."""
    loops = Loops(redis_server)
    yield loops
    loops.stop()


@pytest.fixture
def queue(client: redis.Redis) -> DelayedQueue:
    """A queue on the session's Redis."""
    return DelayedQueue(client, "q")
