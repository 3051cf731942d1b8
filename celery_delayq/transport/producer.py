"""A producer for many messages in a row."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

import kombu


class Producer(kombu.Producer):
    """kombu's producer, that looks once at each queue whether it is declared; kombu's binds the queue anew each time.

    What was declared is forgotten with the channel, see `revive`.

    Attributes:
        published: the options with which `publish` was called last, its headers as they were then.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.published: dict[str, Any] = {}
        super().__init__(*args, **kwargs)

    def publish(self, body: Any, **options: Any) -> Any:
        """Publish a message, see kombu."""
        self.published = {**options, "headers": dict(options.get("headers") or {})}
        return super().publish(body, **options)

    def revive(self, channel: Any) -> None:
        """Use another channel, see kombu."""
        self._declared: WeakValueDictionary[int, Any] = WeakValueDictionary()
        super().revive(channel)

    def maybe_declare(self, entity: Any, retry: bool = False, **retry_policy: Any) -> Any:
        """Declare a queue or an exchange that this producer has not seen yet."""
        if id(entity) not in self._declared:
            super().maybe_declare(entity, retry, **retry_policy)
            self._declared[id(entity)] = entity
