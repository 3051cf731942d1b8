"""FetchingQoS: acknowledges messages in the consumer's in-flight list, and keeps kombu's prefetch count."""

from __future__ import annotations

from logging import getLogger
from typing import Any

from kombu.transport import redis as kombu_redis
from kombu.transport import virtual
from redis.exceptions import ResponseError

from celery_delayq.queue.connections import NOT_SERVING, refusals

logger = getLogger(__name__)


class FetchingQoS(virtual.QoS):
    """Replaces kombu's `QoS` for Redis, which uses `unacked`, a visibility timeout and three commands per message.

    Overrides of `kombu.transport.virtual.QoS` (5.6 and 5.7): `ack`, `reject`, `restore_unacked`, `restore_visible`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # It would keep the connection for as long as the process lives. The watchdog puts the messages back.
        self._on_collect.cancel()

    #: The server's last error when messages were restored.
    _refused = ""

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message; never raises for a lost connection, see `Consumer.ack`."""
        self.channel.ack(delivery_tag)
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Drop a message, or put it to the back of its queue, as kombu's Redis transport does."""
        if requeue:
            self.channel.requeue(delivery_tag)
        else:
            self.channel.ack(delivery_tag)
        super().ack(delivery_tag)

    def forget(self, delivery_tag: str) -> None:
        """Forget a message that is not delivered after all."""
        super().ack(delivery_tag)

    def restore_unacked(self) -> list[Any]:
        """Put all messages whose tasks do not run back to the front of their queues, in their old order."""
        self._flush()
        self.channel.put_back(list(self._delivered))
        self._delivered.clear()
        return []

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        """Restore messages that workers with kombu's own transport left in `unacked`, as those workers would.

        This is optional: if the server refuses it (no permission, or its memory is full), everything else goes on.
        """
        try:
            kombu_redis.QoS.restore_visible(self._kombus, *args, **kwargs)
        except NOT_SERVING:
            raise
        except ResponseError as exc:
            if not refusals.note(exc, logger) and str(exc) != self._refused:
                self._refused = str(exc)
                logger.warning("Cannot restore messages that workers with kombu's own transport left behind: %s", exc)

    @property
    def _kombus(self) -> Any:
        if self.__dict__.get("_kombu_qos") is None:
            self._kombu_qos = kombu_redis.QoS(self.channel)
            self._kombu_qos._on_collect.cancel()  # it holds nothing to restore
        return self._kombu_qos
