"""Entries, byte for byte as Redisson has them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.basics.errors import InvalidEntry
from celery_delayq.queue import codec
from celery_delayq.queue.codec import OfferId, message_key, pack, unpack

#: What Redisson writes today for the id "12345678" and the payload "pay".
CURRENT = b"\x08" + b"12345678" + b"\x03\x00\x00\x00\x00\x00\x00\x00" + b"pay"

#: What Redisson before 3.21.1 wrote for the id 0.5 and the payload "pay".
OLD = b"\x00\x00\x00\x00\x00\x00\xe0\x3f" + b"\x03\x00\x00\x00\x00\x00\x00\x00" + b"pay"


class TestGoldenBytes:
    def test_the_current_packing_is_written(self) -> None:
        assert pack(b"12345678", b"pay") == CURRENT

    def test_the_current_packing_is_read(self) -> None:
        assert unpack(CURRENT) == (b"12345678", b"pay")

    def test_the_old_packing_is_read(self) -> None:
        assert unpack(OLD) == (struct.pack("<d", 0.5), b"pay")

    def test_an_id_of_ours(self) -> None:
        offer_id = OfferId(
            offered_us=0x01020304050607,
            message_key=b"0123456789abcdef",
            mirrored=True,
            repeated=True,
        )
        assert offer_id.to_bytes() == b"\x01\x02\x03\x04\x05\x06\x07\xd30123456789abcdef"

    @pytest.mark.parametrize(
        ("mirrored", "repeated", "kind"),
        [(False, False, 0xD0), (True, False, 0xD1), (False, True, 0xD2), (True, True, 0xD3)],
    )
    def test_the_kind_of_an_id_says_where_else_the_entry_is(self, mirrored: bool, repeated: bool, kind: int) -> None:
        raw = OfferId(1, bytes(16), mirrored=mirrored, repeated=repeated).to_bytes()
        assert raw[7] == kind

    def test_the_key_of_a_message_id_never_changes(self) -> None:
        """A new version must find what an old one has stored."""
        key = message_key("d9e2a2b4-5d7e-4e2f-9f63-0d3b1f1f8c11")
        assert key.hex() == "b5f5b04fd9d740aa78d59dfb54c7cb3e"


class TestRoundTrips:
    @given(st.binary(max_size=255), st.binary())
    def test_of_an_entry(self, entry_id: bytes, payload: bytes) -> None:
        assert unpack(pack(entry_id, payload)) == (entry_id, payload)

    @given(st.floats(), st.binary())
    def test_of_an_old_entry_unless_it_is_a_current_one_as_well(self, entry_id: float, payload: bytes) -> None:
        entry = struct.pack(f"<dQ{len(payload)}s", entry_id, len(payload), payload)
        found_id, found_payload = unpack(entry)
        as_old = (entry[:8], payload)
        as_current = pack(found_id, found_payload) == entry
        assert as_current or (found_id, found_payload) == as_old

    @given(
        st.integers(0, 2**56 - 1),
        st.binary(min_size=16, max_size=16),
        st.booleans(),
        st.booleans(),
    )
    def test_of_an_id(self, offered_us: int, key: bytes, mirrored: bool, repeated: bool) -> None:
        offer_id = OfferId(offered_us, key, mirrored, repeated)
        assert OfferId.from_bytes(offer_id.to_bytes()) == offer_id

    @given(st.binary(max_size=40))
    def test_of_bytes_that_are_an_entry_by_chance(self, raw: bytes) -> None:
        try:
            entry_id, payload = unpack(raw)
        except InvalidEntry:
            return
        length = len(payload).to_bytes(8, "little")
        assert raw in (pack(entry_id, payload), entry_id + length + payload)


class TestWhatIsNoEntry:
    @pytest.mark.parametrize(
        "raw",
        [
            b"",
            b"\x08",
            b"garbage",
            CURRENT[:-1],
            CURRENT + b"x",
            OLD[:-1],
            OLD + b"x",
            b"\xff" + CURRENT[1:],
            b"\x00" * 8,
            b"\xff" * 64,
            b'{"id": "a", "task": "shop.cancel"}',
        ],
    )
    def test_is_refused(self, raw: bytes) -> None:
        with pytest.raises(InvalidEntry, match=f"{len(raw)} bytes"):
            unpack(raw)

    def test_an_entry_that_is_both_packings_is_taken_for_the_current_one(self) -> None:
        sixteen, eight = struct.pack("<Q", 16), struct.pack("<Q", 8)
        ambiguous = b"\x0f1234567" + sixteen + eight + b"8 bytes."
        assert struct.unpack("<dQ16s", ambiguous)[2] == eight + b"8 bytes."
        assert unpack(ambiguous) == (b"1234567" + sixteen, b"8 bytes.")

    @pytest.mark.parametrize(
        "raw",
        [b"", b"12345678", bytes(24), b"\x00" * 7 + b"\xd8" + bytes(16), bytes(7) + b"\xd0" + bytes(17)],
    )
    def test_an_id_of_someone_else(self, raw: bytes) -> None:
        assert OfferId.from_bytes(raw) is None


class TestOrder:
    @given(
        st.lists(st.tuples(st.text(), st.booleans(), st.booleans(), st.binary()), max_size=8),
        st.integers(0, 2**56 - 10),
    )
    def test_of_bytes_is_that_of_the_offers(self, messages: list[tuple[str, bool, bool, bytes]], start_us: int) -> None:
        """Whatever their message ids, kinds and payloads are: Redis orders one due time by bytes."""
        entries = [
            pack(
                OfferId(start_us + i, message_key(message_id), mirrored, repeated).to_bytes(),
                payload,
            )
            for i, (message_id, mirrored, repeated, payload) in enumerate(messages)
        ]
        assert sorted(entries) == entries


class TestMessageKey:
    @given(st.text(st.characters()), st.text(st.characters()))
    def test_any_text_has_one_and_different_texts_have_different_ones(self, one: str, other: str) -> None:
        assert len(message_key(one)) == codec.MESSAGE_KEY_SIZE
        assert (message_key(one) == message_key(other)) == (one == other)

    def test_even_text_that_is_no_unicode(self) -> None:
        assert len(message_key("\ud800")) == codec.MESSAGE_KEY_SIZE
