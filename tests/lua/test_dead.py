"""requeue_dead.lua and purge_dead.lua: letters leave the dead list once, wherever they are in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.queue import scripts
from celery_delayq.queue.delayed_queue import DelayedQueue
from tests.properties import on_a_server
from tests.state import DEAD, delivered, nothing_changes, out_of_memory, publish, state, wrong_type

#: Takes letters between two positions out of the dead list.
Take = Callable[[DelayedQueue, int, int, Sequence[bytes]], list[bool]]


def requeue(queue: DelayedQueue, first: int, last: int, letters: Sequence[bytes]) -> list[bool]:
    pairs = [(letter, letter + b" again") for letter in letters]
    return scripts.requeue_dead(queue.keys, first=first, last=last, letters=pairs).run(queue.client)


def purge(queue: DelayedQueue, first: int, last: int, letters: Sequence[bytes]) -> list[bool]:
    return scripts.purge_dead(queue.keys, first=first, last=last, letters=letters).run(queue.client)


BOTH = pytest.mark.parametrize("take", [requeue, purge])


def bury(queue: DelayedQueue, *letters: bytes) -> None:
    queue.client.rpush(DEAD, *letters)


def test_requeued_letters_go_to_the_back_in_their_order(queue: DelayedQueue) -> None:
    publish(queue, b"waiting")
    bury(queue, b"1", b"stays", b"2")
    assert requeue(queue, 0, 2, [b"1", b"2"]) == [True, True]
    assert delivered(queue) == [b"waiting", b"1 again", b"2 again"]
    assert state(queue.client)[DEAD] == [b"stays"]


def test_purged_letters_are_gone(queue: DelayedQueue) -> None:
    bury(queue, b"1", b"stays", b"2")
    assert purge(queue, 0, 2, [b"1", b"2"]) == [True, True]
    assert state(queue.client) == {DEAD: [b"stays"]}


@BOTH
def test_a_letter_is_taken_once(queue: DelayedQueue, take: Take) -> None:
    bury(queue, b"1", b"2")
    assert take(queue, 0, 1, [b"1"]) == [True]
    with nothing_changes(queue.client):
        assert take(queue, 0, 1, [b"1"]) == [False]


@BOTH
def test_of_two_with_the_same_bytes_one_stays(queue: DelayedQueue, take: Take) -> None:
    bury(queue, b"same", b"other", b"same")
    assert take(queue, 0, 2, [b"same"]) == [True]
    assert queue.client.lrange(DEAD, 0, -1) == [b"same", b"other"]
    assert take(queue, 0, 2, [b"same", b"same"]) == [False, True]


@BOTH
def test_only_between_the_positions(queue: DelayedQueue, take: Take) -> None:
    bury(queue, *(b"%d" % number for number in range(10)))
    with nothing_changes(queue.client):
        assert take(queue, 3, 5, [b"2", b"6"]) == [False, False]
    assert take(queue, 3, 5, [b"3", b"5"]) == [True, True]


@on_a_server(max_examples=100)
@given(
    letters=st.lists(st.sampled_from([b"a", b"b", b"c", b"7", b"\xff" * 100, b""]), max_size=30),
    first=st.integers(0, 30),
    size=st.integers(0, 30),
    wanted=st.lists(st.sampled_from([b"a", b"b", b"7", b"", b"nobody"]), max_size=10),
    is_scarce=st.booleans(),
)
def test_exactly_what_it_says_is_gone(
    one_queue: DelayedQueue, letters: list[bytes], first: int, size: int, wanted: list[bytes], is_scarce: bool
) -> None:
    queue = one_queue
    queue.client.delete(DEAD)
    if letters:
        bury(queue, *letters)
    with out_of_memory(queue.client) if is_scarce else nullcontext():
        taken = purge(queue, first, first + size, wanted)
    gone = [letter for letter, was_there in zip(wanted, taken, strict=True) if was_there]
    left = queue.client.lrange(DEAD, 0, -1)
    assert sorted([*left, *gone]) == sorted(letters)
    part = letters[first : first + size + 1]
    if not is_scarce:
        assert all(gone.count(letter) == min(part.count(letter), wanted.count(letter)) for letter in set(wanted))


@BOTH
def test_without_memory_letters_still_leave(queue: DelayedQueue, take: Take) -> None:
    """Whoever purges may do it because of that; and what is requeued needs no more memory."""
    bury(queue, *(b"%d" % number for number in range(5)))
    with out_of_memory(queue.client):
        assert take(queue, 0, 4, [b"1", b"nobody", b"3"]) == [True, False, True]
    assert queue.client.lrange(DEAD, 0, -1) == [b"0", b"2", b"4"]
    assert delivered(queue) == ([b"1 again", b"3 again"] if take is requeue else [])


@BOTH
def test_without_memory_no_other_letter_leaves(queue: DelayedQueue, take: Take) -> None:
    """The first one is removed by its bytes, perhaps before the others: these have moved then."""
    bury(queue, b"same", b"1", b"stays", b"same", *(b"%d" % number for number in range(10, 20)))
    with out_of_memory(queue.client):
        assert take(queue, 0, 3, [b"1", b"same"]) == [True, True]
    assert queue.client.lrange(DEAD, 0, 1) == [b"stays", b"same"]
    assert queue.client.llen(DEAD) == 12


def test_no_letter_leaves_for_a_key_of_another_type(queue: DelayedQueue) -> None:
    bury(queue, b"1")
    wrong_type(queue, "q", lambda: requeue(queue, 0, 0, [b"1"]))


def test_one_call_walks_the_list_once(queue: DelayedQueue) -> None:
    bury(queue, *(b"%d" % number for number in range(100)))
    queue.client.config_resetstat()
    assert all(purge(queue, 0, 99, [b"%d" % number for number in range(0, 100, 2)]))
    assert queue.client.info("commandstats")["cmdstat_lrem"]["calls"] == 1
