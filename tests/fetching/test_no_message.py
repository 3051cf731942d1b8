"""What is no message is set aside."""

from __future__ import annotations

import pytest

from tests.fetching.reading import is_set_aside, publish, queue, reader
from tests.integration.long_tasks import in_flight
from tests.integration.publishing import Broker
from tests.support import wait_until

pytestmark = pytest.mark.on_cluster

WRONG = {
    "no JSON": b"\x80\x04pickle",
    "truncated": b'{"body": "',
    "empty": b"",
    "no object": b"[1, 2]",
    "null": b"null",
    "no message": b'{"a": 1}',
    "no properties": b'{"body": "", "properties": null}',
    "body that cannot be decoded": b'{"body": "a", "headers": {}, "properties": {"body_encoding": "base64"}}',
    "unknown encoding": b'{"body": "a", "headers": {}, "properties": {"body_encoding": "rot13"}}',
}


@pytest.fixture(params=WRONG.values(), ids=WRONG.keys())
def wrong(request: pytest.FixtureRequest, ours: Broker) -> bytes:
    """What is no message, between two messages."""
    publish(ours, "q", "before")
    ours.client.lpush("q", request.param)
    publish(ours, "q", "behind")
    raw: bytes = request.param
    return raw


@pytest.mark.parametrize("prefetch", [1, 0])
def test_a_consumer_sets_aside_what_is_no_message(ours: Broker, wrong: bytes, prefetch: int) -> None:
    with reader(ours, "q", prefetch=prefetch) as it:
        assert it.drain(2) == ["before", "behind"]
    is_set_aside(ours, wrong)


def test_get_sets_aside_what_is_no_message(ours: Broker, wrong: bytes) -> None:
    for expected in ("before", "behind"):
        message = queue("q")(ours.channel).get()
        assert message.payload == expected
        message.ack()
    wait_until(lambda: in_flight(ours.client) == 0, "all are acknowledged")
    is_set_aside(ours, wrong)


def test_drain_events_returns_only_when_a_message_was_delivered(ours: Broker) -> None:
    ours.client.lpush("q", b"no message")
    publish(ours, "q", "behind")
    with reader(ours, "q") as it:
        it.channel.connection.client.drain_events(timeout=5)
        assert it.bodies == ["behind"]
