"""Unique and throttled tasks: what a key costs a publisher, and the server's memory; and how late turns come."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from celery_delayq import Throttle
from celery_delayq.queue import codec, scripts
from celery_delayq.queue.call import Call, run_each
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.holds import Claim, Pace, offer_throttled, offer_unique
from examples.private_redis import PrivateRedis
from tests.benchmarks.figures import OURS, Target, in_turns, percentile
from tests.benchmarks.report import Report
from tests.benchmarks.scale import Scale
from tests.benchmarks.shop import broker_url, make_app
from tests.benchmarks.worker import BenchWorker
from tests.support import wait_until

#: What the others are compared with.
PLAIN = "plain"

#: How many calls go to the server at once.
_BATCH = 1000

#: The ratios are near their target, so each is measured more often than those of the other benchmarks of publishers.
_TIMES_AS_MANY = 3

#: How many turns a second the tasks of a worker take.
_TURNS_A_SECOND = 50

#: How long before its first turn a row of tasks is published, in seconds.
_AHEAD_S = 5


def run(scale: Scale) -> Report:
    report = Report(
        f"keys: {_TIMES_AS_MANY * scale.publish_rounds} turns of {scale.publish_calls} apply_async with a countdown; "
        f"{scale.unique_keys:,} keys in memory"
    )
    with PrivateRedis() as server:
        _publish(report, scale, server)
    with PrivateRedis() as server:
        _remember(report, scale, server)
    with PrivateRedis() as server, BenchWorker(OURS, server.port) as worker:
        worker.wait_until_ready()
        _take_turns(report, scale, worker)
    report.notes += [
        f"{PLAIN}: the same of celery_delayq without a key. {OURS}: with one, another one for each task.",
        "A conflict: all tasks have one key, and the first one stays, or the last one.",
        "Memory: used_memory, messages included, with and without keys.",
    ]
    return report


def _publish(report: Report, scale: Scale, server: PrivateRedis) -> None:
    app = make_app(broker_url(OURS, server.port, 0))
    note = app.tasks["note"]

    def publisher(options: Callable[[int], dict[str, Any]]) -> Callable[[], float]:
        def publish() -> float:
            with server.client() as client:
                client.flushall()
            note.apply_async((-1,), countdown=3600)  # in an empty queue, each call would tell loops of the queue
            start = time.perf_counter()
            for number in range(scale.publish_calls):
                note.apply_async((number,), countdown=3600, **options(number))
            return scale.publish_calls / (time.perf_counter() - start)

        return publish

    pace = Throttle("1/h", key="one")
    ways: dict[str, Callable[[int], dict[str, Any]]] = {
        PLAIN: lambda number: {},
        "another key each": lambda number: {"unique": f"key {number}"},
        "one key, the first stays": lambda number: {"unique": "key"},
        "one key, the last stays": lambda number: {"unique": "key", "on_conflict": "replace"},
        "throttled, another key each": lambda number: {"throttle": Throttle("1/h", key=f"key {number}")},
        "throttled, one key": lambda number: {"throttle": pace},
    }
    variants = {name: publisher(options) for name, options in ways.items()}
    in_turns(1, variants)
    rates = in_turns(_TIMES_AS_MANY * scale.publish_rounds, variants)
    for name in ways:
        if name != PLAIN:
            target = Target(0.9, at_most=False, ratio=True)
            rate = report.figure(f"apply_async, {name}", "tasks/s", target=target, baseline=PLAIN)
            rate.samples = {PLAIN: rates[PLAIN], OURS: rates[name]}


def _remember(report: Report, scale: Scale, server: PrivateRedis) -> None:
    far = int(time.time() * 1000) + 86_400_000
    with server.client() as client:
        queue = DelayedQueue(client, "celery")

        def used() -> int:
            return int(client.info("memory")["used_memory"])

        def bytes_each(call: Callable[[int], Call[Any]]) -> float:
            client.flushall()
            before = used()
            for start in range(0, scale.unique_keys, _BATCH):
                numbers = range(start, min(start + _BATCH, scale.unique_keys))
                replies = run_each(client, [call(number) for number in numbers])
                assert not any(isinstance(reply, Exception) for reply in replies)
            assert queue.size() == scale.unique_keys
            return (used() - before) / scale.unique_keys

        plain = bytes_each(
            lambda number: scripts.offer(
                queue.keys,
                due_ms=far + number,
                message_key=codec.message_key(_id(number)),
                payload=b"x" * 600,
                mirrored=False,
            ),
        )
        unique = bytes_each(
            lambda number: offer_unique(
                queue.keys,
                claim=Claim(f"remind:{number}", "due", 3_600_000, "keep"),
                task_id=_id(number),
                due_ms=far + number,
                payload=b"x" * 600,
                mirrored=False,
            ),
        )
        throttled = bytes_each(
            lambda number: offer_throttled(
                queue.keys,
                pace=Pace(f"sync:{number}", 60_000_000),
                due_ms=far + number,
                message_key=codec.message_key(_id(number)),
                payload=b"x" * 600,
                mirrored=False,
            ),
        )
    report.figure("memory of a unique key", "bytes", target=Target(200)).add(OURS, unique - plain)
    report.figure("memory of a throttled key", "bytes").add(OURS, throttled - plain)


def _take_turns(report: Report, scale: Scale, worker: BenchWorker) -> None:
    count = scale.publish_calls
    pace = Throttle(_TURNS_A_SECOND, key="one")
    eta = datetime.fromtimestamp(time.time() + _AHEAD_S, timezone.utc)
    for number in range(count):
        worker.app.tasks["note"].apply_async((number,), eta=eta, throttle=pace)
    late = f"turns were over before all {count} tasks were published"
    assert time.time() < eta.timestamp(), late
    dues = {int(task.args_text[1:-2]): task.due.timestamp() for task in worker.app.delayq.iter_scheduled()}
    wait_until(lambda: worker.count() >= count, "all have run", _AHEAD_S + count / _TURNS_A_SECOND + 30)
    lateness = [(run.ran_at - dues[run.number]) * 1000 for run in worker.runs()]
    for percent in (50, 99):
        figure = report.figure(f"from its turn to the start of a task, p{percent}", "ms")
        figure.add(OURS, percentile(lateness, percent))


def _id(number: int) -> str:
    """As long as Celery's."""
    return f"{number:036d}"
