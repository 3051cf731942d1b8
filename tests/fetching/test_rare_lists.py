"""The watchdog's subscription hears of messages in all lists that are rarely used."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from kombu import Connection

from celery_delayq.transport import fetcher
from celery_delayq.transport import rare_lists as module
from celery_delayq.transport.fetcher import Fetcher
from celery_delayq.transport.rare_lists import TRUST_S, RareLists
from examples.private_redis import PrivateRedis
from tests.fetching.reading import Reader, fetching, publish, told, waiting, waits
from tests.fetching.reading import reader as consuming
from tests.integration.publishing import Broker, broker
from tests.soak.proxy import Proxy
from tests.support import wait_until

PRIORITIES = (0, 3, 6, 9)


@pytest.fixture
def server() -> Iterator[PrivateRedis]:
    with PrivateRedis() as server:
        yield server


@pytest.fixture
def ours(server: PrivateRedis) -> Iterator[Broker]:
    with broker(server, "delayq", 0) as ours:
        yield ours


@pytest.mark.parametrize("priority", PRIORITIES)
def test_a_message_of_each_priority_arrives(ours: Broker, priority: int) -> None:
    with consuming(ours, "q") as reader:
        reader.wait(0.2)
        for number in range(3):
            publish(ours, "q", number, priority=priority)
            assert reader.drain(number + 1)[-1] == number


def test_a_queue_takes_one_connection_that_waits(ours: Broker, server: PrivateRedis) -> None:
    with consuming(ours, "q1", "q2", "q3") as reader, server.client() as client:
        waits(reader, client, 3)
        told(reader, client)
        assert len(client.client_list(_type="pubsub")) == 1  # the keeper's
        assert client.info("stats")["tracking_total_keys"] == 3 * 3


def test_messages_that_came_before_it_listens_arrive(ours: Broker) -> None:
    for priority in PRIORITIES:
        publish(ours, "q", priority, priority=priority)
    with consuming(ours, "q") as reader:
        assert sorted(reader.drain(4)) == [0, 3, 6, 9]


def test_what_is_told_of_while_it_begins_to_wait(ours: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list was skipped, since the server would have told; then it tells, before all others are waited for."""
    monkeypatch.setattr(fetcher, "_SETTLED_S", 60.0)
    found, wait = [], RareLists.wait
    monkeypatch.setattr(RareLists, "wait", lambda self, names: found.append(self) or wait(self, names))
    with consuming(ours, "q") as reader:
        reader.wait(0.2)
        rare = found[-1]
        (name,) = [it for it in reader.channel.broker_lists("q") if it.endswith("6")]
        begin = Fetcher.wait

        def meanwhile(self: Fetcher) -> None:
            if self.rounds.is_empty and not rare.may_have_messages(name):
                monkeypatch.setattr(Fetcher, "wait", begin)
                publish(ours, "q", "told", priority=6)
                wait_until(lambda: rare.may_have_messages(name), "the server has told")
            begin(self)

        monkeypatch.setattr(Fetcher, "wait", meanwhile)
        publish(ours, "q", "wakes it")
        began = time.monotonic()
        assert sorted(reader.drain(2)) == ["told", "wakes it"]
        assert time.monotonic() - began < 20 < fetcher._SETTLED_S


def test_a_list_that_is_busy_gets_a_connection_of_its_own(ours: Broker, server: PrivateRedis) -> None:
    with consuming(ours, "q") as reader, server.client() as client:
        waits(reader, client, 1)
        for number in range(30):
            publish(ours, "q", number, priority=6)
            reader.drain(number + 1)
        waits(reader, client, 2)


MANY = [f"q{number}" for number in range(40)]


def test_with_many_queues_only_busy_ones_take_a_connection(
    ours: Broker, server: PrivateRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BUSY_S", 600.0)
    with consuming(ours, *MANY) as reader, server.client() as client:
        told(reader, client)
        count = 0
        for name in MANY:
            publish(ours, name, name)
            count += 1
            assert reader.drain(count)[-1] == name
        waits(reader, client, 0)
        for number in range(30):
            publish(ours, "q7", number)
            count += 1
            reader.drain(count)
        waits(reader, client, 1)
        for number in range(30):
            for name in MANY:
                publish(ours, name, number)
            count += len(MANY)
            reader.drain(count)
        waits(reader, client, 32)
        for name in MANY:
            publish(ours, name, name, priority=6)
        assert sorted(reader.drain(count + len(MANY))[count:]) == sorted(MANY)


def test_lists_of_many_queues_that_the_server_forgets_take_a_connection(ours: Broker, server: PrivateRedis) -> None:
    """It tells of each that it forgets. Otherwise, they would be asked again and again."""
    with server.client() as client:
        client.config_set("tracking-table-max-keys", 1)
    with consuming(ours, *MANY) as reader, server.client() as client:
        lists = len(MANY) * len(PRIORITIES)
        wait_until(lambda: reader.wait(0.1) == [] and waiting(client) >= lists - 1, "nearly all wait", 60)


def test_the_messages_of_many_queues_come_one_from_each(ours: Broker) -> None:
    for name in MANY:
        publish(ours, name, *[name] * 3)
    with consuming(ours, *MANY, prefetch=1) as reader:
        found = reader.drain(3 * len(MANY))
    for start in range(0, len(found), len(MANY)):
        assert sorted(found[start : start + len(MANY)]) == sorted(MANY)


def test_channels_share_it(ours: Broker, server: PrivateRedis) -> None:
    """The server tells one connection only."""
    with ours.connection.clone() as connection, server.client() as client:
        one, other = Reader(connection.channel(), "a"), Reader(connection.channel(), "b")
        told(other, client)
        assert client.info("clients")["tracking_clients"] == 1
        for number in range(3):
            for reader, name in ((one, "a"), (other, "b")):
                publish(ours, name, number, priority=6)
                began = time.monotonic()
                assert reader.drain(number + 1)[-1] == number
                assert time.monotonic() - began < 10 < TRUST_S, "it was told"


def test_it_is_told_of_nothing_else_that_the_worker_reads(ours: Broker, server: PrivateRedis) -> None:
    with consuming(ours, "q") as reader, server.client() as client:
        told(reader, client)
        keys = client.info("stats")["tracking_total_keys"]
        for number in range(20):
            publish(ours, "q", number)
        reader.drain(20)
        assert client.info("stats")["tracking_total_keys"] == keys == 3


def test_a_fetching_connection_that_is_lost(ours: Broker, server: PrivateRedis) -> None:
    """The server no longer tells. The worker notices within a second or two, and asks again on another connection."""
    with consuming(ours, "q") as reader, server.client() as client:
        for number in range(2):
            told(reader, client)
            client.client_kill_filter(_id=fetching(client)["id"])
            publish(ours, "q", number, priority=6)
            began = time.monotonic()
            assert reader.drain(number + 1)[-1] == number
            assert time.monotonic() - began < 10 < TRUST_S


def test_lists_are_looked_at_again_after_a_while(
    ours: Broker, server: PrivateRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the reason is that the server did not tell."""
    monkeypatch.setattr(module, "TRUST_S", 0.5)
    with (
        closing(Proxy(server.port)) as proxy,
        Connection(f"delayq://127.0.0.1:{proxy.port}/0") as connection,
        server.client() as client,
    ):
        reader = Reader(connection.default_channel, "q")
        wait_until(lambda: reader.wait(0.05) == [] and client.info("clients")["tracking_clients"] == 1, "it is told")
        before = told(reader, client)
        proxy.swallows = b"__redis__:invalidate"
        publish(ours, "q", "lost?", priority=6)
        assert reader.drain(1) == ["lost?"]
        assert told(reader, client) == before


def test_a_server_that_hangs_is_an_error_that_workers_know(
    server: PrivateRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TRUST_S", 0.0)
    with broker(server, "delayq", 0, socket_timeout=0.2) as ours, consuming(ours, "q") as reader:
        reader.wait(0.2)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(reader.channel.connection.client.connection_errors):
                reader.wait(5)
        finally:
            os.kill(server.pid, signal.SIGCONT)


def test_a_listening_connection_that_is_lost_is_opened_again(ours: Broker, server: PrivateRedis) -> None:
    """What came in between arrives, and what comes later is told of."""
    with consuming(ours, "q") as reader, server.client() as client:
        for number in range(0, 4, 2):
            lost, cycle = told(reader, client), reader.channel.connection.cycle
            polled = len(cycle.fds)
            client.client_kill_filter(_id=lost)
            publish(ours, "q", number, priority=6)
            began = time.monotonic()
            assert reader.drain(number + 1)[-1] == number
            told(reader, client, but=lost)
            assert len(cycle.fds) == polled
            publish(ours, "q", number + 1, priority=6)
            assert reader.drain(number + 2)[-1] == number + 1
            assert time.monotonic() - began < 10 < TRUST_S


def test_a_ping_that_the_server_refuses_is_an_answer(server: PrivateRedis) -> None:
    """Redis refuses PING, too, if it refuses writes because it could not write a snapshot."""
    with (
        broker(server, "delayq", 0, health_check_interval=1) as ours,
        consuming(ours, "q") as reader,
        server.client() as client,
    ):
        before = told(reader, client)
        client.execute_command("ACL", "SETUSER", "default", "-ping")
        refused = lambda: client.info("commandstats").get("cmdstat_ping", {}).get("rejected_calls", 0)  # noqa: E731

        def has_refused() -> bool:
            reader.wait(0.2)
            return bool(refused() >= 4)

        wait_until(has_refused, "it refuses")
        client.execute_command("ACL", "SETUSER", "default", "+ping")
        publish(ours, "q", "told", priority=6)
        assert reader.drain(1) == ["told"]
        assert told(reader, client) == before


def test_both_connections_are_lost(ours: Broker, server: PrivateRedis, caplog: pytest.LogCaptureFixture) -> None:
    """The server knows that the listening one is gone before the worker does. That does not forbid it to listen."""
    caplog.set_level("INFO", logger="celery_delayq")
    with consuming(ours, "q", ack=False) as reader, server.client() as client:
        reader.wait(0.2)
        publish(ours, "q", *range(3))
        reader.drain(3)
        for connection in (told(reader, client), fetching(client)["id"]):
            client.client_kill_filter(_id=connection)
        reader.acknowledge_all()  # it notices that the one that fetches is lost
        # It does nothing for longer than the second between two looks, so it looks at all lists again before it reads
        # from the one that listens.
        time.sleep(1.1)
        reader.wait(0.5)
        publish(ours, "q", "told", priority=6)
        began = time.monotonic()
        assert reader.drain(4)[-1] == "told"
        assert time.monotonic() - began < 10 < TRUST_S
        assert waiting(client) == 1
    assert "does not tell" not in caplog.text


#: Redis 6.2 can allow subcommands one by one, but forbid none.
CLIENT = ("caching", "getname", "id", "info", "kill", "list", "setname", "tracking", "unblock")


def rules_without(forbidden: str) -> list[str]:
    if forbidden not in CLIENT:
        return [f"-{forbidden}"]
    return ["-client", *(f"+client|{it}" for it in CLIENT if it != forbidden)]


@pytest.mark.parametrize("forbidden", ["tracking", "caching", "info", "exists"])
def test_a_user_who_may_not(server: PrivateRedis, forbidden: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each list takes a connection then."""
    caplog.set_level("INFO", logger="celery_delayq")
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "default", *rules_without(forbidden))
        with broker(server, "delayq", 0) as ours, consuming(ours, "q") as reader:
            reader.wait(0.2)
            for priority in PRIORITIES:
                publish(ours, "q", priority, priority=priority)
            assert sorted(reader.drain(4)) == [0, 3, 6, 9]
            waits(reader, client, 4)
    assert caplog.text.count("Redis does not tell of messages in rarely used lists") == 1


@pytest.mark.parametrize("keys", [1, 2])
def test_a_server_that_remembers_few_keys(ours: Broker, server: PrivateRedis, keys: int) -> None:
    """It forgets some at once, and tells so."""
    with server.client() as client:
        client.config_set("tracking-table-max-keys", keys)
    with consuming(ours, "q1", "q2") as reader:
        for number in range(6):
            reader.wait(0.2)
            publish(ours, "q1", number, priority=6)
            began = time.monotonic()
            assert reader.drain(number + 1)[-1] == number
            assert time.monotonic() - began < 10 < TRUST_S


def test_a_flushed_database_forgets_nothing(ours: Broker, server: PrivateRedis) -> None:
    """The server tells all who track keys, whatever the database."""
    with consuming(ours, "q") as reader, server.client(db=9) as client:
        before = told(reader, client)
        for number in range(2):
            client.set("any", 1)
            client.flushdb()
            reader.wait(0.2)
            publish(ours, "q", number, priority=6)
            assert reader.drain(number + 1)[-1] == number
        assert told(reader, client) == before, "there was no need to connect again"
