"""Redisson's transfer task and this package's loop serve one queue at once, and either is killed in the middle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest
import redis

from celery_delayq import DelayedQueue
from celery_delayq.basics.times import to_datetime
from celery_delayq.queue.codec import unpack
from celery_delayq.queue.scripts import score_to_ms
from tests.interop.conftest import CURRENT_ELSEWHERE, NOT_LATE_MS, StartRedisson, TransferCommand
from tests.interop.redisson import NEWEST, Redisson
from tests.state import now_ms
from tests.support import wait_until

pytestmark = pytest.mark.on_cluster

#: Values from each side.
COUNT = 1000

#: When they are due: over so many ms, after all of them have been offered.
FIRST_MS, SPREAD_MS = 15_000, 2000


def offer_from_both(redisson: Redisson, jobs: DelayedQueue) -> dict[bytes, int]:
    """Offer from both sides, in turns in due order; return payload -> due, unix time in ms."""
    pairs = [(FIRST_MS + SPREAD_MS * at // COUNT, b"java %d" % at) for at in range(COUNT)]
    redisson.ask("offer", jobs.name, *(part for pair in pairs for part in pair))
    start_ms = now_ms(jobs.client) + FIRST_MS
    for at in range(COUNT):
        jobs.offer(b"python %d" % at, eta=to_datetime(start_ms + SPREAD_MS * at // COUNT))
    redisson.answer()
    assert jobs.client.llen(jobs.name) == 0, "too slow: something was due before all was offered"
    found = jobs.client.zrange(jobs.keys.timeout_set, 0, -1, withscores=True)
    return {unpack(entry)[1]: score_to_ms(due) or 0 for entry, due in found}


@contextmanager
def nothing_lost_nothing_twice(jobs: DelayedQueue, due: Mapping[bytes, int]) -> Iterator[None]:
    """All of it reaches the broker list, each once."""
    yield
    wait_until(lambda: jobs.size() == 0, "all is transferred", 60)
    times = Counter(jobs.client.lrange(jobs.name, 0, -1))
    assert times == dict.fromkeys(due, 1)
    assert jobs.client.llen(jobs.keys.delay_list) == 0
    assert not jobs.client.exists(jobs.keys.dead)


@pytest.mark.parametrize(
    "mirror_list",
    [
        pytest.param(False, id="plain", marks=pytest.mark.one_server("it takes long, and the next test is like it")),
        pytest.param(True, id="mirrored"),
    ],
)
@pytest.mark.parametrize("version", [NEWEST, CURRENT_ELSEWHERE])
def test_each_is_delivered_once_and_none_is_late(
    start_redisson: StartRedisson,
    transfer_command: TransferCommand,
    broker_client: redis.Redis,
    version: str,
    mirror_list: bool,
) -> None:
    redisson = start_redisson(version)
    jobs = DelayedQueue(broker_client, "jobs", mirror_list=mirror_list)
    due = offer_from_both(redisson, jobs)
    assert len(due) == 2 * COUNT
    late: dict[bytes, int] = {}
    while len(late) < 2 * COUNT:
        popped = wait_until(lambda: broker_client.rpop(jobs.name, COUNT), f"{2 * COUNT - len(late)} come")
        at_ms = now_ms(broker_client)
        for payload in popped:
            assert payload not in late, f"{payload!r} came twice"
            late[payload] = at_ms - due[payload]
    assert min(late.values()) >= 0
    assert max(late.values()) < NOT_LATE_MS
    with nothing_lost_nothing_twice(jobs, {}):
        pass


@pytest.mark.parametrize(
    "killed",
    [
        pytest.param("java", marks=pytest.mark.one_server("it takes long; test_workers_and_java.py kills Java")),
        "python",
    ],
)
def test_killing_either_side_in_the_middle_changes_nothing(
    start_redisson: StartRedisson, transfer_command: TransferCommand, jobs: DelayedQueue, killed: str
) -> None:
    redisson = start_redisson()
    kill: Callable[[], None] = redisson.kill if killed == "java" else transfer_command.kill
    due = offer_from_both(redisson, jobs)
    with nothing_lost_nothing_twice(jobs, due):
        wait_until(lambda: jobs.client.llen(jobs.name) > COUNT // 2, "half of what one side offered is transferred", 60)
        kill()
        assert jobs.size() > 0, "too late: nothing was left to transfer"
