"""A queue that the server refuses to bind for now is bound before a message is sent to its exchange."""

from __future__ import annotations

from contextlib import suppress

import pytest
import redis
from kombu import Connection, Exchange, Queue

from examples.private_redis import PrivateRedis
from tests.refusing import refusing
from tests.support import wait_until

pytestmark = pytest.mark.one_server(
    "on a cluster, the node of the bindings may be away: redis_cluster/test_failover.py"
)

BINDINGS = "_kombu.binding.news"


@pytest.fixture
def client(durable_server: PrivateRedis) -> redis.Redis:
    return durable_server.client()


@pytest.fixture
def connection(durable_server: PrivateRedis) -> Connection:
    return Connection(f"delayq://127.0.0.1:{durable_server.port}/0")


def queue(name: str = "sports", **options: object) -> Queue:
    return Queue(name, Exchange("news", "direct"), routing_key="chess", **options)


def test_a_message_finds_its_queue_also_if_the_channel_that_declared_it_is_closed(
    client: redis.Redis, connection: Connection
) -> None:
    with client, connection:
        with refusing(client, "OOM"):
            with connection.channel() as channel:
                queue()(channel).declare()
            with pytest.raises(redis.OutOfMemoryError):
                connection.Producer().publish("body", exchange="news", routing_key="chess")
        assert not client.exists(BINDINGS)
        connection.Producer().publish("body", exchange="news", routing_key="chess")
        assert client.llen("sports") == 1


def test_who_consumes_has_it_bound_soon_afterwards(client: redis.Redis, connection: Connection) -> None:
    with client, connection:
        with refusing(client, "OOM"):
            consumer = connection.Consumer(queue(), callbacks=[lambda body, message: message.ack()])
            consumer.consume()

        def is_bound() -> bool:
            with suppress(TimeoutError):  # there is no message
                connection.drain_events(timeout=0.1)
            return bool(client.exists(BINDINGS))

        wait_until(is_bound, "it is bound")


def test_a_queue_that_is_deleted_before_is_not_bound(client: redis.Redis, connection: Connection) -> None:
    with client, connection:
        with refusing(client, "OOM"):
            bound = queue(auto_delete=True)(connection.default_channel)
            bound.declare()
            connection.default_channel.after_reply_message_received("sports")
        connection.Producer().publish("body", exchange="news", routing_key="chess")
        assert not client.exists(BINDINGS)


def test_a_queue_that_was_refused_is_bound_when_it_is_declared_again(
    client: redis.Redis, connection: Connection
) -> None:
    with client, connection:
        bound = queue(durable=False)(connection.default_channel)
        with refusing(client, "OOM"):
            bound.declare()
        bound.declare()
        assert client.exists(BINDINGS)


def test_a_queue_whose_declaration_has_failed_is_bound_when_it_is_declared_again(
    client: redis.Redis, connection: Connection
) -> None:
    with client, connection:
        bound = queue(durable=False)(connection.default_channel)
        client.set(BINDINGS, "of another program")
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            bound.declare()
        client.delete(BINDINGS)
        bound.declare()
        assert client.exists(BINDINGS)


def test_a_queue_of_replies_that_could_not_be_deleted_is_bound_again(
    client: redis.Redis, connection: Connection
) -> None:
    with client, connection:
        channel = connection.default_channel
        bound = queue(durable=False)(channel)
        bound.declare()
        client.acl_setuser("default", commands=["-del"])
        try:
            with pytest.raises(redis.ResponseError, match="no permissions"):
                channel.after_reply_message_received("sports")
        finally:
            client.acl_setuser("default", commands=["+del"])
        bound.declare()
        assert client.exists(BINDINGS)


def test_a_queue_that_could_not_be_deleted_is_bound(client: redis.Redis, connection: Connection) -> None:
    with client, connection:
        channel = connection.default_channel
        with refusing(client, "NOREPLICAS"):
            queue()(channel).declare()
            with pytest.raises(redis.ResponseError, match="NOREPLICAS"):
                channel.queue_delete("sports")
        connection.Producer().publish("body", exchange="news", routing_key="chess")
        assert client.llen("sports") == 1


def test_a_queue_that_was_not_deleted_because_it_is_not_empty_is_bound(
    client: redis.Redis, connection: Connection
) -> None:
    with client, connection:
        channel = connection.default_channel
        with refusing(client, "OOM"):
            queue()(channel).declare()
        client.lpush("sports", "body")
        channel.queue_delete("sports", if_empty=True)
        connection.Producer().publish("body", exchange="news", routing_key="chess")
        assert client.llen("sports") == 2
