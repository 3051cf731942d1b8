"""The broker lists of an app: their names, queues and priorities, and which of them hold a message id."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from celery_delayq.queue import codec
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.registry import registered

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


class BrokerLists:
    """The broker lists that have a delayed queue, and those of the app's queues.

    Like its channel, it is for one thread at a time. Every method raises `redis.RedisError` if the server is away or
    refuses a command.

    Args:
        channel: a channel of our transport.
        queues: names of the app's queues.
    """

    def __init__(self, channel: Any, queues: Iterable[str] = ()) -> None:
        self.channel = channel
        self.client = channel.plain_client
        self._queues = tuple(queues)

    def now_ms(self) -> int:
        """Return the server's time, unix time in ms."""
        return self.now_us() // 1000

    def now_us(self) -> int:
        """Return the server's time, unix time in microseconds."""
        seconds, microseconds = self.client.time()
        return int(seconds) * 1_000_000 + int(microseconds)

    def all(self, queue: str | None = None) -> list[BrokerList]:
        """Return the lists, sorted by name; only those of one queue if it is given."""
        names = registered(self.client, self.channel.global_keyprefix)
        for known in self._queues:
            names.update(self.channel.broker_lists(known))
        return sorted(found for found in map(self.parse, names) if queue in (None, found.queue))

    def exists(self, queue: str) -> bool:
        """Return whether there is a queue of this name: a task waits for it, or somebody has published to it.

        Source: kombu 5.7 `transport.redis.Channel.keyprefix_queue`. These are the exchange's bindings, which stay.
        """
        if any(found.queue == queue for found in self.all()):
            return True
        bindings = f"{self.channel.global_keyprefix}{self.channel.keyprefix_queue % (queue,)}"
        return bool(self.client.exists(bindings, *self.channel.broker_lists(queue)))

    def waiting(self, queue: str | None = None) -> list[BrokerList]:
        """Return the lists that have waiting messages."""
        lists = self.all(queue)
        with self.client.pipeline(transaction=False) as pipe:
            for found in lists:
                pipe.zcard(self.delayed_queue(found).keys.timeout_set)
            return [found for found, size in zip(lists, pipe.execute(), strict=True) if size]

    def parse(self, name: str) -> BrokerList:
        """Return the list with this full name.

        Source: kombu 5.7 `transport.redis.Channel._q_for_pri`.
        """
        plain = name.removeprefix(self.channel.global_keyprefix)
        queue, _, step = plain.rpartition(self.channel.sep)
        if queue and step.isdecimal():
            return BrokerList(name, self.channel.queue_of(queue), int(step))
        return BrokerList(name, plain, 0)

    def delayed_queue(self, broker_list: BrokerList) -> DelayedQueue:
        """Return the delayed queue of a list."""
        queue: DelayedQueue = self.channel.delayed_queue(broker_list.name)
        return queue

    def holding(self, message_ids: Sequence[str]) -> tuple[dict[str, list[DelayedQueue]], Exception | None]:
        """Find the lists that hold these message ids. One or two round trips for 500 ids.

        Returns:
            For each id, the delayed queues that have a place for it; and the error of a list that could not be read:
            the server refuses it, or its node of a cluster is away.
        """
        queues = [self.delayed_queue(found) for found in self.all()]
        holders: dict[str, list[DelayedQueue]] = {message_id: [] for message_id in message_ids}
        refused: Exception | None = None
        ids = list(holders)
        for start in range(0, len(ids), _IDS_A_COMMAND):
            part = ids[start : start + _IDS_A_COMMAND]
            fields = [field for message_id in part for field in codec.index_fields(message_id)]
            with self.client.pipeline(transaction=False) as pipe:
                for queue in queues:
                    pipe.hmget(queue.keys.index, fields)
                    pipe.zcard(queue.keys.repeated)
                answers = pipe.execute(raise_on_error=False)
            for queue, places, repeated in zip(queues, answers[::2], answers[1::2], strict=True):
                errors = [answer for answer in (places, repeated) if isinstance(answer, Exception)]
                if errors:
                    refused = errors[0]
                    continue
                found = [any(places[at : at + 2]) for at in range(0, len(places), 2)]
                if repeated:
                    found = [one or more for one, more in zip(found, self._repeated(queue, part), strict=True)]
                for message_id, is_there in zip(part, found, strict=True):
                    if is_there:
                        holders[message_id].append(queue)
        return holders, refused

    def _repeated(self, queue: DelayedQueue, message_ids: Sequence[str]) -> list[bool]:
        """Return, for each id, whether the queue has further entries of it."""
        with self.client.pipeline(transaction=False) as pipe:
            for message_id in message_ids:
                pipe.zlexcount(queue.keys.repeated, *codec.repeated_range(message_id))
            return [bool(found) for found in pipe.execute()]
