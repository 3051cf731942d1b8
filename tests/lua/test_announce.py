"""announce.lua: which configuration counts, and since when planners have been running without a gap."""

from __future__ import annotations

import pytest
import redis

from celery_delayq.queue.keys import ScheduleKeys
from celery_delayq.schedule import scripts
from celery_delayq.schedule.scripts import Announced
from tests.state import now_ms

KEYS = ScheduleKeys.of()
LIFETIME_MS, GAP_MS, HOUR_MS = 300_000, 60_000, 3_600_000


def announce(client: redis.Redis, app: str = "shop", configuration: str = "c", previous_ms: int = 0) -> Announced:
    return scripts.announce(
        KEYS,
        app=app,
        configuration=configuration,
        lifetime_ms=LIFETIME_MS,
        gap_ms=GAP_MS,
        previous_ms=previous_ms,
    ).run(client)


def announced(
    client: redis.Redis, ago_ms: int, *, app: str = "shop", configuration: str = "c", first_ms: int = 1
) -> int:
    """Let planners have been there for an hour, until so long ago; return since when."""
    seen_ms = now_ms(client) - ago_ms
    since_ms = seen_ms - HOUR_MS
    client.hset(KEYS.configurations, f"{app}\0{configuration}", f"{first_ms}:{seen_ms}:{since_ms}")
    return since_ms


def names(client: redis.Redis) -> set[bytes]:
    found: set[bytes] = set(client.hkeys(KEYS.configurations))
    return found


class TestSince:
    def test_the_first_begins_now(self, any_client: redis.Redis) -> None:
        found = announce(any_client)
        assert found.since_ms == found.since_of_any_ms == found.now_ms

    @pytest.mark.parametrize(("ago_ms", "follows"), [(GAP_MS // 2, True), (GAP_MS + 1, False)])
    def test_a_newcomer_may_follow_within_the_gap(self, any_client: redis.Redis, ago_ms: int, follows: bool) -> None:
        since_ms = announced(any_client, ago_ms)
        found = announce(any_client)
        assert found.since_ms == found.since_of_any_ms == (since_ms if follows else found.now_ms)

    def test_one_that_was_slow_follows_itself_within_the_lifetime(self, any_client: redis.Redis) -> None:
        since_ms = announced(any_client, 2 * GAP_MS)
        assert announce(any_client, previous_ms=now_ms(any_client) - 2 * GAP_MS).since_ms == since_ms

    @pytest.mark.parametrize(("previous_ms", "follows"), [(0, True), (-1, False)])
    def test_one_that_others_hear_follows_within_the_lifetime(
        self, any_client: redis.Redis, previous_ms: int, follows: bool
    ) -> None:
        """Unless its own connection was lost: then so was theirs, perhaps."""
        since_ms = announced(any_client, 2 * GAP_MS)
        with any_client.pubsub() as mine, any_client.pubsub() as other:
            for pubsub in (mine, other):
                pubsub.subscribe(KEYS.channel)
                assert pubsub.get_message(timeout=10)
            found = announce(any_client, previous_ms=previous_ms)
        assert found.since_ms == (since_ms if follows else found.now_ms)

    def test_one_that_nobody_else_hears_does_not(self, any_client: redis.Redis) -> None:
        announced(any_client, 2 * GAP_MS)
        with any_client.pubsub() as mine:
            mine.subscribe(KEYS.channel)
            assert mine.get_message(timeout=10)
            found = announce(any_client)
        assert found.since_ms == found.now_ms

    def test_other_apps_count_for_any_alone(self, any_client: redis.Redis) -> None:
        since_ms = announced(any_client, 0, app="warehouse")
        found = announce(any_client)
        assert (found.since_ms, found.since_of_any_ms) == (found.now_ms, since_ms)

    def test_the_longest_counts_whatever_the_order(self, any_client: redis.Redis) -> None:
        since_ms = announced(any_client, 1_000, configuration="b")
        for configuration in "acd":
            announced(any_client, 0, configuration=configuration)
        found = announce(any_client)
        assert found.since_ms == found.since_of_any_ms == since_ms


class TestWhichCounts:
    def test_the_one_that_was_first_seen_last(self, any_client: redis.Redis) -> None:
        for number, configuration in enumerate("bca"):
            announced(any_client, 0, configuration=configuration, first_ms=number + 1)
        assert [announce(any_client, configuration=one).configuration for one in "abc"] == ["a"] * 3
        assert announce(any_client, configuration="new").configuration == "new"
        assert announce(any_client, configuration="a").configuration == "new"

    def test_of_two_at_the_same_time_all_choose_the_same(self, any_client: redis.Redis) -> None:
        for configuration in "abc":
            announced(any_client, 0, configuration=configuration)
        assert {announce(any_client, configuration=one).configuration for one in "abc"} == {"c"}

    def test_none_of_another_app(self, any_client: redis.Redis) -> None:
        announced(any_client, 0, app="warehouse", configuration="newer", first_ms=2)
        announced(any_client, 0)
        assert announce(any_client).configuration == "c"

    @pytest.mark.parametrize("value", ["junk", None])
    def test_what_is_over_and_what_is_none_is_forgotten(self, any_client: redis.Redis, value: str | None) -> None:
        announced(any_client, LIFETIME_MS + 1, configuration="old", first_ms=HOUR_MS)
        if value:
            any_client.hset(KEYS.configurations, "shop\0old", value)
        assert announce(any_client).configuration == "c"
        assert names(any_client) == {b"shop\0c"}
