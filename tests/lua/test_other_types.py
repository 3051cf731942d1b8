"""Keys of another type where a script would otherwise delete them, or be half done when it finds out."""

from __future__ import annotations

import pytest
import redis

from celery_delayq.queue import scripts
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.keys import RegistryKeys
from tests.state import INDEX, REPEATED, TIMEOUT_SET, nothing_changes, offer, wrong_type

REGISTRY = RegistryKeys.of()


@pytest.mark.parametrize("key", [INDEX, REPEATED])
def test_tidying_an_empty_queue_deletes_nothing_of_others(queue: DelayedQueue, key: str) -> None:
    wrong_type(queue, key, lambda: scripts.tidy(queue.keys, places=[]).run(queue.client))


def test_tidying_forgets_no_place_before_it_knows_the_index(queue: DelayedQueue) -> None:
    for payload in (b"0", b"1"):
        offer(queue, "a", payload=payload)
    offer(queue, "stays")
    (place,) = queue.client.zrange(REPEATED, 0, -1)
    gone = queue.find("a")[1]
    queue.client.zrem(TIMEOUT_SET, gone.raw)
    wrong_type(queue, INDEX, lambda: scripts.tidy(queue.keys, places=[place]).run(queue.client))


@pytest.mark.parametrize("key", [TIMEOUT_SET, INDEX, REPEATED])
def test_nothing_is_restored_of_another_program(queue: DelayedQueue, key: str) -> None:
    message = {"due_ms": 1, "message_key": b"", "payload": b"its entry", "mirrored": False}
    wrong_type(queue, key, lambda: scripts.restore(queue.keys, **message).run(queue.client))


def test_no_name_leaves_the_registry_for_nowhere(any_client: redis.Redis) -> None:
    any_client.sadd(REGISTRY.names, "a", "b")
    any_client.set(REGISTRY.retired, "no ZSET")
    with nothing_changes(any_client), pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        scripts.retire(REGISTRY, names=["a", "b"]).run(any_client)


def test_retiring_and_settling_count_what_they_did(any_client: redis.Redis) -> None:
    any_client.sadd(REGISTRY.names, "a", "b")
    assert scripts.retire(REGISTRY, names=["a", "nobody", "b"]).run(any_client) == 2
    (at_ms,) = {int(score) for _, score in any_client.zrange(REGISTRY.retired, 0, -1, withscores=True)}
    assert scripts.settle(REGISTRY, retired=[("a", at_ms), ("nobody", at_ms), ("b", at_ms)]).run(any_client) == 2
    assert any_client.keys() == []


def test_a_name_that_was_retired_again_is_not_settled(any_client: redis.Redis) -> None:
    any_client.zadd(REGISTRY.retired, {"a": 2})
    assert scripts.settle(REGISTRY, retired=[("a", 1)]).run(any_client) == 0
    assert any_client.zscore(REGISTRY.retired, "a") == 2
