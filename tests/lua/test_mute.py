"""A user who may not publish: notifications are only hints, and whatever a script has to do is done without them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from celery_delayq.basics.times import to_datetime
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.keys import ScheduleKeys
from celery_delayq.schedule import scripts as schedule_scripts
from tests.state import FAR, TRANSFERRER, delivered, offer, state, waiting


@pytest.fixture
def mute(any_client: redis.Redis) -> Iterator[DelayedQueue]:
    """The queue of a user who may do everything but publish."""
    any_client.execute_command("ACL", "SETUSER", "mute", "on", "nopass", "+@all", "~*", "resetchannels")
    address = any_client.connection_pool.connection_kwargs
    with redis.Redis(host=address["host"], port=address["port"], username="mute", password="any") as client:
        yield DelayedQueue(client, "q")
    any_client.execute_command("ACL", "DELUSER", "mute")


def test_may_not_publish(mute: DelayedQueue) -> None:
    with pytest.raises(redis.ResponseError, match=r"(?i)no permissions"):
        mute.client.publish(mute.keys.channel, "1")


def test_transfers_and_resigns(mute: DelayedQueue) -> None:
    offer(mute, "a", 1)
    offer(mute, "b")
    assert mute.transfer(transferrer="me", grace=0.25).moved == 1
    assert delivered(mute) == [b"a"]
    assert mute.resign("me") is True
    assert TRANSFERRER not in state(mute.client)


def test_amends(mute: DelayedQueue, queue: DelayedQueue) -> None:
    offer(mute, "a", FAR)
    (entry,) = mute.find("a")
    assert mute.amend(entry, b"sooner", eta=to_datetime(FAR - 1))
    assert waiting(queue) == [b"sooner"]


def test_records_a_periodic_task(mute: DelayedQueue, any_client: redis.Redis) -> None:
    keys = ScheduleKeys.of()
    assert schedule_scripts.record(keys, changes=[("entry", b"", b"record")]).run(mute.client) == [1]
    assert any_client.hgetall(keys.definitions) == {b"entry": b"record", b"": b"1"}
