"""What a consumer holds, and how it is rewritten when it is delivered again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

#: How a message is written when it is delivered again: by its consumer, or because its consumer is gone. The latter
#: also tells whether it belongs in the dead list now.
PutBack = Callable[[bytes], bytes]
Recover = Callable[[bytes], tuple[bytes, bool]]


@dataclass(frozen=True)
class Held:
    """A message that a consumer holds: from which broker list, and its bytes."""

    name: str
    message: bytes


@dataclass(frozen=True)
class Redelivery:
    """How messages are rewritten when they are delivered again; this module does not look into them.

    Attributes:
        put_back: by the consumer itself.
        recover: because the consumer is gone; also tells whether it is dead now.
        on_dead: called with each message (as it was stored) that was moved to the dead list.
    """

    put_back: PutBack = lambda message: message
    recover: Recover = lambda message: (message, False)
    on_dead: Callable[[str, bytes], None] = lambda name, message: None
