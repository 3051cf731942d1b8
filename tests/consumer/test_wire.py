"""A wire sends any number of commands, waits for none, and gives each reply to whoever wants it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from redis import exceptions

from celery_delayq.fetching.resp import Push, Reader
from celery_delayq.fetching.wire import Wire
from celery_delayq.queue import connections
from celery_delayq.queue.connections import connection_of
from examples.private_redis import PrivateRedis
from tests.soak.proxy import Proxy
from tests.support import wait_until

#: RESP, and what it says.
REPLIES: list[tuple[bytes, Any]] = [
    (b"+OK\r\n", b"OK"),
    (b":-7\r\n", -7),
    (b"$5\r\na\r\nbc\r\n", b"a\r\nbc"),
    (b"$0\r\n\r\n", b""),
    (b"$-1\r\n", None),
    (b"*-1\r\n", None),
    (b"*0\r\n", []),
    (b"*3\r\n:1\r\n*2\r\n$1\r\nx\r\n*0\r\n_\r\n", [1, [b"x", []], None]),
    (b"%2\r\n+a\r\n:1\r\n+b\r\n%1\r\n+c\r\n#t\r\n", {b"a": 1, b"b": {b"c": True}}),
    (b"~2\r\n:1\r\n:2\r\n", [1, 2]),
    (b"#f\r\n", False),
    (b",1.5\r\n", 1.5),
    (b"(12345678901234567890\r\n", 12345678901234567890),
    (b"=7\r\ntxt:abc\r\n", b"abc"),
    (b">2\r\n+invalidate\r\n*1\r\n$1\r\nq\r\n", Push([b"invalidate", [b"q"]])),
]


class TestReading:
    @given(st.lists(st.sampled_from(REPLIES), min_size=1, max_size=8), st.randoms(use_true_random=False))
    def test_in_pieces(self, replies: list[tuple[bytes, Any]], chance: random.Random) -> None:
        reader, found = Reader(), []
        data = b"".join(resp for resp, _ in replies)
        while data:
            size = chance.randint(1, len(data))
            reader.feed(data[:size])
            found += reader.replies()
            data = data[size:]
        assert found == [said for _, said in replies]
        assert [type(it) for it in found] == [type(said) for _, said in replies]

    def test_errors_of_the_server(self) -> None:
        reader = Reader()
        reader.feed(b"-NOSCRIPT No matching script\r\n*1\r\n-WRONGTYPE no list\r\n!12\r\nOOM too much\r\n")
        first, (second,), third = reader.replies()
        assert isinstance(first, exceptions.NoScriptError)
        assert isinstance(second, exceptions.ResponseError)
        assert isinstance(third, exceptions.OutOfMemoryError)

    def test_what_is_no_reply(self) -> None:
        reader = Reader()
        reader.feed(b"HTTP/1.1 400\r\n")
        with pytest.raises(exceptions.InvalidResponse, match="'H'"):
            list(reader.replies())


@pytest.fixture
def proxy(redis_server: PrivateRedis) -> Iterator[Proxy]:
    """Through it, a wire reaches Redis or not."""
    proxy = Proxy(redis_server.port)
    yield proxy
    proxy.close()


def wire_to(port: int, *pushes: list[Any], **options: Any) -> Wire:
    """A wire to a server; what the server sends by itself goes to the list."""
    connection = connection_of(redis.ConnectionPool(port=port, **options))
    connection.connect()
    return Wire(connection, *(it.append for it in pushes))


def exchange(wire: Wire) -> None:
    """Send and receive until there is a reply to each command."""

    def all_came() -> bool:
        wire.flush()
        if wire.has_reply(0.1):
            wire.receive()
        return not wire.missing

    wait_until(all_came, "there are all replies")


@pytest.fixture
def wire(redis_server: PrivateRedis, client: redis.Redis) -> Iterator[Wire]:
    """A wire to an empty Redis."""
    wire = wire_to(redis_server.port)
    yield wire
    wire.close(exceptions.ConnectionError("the test is over"))


def test_each_reply_goes_to_whoever_wants_it(wire: Wire) -> None:
    replies: list[Any] = []
    for number in range(100):
        wire.send(lambda reply, number=number: replies.append((number, reply)), "ECHO", number)
    assert replies == []
    exchange(wire)
    assert replies == [(number, b"%d" % number) for number in range(100)]


def test_an_error_in_one_keeps_none_from_the_others(wire: Wire) -> None:
    replies: list[Any] = []
    wire.send(lambda reply: 1 // 0, "PING")
    wire.send(replies.append, "LPUSH", "q", "x")
    wire.send(replies.append, "INCR", "q")
    with pytest.raises(ZeroDivisionError):
        exchange(wire)
    exchange(wire)
    assert replies[0] == 1
    assert isinstance(replies[1], exceptions.ResponseError)


def test_much_at_once_in_both_directions(wire: Wire) -> None:
    """More than the buffers of a socket take: neither side waits for the other."""
    text, replies = b"x" * 20_000_000, []
    for _ in range(3):
        wire.send(replies.append, "ECHO", text)
    wire.flush()
    assert wire.unsent
    exchange(wire)
    assert replies == [text] * 3


def test_what_the_server_says_by_itself(redis_server: PrivateRedis, client: redis.Redis) -> None:
    pushes: list[Any] = []
    replies: list[Any] = []
    wire = wire_to(redis_server.port, pushes)
    wire.send(lambda reply: None, "HELLO", 3)
    wire.send(replies.append, "CLIENT", "TRACKING", "ON", "OPTIN")
    wire.send(replies.append, "CLIENT", "CACHING", "YES")
    wire.send(replies.append, "EXISTS", "q")
    exchange(wire)
    client.lpush("q", "message")
    wait_until(lambda: wire.receive() or pushes, "it says so")
    assert (replies, pushes) == ([b"OK", b"OK", 0], [[b"invalidate", [b"q"]]])
    wire.close(exceptions.ConnectionError("the test is over"))


def test_a_server_that_does_not_answer(proxy: Proxy) -> None:
    wire = wire_to(proxy.port, socket_timeout=0.2)
    wire.send(lambda reply: None, "PING")
    exchange(wire)
    proxy.silence()
    wire.send(lambda reply: None, "PING")
    with pytest.raises(exceptions.TimeoutError):
        exchange(wire)
    wire.close(exceptions.ConnectionError("the test is over"))


def test_a_silent_connection_without_a_timeout(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """As redis-py's health check would: nothing was read for longer than the interval."""
    monkeypatch.setattr(connections, "LATE_S", 0.1)
    wire = wire_to(proxy.port, socket_timeout=None, health_check_interval=1)
    proxy.silence()
    wire.send(lambda reply: None, "PING")
    with pytest.raises(exceptions.TimeoutError):
        exchange(wire)
    wire.close(exceptions.ConnectionError("the test is over"))


def test_several_threads_send(wire: Wire) -> None:
    """Each command gets its own reply, while one thread receives."""
    replies: list[tuple[int, Any]] = []

    def send(first: int) -> None:
        for number in range(first, first + 2_000):
            wire.send(lambda reply, number=number: replies.append((number, reply)), "ECHO", number)
            wire.flush()

    with ThreadPoolExecutor(4) as threads:
        sent = [threads.submit(send, first) for first in range(0, 8_000, 2_000)]
        exchange(wire)
        for it in sent:
            it.result()
    exchange(wire)
    assert len(replies) == 8_000
    assert all(reply == b"%d" % number for number, reply in replies)


def test_a_lost_connection_is_told_to_whoever_waits(proxy: Proxy, client: redis.Redis) -> None:
    replies: list[Any] = []
    wire = wire_to(proxy.port)
    wire.send(replies.append, "BLPOP", "nothing", 0)
    wire.send(replies.append, "PING")
    wire.flush()
    proxy.cut()
    with pytest.raises(exceptions.ConnectionError) as caught:
        exchange(wire)
    wire.close(caught.value)
    assert replies == [caught.value] * 2
    assert (wire.missing, wire.fileno()) == (0, -1)
