"""spread.lua: entries are counted by their due times, each once."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_delayq.queue import measuring
from celery_delayq.queue.delayed_queue import DelayedQueue
from tests.state import nothing_changes, offer


def test_nothing_waits(queue: DelayedQueue) -> None:
    assert measuring.spread(queue.keys, edges_ms=[1, 2, 3]).run(queue.client) == []


def test_an_entry_at_an_edge_belongs_to_the_span_that_begins_there(queue: DelayedQueue) -> None:
    for number, due_ms in enumerate((9, 10, 10, 19, 20, 30, 31)):
        offer(queue, str(number), due_ms)
    with nothing_changes(queue.client):
        assert measuring.spread(queue.keys, edges_ms=[10, 20, 30]).run(queue.client) == [1, 3, 1, 2]


def test_a_single_edge_divides_before_from_after(queue: DelayedQueue) -> None:
    offer(queue, "a", 1_900_000_000_000)
    assert measuring.spread(queue.keys, edges_ms=[1_900_000_000_000]).run(queue.client) == [0, 1]
    assert measuring.spread(queue.keys, edges_ms=[1_900_000_000_001]).run(queue.client) == [1, 0]


def test_entries_that_are_never_due_come_after(queue: DelayedQueue) -> None:
    queue.client.zadd(queue.keys.timeout_set, {b"never": float("inf"), b"always": float("-inf")})
    assert measuring.spread(queue.keys, edges_ms=[5, 6]).run(queue.client) == [1, 0, 1]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(
    dues=st.lists(st.integers(0, 40), max_size=30),
    edges=st.lists(st.integers(0, 40), min_size=1, max_size=10, unique=True).map(sorted),
)
def test_each_entry_is_counted_once(queue: DelayedQueue, dues: list[int], edges: list[int]) -> None:
    queue.client.flushall()
    for number, due_ms in enumerate(dues):
        offer(queue, str(number), due_ms)
    starts, ends = [-1, *edges], [*edges, 100]
    wanted = [sum(start <= due < end for due in dues) for start, end in zip(starts, ends, strict=True)]
    assert measuring.spread(queue.keys, edges_ms=edges).run(queue.client) == (wanted if dues else [])
