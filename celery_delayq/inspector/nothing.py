"""NothingWaits: the inspector of an app whose tasks cannot wait in Redis, because it is set up for tests."""

from __future__ import annotations

import time

import redis

from celery_delayq.inspector.away import Lost
from celery_delayq.inspector.broker_lists import BrokerList, BrokerLists
from celery_delayq.inspector.inspector import Inspector
from celery_delayq.queue.dead_letters import DeadLetters


class NothingWaits(Inspector):
    """An inspector that finds no queue, and so no task. It connects to no server."""

    def __init__(self) -> None:
        self.lists = _NoLists()

    def dead_letters(self, queue: str | None = None) -> DeadLetters:
        """Return none."""
        return DeadLetters(self.lists.client)

    def letters_of(self, *names: str) -> DeadLetters:
        """Return none."""
        return self.dead_letters()

    def pause(self, queue: str) -> bool:
        """Do nothing."""
        return False

    def resume(self, queue: str) -> bool:
        """Do nothing."""
        return False


class _NoLists(BrokerLists):
    def __init__(self) -> None:
        self.client = self.asking = redis.Redis()  # is asked nothing, since there is no list to ask for
        self._queues = ()

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def paused(self) -> frozenset[str]:
        return frozenset()

    def known(self, *queues: str, also_counted: bool = False) -> tuple[list[BrokerList], Lost]:
        return [], Lost()

    def exists(self, queue: str) -> bool:
        return True  # no server knows better
