"""SharedRegistry: loops read the registry once for all of them."""

from __future__ import annotations

import pytest
import redis

from celery_delayq.queue.registry import Registry
from celery_delayq.queue.shared_registry import SharedRegistry


def calls(client: redis.Redis) -> int:
    """Return how often the names were read."""
    return int(client.info("commandstats").get("cmdstat_smembers", {"calls": 0})["calls"])


def test_what_one_reads_counts_for_the_others(client: redis.Redis) -> None:
    Registry(client).add("one")
    shared = SharedRegistry(client)
    before = calls(client)
    assert shared.names() == {"one"}
    shared.names().clear()
    assert shared.names() == {"one"}
    assert shared.retired().at_ms == {}
    assert calls(client) == before + 1


def test_a_loop_that_connects_reads_what_is_there(client: redis.Redis) -> None:
    shared = SharedRegistry(client)
    assert shared.names() == set()
    Registry(client).add("one")
    shared.refresh()
    assert shared.names() == {"one"}


def test_an_error_is_not_kept(client: redis.Redis) -> None:
    shared = SharedRegistry(client)
    client.set(shared.keys.names, "not a set")
    for _ in range(2):
        with pytest.raises(redis.ResponseError):
            shared.names()
    client.delete(shared.keys.names)
    assert shared.names() == set()
