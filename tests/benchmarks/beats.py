"""`celery beat` processes of the benchmarks: this package's planner, stock's, and RedBeat where it is installed."""

from __future__ import annotations

import os
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
        kind: `daily` or `minutely`, see `make_schedule`.
        entries: how many.
    """

    def __init__(self, variant: str, port: int, kind: str, entries: int) -> None:
        super().__init__(
            *("beat", "-S", _SCHEDULERS[variant], "-l", "WARNING"),
            broker=broker(variant, port),
            ledger="/dev/null",
            app=_MODULE,
            env={"SCHEDULE": f"{kind} {entries}"},
        )

    def __enter__(self) -> Beat:
        super().__enter__()
        return self


def make_schedule(kind: str, entries: int) -> dict[str, object]:
    """Return a `beat_schedule`.

    Args:
        kind: `daily` entries are due at night, `minutely` ones at each full minute, all of them.
        entries: how many.
    """
    schedule = {"daily": crontab(minute="59", hour="3"), "minutely": crontab()}[kind]
    return {f"entry-{number:06}": {"task": "empty", "schedule": schedule, "args": ()} for number in range(entries)}


def make_beat_app() -> Celery:
    """Return the app of a process, as its environment says."""
    app = make_app(os.environ["BROKER"])
    kind, entries = os.environ["SCHEDULE"].split()
    app.conf.beat_schedule = make_schedule(kind, int(entries))
    app.conf.redbeat_redis_url = os.environ["BROKER"]
    return app


if "SCHEDULE" in os.environ:
    app = make_beat_app()
