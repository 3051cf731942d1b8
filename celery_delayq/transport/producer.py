"""A producer for many messages in a row."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

import kombu


class Producer(kombu.Producer):
    """kombu's producer, but it declares each queue only once; kombu's own binds the queue again each time.

    It forgets what was declared when the channel changes, see `revive`.

    Attributes:
        published: the options of the last call of `publish`, with a copy of its headers.
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
