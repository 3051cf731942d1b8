"""Places of entries that somebody else took away: transfer.lua forgets them while there are many, and never others."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.queue.delayed_queue import DelayedQueue
from tests.properties import on_a_server
from tests.state import FAR, INDEX, REPEATED, TIMEOUT_SET, calls, fill, nothing_changes, offer, out_of_memory, state

#: So many may be left, beside a quarter of what waits.
FEW = 16


def places(queue: DelayedQueue) -> int:
    """Return how many there are."""
    return int(queue.client.hlen(INDEX)) + int(queue.client.zcard(REPEATED))


def take_away(queue: DelayedQueue, numbers: list[int]) -> None:
    """Remove entries as Java does, which knows no index."""
    payloads = {b"%d" % number for number in numbers}
    gone = [entry.raw for entry in queue.peek(10_000) if entry.payload in payloads]
    assert queue.client.zrem(TIMEOUT_SET, *gone) == len(gone)


def test_they_are_forgotten_and_no_others(one_queue: DelayedQueue) -> None:
    fill(one_queue, 500)
    for number in range(500, 800):
        offer(one_queue, "same", payload=b"%d" % number)
    gone = random.sample(range(800), 600)
    take_away(one_queue, gone)
    for _ in range(100):
        one_queue.transfer()
    assert 200 <= places(one_queue) <= 250 + FEW
    left = [number for number in range(500) if number not in set(gone)]
    assert [one_queue.cancel(str(number)) for number in left] == [1] * len(left)
    assert sum(one_queue.cancel(str(number)) for number in range(500)) == 0
    one_queue.cancel("same")
    assert one_queue.size() == 0


def test_a_call_looks_at_a_bounded_number(one_queue: DelayedQueue) -> None:
    fill(one_queue, 2_000)
    take_away(one_queue, list(range(1_999)))
    one_queue.client.config_resetstat()
    one_queue.transfer()
    assert 150 < calls(one_queue.client, "hdel") <= 200


def test_few_stay(queue: DelayedQueue) -> None:
    for number in range(FEW + 1):
        offer(queue, str(number))
    take_away(queue, list(range(FEW)))
    with nothing_changes(queue.client):
        queue.transfer()


def test_none_are_left_of_an_empty_queue(queue: DelayedQueue) -> None:
    for number in (1, 2):
        offer(queue, "a", payload=b"%d" % number)
    take_away(queue, [1, 2])
    queue.transfer()
    assert state(queue.client) == {}


@pytest.mark.parametrize("command", ["-hrandfield", "-zrandmember", ""])
def test_without_rights_and_memory_messages_move(one_queue: DelayedQueue, command: str) -> None:
    fill(one_queue, 100)
    offer(one_queue, "due", 1)
    take_away(one_queue, list(range(99)))
    admin = one_queue.client
    admin.execute_command("ACL", "SETUSER", "loop", "reset", "on", "nopass", "~*", "&*", "+@all", *command.split())
    port = admin.get_connection_kwargs()["port"]
    with type(admin)(port=port, username="loop", password="any") as client, out_of_memory(admin):
        assert DelayedQueue(client, "q").transfer().moved == 1
    admin.execute_command("ACL", "DELUSER", "loop")
    forgotten = 100 - places(one_queue)
    assert forgotten == 0 if command == "-hrandfield" else forgotten in (19, 20), "one of the places is of what waits"


@on_a_server(max_examples=40)
@given(steps=st.lists(st.tuples(st.sampled_from("ortc"), st.sampled_from("abc")), max_size=30))
def test_what_waits_is_always_found(one_queue: DelayedQueue, steps: list[tuple[str, str]]) -> None:
    one_queue.client.flushall()
    fill(one_queue, 60)
    take_away(one_queue, list(range(60)))
    offer(one_queue, "stays")
    for number, (step, name) in enumerate(steps):
        if step == "o":
            offer(one_queue, name, FAR + number % 3, b"%s%d" % (name.encode(), number))
        elif step == "r" and one_queue.find(name):
            one_queue.client.zrem(TIMEOUT_SET, one_queue.find(name)[-1].raw)
        elif step == "c":
            one_queue.cancel(name)
        else:
            one_queue.transfer()
        waiting = [entry.payload[:1] for entry in one_queue.peek(100)]
        for each in "abc":
            assert len(one_queue.find(each)) == waiting.count(each.encode())
