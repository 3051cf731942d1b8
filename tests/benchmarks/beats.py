"""`celery beat` processes of the benchmarks: this package's planner, stock's, and RedBeat where it is installed."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from importlib.util import find_spec

from celery import Celery
from celery.schedules import crontab

from tests.benchmarks.figures import OURS, STOCK
from tests.benchmarks.shop import broker_url, make_app
from tests.workers import CeleryCommand

REDBEAT = "RedBeat"

_SCHEDULERS = {
    STOCK: "celery.beat:PersistentScheduler",
    OURS: "celery_delayq.beat:Scheduler",
    REDBEAT: "redbeat.RedBeatScheduler",
}

_MODULE = "tests.benchmarks.beats"


def installed(*variants: str) -> list[str]:
    """Return those of the variants that can run here: `pip install --group bench` brings RedBeat."""
    return [variant for variant in variants if variant != REDBEAT or find_spec("redbeat")]


def broker(variant: str, port: int) -> str:
    """Return the URL of a local server for a variant."""
    return broker_url(OURS if variant == OURS else STOCK, port)


class Beat(CeleryCommand):
    """`celery beat` with a scheduler and entries, in a process of its own.

    Args:
        variant: whose scheduler.
        port: of the Redis server.
        kind: `daily`, `minutely` or `spread`, see `make_schedule`.
        entries: how many.
        begin: of those that are spread, unix time in s.
        interval_s: of those that are spread.
    """

    def __init__(
        self, variant: str, port: int, kind: str, entries: int, begin: float = 0.0, interval_s: float = 0.0
    ) -> None:
        super().__init__(
            *("beat", "-S", _SCHEDULERS[variant], "-l", "WARNING"),
            broker=broker(variant, port),
            ledger="/dev/null",
            app=_MODULE,
            env={"SCHEDULE": f"{kind} {entries} {begin} {interval_s}"},
        )

    def __enter__(self) -> Beat:
        super().__enter__()
        return self


def make_schedule(kind: str, entries: int, begin: float, interval_s: float) -> dict[str, object]:
    """Return a `beat_schedule`.

    Args:
        kind: `daily` entries are due at night, `minutely` ones at each full minute, all of them; `spread` ones each
            interval, at equal distances from one to the next.
        entries: how many.
        begin: when the first of those that are spread is due, unix time in s.
        interval_s: how often each of them is due, in seconds.
    """
    schedule = {"daily": crontab(minute="59", hour="3"), "minutely": crontab(), "spread": interval_s}[kind]
    made: dict[str, object] = {}
    for number in range(entries):
        entry: dict[str, object] = {"task": "empty", "schedule": schedule, "args": ()}
        if kind == "spread":
            start = datetime.fromtimestamp(begin + number * interval_s / entries, timezone.utc)
            entry["options"] = {"delayq": {"start": start.isoformat()}}
        made[f"entry-{number:06}"] = entry
    return made


def make_beat_app() -> Celery:
    """Return the app of a process, as its environment says."""
    app = make_app(os.environ["BROKER"])
    kind, entries, begin, interval_s = os.environ["SCHEDULE"].split()
    app.conf.beat_schedule = make_schedule(kind, int(entries), float(begin), float(interval_s))
    app.conf.redbeat_redis_url = os.environ["BROKER"]
    return app


if "SCHEDULE" in os.environ:
    app = make_beat_app()
