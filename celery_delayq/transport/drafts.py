"""Drafts: what Celery would publish, as Redis commands for a transaction of the caller's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Drafts:
    """Makes commands of what is published on a channel, and sends nothing.

    The channel is of no other use from then on.

    Args:
        channel: one of our transport.
    """

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self._commands: list[tuple[Any, ...]] = []
        channel._put = self._keep  # as an attribute of the channel, it hides the method of its class

    def of(self, publish: Callable[[], object]) -> list[tuple[Any, ...]]:
        """Return one command for each message that `publish` publishes."""
        self._commands = []
        publish()
        return self._commands

    def _keep(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        self._commands.append(self.channel.command_to_publish(queue, message))
