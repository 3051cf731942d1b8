"""Messages that came before they are due."""

from __future__ import annotations

import gc
import math
import time
import tracemalloc
import weakref

import pytest

from celery_delayq.transport import ahead as module
from celery_delayq.transport.ahead import LAST_PART_S, Ahead


class Message:
    """What can be referred to weakly."""


@pytest.fixture
def ahead() -> Ahead:
    return Ahead()


def hold(ahead: Ahead, for_s: float, count: int = 1) -> list[Message]:
    messages = [Message() for _ in range(count)]
    for message in messages:
        ahead.hold(message, for_s)
    return messages


def test_it_waits_for_the_last_part_to_the_end(ahead: Ahead) -> None:
    for part in (0.1, 0.5, 1, 2):  # a timer may be a little early
        began = time.monotonic()
        (message,) = hold(ahead, LAST_PART_S * part)
        assert ahead.wait(message) is True
        assert time.monotonic() - began >= LAST_PART_S * part


def test_it_does_not_wait_for_long(ahead: Ahead) -> None:
    """A timer does that: this is the thread that does everything."""
    began = time.monotonic()
    (message,) = hold(ahead, 30)
    assert ahead.wait(message) is True
    assert ahead.wait(message) is False, "it is not held any more"
    assert ahead.wait(Message()) is False
    assert time.monotonic() - began < 10


def test_once_it_is_full_half_of_them_must_go(ahead: Ahead) -> None:
    messages = hold(ahead, 60, 2)
    assert ahead.room(4) == 2
    messages += hold(ahead, 0.01, 2)
    assert ahead.room(4) == 0
    time.sleep(0.02)
    assert ahead.room(4) == 2
    messages += hold(ahead, 60, 2) + hold(ahead, 0.01, 1)
    time.sleep(0.02)
    assert ahead.room(4) == 0
    assert ahead.room(9) == 5, "the pool has grown"


def test_there_may_be_no_limit(ahead: Ahead) -> None:
    messages = hold(ahead, 60, 100)
    tracemalloc.start()
    try:
        for _ in range(20_000):
            hold(ahead, 0)
            assert ahead.room(0) == math.inf
        taken = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    # Threads of other tests may still use some.
    own = taken.filter_traces([tracemalloc.Filter(True, path) for path in (module.__file__, __file__)])
    used = sum(one.size for one in own.statistics("filename"))
    assert used < 100_000, "the memory is not used up"
    assert ahead.room(1000) == 1000 - len(messages)


def test_what_is_due_or_forgotten_takes_no_room_for_ever(ahead: Ahead) -> None:
    """A task that was revoked while it waited never begins."""
    messages = hold(ahead, 0.01, 3)
    references = [weakref.ref(message) for message in messages]
    assert ahead.room(3) == 0
    del messages[:]
    gc.collect()
    time.sleep(0.02)
    assert ahead.room(3) == 3
    assert [reference() for reference in references] == [None] * 3
