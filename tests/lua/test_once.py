"""A publication with a token is stored once, by each script that stores one, whatever has become of it since."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest
import redis

from celery_delayq.queue import codec, scripts
from celery_delayq.queue.call import Attempt
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.holds import Claim, Conflict, Holder, Pace, Until, hold, offer_throttled, offer_unique
from tests.state import FAR, out_of_memory, state, wrong_type

PAST = 1


def attempt(number: int, publisher: str = "me") -> Attempt:
    return Attempt(publisher, number.to_bytes(16, "big"))


def offer(queue: DelayedQueue, what: str, one: Attempt) -> None:
    scripts.offer(
        queue.keys,
        due_ms=PAST,
        message_key=codec.message_key(what),
        payload=what.encode(),
        mirrored=False,
        attempt=one,
    ).run(queue.client)


def publish(queue: DelayedQueue, what: str, one: Attempt) -> None:
    scripts.publish(queue.keys, message=what.encode(), attempt=one).run(queue.client)


def unique(queue: DelayedQueue, what: str, one: Attempt, **options: Any) -> str:
    claim = Claim("key", options.get("until", "due"), 3_600_000, options.get("conflict", "replace"))
    call = offer_unique(
        queue.keys,
        claim=claim,
        task_id=what,
        due_ms=options.get("due_ms", PAST),
        payload=what.encode(),
        mirrored=False,
        attempt=one,
    )
    return call.run(queue.client).outcome


def throttled(queue: DelayedQueue, what: str, one: Attempt) -> None:
    offer_throttled(
        queue.keys,
        pace=Pace("key", 1),
        due_ms=PAST,
        message_key=codec.message_key(what),
        payload=what.encode(),
        mirrored=False,
        attempt=one,
    ).run(queue.client)


EACH = pytest.mark.parametrize("store", [publish, offer, unique, throttled])


def stored(queue: DelayedQueue) -> int:
    return queue.size() + int(queue.client.llen(queue.name))


def all_run(queue: DelayedQueue) -> list[bytes]:
    """Do what workers do with all that is due; return what they ran."""
    while any(entry.score < FAR for entry in queue.peek(100)):
        queue.transfer(1000)
    ran: list[bytes] = []
    while (message := queue.client.rpop(queue.name)) is not None:
        ran.append(message)
        hold(queue.keys, holders=[Holder.of("key", message.decode())], what="done").run(queue.client)
    return ran


@EACH
class TestOnce:
    def test_while_it_is_there(self, queue: DelayedQueue, store: Callable[..., Any]) -> None:
        store(queue, "a", attempt(1))
        store(queue, "a", attempt(1))
        assert stored(queue) == 1

    def test_when_it_is_gone(self, queue: DelayedQueue, store: Callable[..., Any]) -> None:
        store(queue, "a", attempt(1))
        all_run(queue)
        store(queue, "a", attempt(1))
        assert stored(queue) == 0

    def test_after_others_of_its_publisher(self, queue: DelayedQueue, store: Callable[..., Any]) -> None:
        """The late command of a connection that was given up."""
        for number in range(16):
            store(queue, str(number), attempt(number))
        all_run(queue)
        for number in range(16):
            store(queue, str(number), attempt(number))
        assert stored(queue) == 0
        store(queue, "16", attempt(16))
        assert stored(queue) == 1

    def test_the_same_message_on_purpose(self, queue: DelayedQueue, store: Callable[..., Any]) -> None:
        store(queue, "a", attempt(1))
        all_run(queue)
        store(queue, "a", attempt(2))
        store(queue, "b", attempt(1, "another publisher"))
        assert stored(queue) == (1 if store is unique else 2)

    def test_a_repetition_is_a_write_for_which_wait_waits(self, queue: DelayedQueue, store: Callable[..., Any]) -> None:
        """The replicas that have all that its connection has written may not have the message."""
        store(queue, "a", attempt(1))
        key = queue.keys.published(attempt(1).publisher)
        queue.client.pexpire(key, 5000)
        store(queue, "a", attempt(1))
        assert queue.client.pttl(key) > 5000

    def test_its_record_expires(self, queue: DelayedQueue, store: Callable[..., Any]) -> None:
        store(queue, "a", attempt(1))
        key = queue.keys.published(attempt(1).publisher)
        assert 0 < queue.client.pttl(key) <= 600_000
        assert queue.client.strlen(key) == 16

    def test_a_full_server_stores_neither(self, queue: DelayedQueue, store: Callable[..., Any]) -> None:
        with out_of_memory(queue.client), pytest.raises(redis.ResponseError, match=r"maxmemory|OOM"):
            store(queue, "a", attempt(1))
        assert state(queue.client) == {}

    def test_a_record_of_another_type(self, queue: DelayedQueue, store: Callable[..., Any]) -> None:
        wrong_type(queue, queue.keys.published(attempt(1).publisher), lambda: store(queue, "a", attempt(1)))


# -- two publishers whose tasks replace each other, and who miss replies

#: What happens, in any order: both attempts of each publisher, and that workers run what is due.
STEPS = ("x", "x", "y", "y", "run")
ORDERS = sorted(set(permutations(STEPS)))


@pytest.mark.parametrize("conflict", ["replace", "keep"])
@pytest.mark.parametrize("until", ["due", "start", "done"])
@pytest.mark.parametrize("due_ms", [None, PAST, FAR])
def test_each_task_that_was_stored_runs_once_or_another_one_takes_its_place(
    one_queue: DelayedQueue, conflict: Conflict, until: Until, due_ms: int | None
) -> None:
    """In each order of steps. An attempt after the reply to the other one is a command that comes late."""
    client = one_queue.client
    for order in ORDERS:
        client.flushall()
        begun: dict[str, list[int]] = {"x": [], "y": []}
        ran: list[tuple[int, str]] = []
        for at, step in enumerate((*order, "end")):
            if step in begun:
                outcome = unique(one_queue, step, attempt(0, step), conflict=conflict, until=until, due_ms=due_ms)
                if outcome == "stored":
                    begun[step].append(at)
                continue
            for entry in one_queue.peek(9) if step == "end" else ():
                assert one_queue.release([(entry, entry.payload)]) == [True]
            ran += [(at, name.decode()) for name in all_run(one_queue)]
        assert len({name for _, name in ran}) == len(ran), f"none runs twice: {order}"
        for name, stored_at in begun.items():
            if stored_at and name not in {other for _, other in ran}:
                others = [at for at, other in ran if other != name and at > stored_at[0]]
                assert others, f"{name} is lost: {order}"
                assert conflict == "replace"
