"""Waits that are ended hold no message back, whenever it comes."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from kombu import Consumer

from celery_delayq.transport import fetcher, poller
from celery_delayq.transport.fetcher import Fetcher
from examples.private_redis import PrivateRedis
from tests.fetching.reading import bodies_on, in_flight, publish, queue, reader, waiting
from tests.integration.publishing import Broker, broker
from tests.support import wait_until


@pytest.fixture
def server() -> Iterator[PrivateRedis]:
    with PrivateRedis() as server:
        yield server


@pytest.fixture
def ours(server: PrivateRedis) -> Iterator[Broker]:
    with broker(server, "delayq", 0) as ours:
        yield ours


@pytest.mark.parametrize("how", ["cancel", "close"])
@pytest.mark.parametrize("names", [("a",), ("a", "b")], ids=["one queue", "two"])
def test_a_message_that_nobody_has_read_goes_back_at_once(
    ours: Broker, server: PrivateRedis, how: str, names: tuple[str, ...]
) -> None:
    """The connection stays open: while a worker stops, its pool may go on for hours."""
    with reader(ours, *names) as it, server.client() as client:
        wait_until(lambda: it.wait(0.05) == [] and waiting(client) == len(names), "it waits")
        publish(ours, "a", "unread")
        wait_until(lambda: in_flight(client) == 1, "the server has moved it")
        it.consumer.cancel() if how == "cancel" else it.channel.close()
        assert bodies_on(client, "a") == ["unread"]
        assert in_flight(client) == 0


def test_a_program_that_works_in_its_callback_has_no_other_message_meanwhile(
    ours: Broker, server: PrivateRedis
) -> None:
    held: list[int] = []
    with ours.connection.clone() as connection, server.client() as client:
        channel = connection.channel()
        channel.basic_qos(0, 1, False)

        def work(body: Any, message: Any) -> None:
            held.append(in_flight(client))
            message.ack()

        consumer = Consumer(channel, [queue("a"), queue("b")], callbacks=[work])
        consumer.consume()
        for _ in range(20):
            with suppress(socket.timeout):
                connection.drain_events(timeout=0.05)
            if waiting(client) == 2:
                break
        for name in ("a", "b") * 5:
            publish(ours, name, 1)
        wait_until(lambda: connection.drain_events(timeout=5) or len(held) == 10, "all have come")
        assert held == [1] * 10


@pytest.mark.parametrize("name", ["a", "b\x06\x166"], ids=["one that waited", "one that is told of"])
def test_what_comes_to_another_list_during_a_round_is_not_late(
    ours: Broker, server: PrivateRedis, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """While the last list of the round is asked, another one is written to, which was skipped."""
    monkeypatch.setattr(fetcher, "_SETTLED_S", 30.0)
    monkeypatch.setattr(poller, "_LONGEST_POLL_S", 30.0)
    ask = Fetcher.ask
    with reader(ours, "a", "b") as it, server.client() as client:
        wait_until(lambda: it.wait(0.05) == [] and waiting(client) == 2, "it waits")
        publish(ours, "spare", "1", "2")
        raw = client.lrange("spare", 0, -1)

        def meanwhile(it: Fetcher) -> None:
            before = it.rounds.on_the_way
            ask(it)
            if it.rounds.on_the_way and not before:
                monkeypatch.setattr(Fetcher, "ask", ask)
                client.lpush(name, *raw)

        monkeypatch.setattr(Fetcher, "ask", meanwhile)
        publish(ours, "b", "first")
        began = time.monotonic()
        assert len(it.drain(3)) == 3
        assert time.monotonic() - began < 20 < fetcher._SETTLED_S


def test_spared_connections_are_closed(ours: Broker, server: PrivateRedis) -> None:
    with reader(ours, "a", "b") as it, server.client() as client:
        wait_until(lambda: it.wait(0.05) == [] and waiting(client) == 2, "it waits")
        it.channel.fetchers.spare_connections()
        it.wait(0.05)
        assert waiting(client) == 0
        assert not [one for one in client.client_list() if one["cmd"] == "blmove"]
        publish(ours, "a", 1)
        assert it.drain(1) == [1]


def test_large_acknowledgements_hold_up_nothing(ours: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server takes them in pieces."""
    monkeypatch.setattr(poller, "_LONGEST_POLL_S", 30.0)
    publish(ours, "a", *[f"{number}{'x' * 12_000_000}" for number in range(3)])
    with reader(ours, "a", prefetch=1) as it:
        began = time.monotonic()
        while len(it.messages) < 3:
            it.channel.connection.client.drain_events(timeout=30)
        assert [body[0] for body in it.bodies] == ["0", "1", "2"]
        assert time.monotonic() - began < 20 < poller._LONGEST_POLL_S
