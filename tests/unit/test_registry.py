"""The registry: a name is known while something waits for it, whatever happens in between, and leaves it otherwise."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import product

import pytest
import redis

from celery_delayq import DelayedQueue
from celery_delayq.basics.times import to_datetime
from celery_delayq.queue.registry import LASTS_S, REGISTERED_FOR_S, Registry, registered
from celery_delayq.queue.set_aside import keep
from tests.state import FAR, bury, nothing_changes, offer, state

LASTS_MS = LASTS_S * 1000


@pytest.fixture
def registry(client: redis.Redis) -> Registry:
    """The registry of an empty database."""
    return Registry(client)


@pytest.fixture
def queue(client: redis.Redis) -> DelayedQueue:
    """A delayed queue that nobody has registered yet."""
    return DelayedQueue(client, "q")


def clear(registry: Registry) -> None:
    """Do what a loop does."""
    registry.forget(registry.read())


def time_passes(registry: Registry, by_ms: int = LASTS_MS + 1000) -> None:
    """Let what is registered be used so much longer ago."""
    for name in registry.read():
        registry.client.zincrby(registry.key, -by_ms, name)


class TestWhatIsEmpty:
    def test_stays_while_its_list_has_messages(self, registry: Registry) -> None:
        registry.add("q")
        registry.client.lpush("q", "message")
        time_passes(registry)
        clear(registry)
        assert registered(registry.client) == {"q"}
        registry.client.rpop("q")
        time_passes(registry)
        clear(registry)
        assert registered(registry.client) == set()

    def test_stays_likewise_if_it_never_had_a_delayed_message(self, registry: Registry, queue: DelayedQueue) -> None:
        ages = {"q": -1, "empty": -1, "delayed": -1, "new": -FAR}
        registry.client.zadd(registry.key, ages)
        registry.client.lpush("q", "message")
        DelayedQueue(registry.client, "delayed").offer(b"", eta=to_datetime(FAR))
        registry.client.zadd(registry.key, {"delayed": -1})
        clear(registry)
        used = registry.read()
        assert used.keys() == {"q", "delayed", "new"}
        assert used["q"] < -1
        assert used["delayed"] > 1
        assert registered(registry.client) == used.keys()

    def test_leaves_when_it_was_not_used_for_long(self, registry: Registry) -> None:
        registry.add("q")
        time_passes(registry, LASTS_MS // 2)
        clear(registry)
        assert registered(registry.client) == {"q"}, "somebody may have registered it just before"
        time_passes(registry)
        clear(registry)
        assert state(registry.client) == {}

    def test_stays_while_it_is_registered_again(self, registry: Registry) -> None:
        for _ in range(3):
            registry.add("q")
            time_passes(registry, LASTS_MS // 2)
            clear(registry)
        assert registered(registry.client) == {"q"}

    def test_some_at_a_time_the_longest_unused_first(self, registry: Registry) -> None:
        registry.client.zadd(registry.key, {f"q{number:03}": number for number in reversed(range(750))})
        clear(registry)
        assert min(registry.read()) == "q500"
        clear(registry)
        assert registry.read() == {}


class TestWhatIsNot:
    def test_stays_and_is_left_alone_for_as_long_again(self, registry: Registry, queue: DelayedQueue) -> None:
        queue.offer(b"", eta=to_datetime(FAR))
        time_passes(registry)
        with nothing_changes(registry.client):
            clear(registry)
        used = registry.read()
        clear(registry)
        assert registry.read() == used

    @pytest.mark.parametrize("which", ["dead", "failed", "schedule"])
    def test_has_dead_letters_or_periodic_tasks(self, registry: Registry, queue: DelayedQueue, which: str) -> None:
        registry.add("q")
        if which == "dead":
            bury(registry.client, queue.name, b"letter")
        elif which == "failed":
            keep(queue.keys, record=b"record", most=1, kept_ms=600_000).run(registry.client)
        else:
            registry.client.hset(queue.keys.schedule, "entry", "state")
        time_passes(registry)
        with nothing_changes(registry.client):
            clear(registry)

    def test_is_one_that_the_server_refuses(self, registry: Registry, queue: DelayedQueue) -> None:
        port = registry.client.get_connection_kwargs()["port"]
        registry.client.acl_setuser("some", enabled=True, nopass=True, commands=["+@all"], keys=["delayq:queues"])
        registry.add("q")
        time_passes(registry)
        with redis.Redis(port=port, username="some", password="") as client, nothing_changes(registry.client):
            clear(Registry(client))
        registry.client.acl_deluser("some")


#: Where the steps of a producer fall among those of a loop: before it reads, before it looks, before it forgets, after
#: that; and the same in the next round.
SLOTS = range(8)
LATER = 4

#: A producer registers, stores, and registers again if nothing else waited. It may be killed after each of these. It
#: stores at most `REGISTERED_FOR_S` after it registered.
PRODUCERS = [
    steps
    for length in (1, 2, 3)
    for steps in product(SLOTS, repeat=length)
    if sorted(steps) == list(steps) and (length == 1 or (steps[0] < LATER) == (steps[1] < LATER))
]


class Stepped(redis.Redis):
    """Lets something happen before a loop looks at queues, and before it forgets names."""

    before: Callable[[int], object] = staticmethod(lambda step: None)

    def time(self) -> object:
        """Called when the registry was read."""
        self.before(1)
        return super().time()

    def execute_command(self, *args: object, **options: object) -> object:
        """Called with what a loop does in the registry."""
        if str(args[0]).startswith("EVALSHA") and len(args) > 5:
            self.before(2)
        return super().execute_command(*args, **options)


class TestInterleavings:
    @pytest.mark.parametrize("before_ms", [None, 0, LASTS_MS - REGISTERED_FOR_S * 1000, LASTS_MS])
    def test_no_message_is_overlooked(self, registry: Registry, queue: DelayedQueue, before_ms: int | None) -> None:
        """The name was registered so long before, or never."""
        port = registry.client.get_connection_kwargs()["port"]
        with Stepped(port=port) as client:
            for steps in PRODUCERS:
                registry.client.flushall()
                if before_ms is not None:
                    registry.add("q")
                    time_passes(registry, int(before_ms) + 1000)
                self.run(registry, Registry(client), queue, steps)
                waits = len(steps) > 1
                assert "q" in registry.read() or not waits, steps
                time_passes(registry)
                clear(registry)
                assert registered(registry.client) == ({"q"} if waits else set()), steps

    def run(self, registry: Registry, of_loop: Registry, queue: DelayedQueue, steps: tuple[int, ...]) -> None:
        """Let a producer take its steps in these slots, and a loop go round twice."""
        acts = [lambda: registry.add("q"), lambda: offer(queue, "a"), lambda: registry.add("q")]
        todo: list[list[Callable[[], object]]] = [[] for _ in SLOTS]
        for slot, act in zip(steps, acts, strict=False):
            todo[slot].append(act)

        def take(slot: int) -> None:
            while todo[slot]:
                todo[slot].pop(0)()

        for first in (0, LATER):
            take(first)
            of_loop.client.before = lambda step, first=first: take(first + step)  # type: ignore[attr-defined]
            clear(of_loop)
            for slot in range(first, first + LATER):
                take(slot)
            if first == 0:
                time_passes(registry)


@pytest.fixture
def broken(client: redis.Redis) -> Iterator[redis.Redis]:
    """A client whose registry is of another type, which nobody has logged yet."""
    forget_reports(client)
    client.set("delayq:queues", "of a wrong type")
    yield client
    forget_reports(client)


def forget_reports(client: redis.Redis) -> None:
    """Let the registry work for a moment: what is wrong with it later is logged again."""
    client.delete("delayq:queues")
    Registry(client).add("any")
    client.delete("delayq:queues")


class TestOfAnotherType:
    def test_an_offer_succeeds_and_one_error_says_so(
        self, broken: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        for number in range(3):
            for name in ("q", "other"):
                DelayedQueue(broken, name).offer(b"%d" % number, eta=to_datetime(FAR))
        assert [DelayedQueue(broken, name).size() for name in ("q", "other")] == [3, 3]
        (record,) = caplog.records
        assert record.levelno == logging.ERROR
        assert "'delayq:queues'" in record.getMessage()
        assert "WRONGTYPE" in record.getMessage()

    def test_loops_hear_of_the_queue(self, broken: redis.Redis, queue: DelayedQueue) -> None:
        with broken.pubsub(ignore_subscribe_messages=True) as pubsub:
            pubsub.subscribe("delayq:queues")
            pubsub.get_message(timeout=5)
            queue.offer(b"", eta=to_datetime(FAR))
            message = pubsub.get_message(timeout=5)
        assert message
        assert message["data"] == b"q"

    def test_once_it_is_mended_it_is_written_again(
        self, broken: redis.Redis, registry: Registry, caplog: pytest.LogCaptureFixture
    ) -> None:
        registry.add("q")
        broken.delete("delayq:queues")
        registry.add("q")
        assert registered(broken) == {"q"}
        broken.set("delayq:queues", "of a wrong type")
        registry.add("q")
        assert len(caplog.records) == 2, "one a time"

    def test_any_other_refusal_is_an_error(self, client: redis.Redis, queue: DelayedQueue) -> None:
        client.config_set("maxmemory", 1)
        try:
            with pytest.raises(redis.ResponseError, match="maxmemory"):
                queue.offer(b"", eta=to_datetime(FAR))
        finally:
            client.config_set("maxmemory", 0)


def test_names_that_are_no_text_stay_where_they_are(registry: Registry) -> None:
    registry.client.zadd(registry.key, {b"\xff": 1, b"": 1})
    with nothing_changes(registry.client):
        clear(registry)
    assert registry.read() == {}


@pytest.mark.parametrize("options", [{}, {"decode_responses": True}, {"protocol": 3}])
def test_with_any_client(client: redis.Redis, options: dict[str, object]) -> None:
    port = client.get_connection_kwargs()["port"]
    with redis.Redis(port=port, **options) as any_client:  # type: ignore[call-overload]
        registry = Registry(any_client, "shop.")
        registry.add("größe")
        seconds, _ = client.time()
        (used,) = registry.read().items()
        assert used[0] == "größe"
        assert 0 <= int(seconds) * 1000 + 1000 - used[1] < 60_000
        time_passes(registry)
        clear(registry)
        assert client.keys() == []
