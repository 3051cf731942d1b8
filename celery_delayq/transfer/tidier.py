"""Tidier: tidies the index of queues while their transfer loop has nothing else to do, in bounded steps."""

from __future__ import annotations

import random
from collections.abc import Iterable
from logging import getLogger

import redis
from redis import exceptions

from celery_delayq.queue.connections import CONNECTION_ERRORS
from celery_delayq.queue.tidying import tidy
from celery_delayq.transfer.watched import Watched

logger = getLogger(__name__)

#: Tidying steps between two looks: at 1 ms per step, they take 1 % of the server's time.
_STEPS = 50


class Tidier:
    """That of one connection of a loop. For the loop's thread.

    Both methods raise `redis.ConnectionError` if the server is away. If it only refuses, nothing is tidied.

    Args:
        client: of the loop's server.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._untidy: list[Watched] = []
        self._steps = 0

    @property
    def has_work(self) -> bool:
        """Whether there is a step to take before the next look."""
        return bool(self._untidy)

    def choose(self, queues: Iterable[Watched]) -> None:
        """Choose the queues to tidy at random, so that about one of the loops that watch a queue tidies it."""
        holding = [watched for watched in queues if watched.head_due_ms is not None]
        self._untidy.clear()
        self._steps = _STEPS
        if not holding:
            return
        try:
            watchers = self._client.pubsub_numsub(*(it.queue.keys.transferrer_channel for it in holding))
        except CONNECTION_ERRORS:
            raise
        except exceptions.ResponseError as exc:
            logger.debug("Cannot count transfer loops: %s", exc)
            return
        chosen = [it for it, (_, count) in zip(holding, watchers, strict=True) if random.random() * count < 1]
        self._untidy = random.sample(chosen, len(chosen))

    def step(self) -> None:
        """Take one bounded step."""
        watched = self._untidy[-1]
        watched.tidying = watched.tidying or tidy(watched.queue)
        try:
            forgotten = next(watched.tidying, None)
        except CONNECTION_ERRORS:
            raise
        except exceptions.ResponseError as exc:
            logger.debug("Cannot tidy the index of %r: %s", watched.queue.name, exc)
            forgotten = None
        if forgotten is None:
            watched.tidying = None
            self._untidy.pop()
        self._steps -= 1
        if self._steps == 0:
            self._untidy.clear()
