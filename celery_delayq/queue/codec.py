"""Pack and unpack the entries of a timeout set; pure functions.

An entry is an id and a payload. Redisson has had two packings, both little-endian on the wire:

- current: one byte of id length, the id, eight bytes of payload length, the payload (`struct.pack('Bc0Lc0', ...)`)
- before 3.21.1: an eight-byte double, eight bytes of payload length, the payload (`struct.pack('dLc0', ...)`)

Redisson's id is eight random bytes. Our id has 24 bytes: the time of the offer in microseconds, the kind of the entry,
and a key made from the message id. The time is big-endian: Redis orders entries with the same due time by their bytes,
so they run in the order in which they were offered. The key is a hash, so the id has a constant length for message ids
of any length. It must be constant, because an entry begins with this length. A pending message costs 24 bytes in
addition to its payload.

The scripts in `lua/` read the same layout at fixed offsets; `tests/lua` compares the two.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

from celery_delayq.basics.errors import InvalidEntry

#: Size in bytes of the key made from a message id.
MESSAGE_KEY_SIZE = 16
#: Size in bytes of a place in the index: due time and time of the offer.
PLACE_SIZE = 16
#: Size in bytes of our ids.
ID_SIZE = 7 + 1 + MESSAGE_KEY_SIZE

#: The kind of an entry that this package offered is this value plus the flags below.
KIND = 0xD0
#: Flag: the entry is also in Redisson's delay list.
MIRRORED = 1
#: Flag: another entry of the same message id was waiting at the time of the offer.
REPEATED = 2
#: Flag: the message holds a unique key. Such an entry is never repeated.
UNIQUE = 4
_FLAGS = MIRRORED | REPEATED | UNIQUE

_LENGTH = struct.Struct("<Q")


def message_key(message_id: str) -> bytes:
    """Return the 16 bytes that represent a message id in entries and in the index.

    Raises:
        TypeError: the id is not a string.
    """
    if not isinstance(message_id, str):
        raise TypeError(f"a message id must be a str, not {message_id!r}")
    return hashlib.blake2b(message_id.encode("utf-8", "surrogatepass"), digest_size=MESSAGE_KEY_SIZE).digest()


def repeated_range(message_id: str) -> tuple[bytes, bytes]:
    """Return the ZRANGEBYLEX range of the places of a message id's further entries."""
    key = message_key(message_id)
    return b"[" + key, b"[" + key + b"\xff" * PLACE_SIZE


@dataclass(frozen=True)
class OfferId:
    """The id of an entry that this package offered.

    Attributes:
        offered_us: when it was offered, unix time in microseconds by the server's clock.
        message_key: result of `message_key` for the message id.
        mirrored: whether the entry is also in Redisson's delay list.
        repeated: whether another entry of the same message id was waiting at that time.
        unique: whether the message holds a unique key.
    """

    offered_us: int
    message_key: bytes
    mirrored: bool = False
    repeated: bool = False
    unique: bool = False

    def to_bytes(self) -> bytes:
        """Return the 24 bytes of the id."""
        flags = MIRRORED * self.mirrored + REPEATED * self.repeated + UNIQUE * self.unique
        return self.offered_us.to_bytes(7, "big") + bytes((KIND | flags,)) + self.message_key

    @staticmethod
    def is_one(raw: bytes) -> bool:
        """Return whether this is one of our ids (and not Redisson's, for example)."""
        return len(raw) == ID_SIZE and raw[7] & ~_FLAGS == KIND

    @classmethod
    def from_bytes(cls, raw: bytes) -> OfferId | None:
        """Return the id, or None if `raw` is not one of our ids."""
        if not cls.is_one(raw):
            return None
        return cls(
            int.from_bytes(raw[:7], "big"),
            raw[8:],
            mirrored=bool(raw[7] & MIRRORED),
            repeated=bool(raw[7] & REPEATED),
            unique=bool(raw[7] & UNIQUE),
        )


def pack(entry_id: bytes, payload: bytes) -> bytes:
    """Pack an entry in the current packing.

    Source: Redisson 4.7 `RedissonDelayedQueue.offerAsync`.
    """
    return bytes((len(entry_id),)) + entry_id + _LENGTH.pack(len(payload)) + payload


def unpack(entry: bytes) -> tuple[bytes, bytes]:
    """Split an entry of either packing into id and payload.

    Only the right packing has a length that adds up. If both do, the current packing is preferred.

    Raises:
        InvalidEntry: the length adds up in neither packing.
    """
    if entry:
        for id_start, id_end in ((1, 1 + entry[0]), (0, 8)):
            payload_start = id_end + _LENGTH.size
            if len(entry) < payload_start:
                continue
            if _LENGTH.unpack_from(entry, id_end)[0] == len(entry) - payload_start:
                return entry[id_start:id_end], entry[payload_start:]
    raise InvalidEntry(f"not a valid entry of a delayed queue ({len(entry)} bytes): {entry[:40]!r}")
