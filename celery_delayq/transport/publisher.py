"""Publisher: recognizes a publication that kombu or Celery repeats because its reply was lost.

Nobody says that a publication is a repetition: it is the same message over the same kombu connection, and none has been
published there since. Connections are few, are used by one thread at a time, and outlive the sockets.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from typing import Any

from celery_delayq.queue.attempt import Attempt


class Publisher:
    """What one kombu connection publishes."""

    def __init__(self) -> None:
        self._name = secrets.token_hex(8)
        #: How many publications have succeeded.
        self._done = 0

    @classmethod
    def of(cls, connection: Any) -> Publisher:
        """Return the publisher of a kombu connection, the same one each time."""
        found = vars(connection).get("delayq_publisher")
        if not isinstance(found, cls):
            found = connection.delayq_publisher = cls()
        return found

    def attempt(self, message_tag: str) -> Attempt:
        """Return what makes an attempt to publish a message the same publication as the attempts before it.

        Args:
            message_tag: the same one for the same message.
        """
        # A forked child may have a copy of this, and publish the same message.
        what = f"{os.getpid()} {self._done} {message_tag}"
        return Attempt(self._name, hashlib.blake2b(what.encode(), digest_size=16).digest())

    def succeeded(self) -> None:
        """Record that the caller was told of a success: the same message is another publication from now on."""
        self._done += 1
