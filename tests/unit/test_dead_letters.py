"""Dead letters: whatever lies in a dead list can be listed and purged, and messages among it requeued."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.queue import dead_letters
from celery_delayq.queue.dead_letters import (
    DELIVERY_LIMIT,
    INVALID_TASK,
    NOT_A_MESSAGE,
    NOT_AN_ENTRY,
    DeadLetter,
    DeadLetters,
    pack,
    unpack,
)
from examples.private_redis import PrivateRedis
from tests.state import DEAD, nothing_changes, oldest_first, state


@pytest.fixture(params=[{}, {"decode_responses": True}], ids=["plain", "decoding"])
def letters(request: pytest.FixtureRequest, redis_server: PrivateRedis, client: redis.Redis) -> Iterator[DeadLetters]:
    """The dead list of "q", through clients as users have them; it is empty."""
    with redis_server.client(**request.param) as any_client:
        yield DeadLetters(any_client, "q")


def bury(client: redis.Redis, *messages: bytes, reason: str = DELIVERY_LIMIT) -> list[bytes]:
    """Put messages into the dead list; return what is stored."""
    stored = [pack(message, reason=reason, at_ms=1, deliveries=2) for message in messages]
    client.rpush(DEAD, *stored)
    return stored


class TestPacking:
    @given(
        message=st.binary(),
        reason=st.sampled_from([DELIVERY_LIMIT, NOT_A_MESSAGE]),
        at_ms=st.integers(0, 2**53),
        deliveries=st.none() | st.integers(0, 1000),
    )
    def test_what_goes_in_comes_out(self, message: bytes, reason: str, at_ms: int, deliveries: int | None) -> None:
        raw = pack(message, reason=reason, at_ms=at_ms, deliveries=deliveries)
        assert unpack(raw) == DeadLetter(unpack(raw).id, reason, at_ms, deliveries, message, raw)

    def test_is_this(self) -> None:
        """Golden: other programs may read it."""
        raw = b'{"reason": "delivery-limit", "at_ms": 5, "deliveries": 20}\nmessage\nof two lines'
        assert pack(b"message\nof two lines", reason=DELIVERY_LIMIT, at_ms=5, deliveries=20) == raw

    def test_may_say_what_is_wrong(self) -> None:
        raw = pack(b"message", reason=INVALID_TASK, at_ms=5, error="its id is wrong")
        assert raw == b'{"reason": "invalid-task", "at_ms": 5, "deliveries": null, "error": "its id is wrong"}\nmessage'
        assert unpack(raw).error == "its id is wrong"

    @pytest.mark.parametrize(
        "raw",
        [
            b"",
            b"\n",
            b"garbage",
            b"garbage\nmessage",
            b"5\nmessage",
            b"[]\nmessage",
            b'"text"\nmessage',
            b"null\nmessage",
            b'{"reason": "delivery-limit"}\nmessage',
            b'{"reason": "delivery-limit", "at_ms": 5, "deliveries": 20}',
            b'{"reason": {}, "at_ms": 5, "deliveries": 20}\nmessage',
            b'{"reason": "delivery-limit", "at_ms": "x", "deliveries": 20}\nmessage',
            b'{"reason": "delivery-limit", "at_ms": 5, "deliveries": []}\nmessage',
            b'{"reason": "invalid-task", "at_ms": 5, "deliveries": null, "error": 5}\nmessage',
            b"\xff\xfe\nmessage",
            b"[" * 100_000 + b"\n",
        ],
        ids=lambda raw: repr(raw[:30]),
    )
    def test_what_was_not_packed_here_is_no_entry(self, raw: bytes) -> None:
        assert unpack(raw) == DeadLetter(unpack(raw).id, NOT_AN_ENTRY, None, None, raw, raw)

    @given(st.binary())
    def test_any_bytes_can_be_shown(self, raw: bytes) -> None:
        assert unpack(raw).raw == raw

    @given(st.binary(), st.binary())
    def test_ids_tell_letters_apart(self, one: bytes, other: bytes) -> None:
        assert (unpack(one).id == unpack(other).id) is (one == other)


class TestList:
    def test_is_empty_at_first(self, letters: DeadLetters) -> None:
        assert len(letters) == 0
        assert list(letters) == []
        assert letters.purge() == 0

    @pytest.mark.parametrize("count", [1, 99, 100, 101, 250])
    def test_the_oldest_comes_first(self, letters: DeadLetters, client: redis.Redis, count: int) -> None:
        messages = [b"\xff%d" % number for number in range(count)]
        bury(client, *messages)
        assert len(letters) == count
        assert [letter.message for letter in letters] == messages

    def test_finds_a_letter_by_its_id(self, letters: DeadLetters, client: redis.Redis) -> None:
        _, stored = bury(client, b"1", b"2")
        assert letters.find(unpack(stored).id) == unpack(stored)
        assert letters.find("never") is None


class TestRequeue:
    def test_puts_the_message_to_the_back(self, letters: DeadLetters, client: redis.Redis) -> None:
        client.lpush("q", b"waiting")
        first, second = bury(client, b"1", b"2")
        assert letters.requeue(unpack(first))
        assert oldest_first(client, "q") == [b"waiting", b"1"]
        assert client.lrange(DEAD, 0, -1) == [second]

    def test_or_another_message_instead_of_it(self, letters: DeadLetters, client: redis.Redis) -> None:
        (stored,) = bury(client, b"1")
        assert letters.requeue(unpack(stored), b"1 revived")
        assert state(client) == {"q": [b"1 revived"]}

    def test_only_once(self, letters: DeadLetters, client: redis.Redis) -> None:
        (stored,) = bury(client, b"1")
        letters.requeue(unpack(stored))
        with nothing_changes(client):
            assert not letters.requeue(unpack(stored))

    def test_one_of_two_that_are_the_same(self, letters: DeadLetters, client: redis.Redis) -> None:
        stored, _ = bury(client, b"1", b"1")
        assert letters.requeue(unpack(stored))
        assert (client.llen("q"), len(letters)) == (1, 1)

    def test_not_of_what_is_no_message(self, letters: DeadLetters, client: redis.Redis) -> None:
        client.rpush(DEAD, b"garbage")
        (letter,) = letters
        with nothing_changes(client), pytest.raises(ValueError, match=letter.id):
            letters.requeue(letter)


class TestPurge:
    def test_all(self, letters: DeadLetters, client: redis.Redis) -> None:
        client.lpush("q", b"waiting")
        bury(client, b"1", b"2")
        assert letters.purge() == 2
        assert state(client) == {"q": [b"waiting"]}

    def test_one(self, letters: DeadLetters, client: redis.Redis) -> None:
        first, second = bury(client, b"1", b"2")
        assert letters.purge(unpack(first)) == 1
        assert letters.purge(unpack(first)) == 0
        assert client.lrange(DEAD, 0, -1) == [second]

    def test_what_is_no_entry(self, letters: DeadLetters, client: redis.Redis) -> None:
        client.rpush(DEAD, b"\xffgarbage")
        (letter,) = letters
        assert letters.purge(letter) == 1
        assert state(client) == {}


def test_each_list_has_its_own(client: redis.Redis) -> None:
    bury(client, b"1")
    other: Any = dead_letters.DeadLetters(client, "shop:celery")
    assert len(other) == 0
    assert other.purge() == 0
    assert client.llen(DEAD) == 1
