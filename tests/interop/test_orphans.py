"""What Java applications leave behind when they end is found, and adopted without loss."""

from __future__ import annotations

import base64
import json
from collections import Counter

import pytest
import redis

from celery_delayq import DelayedQueue
from celery_delayq.queue import orphans
from tests.interop.conftest import StartRedisson, TransferCommand
from tests.interop.redisson import NEWEST, OLD, Redisson
from tests.ledger import Ledger
from tests.state import FAR, now_ms
from tests.support import wait_until
from tests.workers import CeleryCommand

pytestmark = pytest.mark.on_cluster

#: Delay of entries that are not due in this test, in ms.
HOURS = 36_000_000

COUNT = 1000


class Adopt(CeleryCommand):
    """A `celery delayq orphans adopt` that changes something."""

    def __init__(self, broker_url: str, ledger: Ledger, *arguments: str) -> None:
        adopt = ("delayq", "orphans", "adopt", *arguments, "--no-dry-run", "--json")
        super().__init__(*adopt, broker=broker_url, ledger=ledger.url)


@pytest.fixture
def left_behind(start_redisson: StartRedisson, jobs: DelayedQueue) -> list[bytes]:
    """The values that two Java applications offered before they were killed."""
    values = []
    for version in (OLD, NEWEST):
        redisson: Redisson = start_redisson(version)
        mine = [b"%s %d" % (version.encode(), at) for at in range(COUNT)]
        redisson.offer("jobs", *mine, delay_ms=HOURS)
        values += mine
        assert orphans.find(jobs.client)[0].listeners == 1, "Redisson listens while it runs"
        redisson.kill()
    return values


def arguments(queue: DelayedQueue) -> list[bytes]:
    """The arguments of all Celery tasks that wait."""
    messages = [json.loads(entry.payload) for entry in queue.peek(10 * COUNT)]
    return [json.loads(base64.b64decode(message["body"]))[0][0].encode() for message in messages]


def test_entries_of_a_dead_application_are_found(left_behind: list[bytes], jobs: DelayedQueue) -> None:
    wait_until(lambda: orphans.find(jobs.client)[0].listeners == 0, "the server noticed its end")
    (found,) = orphans.find(jobs.client)
    assert (found.name, found.waiting) == ("jobs", 2 * COUNT)
    assert found.first_due_ms is not None
    assert now_ms(jobs.client) < found.first_due_ms < FAR


def test_adopted_entries_are_delivered_once(
    start_redisson: StartRedisson, transfer_command: TransferCommand, jobs: DelayedQueue
) -> None:
    """The loop runs, and does not know of the queue until it is adopted."""
    redisson = start_redisson(OLD)
    values = [b"%d" % at for at in range(100)]
    redisson.offer("jobs", *values, delay_ms=1500)
    redisson.kill()
    (found,) = orphans.find(jobs.client)
    found.adopt(jobs.client)
    wait_until(lambda: jobs.size() == 0, "all is transferred")
    assert Counter(jobs.client.lrange("jobs", 0, -1)) == Counter(values)


def test_killing_the_command_loses_nothing_and_makes_nothing_twice(
    left_behind: list[bytes],
    jobs: DelayedQueue,
    broker_client: redis.Redis,
    broker_url: str,
    ledger: Ledger,
) -> None:
    """It may be killed when it has published 16 tasks, and not removed their entries: the next one does that."""
    tasks = DelayedQueue(broker_client, "celery")
    command = ("jobs", "--task", "note", "--force")
    with Adopt(broker_url, ledger, *command) as adopt:
        wait_until(lambda: tasks.size() > COUNT // 5, "it is in the middle", 30)
        adopt.kill()
    assert tasks.size() + jobs.size() - 2 * COUNT in range(17)
    assert jobs.size() > 0, "too late: it had done everything"
    with Adopt(broker_url, ledger, *command) as adopt:
        assert adopt.wait(60) == 0
    assert jobs.size() == 0
    assert Counter(arguments(tasks)) == Counter(left_behind)
