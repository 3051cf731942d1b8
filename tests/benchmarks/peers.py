"""Peers: other ways to delay tasks of Celery, where they are installed, in what all of them can do."""

from __future__ import annotations

import time
from contextlib import ExitStack
from importlib.util import find_spec

from examples.private_redis import PrivateRedis
from tests.benchmarks import lateness, rabbitmq
from tests.benchmarks.copies import seconds_to_publish
from tests.benchmarks.figures import OURS, STOCK
from tests.benchmarks.report import Report
from tests.benchmarks.scale import Scale
from tests.benchmarks.worker import BenchWorker, workers_on
from tests.support import wait_until

REDIS_PLUS, RABBITMQ = "celery-redis-plus", "RabbitMQ"

#: A process publishes so many tasks a second at least.
_PUBLISHED_PER_S = 400

#: All tasks of a burst have begun so long after they were due, in seconds.
_DEADLINE_S = 300


def installed() -> list[str]:
    """Return the peers that can run here."""
    found = {REDIS_PLUS: find_spec("celery_redis_plus") is not None, RABBITMQ: rabbitmq.is_installed()}
    return [name for name, is_there in found.items() if is_there]


def run(scale: Scale) -> Report:
    peers = installed()
    report = Report("peers: lateness and bursts beside other ways to delay tasks, all published by Celery")
    report.notes += [f"{name} is not installed here." for name in (REDIS_PLUS, RABBITMQ) if name not in peers]
    if not peers:
        return report
    with ExitStack() as stack:
        ports = {name: stack.enter_context(PrivateRedis()).port for name in (STOCK, OURS)}
        if REDIS_PLUS in peers:
            ports[REDIS_PLUS] = stack.enter_context(PrivateRedis()).port
        if RABBITMQ in peers:
            ports[RABBITMQ] = stack.enter_context(rabbitmq.PrivateRabbitMQ()).port
        workers = stack.enter_context(workers_on(ports))
        lateness.compare(report, workers, lateness.fewer_random_countdowns(scale))
        lateness.Beyond(workers, scale).show(report)
        _compare_bursts(report, workers, scale.stock_burst // 2)
    report.notes.append("One worker each: prefork with 2 processes; those that are not measured have nothing to do.")
    if RABBITMQ in peers:
        report.notes.append(f"{RABBITMQ} {rabbitmq.version()}: quorum queues with native delays, in whole seconds.")
    return report


def _compare_bursts(report: Report, workers: dict[str, BenchWorker], count: int) -> None:
    rate = report.figure(f"{count:,} due at one instant: rate from then to the last start", "tasks/s")
    for name, worker in workers.items():
        worker.forget()
        due_at = time.time() + seconds_to_publish(count) + count / _PUBLISHED_PER_S
        for number in range(count):
            worker.publish(number, due_at - time.time())
        if time.time() > due_at - 1:
            report.notes.append(f"{name}: publishing took longer than expected, the first were due before its end.")
        wait_until(lambda worker=worker: worker.count() >= count, "all have run", due_at - time.time() + _DEADLINE_S)
        rate.add(name, count / (max(one.ran_at for one in worker.runs()) - due_at))
