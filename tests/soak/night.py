"""A night in which the clock changes: periodic tasks of every minute and of every second, and planners at work.

Only the clock of Redis is in that night, since it is the one that planners go by.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import redis
from dateutil.parser import isoparse

from celery_delayq.cluster.client import Routed
from examples.private_redis import PrivateRedis
from tests.brokers import ClusterServer, Server, url_of
from tests.clocks import clock_from, server_with
from tests.ledger import Ledger
from tests.redis_cluster.servers import cluster
from tests.soak.looks import ended
from tests.soak.soak import Result
from tests.soak.verdict import Verdict
from tests.state import now_ms
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

_ZONE = "Europe/Berlin"

#: Names of entries: one of every second, one of 2 o'clock, and those of every minute by number.
_SECOND, _DAILY = "every second", "at two"

#: Where tasks wait: on a cluster, each at another node.
_QUEUES = ("q0", "q1", "q2")

#: Everybody works within so many seconds; if not, it is tried again with more.
_START_S = (15, 30, 60)

#: No node of a cluster is taken for dead because the machine is busy.
_PATIENT = ("--cluster-node-timeout", "15000")

#: So far a faked clock drifts from that of the machine, in ms.
_DRIFT_MS = 50

#: What was due has run after so many seconds, on a busy machine.
_SENT_S = 60.0


@dataclass(frozen=True)
class Night:
    """A night.

    Attributes:
        name: how to call it.
        sentence: what happens.
        jump: when the clock changes.
        at_two: whether what is due at 2 o'clock runs then: the hour from 2 to 3 is left out in spring, so its tasks run
            all the same; in autumn it comes twice, and they ran at the first time.
    """

    name: str
    sentence: str
    jump: datetime
    at_two: bool


NIGHTS = {
    night.name: night
    for night in (
        Night(
            "night-autumn",
            "the clock goes back while periodic tasks run",
            datetime(2026, 10, 25, 1, tzinfo=timezone.utc),
            at_two=False,
        ),
        Night(
            "night-spring",
            "the clock goes forward while periodic tasks run",
            datetime(2027, 3, 28, 1, tzinfo=timezone.utc),
            at_two=True,
        ),
    )
}


class TooSlow(Exception):
    """The clock had changed before all planners worked."""


#: An occurrence: the entry, and when it is due, unix time in ms.
Occurrence = tuple[str, int]


def run_night(night: Night, *, minutes: int = 2, entries: int = 300, on_cluster: bool = False) -> Result:
    """Let the clock change once; the verdict is on occurrences.

    Args:
        night: which.
        minutes: how long to go on after the change.
        entries: how many tasks run every minute.
        on_cluster: whether the broker is a cluster.

    Raises:
        TooSlow: this machine does not start two workers within a minute.
    """
    for start_s in _START_S[:-1]:
        with suppress(TooSlow):
            return _run(night, start_s, minutes, entries, on_cluster)
    return _run(night, _START_S[-1], minutes, entries, on_cluster)


def _run(night: Night, start_s: float, minutes: int, entries: int, on_cluster: bool) -> Result:
    jump_ms = round(night.jump.timestamp() * 1000)
    end_ms = jump_ms + minutes * 60_000 + 3000
    with _stage(night.jump - timedelta(seconds=start_s), entries, on_cluster) as (client, ledger, workers):
        wait_until(lambda: _sent(ledger), "planners plan, and a task of every second runs", 60)
        from_ms = now_ms(client)
        if from_ms > jump_ms - 3000:
            raise TooSlow(f"nothing had run {(jump_ms - from_ms) / 1000:.1f} s before the change")
        expected = {
            (f"minute {number}", at_ms) for number in range(entries) for at_ms in range(jump_ms, end_ms, 60_000)
        }
        expected |= {(_DAILY, jump_ms)} if night.at_two else set()
        time.sleep(max(0.0, (end_ms - now_ms(client)) / 1000))
        with suppress(AssertionError):  # the verdict tells
            wait_until(lambda: expected <= _sent(ledger).keys(), "all have run", _SENT_S)
            wait_until(lambda: max(_seconds(ledger)) >= end_ms, "the task of every second has run", _SENT_S)
        first_ms = min(_seconds(ledger))
        expected |= {(_SECOND, at_ms) for at_ms in range(first_ms, end_ms, 1000)}
        lags_ms = {queue: now_ms(ledger.client) - now_ms(_clock(client, queue)) for queue in _QUEUES}
        verdict = _judge(expected, {at: times for at, times in _sent(ledger).items() if at[1] < end_ms}, lags_ms)
        return Result(night.name, 1, verdict, ended(workers))


def _clock(client: redis.Redis, queue: str) -> redis.Redis:
    """Return a client of the server that has a queue: each node of a cluster has a clock of its own."""
    return client.at(queue) if isinstance(client, Routed) else client


def _queue(name: str) -> str:
    """Return the queue of an entry."""
    return _QUEUES[sum(name.encode()) % len(_QUEUES)]


@contextmanager
def _stage(start: datetime, entries: int, on_cluster: bool) -> Iterator[tuple[redis.Redis, Ledger, list[Worker]]]:
    """A broker at a time, a ledger with a clock of today, and two workers that plan."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="delayq-night-")))
        ledger = Ledger(stack.enter_context(PrivateRedis()).url)
        stack.callback(ledger.client.close)
        server = server_with(lambda: clock_from(start), folder)
        broker: Server = (
            ClusterServer(stack.enter_context(cluster(server=server, settings=_PATIENT)))
            if on_cluster
            else stack.enter_context(PrivateRedis(server=server))
        )
        client = stack.enter_context(broker.client())
        conf = {"timezone": _ZONE, "beat_scheduler": "celery_delayq.beat:Scheduler", "task_ignore_result": True}
        url = url_of(broker)
        with publisher(url, ledger.url, **conf) as app:

            def add(name: str, when: str | float) -> None:
                app.delayq.schedule.add(name, "occurrence", when, [name], options={"queue": _queue(name)})

            for number in range(entries):
                add(f"minute {number}", "* * * * *")
            add(_DAILY, "0 2 * * *")
            add(_SECOND, 1.0)  # the last one: once it runs, the others are known
        workers = [Worker("-Q", ",".join(_QUEUES), broker=url, ledger=ledger.url, conf=conf) for _ in range(2)]
        for worker in workers:
            stack.callback(worker.__exit__)
            worker.start()
        yield client, ledger, workers


def _sent(ledger: Ledger) -> dict[Occurrence, list[float]]:
    """Return when each occurrence began, once for each time, by the clock of the ledger in ms."""
    found: dict[Occurrence, list[float]] = defaultdict(list)
    for run in ledger.runs():
        name, eta = run.note
        found[name, round(isoparse(eta).timestamp() * 1000)].append(run.at_ms)
    return found


def _seconds(ledger: Ledger) -> list[int]:
    return [at_ms for name, at_ms in _sent(ledger) if name == _SECOND]


def _judge(expected: set[Occurrence], sent: Mapping[Occurrence, list[float]], lags_ms: Mapping[str, float]) -> Verdict:
    def late_ms(at: Occurrence) -> float:
        name, at_ms = at
        return min(sent[at]) - lags_ms[_queue(name)] - at_ms

    def named(occurrences: Iterable[Occurrence]) -> set[str]:
        return {
            f"{name} at {datetime.fromtimestamp(at_ms / 1000, timezone.utc).isoformat()}" for name, at_ms in occurrences
        }

    twice = named(at for at, times in sent.items() if len(times) > 1)
    return Verdict(
        sure=named(expected),
        lost=named(expected - sent.keys()),
        twice=twice,
        unexplained=twice | named(sent.keys() - expected),
        early=named(at for at in sent if late_ms(at) < -_DRIFT_MS),
        late_s=[late_ms(at) / 1000 for at in sent],
    )
