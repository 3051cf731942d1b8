"""The broker lists of an app: their names, queues and priorities, and which of them hold a message id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import redis

from celery_delayq.inspector.away import Lost, LostQueue, NodesAway, execute, impatient, is_away, lost_queue, node_of
from celery_delayq.queue import codec, keys
from celery_delayq.queue.call import run_each
from celery_delayq.queue.connections import CONNECTION_ERRORS, as_text
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.measuring import Measured, measure
from celery_delayq.queue.paused import paused
from celery_delayq.queue.registry import registered
from celery_delayq.queue.waiting import scores_of

T = TypeVar("T")

#: Number of message ids that one command looks up.
_IDS_A_COMMAND = 500


@dataclass(frozen=True, order=True)
class BrokerList:
    """A broker list.

    Attributes:
        name: full name.
        queue: name of its queue, without `global_keyprefix`.
        priority: priority step.
    """

    name: str
    queue: str
    priority: int

    @property
    def label(self) -> str:
        """What to call it in a message: its name may end in kombu's separator, and a priority."""
        return f"{self.queue!r}, priority {self.priority}," if self.priority else repr(self.queue)


class BrokerLists:
    """The broker lists that have a delayed queue, and those of the app's queues.

    Like its channel, it is for one thread at a time. Every method raises `redis.RedisError` if the server is away or
    refuses a command. `known` and `waiting` go on without nodes of a cluster that are away, and say what is lost.

    Args:
        channel: a channel of our transport.
        queues: names of the app's queues.
        asking: see below.

    Attributes:
        client: a client for what may take long.
        asking: one that does not wait for a node of a cluster that hangs.
    """

    def __init__(self, channel: Any, queues: Iterable[str] = (), asking: redis.Redis | None = None) -> None:
        self.channel = channel
        self.client = channel.plain_client
        self.asking = impatient(self.client) if asking is None else asking
        self._queues = tuple(queues)

    def now_ms(self) -> int:
        """Return the server's time, unix time in ms."""
        return self.now_us() // 1000

    def now_us(self) -> int:
        """Return the server's time, unix time in microseconds; on a cluster that of any node."""
        try:
            seconds, microseconds = self.asking.time()
        except CONNECTION_ERRORS as exc:
            if not is_away(self.client, exc):
                raise
            seconds, microseconds = self.asking.time()  # of another node
        return int(seconds) * 1_000_000 + int(microseconds)

    def paused(self) -> frozenset[str]:
        """Return the names of the paused queues."""
        return paused(self.asking, self.channel.global_keyprefix)

    def known(self, *queues: str, also_counted: bool = False) -> tuple[list[BrokerList], Lost]:
        """Return the lists, sorted by name; only those of some queues if any are given.

        While the node of their names is away, these are the lists of the app's queues.

        Args:
            queues: names of queues. They need not be known.
            also_counted: whether to return those for which something was counted, too.
        """
        lost, names, prefix = Lost(), set[str](), self.channel.global_keyprefix
        key = keys.registry(prefix)
        try:
            names.update(registered(self.asking, prefix))
            if also_counted:
                key = keys.counted(prefix)
                names.update(map(as_text, self.asking.zrange(key, 0, -1)))
        except CONNECTION_ERRORS as exc:
            if not is_away(self.client, exc):
                raise
            if not queues:
                lost = Lost(registry=lost_queue(self.client, "", key, exc).reason)
        names.update(name for queue in queues for name in self.channel.broker_lists(queue))
        found = self.of_app() | {self.parse(name) for name in names if name}
        return sorted(one for one in found if not queues or one.queue in queues), lost

    def of_app(self) -> set[BrokerList]:
        """Return the lists of the app's queues."""
        return {self.parse(name) for queue in self._queues for name in self.channel.broker_lists(queue)}

    def all(self) -> list[BrokerList]:
        """Return all lists, sorted by name.

        Raises:
            NodesAway: they are not known, see `known`.
        """
        lists, lost = self.known()
        lost.check()
        return lists

    def exists(self, queue: str) -> bool:
        """Return whether there is a queue of this name: a task waits for it, or somebody has published to it.

        While nodes of a cluster are away that would know, there may be one.

        Source: kombu 5.7 `transport.redis.Channel.keyprefix_queue`. These are the exchange's bindings, which stay.
        """
        lists, lost = self.known()
        if lost or any(found.queue == queue for found in lists):
            return True
        bindings = f"{self.channel.global_keyprefix}{self.channel.keyprefix_queue % (queue,)}"
        try:
            # One by one: a name with odd braces has lists in several hash slots.
            return any(self.asking.exists(key) for key in (bindings, *self.channel.broker_lists(queue)))
        except CONNECTION_ERRORS as exc:
            if not is_away(self.client, exc):
                raise
            return True

    def waiting(
        self, *queues: str, due_from_ms: int | None = None, due_to_ms: int | None = None
    ) -> tuple[dict[BrokerList, int], Lost]:
        """Return the lists that have waiting messages, see `known`, with how many they are; and what is lost.

        Only what is due in a time span counts, both ends included. Corrupt entries count too. O(log N) for each list.
        """
        lists, lost = self.known(*queues)
        with self.asking.pipeline(transaction=False) as pipe:
            for found in lists:
                pipe.zcount(self.delayed_queue(found).keys.timeout_set, *scores_of(due_from_ms, due_to_ms))
            sizes = execute(self.asking, pipe)
        answered, lost = self.complete(dict(zip(lists, sizes, strict=True)), lost, partial=True)
        return {found: size for found, size in answered.items() if size}, lost

    def of_all_priorities(self, *queues: str) -> tuple[list[BrokerList], Lost]:
        """Return the lists that are known, and those of the other priorities of their queues; see `known`.

        Such a list may have ready messages, although it never had a delayed one.
        """
        known, lost = self.known(*queues)
        others = (name for queue in {found.queue for found in known} for name in self.channel.broker_lists(queue))
        return sorted({*known, *map(self.parse, others)}), lost

    def ready(self, *queues: str) -> tuple[dict[BrokerList, int | Exception], Lost]:
        """Return the lists of all known queues with the numbers of their messages, or errors; and what is lost.

        Args:
            queues: see `known`.
        """
        lists, lost = self.of_all_priorities(*queues)
        with self.asking.pipeline(transaction=False) as pipe:
            for found in lists:
                pipe.llen(found.name)
            return dict(zip(lists, pipe.execute(raise_on_error=False), strict=True)), lost

    def measure(
        self, lists: Iterable[BrokerList], now_ms: int | None = None, spans_ms: Sequence[int] = ()
    ) -> dict[BrokerList, Measured | Exception]:
        """Return the numbers of lists, or why a list cannot be read. Two round trips; a script call for each list.

        Args:
            lists: the lists.
            now_ms: the time that counts as now, unix time in ms; by default that of each server.
            spans_ms: spans within which messages become due, in ms.

        Raises:
            redis.ConnectionError: a single server is away.
        """
        chosen = list(lists)
        calls = [measure(self.delayed_queue(one).keys, now_ms=now_ms, spans_ms=spans_ms) for one in chosen]
        replies = run_each(self.asking, calls)
        found: dict[BrokerList, Measured | Exception] = dict(zip(chosen, replies, strict=True))
        holders = [(one, it, name) for one, it in found.items() if isinstance(it, Measured) for name in it.leases]
        with self.asking.pipeline(transaction=False) as pipe:
            for one, _, consumer in holders:
                pipe.llen(self.delayed_queue(one).keys.in_flight(consumer))
            for (one, numbers, consumer), reply in zip(holders, pipe.execute(raise_on_error=False), strict=True):
                if isinstance(reply, Exception):
                    found[one] = reply
                else:
                    numbers.in_flight[consumer] = reply
        return found

    def complete(
        self, replies: Mapping[BrokerList, T | Exception], lost: Lost, *, partial: bool
    ) -> tuple[dict[BrokerList, T], Lost]:
        """Return the replies of the queues of which all lists have answered; and what is lost.

        Args:
            replies: of each list, a reply or an error.
            lost: what was lost before.
            partial: whether something may be lost.

        Raises:
            NodesAway: nodes of a cluster are away, and `partial` is False.
            redis.RedisError: an error of `replies` is another one.
        """
        lost |= Lost(tuple(self.lose(one, reply) for one, reply in replies.items() if isinstance(reply, Exception)))
        if not partial:
            lost.check()
        without = {away.queue for away in lost.queues}
        return {
            one: reply
            for one, reply in replies.items()
            if not isinstance(reply, Exception) and one.queue not in without
        }, lost

    def lose(self, broker_list: BrokerList, error: Exception) -> LostQueue:
        """Return the queue that is lost by an error of its node. With a single server, raise the error."""
        if not is_away(self.client, error):
            raise error
        return lost_queue(self.client, broker_list.queue, broker_list.name, error)

    def node_of(self, broker_list: BrokerList) -> str | None:
        """Return host and port of the node of a cluster that has a list; None with a single server."""
        return node_of(self.client, broker_list.name)

    def parse(self, name: str) -> BrokerList:
        """Return the list with this full name."""
        return BrokerList(name, *self.channel.parse(name))

    def delayed_queue(self, broker_list: BrokerList) -> DelayedQueue:
        """Return the delayed queue of a list."""
        queue: DelayedQueue = self.channel.delayed_queue(broker_list.name)
        return queue

    def holding(self, message_ids: Sequence[str]) -> tuple[dict[str, list[DelayedQueue]], Exception | None]:
        """Find the lists that hold these message ids. One or two round trips for 500 ids.

        Returns:
            For each id, the delayed queues that have a place for it; and the error of a list that could not be read:
            the server refuses it, or its node of a cluster is away, or that of the names of all lists.
        """
        lists, lost = self.known()
        queues = [self.delayed_queue(found) for found in lists]
        holders: dict[str, list[DelayedQueue]] = {message_id: [] for message_id in message_ids}
        refused: Exception | None = None
        ids = list(holders)
        for start in range(0, len(ids), _IDS_A_COMMAND):
            part = ids[start : start + _IDS_A_COMMAND]
            fields = [codec.message_key(message_id) for message_id in part]
            with self.asking.pipeline(transaction=False) as pipe:
                for queue in queues:
                    pipe.hmget(queue.keys.index, fields)
                    pipe.zcard(queue.keys.repeated)
                answers = pipe.execute(raise_on_error=False)
            for broker_list, queue, places, repeated in zip(lists, queues, answers[::2], answers[1::2], strict=True):
                errors = [answer for answer in (places, repeated) if isinstance(answer, Exception)]
                if errors and is_away(self.client, errors[0]):
                    lost |= Lost((self.lose(broker_list, errors[0]),))
                if errors:
                    refused = errors[0]
                    continue
                found = [bool(place) for place in places]
                if repeated:
                    found = [one or more for one, more in zip(found, self._repeated(queue, part), strict=True)]
                for message_id, is_there in zip(part, found, strict=True):
                    if is_there:
                        holders[message_id].append(queue)
        return holders, NodesAway(lost) if lost else refused

    def _repeated(self, queue: DelayedQueue, message_ids: Sequence[str]) -> list[bool]:
        """Return, for each id, whether the queue has further entries of it."""
        with self.client.pipeline(transaction=False) as pipe:
            for message_id in message_ids:
                pipe.zlexcount(queue.keys.repeated, *codec.repeated_range(message_id))
            return [bool(found) for found in pipe.execute()]
