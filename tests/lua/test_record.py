"""record.lua and announce.lua: definitions of periodic entries, and whose count."""

from __future__ import annotations

import redis

from celery_delayq.keys import ScheduleKeys
from celery_delayq.schedule import scripts
from tests.state import nothing_changes
from tests.support import wait_until

KEYS = ScheduleKeys.of()


def record(client: redis.Redis, seen: bytes, new: bytes, entry: str = "e") -> tuple[bool, int]:
    return scripts.record(client, KEYS, entry=entry, seen=seen, record=new)


def announce(client: redis.Redis, configuration: str, app: str = "shop", lifetime_ms: int = 60_000) -> str:
    return scripts.announce(client, KEYS, app=app, configuration=configuration, lifetime_ms=lifetime_ms)[0]


class TestRecord:
    def test_is_written_by_whoever_saw_the_last_one(self, any_client: redis.Redis) -> None:
        assert record(any_client, b"", b"one") == (True, 1)
        assert record(any_client, b"one", b"two") == (True, 2)
        with nothing_changes(any_client):
            assert record(any_client, b"one", b"three") == (False, 2)

    def test_is_removed(self, any_client: redis.Redis) -> None:
        record(any_client, b"", b"one")
        assert record(any_client, b"one", b"") == (True, 2)
        assert any_client.hgetall(KEYS.definitions) == {b"": b"2"}

    def test_planners_hear_of_it_with_its_number(self, any_client: redis.Redis) -> None:
        with any_client.pubsub(ignore_subscribe_messages=True) as pubsub:
            pubsub.subscribe(KEYS.channel)
            pubsub.get_message(timeout=1)
            record(any_client, b"", b"one", "a: b")
            message = wait_until(lambda: pubsub.get_message(timeout=0.1), "a message")
        assert message["data"] == b"1:a: b"


class TestAnnounce:
    def test_what_was_seen_last_for_the_first_time_counts(self, any_client: redis.Redis) -> None:
        assert announce(any_client, "old") == "old"
        wait_for_another_ms(any_client)
        assert announce(any_client, "new") == "new"
        assert announce(any_client, "old") == "new", "an old worker that restarts changes nothing"

    def test_the_old_one_counts_again_when_the_new_one_is_gone(self, any_client: redis.Redis) -> None:
        announce(any_client, "old")
        wait_for_another_ms(any_client)
        announce(any_client, "new")
        first_ms = any_client.hget(KEYS.configurations, "shop\0new").partition(b":")[0]
        any_client.hset(KEYS.configurations, "shop\0new", first_ms + b":1")  # nobody has announced it for long
        assert announce(any_client, "old") == "old"
        assert any_client.hlen(KEYS.configurations) == 1

    def test_configurations_of_one_moment_have_an_order(self, any_client: redis.Redis) -> None:
        any_client.hset(KEYS.configurations, mapping={"shop\0a": "1:9999999999999", "shop\0b": "1:9999999999999"})
        assert announce(any_client, "a") == announce(any_client, "b") == "b"

    def test_other_apps_have_their_own(self, any_client: redis.Redis) -> None:
        announce(any_client, "one", "shop")
        wait_for_another_ms(any_client)
        assert announce(any_client, "two", "shop 2") == "two"
        assert announce(any_client, "one", "shop") == "one"


def wait_for_another_ms(client: redis.Redis) -> None:
    """Return when the server's clock shows another millisecond."""
    start = client.time()
    wait_until(lambda: client.time()[0] > start[0] or client.time()[1] > start[1] + 1000, "a millisecond")
