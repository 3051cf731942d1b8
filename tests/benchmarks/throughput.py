"""Throughput: how many empty tasks a worker takes from a backlog per second, and with how many Redis commands."""

from __future__ import annotations

import time
from functools import partial

import redis
from celery import Celery

from examples.private_redis import PrivateRedis
from tests.benchmarks.figures import OURS, STOCK, Target, in_turns
from tests.benchmarks.report import Report
from tests.benchmarks.scale import Scale
from tests.benchmarks.shop import broker_url, make_app
from tests.support import wait_until
from tests.workers import CeleryCommand

#: Pool -> how many times stock's rate it should reach.
_POOLS = {"prefork": 1.8, "solo": 2.5}

#: What scripts of ours call while they fetch; the server counts it as if a client had sent it.
_CALLED_BY_SCRIPTS = {"rpop", "lpush", "llen", "zscore"}

_QUEUE = "celery"
_DEADLINE_S = 300


def run(scale: Scale) -> Report:
    report = Report(
        f"throughput: a worker that finds {scale.backlog:,} empty tasks, -c 2, {scale.rounds} turns",
        notes=["The rate is that at which they leave the queue; commands are those that clients send, at any time."],
    )
    for pool, times in _POOLS.items():
        rate = report.figure(f"{pool}: rate", "tasks/s", target=Target(times, at_most=False, ratio=True))
        commands = report.figure(f"{pool}: commands a task", "", target=Target(2.0))
        turns = in_turns(
            scale.rounds,
            {name: partial(_drain, name, pool, scale.backlog) for name in (STOCK, OURS)},
        )
        for name, results in turns.items():
            for tasks_per_s, commands_per_task in results:
                rate.add(name, tasks_per_s)
                commands.add(name, commands_per_task)
    return report


def _drain(variant: str, pool: str, backlog: int) -> tuple[float, float]:
    """Return tasks a second and commands a task of one run."""
    with PrivateRedis() as server, server.client() as client:
        broker = broker_url(variant, server.port)
        _publish(make_app(broker), backlog)
        client.config_resetstat()
        options = ("-P", pool, "-c", "2", "-l", "WARNING", "--without-gossip", "--without-mingle")
        with CeleryCommand("worker", *options, broker=broker, ledger="/dev/null", app="tests.benchmarks.shop"):
            wait_until(lambda: client.llen(_QUEUE) < backlog, "the worker has begun", _DEADLINE_S)
            began, first = time.perf_counter(), int(client.llen(_QUEUE))
            wait_until(lambda: not client.llen(_QUEUE), "the backlog is gone", _DEADLINE_S)
            seconds = time.perf_counter() - began
            asked = _count(client, {"llen", "info", "config|resetstat"} | _CALLED_BY_SCRIPTS)
    return first / seconds, asked / backlog


def _publish(app: Celery, count: int) -> None:
    empty = app.tasks["empty"]
    with app.connection_for_write() as connection, app.amqp.Producer(connection) as producer:
        for _ in range(count):
            empty.apply_async(producer=producer)
    app.close()


def _count(client: redis.Redis, but: set[str]) -> int:
    stats = client.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): int(stat["calls"]) for name, stat in stats.items()}
    return sum(count for name, count in calls.items() if name not in but)
