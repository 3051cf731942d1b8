"""Publisher: recognizes a publication that kombu or Celery repeats because its reply was lost.

Nobody says that a publication is a repetition. It is if it is the same message over the same kombu connection, none has
been published there since, and either kombu passes the same properties again, or the last attempt has failed just now:
Celery makes the message of the next task in a chain anew. Connections are few, are used by one thread at a time, and
outlive the sockets.
"""

from __future__ import annotations

import math
import os
import time
import weakref
from typing import Any

from celery_delayq.queue.call import Attempt

#: So long after a failure, in seconds, the same message is another publication: of a task with a fixed id, for example.
SOON_S = 10.0

#: Those whose connections are collected, for the next ones. With `broker_pool_limit=0`, each publication has a
#: connection of its own, and Redis would keep a record of each for ten minutes. Safe in all threads without a lock:
#: `pop` and `append` are atomic with the GIL and without it.
_free: list[Publisher] = []


class Publisher:
    """What one kombu connection publishes."""

    def __init__(self) -> None:
        self._name = os.urandom(8).hex()
        #: How many publications have succeeded.
        self._done = 0
        self._properties: object = None
        self._failed_at = -math.inf

    @classmethod
    def of(cls, connection: Any) -> Publisher:
        """Return the publisher of a kombu connection, the same one each time."""
        found: Publisher | None = vars(connection).get("delayq_publisher")
        if found is None:
            try:
                found = _free.pop()
                found.succeeded()  # what another connection publishes is another publication
            except IndexError:
                found = cls()
            connection.delayq_publisher = found
            weakref.finalize(connection, _free.append, found).atexit = False
        return found

    def attempt(self, message_tag: str) -> Attempt:
        """Return what makes an attempt to publish a message the same publication as the attempts before it.

        Args:
            message_tag: a hash of the message, 32 hexadecimal digits.
        """
        # A forked child may have a copy of this, and publish the same message.
        name = f"{self._name}{os.getpid():x}"
        return Attempt(name, ((int(message_tag, 16) + self._done) % 2**128).to_bytes(16, "big"))

    def begins(self, properties: object) -> None:
        """Record that a message is published, or published again; `properties` are those that kombu has passed."""
        if properties is not self._properties and time.monotonic() > self._failed_at + SOON_S:
            self._done += 1
        self._properties = properties

    def failed(self) -> None:
        """Record that the caller was told of an error."""
        self._failed_at = time.monotonic()

    def succeeded(self) -> None:
        """Record that the caller was told of a success: the same message is another publication from now on."""
        self._done += 1
        self._properties, self._failed_at = None, -math.inf
