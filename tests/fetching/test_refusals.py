"""What the server refuses costs that list, and nothing else; and no message is stranded where a wait has to end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis
from kombu import Connection

from celery_delayq.basics import descriptors
from celery_delayq.basics.descriptors import Waker
from celery_delayq.fetching.wire import Wire
from celery_delayq.queue.keys import QueueKeys
from celery_delayq.transport.last_delivery import isolate
from examples.private_redis import PrivateRedis
from tests.consumer.conftest import Consumers, consumers
from tests.consumer.test_refused import refused
from tests.fetching.reading import DB, Reader, bodies_on, publish, queue, reader, redelivered
from tests.integration.long_tasks import in_flight
from tests.integration.publishing import Broker
from tests.support import wait_until

pytestmark = pytest.mark.on_cluster

__all__ = ["consumers"]


@contextmanager
def another_user(server: PrivateRedis, *rights: str) -> Iterator[Broker]:
    """A broker whose connections may not do all."""
    with server.client(db=DB) as client:
        client.flushdb()
        client.execute_command("ACL SETUSER", "limited", "reset", "on", ">password", "&*", "+@all", *rights)
        url = f"delayq://127.0.0.1:{server.port}/{DB}"
        try:
            with Connection(url, userid="limited", password="password") as connection:
                yield Broker(connection, client)
        finally:
            client.execute_command("ACL DELUSER", "limited")


@pytest.mark.one_server("they cannot use a cluster")
def test_what_kombus_own_workers_left_may_be_refused(ours: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """To restore it is a courtesy."""
    ours.client.set("unacked_index", "of another type")
    with reader(ours, "q") as it:
        it.wait(0.1)
        for _ in range(20):  # kombu looks each tenth time
            it.channel.connection.cycle.maybe_restore_messages()
        publish(ours, "q", "body")
        assert it.drain(1) == ["body"]
    assert caplog.text.count("Cannot restore messages that workers with kombu's own transport left behind") == 1


# -- lists that cannot be joined


def test_a_list_that_cannot_be_joined_is_tried_again_while_others_are_served(
    ours: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    leases = QueueKeys.of("refused").consumers
    ours.client.set(leases, "of another type")
    publish(ours, "refused", "behind")
    publish(ours, "q", *range(3))
    with reader(ours, "refused", "q") as it:
        assert it.drain(3) == [0, 1, 2]
        ours.client.delete(leases)
        assert it.drain(4)[-1] == "behind"
        wait_until(lambda: in_flight(ours.client) == 0, "all are acknowledged")
    assert caplog.text.count("Cannot fetch messages of 'refused'") == 1


def test_a_list_that_may_not_be_touched_does_not_stop_others(redis_server: PrivateRedis) -> None:
    """Neither the leases on it, nor what is in flight."""
    rights = ("~q*", "~secret*", "~*{q*", "~delayq:queues", "~unacked*", "~_kombu*")
    with another_user(redis_server, *rights) as ours:
        publish(ours, "q", *range(3))
        with reader(ours, "secret", "q") as it:
            assert it.drain(3) == [0, 1, 2]


# -- waits that have to end


def test_a_queue_that_is_cancelled_without_the_right_to_unblock_strands_no_message(redis_server: PrivateRedis) -> None:
    """Neither what has arrived already, nor what comes later for a wait that cannot be ended."""
    rights = ("~*", "-client", "+client|id", "+client|setname")
    with another_user(redis_server, *rights) as ours, ours.connection.clone() as connection:
        channel = connection.default_channel
        kept = Reader(channel, "kept")
        queues = ["arrived", "later"]
        cancelled = [Reader(channel, name) for name in queues]
        kept.wait(0.1)
        publish(ours, "kept", "first")
        kept.drain(1)
        kept.wait(0.1)
        publish(ours, "arrived", "body")
        wait_until(lambda: in_flight(ours.client) == 1, "it has arrived")
        for it in cancelled:
            it.consumer.cancel()
        publish(ours, "later", "body")
        for name in queues:
            wait_until(lambda name=name: kept.wait(0.05) and bodies_on(ours.client, name), f"{name!r} is handed back")
        assert in_flight(ours.client) == 0
        assert kept.bodies == ["first"]
        assert [Reader(channel, name).drain(1) for name in queues] == [["body"], ["body"]]


# -- replies that are lost


def lose_a_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lose the next reply to a fetch, when the server has sent it."""
    receive = Wire.receive

    def lose(wire: Wire) -> None:
        monkeypatch.setattr(Wire, "receive", receive)
        assert wire.has_reply(30)
        raise redis.ConnectionError("cut")

    monkeypatch.setattr(Wire, "receive", lose)


def test_a_message_that_was_to_be_got_when_the_connection_was_cut_is_got_again(
    ours: Broker, broker_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same channel, which has others to acknowledge. On a cluster, others may come first."""
    publish(ours, "q", "before", "lost", "behind")
    first = queue("q")(ours.channel).get()
    lose_a_reply(monkeypatch)
    with pytest.raises(redis.ConnectionError, match="cut"):
        queue("q")(ours.channel).get()
    got = [wait_until(queue("q")(ours.channel).get, "it is put back") for _ in range(2)]
    found = [(message.payload, redelivered(message)) for message in got]
    assert (found if broker_kind == "server" else sorted(found)[::-1]) == [("lost", True), ("behind", False)]
    assert in_flight(ours.client) == 3
    for message in (first, *got):
        message.ack()
    wait_until(lambda: in_flight(ours.client) == 0, "all are acknowledged")


@pytest.mark.one_server("a lost node is no error")
def test_who_consumes_is_told_until_the_connection_is_made_anew(ours: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only then is it known what was in flight."""
    publish(ours, "q", "lost")
    with reader(ours, "q") as it:
        lose_a_reply(monkeypatch)
        for _ in range(2):
            with pytest.raises(redis.ConnectionError):
                it.wait(5)
    assert bodies_on(ours.client) == ["lost"]


def test_a_last_delivery_that_cannot_be_marked_takes_place(consumers: Consumers) -> None:
    consumer = consumers.make()
    (tag,) = consumers.take(consumer, b'{"headers": {}, "properties": {}}')
    with refused(consumers, QueueKeys.of("q").in_flight(consumer.id)):
        assert isolate(consumer, tag)
    assert not consumer.isolation.is_on
    assert isolate(consumer, tag)
    assert consumer.isolation.is_on


# -- waking


@pytest.mark.one_server("it is about one process")
def test_a_byte_that_is_on_its_way_when_a_poller_is_closed_hits_nobody_else(
    ours: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a watchdog that finds its lease lost in that very moment."""
    others: list[int] = []
    write = os.write

    def close_first(fd: int, data: bytes) -> int:
        cycle.close()
        others.extend(os.pipe())  # the lowest free numbers
        return write(fd, data)

    with reader(ours, "q") as it:
        it.wait(0.1)
        cycle = it.channel.connection.cycle
        (fd,) = [fd for fd, polled in cycle.fds.items() if isinstance(polled, Waker)]
        pipe = os.fstat(fd).st_ino
        monkeypatch.setattr(descriptors.os, "write", close_first)
        cycle.wake()
        monkeypatch.undo()
        read_fd, write_fd = others
        os.set_blocking(read_fd, False)
        try:
            with pytest.raises(BlockingIOError):
                os.read(read_fd, 1)
            cycle.wake()  # nobody is there any more
            assert not is_open(fd, pipe)
        finally:
            os.close(read_fd)
            os.close(write_fd)


def is_open(fd: int, inode: int) -> bool:
    """Whether a file descriptor still is that of this file."""
    try:
        return os.fstat(fd).st_ino == inode
    except OSError:
        return False
