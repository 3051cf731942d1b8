"""The message that examples/java builds by hand is the one that Celery and kombu build."""

from __future__ import annotations

import json
from base64 import b64decode
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.queue import codec
from celery_delayq.transport.eta import due_ms_of
from examples.java.celery_message import CeleryMessage

ETA = datetime(2096, 10, 2, 7, 6, 40, 123456, tzinfo=timezone.utc)
CALL: dict[str, Any] = {"args": [1, "grün", None], "kwargs": {"x": [1.5]}, "priority": 4}


@pytest.fixture
def published(client: redis.Redis) -> tuple[str, dict[str, Any]]:
    """What Celery stores for a call: the name of the list, and the message."""
    port = client.get_connection_kwargs()["port"]
    with Celery("shop", broker=f"delayq://127.0.0.1:{port}/0", set_as_current=False) as app:
        DelayQ(app)
        app.send_task("t", task_id="an-id", queue="q", eta=ETA, expires=ETA + timedelta(hours=1), **CALL)
    (name,) = set(client.zrange("delayq:queues", 0, -1))
    (entry,) = client.zrange(f"redisson_delay_queue_timeout:{{{name.decode()}}}", 0, -1)
    return name.decode(), json.loads(codec.unpack(entry)[1])


def by_hand() -> CeleryMessage:
    return CeleryMessage("t", id="an-id", eta=ETA, expires=ETA + timedelta(hours=1), **CALL)


def body(message: dict[str, Any]) -> Any:
    return json.loads(b64decode(message["body"]))


def test_every_field_by_hand_is_one_of_celerys_with_its_value(published: tuple[str, dict[str, Any]]) -> None:
    name, theirs = published
    ours = json.loads(by_hand().to_json("q"))
    assert by_hand().list_name("q") == name
    assert body(ours) == body(theirs)
    unlike = {"delivery_tag", "reply_to", "origin", "argsrepr", "kwargsrepr"}
    for part in ("headers", "properties"):
        assert ours[part].keys() <= theirs[part].keys()
        for key in ours[part].keys() - unlike:
            assert ours[part][key] == theirs[part][key], key
    assert {key: ours[key] for key in ours.keys() - {"body", "headers", "properties"}} == {
        key: theirs[key] for key in theirs.keys() - {"body", "headers", "properties"}
    }


def test_it_is_due_when_the_transport_thinks_so() -> None:
    assert by_hand().due_ms == due_ms_of(json.loads(by_hand().to_json("q"))) == 4_000_000_000_124


def test_what_was_built_and_what_celery_built_can_be_read(published: tuple[str, dict[str, Any]]) -> None:
    assert CeleryMessage.parse(by_hand().to_json("q")) == by_hand()
    assert CeleryMessage.parse(json.dumps(published[1])) == by_hand()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"headers": {}, "properties": {}, "content-type": "text/plain"}'])
def test_what_is_no_task_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no Celery task|the body is|Expecting value"):
        CeleryMessage.parse(text)
