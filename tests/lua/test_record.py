"""record.lua and announce.lua: definitions of periodic entries, whose count, and since when planners are there."""

from __future__ import annotations

import json

import redis

from celery_delayq.queue.keys import ScheduleKeys
from celery_delayq.schedule import scripts
from celery_delayq.schedule.scripts import Announced
from tests.state import FAR, nothing_changes
from tests.support import wait_until

KEYS = ScheduleKeys.of()


def record(client: redis.Redis, seen: bytes, new: bytes, entry: str = "e") -> int:
    (number,) = scripts.record(KEYS, changes=[(entry, seen, new)]).run(client)
    return number


def announce(client: redis.Redis, configuration: str, app: str = "shop", lifetime_ms: int = 60_000) -> str:
    return (
        scripts.announce(KEYS, app=app, configuration=configuration, lifetime_ms=lifetime_ms).run(client).configuration
    )


class TestRecord:
    def test_is_written_by_whoever_saw_the_last_one(self, any_client: redis.Redis) -> None:
        assert record(any_client, b"", b"one") == 1
        assert record(any_client, b"one", b"two") == 2
        with nothing_changes(any_client):
            assert record(any_client, b"one", b"three") == 0

    def test_is_removed(self, any_client: redis.Redis) -> None:
        record(any_client, b"", b"one")
        assert record(any_client, b"one", b"") == 2
        assert any_client.hgetall(KEYS.definitions) == {b"": b"2"}

    def test_planners_hear_of_it_with_its_number(self, any_client: redis.Redis) -> None:
        with any_client.pubsub(ignore_subscribe_messages=True) as pubsub:
            pubsub.subscribe(KEYS.channel)
            pubsub.get_message(timeout=1)
            record(any_client, b"", b"one", "a: b")
            message = wait_until(lambda: pubsub.get_message(timeout=0.1), "a message")
        assert message["data"] == b'1:["a: b"]'

    def test_many_are_written_and_announced_at_once(self, any_client: redis.Redis) -> None:
        record(any_client, b"", b"one", "b")
        with any_client.pubsub(ignore_subscribe_messages=True) as pubsub:
            pubsub.subscribe(KEYS.channel)
            pubsub.get_message(timeout=1)
            changes = [("a", b"", b"new"), ("b", b"another", b"new"), ('c \u00fc"', b"", b"new")]
            assert scripts.record(KEYS, changes=changes).run(any_client) == [2, 0, 3]
            message = wait_until(lambda: pubsub.get_message(timeout=0.1), "a message")
        number, _, names = message["data"].partition(b":")
        assert (int(number), json.loads(names)) == (2, ["a", 'c \u00fc"'])
        assert any_client.hget(KEYS.definitions, "b") == b"one"
        assert any_client.hget(KEYS.definitions, "") == b"3"


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
        any_client.hset(KEYS.configurations, mapping={"shop\0a": f"1:{FAR}:1", "shop\0b": f"1:{FAR}:1"})
        assert announce(any_client, "a") == announce(any_client, "b") == "b"

    def test_other_apps_have_their_own(self, any_client: redis.Redis) -> None:
        announce(any_client, "one", "shop")
        wait_for_another_ms(any_client)
        assert announce(any_client, "two", "shop 2") == "two"
        assert announce(any_client, "one", "shop") == "one"


class TestSince:
    """Since when planners have been there without a gap."""

    LIFETIME_MS, GAP_MS = 30_000, 3_000

    def announce(self, client: redis.Redis, app: str = "shop", *, previous_ms: int = 0) -> Announced:
        times = {"lifetime_ms": self.LIFETIME_MS, "gap_ms": self.GAP_MS, "previous_ms": previous_ms}
        return scripts.announce(KEYS, app=app, configuration="new", **times).run(client)

    def seen_before(self, client: redis.Redis, ago_ms: int, *, configuration: str = "old", app: str = "shop") -> int:
        """Let a planner have been there for an hour, until so long ago; return since when."""
        now_ms = client.time()[0] * 1000
        since_ms = now_ms - 3_600_000
        client.hset(KEYS.configurations, f"{app}\0{configuration}", f"{since_ms}:{now_ms - ago_ms}:{since_ms}")
        return since_ms

    def test_begins_with_the_first(self, any_client: redis.Redis) -> None:
        first = self.announce(any_client)
        assert first.since_ms == first.since_of_any_ms == first.now_ms
        wait_for_another_ms(any_client)
        assert self.announce(any_client, previous_ms=first.now_ms).since_ms == first.now_ms

    def test_goes_on_where_one_follows_another(self, any_client: redis.Redis) -> None:
        since_ms = self.seen_before(any_client, 1_000)
        assert self.announce(any_client).since_ms == since_ms

    def test_begins_anew_after_a_gap(self, any_client: redis.Redis) -> None:
        self.seen_before(any_client, 5_000)
        found = self.announce(any_client)
        assert found.since_ms == found.now_ms

    def test_goes_on_where_a_planner_was_slow(self, any_client: redis.Redis) -> None:
        since_ms = self.seen_before(any_client, 20_000, configuration="new")
        previous_ms = any_client.time()[0] * 1000 - 20_000
        assert self.announce(any_client, previous_ms=previous_ms).since_ms == since_ms

    def test_but_not_where_it_was_suspended(self, any_client: redis.Redis) -> None:
        self.seen_before(any_client, 60_000, configuration="new")
        found = self.announce(any_client, previous_ms=any_client.time()[0] * 1000 - 60_000)
        assert found.since_ms == found.now_ms

    def test_goes_on_while_another_is_connected(self, any_client: redis.Redis) -> None:
        since_ms = self.seen_before(any_client, 20_000)
        with any_client.pubsub() as one, any_client.pubsub() as other:
            for pubsub in (one, other):
                pubsub.subscribe(KEYS.channel)
                wait_until(lambda pubsub=pubsub: pubsub.get_message(timeout=0.1), "it is subscribed")  # type: ignore[misc]
            assert self.announce(any_client).since_ms == since_ms

    def test_but_not_where_all_had_lost_their_connections(self, any_client: redis.Redis) -> None:
        self.seen_before(any_client, 20_000)
        with any_client.pubsub() as one, any_client.pubsub() as other:
            for pubsub in (one, other):
                pubsub.subscribe(KEYS.channel)
                wait_until(lambda pubsub=pubsub: pubsub.get_message(timeout=0.1), "it is subscribed")  # type: ignore[misc]
            found = self.announce(any_client, previous_ms=-1)
        assert found.since_ms == found.now_ms

    def test_is_told_for_each_app(self, any_client: redis.Redis) -> None:
        since_ms = self.seen_before(any_client, 0, app="another")
        found = self.announce(any_client)
        assert (found.since_ms, found.since_of_any_ms) == (found.now_ms, since_ms)

    def test_is_not_in_the_future(self, any_client: redis.Redis) -> None:
        """The server's clock was set back."""
        far = any_client.time()[0] * 1000 + 3_600_000
        any_client.hset(KEYS.configurations, "shop\0new", f"{far}:{far}:{far}")
        found = self.announce(any_client)
        assert found.since_ms == found.now_ms


def wait_for_another_ms(client: redis.Redis) -> None:
    """Return when the server's clock shows another millisecond."""
    start = client.time()
    wait_until(lambda: client.time()[0] > start[0] or client.time()[1] > start[1] + 1000, "a millisecond")
