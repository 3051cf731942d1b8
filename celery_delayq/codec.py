"""Pack and unpack the entries of a timeout set; pure functions.

An entry is an id and a payload. Redisson has had two packings, both little-endian on the wire:

- current: one byte of id length, the id, eight bytes of payload length, the payload (`struct.pack('Bc0Lc0', ...)`)
- before 3.21.1: an eight-byte double, eight bytes of payload length, the payload (`struct.pack('dLc0', ...)`)

Redisson's id is eight random bytes. Ours has 24 and says more: when the entry was offered (microseconds, big-endian,
so that entries of one due time, which Redis orders by their bytes, run in the order in which they were offered), its
kind, and a key made of the message id. The length is constant because an entry begins with it; a hash keeps it so for
message ids of any length, and short: 24 bytes are what a pending message costs beside its payload.

The scripts in `lua/` read the same layout at fixed offsets; `tests/lua` compares the two.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

from celery_delayq.errors import InvalidEntry

#: Size in bytes of the key made of a message id.
MESSAGE_KEY_SIZE = 16
#: Size in bytes of what the index says of an entry: when it is due, and when it was offered.
PLACE_SIZE = 16
#: Size in bytes of an id of ours.
ID_SIZE = 7 + 1 + MESSAGE_KEY_SIZE

#: The kind of an entry that this package offered: this value, plus the flags below.
KIND = 0xD0
#: Flag: the entry is in Redisson's delay list too.
MIRRORED = 1
#: Flag: when it was offered, another entry of the same message id was waiting.
REPEATED = 2

_LENGTH = struct.Struct("<Q")


def message_key(message_id: str) -> bytes:
    """Return the 16 bytes that stand for a message id in entries and in the index.

    Raises:
        TypeError: the id is not text.
    """
    if not isinstance(message_id, str):
        raise TypeError(f"a message id must be a str, not {message_id!r}")
    return hashlib.blake2b(message_id.encode("utf-8", "surrogatepass"), digest_size=MESSAGE_KEY_SIZE).digest()


def index_fields(message_id: str) -> tuple[bytes, bytes]:
    """Return the fields of the index for a message id: that of an entry, and that of an earlier version."""
    key = message_key(message_id)
    return key, key + b"+"


def repeated_range(message_id: str) -> tuple[bytes, bytes]:
    """Return between which members, by ZRANGEBYLEX, the places of a message id's further entries are."""
    key = message_key(message_id)
    return b"[" + key, b"[" + key + b"\xff" * PLACE_SIZE


@dataclass(frozen=True)
class OfferId:
    """The id of an entry that this package offered.

    Attributes:
        offered_us: when it was offered, unix time in microseconds by the server's clock.
        message_key: what `message_key` made of the message id.
        mirrored: whether the entry is in Redisson's delay list too.
        repeated: whether another entry of the same message id was waiting at that time.
    """

    offered_us: int
    message_key: bytes
    mirrored: bool = False
    repeated: bool = False

    def to_bytes(self) -> bytes:
        """Return the 24 bytes of the id."""
        kind = KIND | (MIRRORED if self.mirrored else 0) | (REPEATED if self.repeated else 0)
        return self.offered_us.to_bytes(7, "big") + bytes((kind,)) + self.message_key

    @classmethod
    def from_bytes(cls, raw: bytes) -> OfferId | None:
        """Return the id, or None if `raw` is not an id of ours (Redisson's own, for example)."""
        if len(raw) != ID_SIZE or raw[7] & ~(MIRRORED | REPEATED) != KIND:
            return None
        return cls(
            int.from_bytes(raw[:7], "big"),
            raw[8:],
            mirrored=bool(raw[7] & MIRRORED),
            repeated=bool(raw[7] & REPEATED),
        )


def pack(entry_id: bytes, payload: bytes) -> bytes:
    """Pack an entry in the current packing.

    Source: Redisson 4.7 `RedissonDelayedQueue.offerAsync`.
    """
    return bytes((len(entry_id),)) + entry_id + _LENGTH.pack(len(payload)) + payload


def unpack(entry: bytes) -> tuple[bytes, bytes]:
    """Split an entry of either packing into id and payload.

    The packings can be told apart because only the right one has a length that adds up; the current one is
    preferred.

    Raises:
        InvalidEntry: neither length adds up.
    """
    if entry:
        for id_start, id_end in ((1, 1 + entry[0]), (0, 8)):
            payload_start = id_end + _LENGTH.size
            if len(entry) < payload_start:
                continue
            if _LENGTH.unpack_from(entry, id_end)[0] == len(entry) - payload_start:
                return entry[id_start:id_end], entry[payload_start:]
    raise InvalidEntry(f"no entry of a delayed queue ({len(entry)} bytes): {entry[:40]!r}")
