"""register and forget."""

from __future__ import annotations

import pytest
import redis

from celery_delayq.queue import scripts
from celery_delayq.queue.keys import registry
from tests.state import nothing_changes, now_ms

REGISTRY = registry()


def test_registering_notes_the_servers_time_and_announces_what_is_new(any_client: redis.Redis) -> None:
    any_client.zadd(REGISTRY, {"known": 1})
    begin_ms = now_ms(any_client)
    with any_client.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.subscribe(REGISTRY)
        pubsub.get_message(timeout=5)
        assert scripts.register(REGISTRY, names=["known", "größe"]).run(any_client) == 1
        message = pubsub.get_message(timeout=5)
        assert message
        assert message["data"] == "größe".encode()
        assert pubsub.get_message(timeout=0) is None
    used = dict(any_client.zrange(REGISTRY, 0, -1, withscores=True))
    assert used.keys() == {b"known", "größe".encode()}
    assert all(begin_ms <= at_ms <= now_ms(any_client) for at_ms in used.values())


def test_what_was_never_for_a_delayed_message_is_negative_and_not_announced(any_client: redis.Redis) -> None:
    with any_client.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.subscribe(REGISTRY)
        pubsub.get_message(timeout=5)
        for _ in range(2):
            assert scripts.register(REGISTRY, names=["q"], sent=True).run(any_client) == 0
            assert -now_ms(any_client) <= any_client.zscore(REGISTRY, "q") < 0
        assert pubsub.get_message(timeout=0) is None
        assert scripts.register(REGISTRY, names=["q"]).run(any_client) == 1
        message = pubsub.get_message(timeout=5)
        assert message
        assert message["data"] == b"q"
    any_client.zadd(REGISTRY, {"q": 1})
    assert scripts.register(REGISTRY, names=["q"], sent=True).run(any_client) == 0
    assert 1 < any_client.zscore(REGISTRY, "q") <= now_ms(any_client)


def test_only_what_was_not_used_since_is_forgotten(any_client: redis.Redis) -> None:
    any_client.zadd(REGISTRY, {"a": 1_700_000_000_001, "b": 2, "c": 3})
    used = [("a", 1_700_000_000_001), ("nobody", 1), ("b", 1)]
    assert scripts.forget(REGISTRY, used=used).run(any_client) == 1
    assert any_client.zrange(REGISTRY, 0, -1, withscores=True) == [(b"b", 2), (b"c", 3)]


def test_a_key_of_another_type_is_left_alone(any_client: redis.Redis) -> None:
    any_client.set(REGISTRY, "no ZSET")
    for call in (scripts.register(REGISTRY, names=["a"]), scripts.forget(REGISTRY, used=[("a", 1)])):
        with nothing_changes(any_client), pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            call.run(any_client)
