"""Replies: reads the queues of a cluster that are consumed without acknowledgement, as the replies to `inspect` are.

On a single server, kombu reads all of them with one BRPOP. On a cluster, they are on several nodes, so each takes a
connection.
"""

from __future__ import annotations

import time
from logging import getLogger
from typing import Any

from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads
from redis import exceptions

from celery_delayq.queue.connections import CONNECTION_ERRORS, connection_of, refusals
from celery_delayq.queue.redirection import is_redirection, understood
from celery_delayq.transport.protocols import OfCluster

logger = getLogger(__name__)

#: How long the server waits at most for a message, in seconds.
_BLOCK_S = 10

#: Pause before a queue whose slot is on its way to another node is tried again, and before a worker tries a lost node
#: again, in seconds.
_MOVING_S, _LOST_S = 0.1, 1.0


class _Reading:
    """A connection that waits for messages of one queue."""

    def __init__(self, pool: Any, queue: str, names: list[str]) -> None:
        self.queue = queue
        self._names = names
        self.is_armed = False
        self.connection = connection_of(pool)
        self.connection.connect()

    def fileno(self) -> int:
        sock = getattr(self.connection, "_sock", None)
        return -1 if sock is None else int(sock.fileno())

    def arm(self) -> None:
        if not self.is_armed:
            self.connection.send_command("BRPOP", *self._names, _BLOCK_S)
            self.is_armed = True

    def read(self) -> bytes | None:
        """Return a message; None if there is none."""
        if self.fileno() < 0:
            raise exceptions.ConnectionError(f"the connection that waited for messages of {self.queue!r} was lost")
        if not self.connection.can_read(timeout=0):
            return None
        self.is_armed = False
        found: Any = self.connection.read_response(disable_decoding=True)
        return found and bytes(found[1])


class Replies:
    """Those of one channel. For the consuming thread.

    Args:
        channel: a `ClusterChannel`.
    """

    def __init__(self, channel: OfCluster) -> None:
        self._channel = channel
        self._readings: dict[str, _Reading] = {}
        #: Queue -> when its node is tried again (monotonic).
        self._again_at: dict[str, float] = {}

    def wait(self) -> None:
        """Wait on the servers for messages of all such queues.

        Raises:
            redis.ConnectionError: a node is away; never in a worker, which goes on with the others.
        """
        queues = self._channel.reply_queues
        for queue in self._readings.keys() - set(queues):
            if not self._readings[queue].is_armed:  # otherwise a message may be on its way
                self._drop(queue)
        if not self._channel.qos.can_consume():
            return
        for queue in queues:
            if time.monotonic() < self._again_at.get(queue, 0.0):
                continue
            try:
                self._arm(queue)
            except CONNECTION_ERRORS as exc:
                self._lose(queue, exc)

    def _arm(self, queue: str) -> None:
        reading = self._readings.get(queue)
        if reading is None:
            names = self._channel.broker_lists(queue)
            node = self._channel.plain_client.node_of(names[0])
            if self._channel.connection.stations:
                node = node.hurried()
            reading = self._readings[queue] = _Reading(node.client.connection_pool, queue, names)
            self._channel.connection.cycle.add_slot(reading, self)
        reading.arm()

    def _lose(self, queue: str, exc: Exception) -> None:
        """Give up the connection for a queue.

        Raises:
            redis.ConnectionError: always, unless in a worker, or the queue is not consumed any more.
        """
        if queue in self._readings:
            self._drop(queue)
        if queue not in self._channel.reply_queues:
            return  # as those are to a worker's questions to others at its start
        if not self._channel.connection.stations:
            raise exc
        self._pause(queue, _LOST_S)

    def _pause(self, queue: str, seconds: float) -> None:
        self._again_at[queue] = time.monotonic() + seconds
        self._channel.nodes.watch()
        self._channel.connection.cycle.wake_in(seconds)

    def on_readable(self, reading: _Reading) -> bool:
        """Deliver a message; returns whether there was one.

        Raises:
            redis.ConnectionError: the node is lost; never in a worker. What it had just sent is lost, too, as with
                kombu's own transport.
        """
        try:
            message = reading.read()
        except exceptions.ResponseError as exc:
            self._drop(reading.queue)
            if is_redirection(understood(exc)):
                self._pause(reading.queue, _MOVING_S)
            elif refusals.note(exc, logger):
                self._pause(reading.queue, _LOST_S)
            else:
                raise
            return False
        except CONNECTION_ERRORS as exc:
            self._lose(reading.queue, exc)
            return False
        if message is None or reading.queue not in self._channel.reply_queues:
            return False
        self._channel.connection._deliver(loads(bytes_to_str(message)), reading.queue)
        return True

    def close(self) -> None:
        """Close all connections."""
        for queue in list(self._readings):
            self._drop(queue)

    def _drop(self, queue: str) -> None:
        reading = self._readings.pop(queue)
        if self._channel.connection is not None:
            self._channel.connection.cycle.remove_slot(reading)
        reading.connection.disconnect()
