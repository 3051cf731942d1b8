"""How a message is written when it is delivered again: nothing of it is lost, and deliveries in vain are counted."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils.json import dumps, loads

from celery_delayq.queue.dead_letter import DELIVERY_LIMIT, NOT_A_MESSAGE, unpack
from celery_delayq.transport import messages, redelivery
from celery_delayq.transport.redelivery import ALONE, DELIVERY_COUNT

MESSAGE: dict[str, Any] = {
    "body": "W1tdLCB7fV0=",
    "content-encoding": "utf-8",
    "content-type": "application/json",
    "headers": {"id": "1", "task": "note", "lang": "py", "ümlaut": "\ud800 ☃"},
    "properties": {
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": "celery"},
        "priority": 0,
        "delivery_tag": "tag",
    },
}

#: What is no message of kombu's.
GARBAGE = [
    b"",
    b"garbage",
    b"\xff\xfe",
    b"5",
    b"null",
    b"[]",
    b"{}",
    b'{"properties": []}',
    b'{"properties": null}',
    b'{"properties": {}',
    b"[" * 100_000,
    b'{"properties": {"a": {"__type__": "uuid", "__value__": {"hex": "no"}}}}',
    b'{"properties": {"a": {"__type__": "datetime", "__value__": 5}}}',
    b'{"properties": {"a": {"__type__": "base64", "__value__": 5}}}',
    b'{"properties": {"a": {"__type__": "decimal", "__value__": "no"}}}',
    b'{"properties": {"a": {"__type__": [], "__value__": 1}}}',
]
any_garbage = pytest.mark.parametrize("raw", GARBAGE, ids=lambda raw: repr(raw[:70]))


def encode(**changes: Any) -> bytes:
    """Return the message with some of its parts changed, as kombu stores it."""
    return str(dumps({**MESSAGE, **changes})).encode()


def counted(deliveries: object) -> bytes:
    """Return the message with so many deliveries in vain."""
    return encode(headers={**MESSAGE["headers"], DELIVERY_COUNT: deliveries})


def recovered(raw: bytes, delivery_limit: int = 20) -> dict[str, Any]:
    """Return a message that goes back to its list."""
    again, dead = redelivery.recover(raw, delivery_limit)
    assert not dead
    return dict(loads(again.decode()))


class TestDecoding:
    @any_garbage
    def test_what_is_no_message(self, raw: bytes) -> None:
        assert messages.decode(raw, objects=True) is None

    @given(st.binary())
    def test_any_bytes(self, raw: bytes) -> None:
        assert messages.decode(raw, objects=True) is None

    def test_is_undone_by_encoding(self) -> None:
        values = [datetime(2030, 1, 1, tzinfo=timezone.utc), UUID(int=5), Decimal("0.10"), b"\xff", 0.1, 10**30, None]
        raw = encode(headers={"values": values})
        message = messages.decode(raw, objects=True)
        assert message is not None
        assert message["headers"] == {"values": values}
        assert messages.encode(message) == raw


class TestPuttingBack:
    def test_marks_a_message_as_kombu_does_and_changes_nothing_else(self) -> None:
        message = loads(redelivery.put_back(encode()).decode())
        assert message["headers"].pop("redelivered") is True
        assert message["properties"]["delivery_info"].pop("redelivered") is True
        assert message == MESSAGE

    def test_counts_nothing(self) -> None:
        once = redelivery.put_back(counted(3))
        assert loads(once.decode())["headers"][DELIVERY_COUNT] == 3
        assert redelivery.put_back(once) == once

    def test_takes_the_mark_of_a_last_delivery_off(self) -> None:
        marked = redelivery.put_back(redelivery.alone(counted(19)))
        assert marked == redelivery.put_back(counted(19))

    @pytest.mark.parametrize("headers", [None, [], "text"])
    def test_of_a_message_without_headers(self, headers: object) -> None:
        raw = encode(headers=headers, properties={})
        assert redelivery.put_back(raw) == raw

    @any_garbage
    def test_of_what_is_no_message_changes_nothing(self, raw: bytes) -> None:
        assert redelivery.put_back(raw) == raw


class TestRecovering:
    def test_marks_and_counts(self) -> None:
        first = recovered(encode())
        assert first["headers"].pop(DELIVERY_COUNT) == 1
        assert first["headers"].pop("redelivered") is True
        assert first["properties"]["delivery_info"].pop("redelivered") is True
        assert first == MESSAGE

    @pytest.mark.parametrize("headers", [None, [], "text"])
    def test_counts_without_headers_too(self, headers: object) -> None:
        assert recovered(encode(headers=headers))["headers"] == {DELIVERY_COUNT: 1}

    @pytest.mark.parametrize("count", [None, -5, 0, 1.5, "3", [], {}])
    def test_begins_anew_where_the_count_is_none(self, count: object) -> None:
        assert recovered(counted(count))["headers"][DELIVERY_COUNT] == 1

    @pytest.mark.parametrize("limit", [1, 2, 20])
    def test_as_often_as_the_limit_says_and_dead_only_if_it_was_alone(self, limit: int) -> None:
        raw = encode()
        for number in [*range(1, limit), limit - 1, limit - 1]:
            raw, dead = redelivery.recover(raw, limit)
            assert not dead
            message = loads(raw.decode())
            assert message["headers"][DELIVERY_COUNT] == number
            assert redelivery.is_last_delivery(message, limit) is (number == limit - 1)
        stored, dead = redelivery.recover(redelivery.alone(raw), limit)
        assert dead
        letter = unpack("q", 5, "id", stored)
        assert (letter.reason, letter.deliveries, letter.message) == (DELIVERY_LIMIT, limit, raw)

    def test_alone_where_the_limit_was_lowered(self) -> None:
        raw, dead = redelivery.recover(counted(50), 20)
        assert not dead
        assert loads(raw.decode())["headers"][DELIVERY_COUNT] == 50
        assert redelivery.is_last_delivery(loads(raw.decode()), 20)
        assert redelivery.recover(redelivery.alone(raw), 20)[1]

    @pytest.mark.parametrize("limit", [0, 4])
    def test_the_mark_goes_where_another_worker_has_a_higher_limit(self, limit: int) -> None:
        again = recovered(redelivery.alone(counted(2)), limit)
        assert (again["headers"][DELIVERY_COUNT], ALONE in again["headers"]) == (3, False)

    def test_for_ever_without_a_limit(self) -> None:
        assert recovered(counted(10**6), 0)["headers"][DELIVERY_COUNT] == 10**6 + 1

    @pytest.mark.parametrize("limit", [0, 20])
    @any_garbage
    def test_sets_aside_what_is_no_message(self, raw: bytes, limit: int) -> None:
        stored, dead = redelivery.recover(raw, limit)
        assert dead
        letter = unpack("q", 5, "id", stored)
        assert (letter.reason, letter.deliveries, letter.message) == (NOT_A_MESSAGE, None, raw)


class TestLastDelivery:
    @pytest.mark.parametrize(
        ("count", "limit", "expected"),
        [(0, 1, True), (0, 2, False), (1, 2, True), (18, 20, False), (19, 20, True), (50, 20, True), (50, 0, False)],
    )
    def test_is_one_short_of_the_limit(self, count: int, limit: int, expected: bool) -> None:
        assert redelivery.is_last_delivery(loads(counted(count).decode()), limit) is expected

    @pytest.mark.parametrize("headers", [None, [], "text", {}])
    @pytest.mark.parametrize("limit", [0, 1, 20])
    def test_is_none_of_what_was_never_counted(self, headers: object, limit: int) -> None:
        assert not redelivery.is_last_delivery(loads(encode(headers=headers).decode()), limit)

    def test_a_mark_is_undone(self) -> None:
        assert ALONE in loads(redelivery.alone(encode()).decode())["headers"]
        assert redelivery.not_alone(redelivery.alone(encode())) == encode()

    @pytest.mark.parametrize("raw", [encode(), encode(headers=None), *GARBAGE[:10]], ids=lambda raw: repr(raw[:30]))
    def test_without_a_mark_there_is_none_to_undo(self, raw: bytes) -> None:
        assert redelivery.not_alone(raw) == raw


class TestReviving:
    def test_forgets_the_count(self) -> None:
        assert loads(redelivery.revived(counted(20)).decode()) == MESSAGE

    @pytest.mark.parametrize("raw", [encode(), encode(headers=None), *GARBAGE[:10]], ids=lambda raw: repr(raw[:30]))
    def test_changes_nothing_else(self, raw: bytes) -> None:
        assert redelivery.revived(raw) == raw
