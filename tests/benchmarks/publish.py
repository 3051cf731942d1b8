"""Publishing: how many tasks a process publishes per second: one by one, in a group, and in bulk."""

from __future__ import annotations

import time
from collections.abc import Callable

from celery import Celery, group

from examples.private_redis import PrivateRedis
from tests.benchmarks.figures import OURS, STOCK, Target, in_turns
from tests.benchmarks.report import Report
from tests.benchmarks.scale import Scale
from tests.benchmarks.shop import broker_url, make_app

#: Name of a figure -> countdown in seconds.
_WHEN = {"countdown": 3600, "immediate": None}

_BULK = 4.0


def run(scale: Scale) -> Report:
    report = Report(
        f"publishing in one process: {scale.publish_rounds} turns of {scale.publish_calls} tasks with a countdown of "
        f"{_WHEN['countdown']} s, and without one"
    )
    with PrivateRedis() as server:
        apps = {name: make_app(broker_url(name, server.port, db)) for db, name in enumerate((STOCK, OURS))}
        for when, countdown_s in _WHEN.items():
            _measure(report, scale, apps, when, countdown_s)
    report.notes += [
        f"In a group: group(...).apply_async(). In bulk: delayq.apply_async_many(), where {STOCK} is its single calls.",
        "Signatures are made in the measured time.",
    ]
    return report


def _measure(report: Report, scale: Scale, apps: dict[str, Celery], when: str, countdown_s: float | None) -> None:
    ways = {"single": _single, "in a group": _in_a_group, "in bulk": _in_bulk}
    variants = {
        (way, name): _publisher(call, apps[name], scale.publish_calls, countdown_s)
        for way, call in ways.items()
        for name in apps
        if (way, name) != ("in bulk", STOCK)
    }
    in_turns(2, variants)  # connections, scripts and caches
    rates = in_turns(scale.publish_rounds, variants)
    for way in ways:
        times = _BULK if way == "in bulk" else 0.95
        rate = report.figure(f"{way}, {when}", "tasks/s", target=Target(times, at_most=False, ratio=True))
        rate.samples = {STOCK: rates.get((way, STOCK), rates["single", STOCK]), OURS: rates[way, OURS]}


def _publisher(
    call: Callable[[Celery, int, float | None], None], app: Celery, calls: int, countdown_s: float | None
) -> Callable[[], float]:
    def publish() -> float:
        start = time.perf_counter()
        call(app, calls, countdown_s)
        return calls / (time.perf_counter() - start)

    return publish


def _single(app: Celery, calls: int, countdown_s: float | None) -> None:
    note = app.tasks["note"]
    for number in range(calls):
        note.apply_async((number,), countdown=countdown_s)


def _in_a_group(app: Celery, calls: int, countdown_s: float | None) -> None:
    note = app.tasks["note"]
    group([note.s(number) for number in range(calls)], app=app).apply_async(countdown=countdown_s)


def _in_bulk(app: Celery, calls: int, countdown_s: float | None) -> None:
    note = app.tasks["note"]
    app.delayq.apply_async_many(note.s(number).set(countdown=countdown_s) for number in range(calls))
