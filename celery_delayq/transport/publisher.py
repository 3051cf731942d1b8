"""Publisher: recognizes a publication that kombu or Celery repeats because its reply was lost.

Nobody says that a publication is a repetition: it is the same message over the same kombu connection, and none has been
published there since. Connections are few, are used by one thread at a time, and outlive the sockets.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import weakref
from typing import Any

from celery_delayq.queue.attempt import Attempt

#: Those whose connections are collected, for the next ones. With `broker_pool_limit=0`, each publication has a
#: connection of its own, and Redis would keep a record of each for ten minutes.
_free: list[Publisher] = []


class Publisher:
    """What one kombu connection publishes."""

    def __init__(self) -> None:
        self._name = secrets.token_hex(8)
        #: How many publications have succeeded.
        self._done = 0

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
            message_tag: the same one for the same message.
        """
        what = f"{self._done} {message_tag}"
        # A forked child may have a copy of this, and publish the same message.
        name = f"{self._name}{os.getpid():x}"
        return Attempt(name, hashlib.blake2b(what.encode(), digest_size=16).digest())

    def succeeded(self) -> None:
        """Record that the caller was told of a success: the same message is another publication from now on."""
        self._done += 1
