"""Old and new packing in one queue, an upgrade of Redisson with entries pending, and entries that are none."""

from __future__ import annotations

from collections import Counter

import redis

from celery_delayq import DelayedQueue
from tests.interop.conftest import StartRedisson, TransferCommand
from tests.interop.redisson import NEWEST, OLD, Redisson
from tests.state import now_ms, seed
from tests.support import wait_until

#: Entries that no version of Redisson can read.
GARBAGE = [b"garbage", b"\x08 too short", b"\xff" * 100, b""]

HOUR_MS = 3_600_000


def values(side: str) -> list[bytes]:
    """Twenty values."""
    return [b"%s %d" % (side.encode(), at) for at in range(20)]


def failed_scripts(client: redis.Redis) -> int:
    """How many scripts ended with an error since `config_resetstat`."""
    stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("failed_calls", 0) for name in ("eval", "evalsha"))


def delivered_once(jobs: DelayedQueue, expected: list[bytes]) -> None:
    """Wait until nothing is pending; each of the values is in the list, once."""
    wait_until(lambda: jobs.size() == 0, "all is transferred", 20)
    assert Counter(jobs.client.lrange(jobs.name, 0, -1)) == Counter(expected)


def test_both_packings_and_garbage_in_one_queue(
    start_redisson: StartRedisson, transfer_command: TransferCommand, jobs: DelayedQueue
) -> None:
    """Each side may offer, old or new; with destroy() Redisson leaves the transfer to Python."""
    old, new = start_redisson(OLD), start_redisson(NEWEST)
    for redisson in (old, new):
        redisson.call("transfer", "jobs")
        redisson.call("destroy", "jobs")
    due_ms = now_ms(jobs.client) + 2000
    seed(jobs, dict.fromkeys(GARBAGE, due_ms))
    for payload in values("python"):
        jobs.offer(payload, due_ms=due_ms)
    for redisson, side in ((old, "old"), (new, "new")):
        redisson.offer("jobs", *values(side), delay_ms=1000)
    delivered_once(jobs, values("old") + values("new") + values("python"))
    assert sorted(jobs.client.lrange(jobs.keys.dead, 0, -1)) == sorted(GARBAGE)
    assert jobs.client.llen(jobs.keys.delay_list) == 0


def test_redisson_itself_stops_at_an_entry_of_its_old_version(
    start_redisson: StartRedisson, jobs: DelayedQueue
) -> None:
    """Why the manual says: run a loop of this package before the new version starts."""
    old = start_redisson(OLD)
    old.offer("jobs", b"old", delay_ms=500)
    old.kill()
    new: Redisson = start_redisson(NEWEST)
    jobs.client.config_resetstat()
    new.offer("jobs", b"new", delay_ms=600)
    wait_until(lambda: failed_scripts(jobs.client), "Redisson's transfer fails", 20)
    assert jobs.size() == 2
    assert jobs.client.llen("jobs") == 0
    assert jobs.take(timeout_s=10) == b"old"
    assert jobs.take(timeout_s=10) == b"new"


def test_an_old_redisson_stops_at_an_entry_of_python(start_redisson: StartRedisson, jobs: DelayedQueue) -> None:
    """Why the manual says that a loop of this package must run beside it."""
    jobs.offer(b"python", delay_s=0.1)
    wait_until(lambda: jobs.peek()[0].due_ms < now_ms(jobs.client), "it is due")
    old = start_redisson(OLD)
    jobs.client.config_resetstat()
    old.call("transfer", "jobs")
    wait_until(lambda: failed_scripts(jobs.client), "Redisson's transfer fails", 20)
    assert jobs.take(timeout_s=10) == b"python"


def test_redisson_itself_repeats_what_comes_before_an_entry_of_its_old_version(
    start_redisson: StartRedisson, jobs: DelayedQueue
) -> None:
    """Why the manual says: let Python transfer. Its script appends the new entry, and fails; 5 s later, again."""
    start_redisson(NEWEST).offer("jobs", b"new", delay_ms=HOUR_MS)
    start_redisson(OLD).offer("jobs", b"old", delay_ms=HOUR_MS)
    new, old = (entry.raw for entry in jobs.peek(2))
    seed(jobs, {new: 1, old: 2})
    start_redisson(NEWEST).call("transfer", "jobs")
    wait_until(lambda: jobs.client.lrange("jobs", 0, -1) == [b"new", b"new"], "Redisson delivers it twice", 20)
    assert jobs.size() == 2


def test_an_upgrade_with_entries_pending_loses_nothing(
    start_redisson: StartRedisson, transfer_command: TransferCommand, jobs: DelayedQueue
) -> None:
    """The new version transfers from its start, and stops at each old entry that is due until Python moved it."""
    old = start_redisson(OLD)
    old.offer("jobs", *values("old"), delay_ms=10_000)
    due_ms = now_ms(jobs.client) + 10_000
    jobs.register()
    old.kill()
    new = start_redisson(NEWEST)
    new.offer("jobs", *values("new"), delay_ms=due_ms + 1000 - now_ms(jobs.client))
    assert jobs.size() == 40, "too slow: something was due already"
    delivered_once(jobs, values("old") + values("new"))
    assert jobs.client.llen(jobs.keys.delay_list) == 0
    assert jobs.client.llen(jobs.keys.dead) == 0
