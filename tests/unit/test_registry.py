"""The registry: a name is known while something waits for it, whatever happens in between, and leaves it otherwise."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import product

import pytest
import redis

from celery_delayq import DelayedQueue
from celery_delayq.queue.registry import REGISTERED_FOR_S, Registry
from tests.state import FAR, bury, nothing_changes, offer, state

IDLE_S = 90.0


class SteppedRegistry(Registry):
    """Lets something happen between a look at the queues and what follows from it."""

    in_between: Callable[[], object] = staticmethod(lambda: None)

    def _held(self, names: list[str]) -> set[str]:
        held = super()._held(names)
        self.in_between()
        return held


@pytest.fixture
def registry(client: redis.Redis) -> SteppedRegistry:
    """The registry of an empty database."""
    return SteppedRegistry(client)


@pytest.fixture
def queue(client: redis.Redis) -> DelayedQueue:
    """A delayed queue that nobody has registered yet."""
    return DelayedQueue(client, "q")


def clear(registry: Registry) -> None:
    """Do what a loop does that takes every queue for idle."""
    retired = registry.retired()
    registry.clear(sorted(registry.names()), retired, IDLE_S)


def time_passes(registry: Registry) -> None:
    """Let what was retired be retired for long."""
    for name in registry.retired().at_ms:
        registry.client.zincrby(registry.keys.retired, -IDLE_S * 1000 - 1, name)


def known(registry: Registry) -> set[str]:
    """Return the names that loops serve."""
    return registry.names() | registry.retired().at_ms.keys()


class TestWhatIsEmpty:
    def test_leaves_in_two_steps(self, registry: Registry) -> None:
        registry.add("q")
        clear(registry)
        assert (registry.names(), set(registry.retired().at_ms)) == (set(), {"q"})
        clear(registry)
        assert known(registry) == {"q"}, "somebody may have registered it just before"
        time_passes(registry)
        clear(registry)
        assert state(registry.client) == {}

    def test_takes_along_what_others_left_in_the_index(self, registry: Registry, queue: DelayedQueue) -> None:
        queue.offer(b"", due_ms=FAR)
        registry.client.delete(queue.keys.timeout_set)
        for _ in range(2):
            clear(registry)
            time_passes(registry)
        assert state(registry.client) == {}

    def test_a_hundred_at_a_time(self, registry: Registry) -> None:
        registry.client.sadd(registry.keys.names, *(f"q{number}" for number in range(250)))
        for left in (150, 50, 0, 0, 0):
            clear(registry)
            assert len(registry.names()) == left
            time_passes(registry)
        assert known(registry) == set()


class TestWhatIsNot:
    def test_stays(self, registry: Registry, queue: DelayedQueue) -> None:
        queue.offer(b"", due_ms=FAR)
        with nothing_changes(registry.client):
            clear(registry)

    @pytest.mark.parametrize("which", ["dead", "schedule"])
    def test_has_dead_letters_or_periodic_tasks(self, registry: Registry, queue: DelayedQueue, which: str) -> None:
        registry.add("q")
        if which == "dead":
            bury(registry.client, queue.name, b"letter")
        else:
            registry.client.hset(queue.keys.schedule, "entry", "state")
        with nothing_changes(registry.client):
            clear(registry)

    def test_comes_back_if_its_name_was_retired(self, registry: Registry, queue: DelayedQueue) -> None:
        """A producer was killed between storing and registering again."""
        registry.add("q")
        clear(registry)
        offer(queue, "a")
        clear(registry)
        assert registry.names() == set()
        time_passes(registry)
        clear(registry)
        assert (registry.names(), registry.retired().at_ms) == ({"q"}, {})

    def test_is_one_that_the_server_refuses(self, registry: Registry, queue: DelayedQueue) -> None:
        registry.add("q")
        registry.client.set(queue.keys.timeout_set, "no ZSET")
        with nothing_changes(registry.client):
            clear(registry)


#: Where the steps of a producer fall among those of a loop: before it looks, between its look and what it does then,
#: after that; and the same in the next round, which comes `IDLE_S` later.
SLOTS = range(6)
LATER = 3

#: A producer registers, stores, and registers again if nothing else waited. It may be killed after each of these. It
#: stores at most `REGISTERED_FOR_S` after it registered.
PRODUCERS = [
    steps
    for length in (1, 2, 3)
    for steps in product(SLOTS, repeat=length)
    if sorted(steps) == list(steps) and (length == 1 or (steps[0] < LATER) == (steps[1] < LATER))
]


class TestInterleavings:
    @pytest.mark.parametrize("before", ["unknown", "registered", "retired", "retired long ago"])
    def test_no_message_is_overlooked(self, registry: SteppedRegistry, queue: DelayedQueue, before: str) -> None:
        assert IDLE_S > REGISTERED_FOR_S
        for steps in PRODUCERS:
            registry.client.flushall()
            if before != "unknown":
                registry.add("q")
            if before.startswith("retired"):
                clear(registry)
            if before == "retired long ago":
                time_passes(registry)
            self.run(registry, queue, steps)
            waits = len(steps) > 1
            assert ("q" in known(registry)) or not waits, steps
            for _ in range(2):
                time_passes(registry)
                clear(registry)
            assert registry.names() == ({"q"} if waits else set()), steps
            assert registry.retired().at_ms == {}, steps

    def run(self, registry: SteppedRegistry, queue: DelayedQueue, steps: tuple[int, ...]) -> None:
        """Let a producer take its steps in these slots, and a loop go round twice."""
        acts = [lambda: registry.add("q"), lambda: offer(queue, "a"), lambda: registry.add("q")]
        todo: list[list[Callable[[], object]]] = [[] for _ in SLOTS]
        for slot, act in zip(steps, acts, strict=False):
            todo[slot].append(act)

        def take(slot: int) -> None:
            for act in todo[slot]:
                act()

        for first in (0, LATER):
            retired = registry.retired()
            take(first)
            registry.in_between = lambda first=first: take(first + 1)  # type: ignore[misc]
            registry.clear(["q"], retired, IDLE_S)
            registry.in_between = lambda: None
            take(first + 2)
            if first == 0:
                time_passes(registry)

    def test_two_loops_and_a_name_that_is_retired_again_meanwhile(self, registry: SteppedRegistry) -> None:
        """It is served for the whole time once more, since it may have been registered in between."""
        registry.add("q")
        clear(registry)
        time_passes(registry)

        def others() -> None:
            registry.in_between = lambda: None
            registry.add("q")
            clear(registry)

        registry.in_between = others
        clear(registry)
        assert known(registry) == {"q"}


@pytest.fixture
def broken(client: redis.Redis) -> Iterator[redis.Redis]:
    """A client whose registry is of another type."""
    Registry._reported.clear()
    client.set("delayq:queues", "of a wrong type")
    yield client
    Registry._reported.clear()


class TestOfAnotherType:
    def test_an_offer_succeeds_and_one_error_says_so(
        self, broken: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        for number in range(3):
            for name in ("q", "other"):
                DelayedQueue(broken, name).offer(b"%d" % number, due_ms=FAR)
        assert [DelayedQueue(broken, name).size() for name in ("q", "other")] == [3, 3]
        (record,) = caplog.records
        assert record.levelno == logging.ERROR
        assert "'delayq:queues'" in record.getMessage()
        assert "WRONGTYPE" in record.getMessage()

    def test_loops_hear_of_the_queue(self, broken: redis.Redis, queue: DelayedQueue) -> None:
        with broken.pubsub(ignore_subscribe_messages=True) as pubsub:
            pubsub.subscribe("delayq:queues")
            pubsub.get_message(timeout=5)
            queue.offer(b"", due_ms=FAR)
            message = pubsub.get_message(timeout=5)
        assert message
        assert message["data"] == b"q"

    def test_once_it_is_mended_it_is_written_again(
        self, broken: redis.Redis, registry: Registry, caplog: pytest.LogCaptureFixture
    ) -> None:
        registry.add("q")
        broken.delete("delayq:queues")
        registry.add("q")
        assert registry.names() == {"q"}
        broken.set("delayq:queues", "of a wrong type")
        registry.add("q")
        assert len(caplog.records) == 2, "one a time"

    def test_any_other_refusal_is_an_error(self, client: redis.Redis, queue: DelayedQueue) -> None:
        client.config_set("maxmemory", 1)
        try:
            with pytest.raises(redis.ResponseError, match="maxmemory"):
                queue.offer(b"", due_ms=FAR)
        finally:
            client.config_set("maxmemory", 0)


def test_names_that_are_no_text_stay_where_they_are(registry: Registry) -> None:
    registry.client.sadd(registry.keys.names, b"\xff", b"")
    registry.client.zadd(registry.keys.retired, {b"\xff": 1})
    with nothing_changes(registry.client):
        clear(registry)
    assert known(registry) == set()


def test_a_retired_key_of_another_type_takes_no_name_out(registry: Registry) -> None:
    registry.add("q")
    registry.client.set(registry.keys.retired, "no ZSET")
    with nothing_changes(registry.client), pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        clear(registry)


@pytest.mark.parametrize("options", [{}, {"decode_responses": True}, {"protocol": 3}])
def test_with_any_client(client: redis.Redis, options: dict[str, object]) -> None:
    port = client.get_connection_kwargs()["port"]
    with redis.Redis(port=port, **options) as any_client:  # type: ignore[call-overload]
        registry = Registry(any_client, "shop.")
        registry.add("größe")
        assert registry.names() == {"größe"}
        clear(registry)
        seen = registry.retired()
        assert list(seen.at_ms) == ["größe"]
        assert 0 <= seen.now_ms - seen.at_ms["größe"] < 60_000
        time_passes(registry)
        clear(registry)
        assert client.keys() == []
