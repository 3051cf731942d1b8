"""Flusher: adds what a process has counted to the totals and the history in Redis.

The transfer loops call it: they have connections of their own at the right nodes, and threads that are not in a hurry.
So metrics need no connection, no thread, and no command of an idle worker.

What is lost
    Nothing, as long as the server refuses or cannot be reached: it is added later. Only if the connection is lost while
    numbers are on their way, and nobody knows whether they were added, they count as added: what one worker counted in
    ten seconds may be missing then, and is never there twice. So may that of a worker that is killed, and what a loop
    moves that hangs while its worker gives up the connection.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from logging import getLogger
from typing import Any

import redis
from redis import exceptions

from celery_delayq.metrics.recorder import Recorder
from celery_delayq.queue.call import run_each
from celery_delayq.queue.connections import CONNECTION_ERRORS, LOST, hurried, is_cluster, refusals
from celery_delayq.queue.keys import QueueKeys, counted
from celery_delayq.queue.measuring import TOTALS_S, count

logger = getLogger(__name__)

#: The most numbers that one script call adds.
_MOST = 500

#: How often a process records for which lists it counts, in seconds.
_RECORDED_FOR_S = 3600.0


class Flusher:
    """Adds what was counted to Redis. Safe in any thread, also in several at once. In a forked child it does nothing.

    What was counted for a list is added to the first list of its queue: what counts a queue has expires as a whole.

    Args:
        recorder: of this process.
        keyprefix: kombu's `global_keyprefix`.
        first_list: returns the first list of the queue of a list, see `DelayedChannel.first_list`.
    """

    def __init__(
        self, recorder: Recorder, keyprefix: str = "", first_list: Callable[[str], str] = lambda name: name
    ) -> None:
        self._recorder = recorder
        self._first_list = first_list
        self._index = counted(keyprefix)
        self._pid = os.getpid()
        #: Lists whose numbers are on their way, and who sends them.
        self._claims: dict[str, object] = {}
        #: List -> when it was last recorded in the index, by the monotonic clock.
        self._recorded_at: dict[str, float] = {}
        #: Errors that were logged.
        self._logged: set[str] = set()

    @property
    def has_pending(self) -> bool:
        """Whether something was counted and not added yet."""
        return os.getpid() == self._pid and bool(self._recorder.pending())

    def flush(self, client: redis.Redis, serves: Callable[[str], bool] = lambda name: True) -> None:
        """Add what was counted; two round trips, none if there is nothing.

        Args:
            client: of the server; on a cluster, its home is the node of the lists.
            serves: whether a list is at this server.

        Raises:
            redis.ConnectionError: the server is away.
        """
        if os.getpid() != self._pid:
            return
        token = object()
        names = [n for n in self._recorder.pending() if serves(n) and self._claims.setdefault(n, token) is token]
        try:
            if names:
                pending = self._recorder.pending()  # again: another thread may have added some before we had the claim
                self._add(client, {name: pending[name] for name in names if name in pending})
        finally:
            for name in names:
                del self._claims[name]

    def flush_everywhere(self, client: redis.Redis) -> None:
        """Add what was counted, on a cluster at each node; those that are away are left out.

        Args:
            client: of the server, or of the cluster.

        Raises:
            redis.ConnectionError: the server is away; of a cluster, nobody knows the nodes.
        """
        if not self.has_pending:
            return
        if not is_cluster(client):
            self.flush(client)
            return
        client = hurried(client)
        for node in client.masters():  # type: ignore[attr-defined]
            serves = partial(client.topology.serves, node.address)  # type: ignore[attr-defined]
            try:
                self.flush(client.with_home(node), serves)  # type: ignore[attr-defined]
            except CONNECTION_ERRORS as exc:
                logger.debug("Cannot add to the metrics at %s: %s", node.address, exc)

    def _add(self, client: redis.Redis, pending: dict[str, dict[str, int]]) -> None:
        try:
            seconds, _ = client.time()  # if the connection is lost already, this shows it, and nothing was sent
        except exceptions.ResponseError as exc:
            self._note("Cannot add to the metrics", exc)
            return
        now_s = int(seconds)
        parts = [(name, part) for name, numbers in pending.items() for part in _parts(numbers)]
        calls = [count(QueueKeys.of(self._first_list(name)), now_s=now_s, numbers=numbers) for name, numbers in parts]
        try:
            replies = run_each(client, calls)
        except LOST:
            for name, numbers in parts:
                self._recorder.settle(name, numbers)
            raise
        for (name, numbers), reply in zip(parts, replies, strict=True):
            if isinstance(reply, exceptions.ResponseError):
                self._note(f"Cannot add to the metrics of {name!r}", reply)
            else:
                self._recorder.settle(name, numbers)
                refusals.end(client, logger, has_added=True)
        self._record(client, sorted(set(map(self._first_list, pending))), now_s)

    def _record(self, client: redis.Redis, names: list[str], now_s: int) -> None:
        """Record for which lists something was counted, so that it is found when their queues are empty."""
        now = time.monotonic()
        stale = {n: now_s for n in names if now - self._recorded_at.get(n, -_RECORDED_FOR_S) >= _RECORDED_FOR_S}
        if not stale:
            return
        try:
            with hurried(client).pipeline(transaction=False) as pipe:  # on a cluster, it may be at another node
                pipe.zadd(self._index, stale)
                pipe.zremrangebyscore(self._index, "-inf", now_s - TOTALS_S)
                pipe.expire(self._index, TOTALS_S)
                pipe.execute()
        except (*CONNECTION_ERRORS, exceptions.ResponseError) as exc:
            self._note(f"Cannot write {self._index!r}", exc)
            return
        self._recorded_at.update(dict.fromkeys(stale, now))

    def _note(self, what: str, exc: Any) -> None:
        """Log an error once; those of a server that will be back soon are not worth it."""
        if isinstance(exc, LOST) or refusals.note(exc, logger):
            logger.debug("%s: %s", what, exc)
            return
        reason = str(exc).rpartition(" of pipeline caused error: ")[2].rstrip(".")  # the command has a time in it
        if reason not in self._logged:
            self._logged.add(reason)
            logger.warning("%s: %s. Retrying every ten seconds; nothing else is affected", what, reason)


def _parts(numbers: dict[str, int]) -> list[dict[str, int]]:
    items = list(numbers.items())
    return [dict(items[begin : begin + _MOST]) for begin in range(0, len(items), _MOST)]
