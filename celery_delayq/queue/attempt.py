"""Attempt: what makes a publication that is repeated the same one, see `lua/lib/once.lua`."""

from __future__ import annotations

from dataclasses import dataclass

from celery_delayq.queue.keys import QueueKeys


@dataclass(frozen=True)
class Attempt:
    """A publication that its publisher repeats if it misses the reply.

    Attributes:
        publisher: names the record of what it stored last.
        token: 16 bytes, the same ones each time that it is repeated.
    """

    publisher: str
    token: bytes

    def record(self, keys: QueueKeys) -> str:
        """Return the name of the record of what its publisher stored last in a list."""
        return keys.published(self.publisher)
