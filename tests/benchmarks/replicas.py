"""Replicas: what it costs to wait until a replica has each write."""

from __future__ import annotations

import time
from collections.abc import Callable

from celery import Celery

from celery_delayq import DelayedQueue, DelayQ
from celery_delayq.transport.replicas import Replicas, ReplicatedClient
from tests.benchmarks.figures import OURS, Target, in_turns, percentile
from tests.benchmarks.report import Report
from tests.benchmarks.scale import Scale
from tests.benchmarks.shop import broker_url, make_app
from tests.pair import replicated

#: The variant that does not wait.
PLAIN = "without"

#: How many tasks a bulk call publishes.
_MANY = 10_000

_COUNTDOWN_S = 3600


def run(scale: Scale) -> Report:
    report = Report(
        f"replicas: {scale.publish_rounds} turns of {scale.publish_calls} tasks with a countdown, and of {_MANY:,} in "
        "bulk, with replicas=0 and with replicas=1, on one master and its replica"
    )
    with replicated() as pair:
        apps = {}
        for db, name in enumerate((PLAIN, OURS)):
            apps[name] = make_app(broker_url(OURS, pair.master.port, db))
            apps[name].conf.broker_transport_options = {"replicas": int(name == OURS), "socket_timeout": 30.0}
        with pair.master.client(db=2) as plain_client, pair.master.client(db=3) as client:
            writer = ReplicatedClient(client, Replicas(1, 1000))
            offers = {
                PLAIN: _offers(DelayedQueue(plain_client, "q"), scale.publish_calls),
                OURS: _offers(DelayedQueue(client, "q", writer=writer), scale.publish_calls),
            }
            in_turns(2, offers)
            figure = report.figure("DelayedQueue.offer, p50", "ms", baseline=PLAIN, target=Target(2.5, ratio=True))
            figure.samples = in_turns(scale.publish_rounds, offers)
        one = {name: _one_by_one(app, scale.publish_calls) for name, app in apps.items()}
        many = {name: _in_bulk(app) for name, app in apps.items()}
        in_turns(2, one)
        figure = report.figure("apply_async(countdown), p50", "ms", baseline=PLAIN, target=Target(2.5, ratio=True))
        figure.samples = in_turns(scale.publish_rounds, one)
        in_turns(1, many)
        figure = report.figure("apply_async_many, per 1,000", "ms", baseline=PLAIN, target=Target(1.1, ratio=True))
        figure.samples = in_turns(scale.publish_rounds, many)
    report.notes.append(f"{OURS}: replicas=1; {PLAIN}: replicas=0. The replica is on the same machine.")
    return report


def _offers(queue: DelayedQueue, calls: int) -> Callable[[], float]:
    return lambda: _p50_ms(lambda: queue.offer(b"x" * 500, countdown=_COUNTDOWN_S), calls)


def _one_by_one(app: Celery, calls: int) -> Callable[[], float]:
    return lambda: _p50_ms(lambda: app.tasks["empty"].apply_async(countdown=_COUNTDOWN_S), calls)


def _p50_ms(call: Callable[[], object], calls: int) -> float:
    took = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        took.append(time.perf_counter() - start)
    return percentile(took, 50) * 1000


def _in_bulk(app: Celery) -> Callable[[], float]:
    delayq = DelayQ(app)

    def publish() -> float:
        signatures = [app.tasks["empty"].s(number).set(countdown=_COUNTDOWN_S) for number in range(_MANY)]
        start = time.perf_counter()
        delayq.apply_async_many(signatures)
        return (time.perf_counter() - start) * 1000 * 1000 / _MANY

    return publish
