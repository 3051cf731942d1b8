"""An app whose tasks are unique by their decorators, or count from now when they are sent, for periodic tasks."""

from __future__ import annotations

import json
import os
from typing import Any

from celery import Celery, Task

from celery_delayq import Throttle, Unique
from tests.integration.long_tasks import add_long_tasks
from tests.ledger import Ledger
from tests.worker_app import make_app

APP = "tests.integration.periodic_app"

KEY = "sync:7"


class Impatient(Task):
    """Its messages get a time by the clock of whoever sends them."""

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Send the task; it expires soon."""
        options.setdefault("expires", 1)
        return super().apply_async(args, kwargs, **options)


def add_periodic_tasks(app: Celery, ledger: Ledger) -> Celery:
    """Give the app its further tasks."""
    add_long_tasks(app, ledger)

    def note_eta(self: Any) -> None:
        """Write down for when it was planned."""
        ledger.record(self.request.id, str(self.request.eta))

    def retry_once(self: Any) -> None:
        """Write down each attempt; the first fails."""
        ledger.record(self.request.id, self.request.retries)
        if not self.request.retries:
            raise self.retry(countdown=0.2)

    def task(function: Any, name: str, **options: Any) -> None:
        app.task(bind=True, name=name, lazy=False, shared=False, **options)(function)

    for_: Any
    for for_ in ("waiting", "until_start", "until_done"):
        task(note_eta, f"note_eta {for_}", unique=Unique(key=KEY, for_=for_))
        task(retry_once, f"retry_once {for_}", unique=Unique(key=KEY, for_=for_))
    task(note_eta, "note_eta period", unique=Unique(key=KEY, period=1.5))
    task(retry_once, "retry_once period", unique=Unique(key=KEY, period=1.2))
    gated = app.tasks["gated"].run.__func__
    task(gated, "gated until_done", unique=Unique(key=KEY, for_="until_done"))
    task(gated, "gated raise", unique=Unique(key=KEY, for_="until_done", on_conflict="raise"))
    task(note_eta, "note_eta expires", expires=1)
    task(note_eta, "note_eta impatient", base=Impatient)
    task(note_eta, "note_eta throttled", throttle=Throttle("1/h"))
    return app


if "LEDGER" in os.environ:
    app = add_periodic_tasks(
        make_app(os.environ["BROKER"], os.environ["LEDGER"], **json.loads(os.environ["CONF"])),
        Ledger(os.environ["LEDGER"]),
    )
