"""Old and new packing in one queue, an upgrade of Redisson with entries pending, and entries that are none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import redis

from celery_delayq import DeadLetters, DelayedQueue
from celery_delayq.basics.times import to_datetime
from tests.interop.conftest import StartRedisson, TransferCommand
from tests.interop.redisson import NEWEST, OLD, Redisson
from tests.state import now_ms, seed
from tests.support import wait_until

pytestmark = pytest.mark.on_cluster

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
    wait_until(lambda: jobs.size() == 0, "all is transferred", 60)
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
        jobs.offer(payload, eta=to_datetime(due_ms))
    for redisson, side in ((old, "old"), (new, "new")):
        redisson.offer("jobs", *values(side), delay_ms=1000)
    delivered_once(jobs, values("old") + values("new") + values("python"))
    assert sorted(letter.message for letter in DeadLetters(jobs.client, jobs.name)) == sorted(GARBAGE)
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
    assert jobs.take(timeout=10) == b"old"
    assert jobs.take(timeout=10) == b"new"


def test_an_old_redisson_stops_at_an_entry_of_python(start_redisson: StartRedisson, jobs: DelayedQueue) -> None:
    """Why the manual says that a loop of this package must run beside it."""
    jobs.offer(b"python", countdown=0.1)
    wait_until(lambda: jobs.peek()[0].score < now_ms(jobs.client), "it is due")
    old = start_redisson(OLD)
    jobs.client.config_resetstat()
    old.call("transfer", "jobs")
    wait_until(lambda: failed_scripts(jobs.client), "Redisson's transfer fails", 20)
    assert jobs.take(timeout=10) == b"python"


@pytest.mark.one_server("it takes long, and is about a script of Redisson's")
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


@pytest.mark.one_server("it takes long; the test of both packings is like it")
def test_an_upgrade_with_entries_pending_loses_nothing(
    start_redisson: StartRedisson, transfer_command: TransferCommand, jobs: DelayedQueue
) -> None:
    """The new version transfers from its start, and stops at each old entry that is due until Python moved it."""
    old = start_redisson(OLD)
    old.offer("jobs", *values("old"), delay_ms=25_000)
    due_ms = now_ms(jobs.client) + 25_000
    jobs.register()
    old.kill()
    new = start_redisson(NEWEST)
    new.offer("jobs", *values("new"), delay_ms=due_ms + 1000 - now_ms(jobs.client))
    assert jobs.size() == 40, "too slow: something was due already"
    delivered_once(jobs, values("old") + values("new"))
    assert jobs.client.llen(jobs.keys.delay_list) == 0
    assert not jobs.client.exists(jobs.keys.dead)


#: What an old Redisson can do with a delay list in which an entry of Python follows one of Java, and what it leaves of
#: the two; each as the manual says.
WORKS: dict[str, tuple[Callable[[Redisson], object], list[bytes]]] = {
    "size": (lambda java: java.call("size", "jobs") == 2, [b"java", b"python"]),
    "contains": (lambda java: java.call("contains", "jobs", b"java"), [b"java", b"python"]),
    "peek": (lambda java: java.value("peek", "jobs") == b"java", [b"java", b"python"]),
    "remove": (lambda java: java.call("remove", "jobs", b"java"), [b"python"]),
    "poll": (lambda java: java.value("poll", "jobs") == b"java", [b"python"]),
    "clear": (lambda java: java.call("clear", "jobs") is None, []),
    "delete": (lambda java: java.call("delete", "jobs"), []),
}
FAILS: dict[str, tuple[Callable[[Redisson], object], list[bytes]]] = {
    "contains": (lambda java: java.call("contains", "jobs", b"python"), [b"java", b"python"]),
    "containsAll": (lambda java: java.call("contains_all", "jobs", b"java"), [b"java", b"python"]),
    "remove": (lambda java: java.call("remove", "jobs", b"python"), [b"java", b"python"]),
    "readAll": (lambda java: java.call("read_all", "jobs"), [b"java", b"python"]),
    "iterator": (lambda java: java.call("iterate", "jobs"), [b"java", b"python"]),
    "removeAll": (lambda java: java.call("remove_all", "jobs", b"java"), [b"python"]),
    "retainAll": (lambda java: java.call("retain_all", "jobs", b"java"), [b"java", b"python"]),
    "poll(2)": (lambda java: java.call("poll", "jobs", 2), []),
}


def test_what_an_old_redisson_can_do_with_entries_of_python_in_its_delay_list(
    start_redisson: StartRedisson, jobs: DelayedQueue
) -> None:
    """Its methods walk through the list and fail at what they cannot read, which may be too late."""
    old = start_redisson(OLD)
    jobs.mirror_list = True

    def fill() -> None:
        jobs.client.flushall()
        old.offer("jobs", b"java", delay_ms=HOUR_MS)
        jobs.offer(b"python", countdown=HOUR_MS / 1000)

    def left() -> list[bytes]:
        return sorted(entry.payload for entry in jobs.peek(9))

    for method, (works, expected) in WORKS.items():
        fill()
        assert works(old), method
        assert left() == expected, method
    for method, (fails, expected) in FAILS.items():
        fill()
        with pytest.raises(AssertionError, match="data string too short"):
            fails(old)
        assert left() == expected, method
    fill()
    old.call("remove", "jobs", b"java")
    with pytest.raises(AssertionError, match="data string too short"):
        old.call("poll", "jobs")
    assert left() == [], "the entry of Python is lost"


def test_an_old_redisson_without_the_delay_list_of_python(start_redisson: StartRedisson, jobs: DelayedQueue) -> None:
    old = start_redisson(OLD)
    jobs.offer(b"python", countdown=HOUR_MS / 1000)
    old.offer("jobs", b"java", b"more", delay_ms=HOUR_MS)
    assert old.values("read_all", "jobs") == [b"java", b"more"]
    assert old.call("remove_all", "jobs", b"more", b"python")
    assert old.value("poll", "jobs") == b"java"
    assert old.value("poll", "jobs") is None
    assert [entry.payload for entry in jobs.peek(9)] == [b"python"]
