"""A wire sends any number of commands, waits for none, and gives each reply to whoever wants it."""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import exceptions
from redis.utils import HIREDIS_AVAILABLE

from celery_delayq.fetching import wire as module
from celery_delayq.fetching.resp import HiredisReader, PythonReader, Reader
from celery_delayq.fetching.wire import Wire
from celery_delayq.queue.connections import connection_of
from examples.private_redis import PrivateRedis
from tests.integration.certificates import Certificates, reserved_port
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
    (b"*3\r\n:1\r\n*2\r\n$1\r\nx\r\n*0\r\n$-1\r\n", [1, [b"x", []], None]),
]


@pytest.fixture(
    params=[
        PythonReader,
        pytest.param(
            HiredisReader,
            marks=pytest.mark.skipif(
                not HIREDIS_AVAILABLE, reason="hiredis is not installed; it is with the oldest versions"
            ),
        ),
    ]
)
def make_reader(request: pytest.FixtureRequest) -> Callable[[], Reader]:
    """What makes a new reader."""
    made: Callable[[], Reader] = request.param
    return made


class TestReading:
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # it makes new ones
    @given(st.lists(st.sampled_from(REPLIES), min_size=1, max_size=8), st.randoms(use_true_random=False))
    def test_in_pieces(
        self, make_reader: Callable[[], Reader], replies: list[tuple[bytes, Any]], chance: random.Random
    ) -> None:
        reader, found = make_reader(), []
        data = b"".join(resp for resp, _ in replies)
        while data:
            size = chance.randint(1, len(data))
            found += reader.feed(data[:size])
            data = data[size:]
        assert found == [said for _, said in replies]

    def test_errors_of_the_server(self, make_reader: Callable[[], Reader]) -> None:
        reader = make_reader()
        first, (second,) = reader.feed(b"-NOSCRIPT No matching script\r\n*1\r\n-WRONGTYPE no list\r\n")
        assert isinstance(first, exceptions.NoScriptError)
        assert isinstance(second, exceptions.ResponseError)

    @pytest.mark.parametrize(
        ("data", "said"),
        [
            (b"HTTP/1.1 400\r\n", r"['\"]H['\"]"),
            (b":abc\r\n", "Redis sent|integer|length"),
            (b"$abc\r\n", "Redis sent|integer|length"),
            (b"$-2\r\n", "Redis sent|integer|length"),
            (b"*abc\r\n", "Redis sent|integer|length"),
            (b"*-2\r\n", "Redis sent|integer|length"),
        ],
    )
    def test_what_is_no_reply(self, make_reader: Callable[[], Reader], data: bytes, said: str) -> None:
        with pytest.raises(exceptions.InvalidResponse, match=said):
            make_reader().feed(data)


@pytest.fixture
def proxy(redis_server: PrivateRedis) -> Iterator[Proxy]:
    """Through it, a wire reaches Redis or not."""
    proxy = Proxy(redis_server.port)
    yield proxy
    proxy.close()


def wire_to(port: int, **options: Any) -> Wire:
    """A wire to a server."""
    connection = connection_of(redis.ConnectionPool(port=port, **options))
    connection.connect()
    return Wire(connection)


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


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, str, int]]:
    """The port of a Redis that speaks TLS, the certificate of its authority, and its process."""
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    with (
        reserved_port() as port,
        PrivateRedis(*certificates.redis_options(port), server=certificates.server()) as server,
    ):
        yield port, str(certificates.authority), server.pid


@pytest.fixture(params=["plain", "TLS"])
def any_wire(request: pytest.FixtureRequest) -> Iterator[Wire]:
    """A wire to an empty Redis."""
    if request.param == "plain":
        yield request.getfixturevalue("wire")
        return
    port, authority, _ = request.getfixturevalue("tls")
    wire = wire_to(port, connection_class=redis.SSLConnection, ssl_ca_certs=authority)
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


def test_much_at_once_in_both_directions(any_wire: Wire) -> None:
    """More than the buffers of a socket take: neither side waits for the other."""
    wire, text, replies = any_wire, b"x" * 20_000_000, []
    for _ in range(3):
        wire.send(replies.append, "ECHO", text)
    wire.flush()
    assert wire.unsent
    exchange(wire)
    assert replies == [text] * 3


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
    monkeypatch.setattr(module, "LATE_S", 0.1)
    wire = wire_to(proxy.port, socket_timeout=None, health_check_interval=1)
    proxy.silence()
    wire.send(lambda reply: None, "PING")
    with pytest.raises(exceptions.TimeoutError):
        exchange(wire)
    wire.close(exceptions.ConnectionError("the test is over"))


@contextmanager
def switching_often() -> Iterator[None]:
    """Let threads take turns after a few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_several_threads_send(any_wire: Wire) -> None:
    """Each command gets its own reply, while one thread receives."""
    wire, replies = any_wire, list[tuple[int, Any]]()

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


def test_nothing_comes_between_what_is_sent_together(any_wire: Wire) -> None:
    wire, got = any_wire, list[tuple[int, Any]]()

    def send(first: int) -> None:
        for number in range(first, first + 2_000):
            read = lambda reply, number=number: got.append((number, reply))  # noqa: E731
            wire.send_together([(("SET", "key", number), bool), (("GET", "key"), read)])
            wire.flush()

    with switching_often(), ThreadPoolExecutor(4) as threads:
        sent = [threads.submit(send, first) for first in range(0, 8_000, 2_000)]
        for it in sent:
            it.result()
    exchange(wire)
    assert len(got) == 8_000
    assert all(reply == b"%d" % number for number, reply in got)


def test_a_signal_handler_sends_while_its_thread_does(wire: Wire) -> None:
    """As Celery's cold shutdown, in which tasks end that are acknowledged."""
    replies: list[int] = []

    def send(number: int) -> None:
        wire.send(lambda reply: replies.append(number if reply == b"%d" % number else -1), "ECHO", number)
        wire.flush()

    numbers = itertools.count()
    before = signal.signal(signal.SIGALRM, lambda *_: send(next(numbers)))
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        until = time.monotonic() + 1
        while time.monotonic() < until:
            send(next(numbers))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    exchange(wire)
    assert sorted(replies) == list(range(next(numbers)))


def test_a_connection_that_was_quiet_for_long_is_not_given_up(
    redis_server: PrivateRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = wire_to(redis_server.port, health_check_interval=30)
    now = time.monotonic()
    monkeypatch.setattr(module.time, "monotonic", lambda: now + 60)
    assert wire.is_silent
    wire.send(lambda reply: None, "PING")
    exchange(wire)
    assert not wire.is_silent
    wire.close(exceptions.ConnectionError("the test is over"))


_FLOOD = """
from gevent import monkey; monkey.patch_all()
import os, signal, sys, gevent, redis
from celery_delayq.fetching.wire import Wire
from celery_delayq.queue.connections import connection_of

pool = redis.ConnectionPool(port=int(sys.argv[1]), connection_class=redis.SSLConnection, ssl_ca_certs=sys.argv[2])
connection = connection_of(pool)
connection.connect()
wire, replies, ticks = Wire(connection), [], []
gevent.spawn(lambda: [ticks.append(gevent.sleep(0.01)) for _ in range(20)])
os.kill(int(sys.argv[3]), signal.SIGSTOP)
try:
    for _ in range(200):
        wire.send(replies.append, "ECHO", b"x" * 100_000)
        wire.flush()
    assert wire.unsent
finally:
    os.kill(int(sys.argv[3]), signal.SIGCONT)
while len(replies) < 200:
    if wire.has_reply(5):
        wire.receive()
assert ticks
"""


def test_a_server_that_takes_no_more_holds_up_no_greenlet(tls: tuple[int, str, int]) -> None:
    """gevent says that with TLS in its own way."""
    subprocess.run([sys.executable, "-c", _FLOOD, *map(str, tls)], check=True, timeout=60)


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
