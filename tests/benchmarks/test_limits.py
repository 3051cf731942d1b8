"""redis-benchmark sends what it should: messages are stored and moved, and errors are seen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from celery_delayq import DelayedQueue
from examples.private_redis import PrivateRedis
from tests.benchmarks import limits
from tests.benchmarks.figures import OURS
from tests.benchmarks.limits import BARE, RedisBenchmark
from tests.benchmarks.scale import QUICK

TOOL = limits.find_tool() or ""
needs_the_tool = pytest.mark.skipif(not TOOL, reason="there is no redis-benchmark: apt-get install redis-tools")


@pytest.fixture
def client() -> Iterator[redis.Redis]:
    with PrivateRedis() as server, server.client() as connected:
        yield connected


@pytest.fixture
def bench(client: redis.Redis) -> RedisBenchmark:
    return RedisBenchmark(TOOL, client.get_connection_kwargs()["port"])


@needs_the_tool
def test_it_offers_and_transfers_messages(client: redis.Redis, bench: RedisBenchmark) -> None:
    queue = DelayedQueue(client, "celery")
    assert bench.rate(300, *limits.offering(client), pipeline=100) > 0
    assert queue.size() == 300
    assert {len(entry.payload) for entry in queue.peek(300)} == {600}
    bench.rate(2, *limits.transferring(client))
    assert (queue.size(), client.llen("celery")) == (100, 200)
    bench.rate(3, *limits.offering_many(client))
    assert queue.size() == 400
    assert len({entry.id for entry in queue.peek(400)}) == 400


@needs_the_tool
def test_an_answer_that_is_an_error_is_one(client: redis.Redis, bench: RedisBenchmark) -> None:
    client.set("list", "no list")
    with pytest.raises(RuntimeError, match="WRONGTYPE"):
        bench.rate(10, "LPUSH", "list", "1")


@needs_the_tool
def test_what_both_can_do_is_measured_for_both() -> None:
    figures = limits.run(QUICK).figures
    assert [set(figure.samples) for figure in figures] == [{BARE}] * 3 + [{BARE, OURS}] * 3


def test_without_the_tool_it_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits.shutil, "which", lambda name: None)
    report = limits.run(QUICK)
    assert not report.figures
    assert "left out" in report.notes[0]
