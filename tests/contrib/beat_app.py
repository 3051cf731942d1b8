"""The Celery app of a Django project with django_celery_beat. Its task notes what it was called with, in the ledger."""

from __future__ import annotations

import json
import os
from typing import Any

import redis
from celery import Celery

from celery_delayq import DelayQ

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.contrib.beat_settings")

app = Celery("proj")
app.config_from_object("django.conf:settings", namespace="CELERY")
delayq = DelayQ(app)


@app.task(name="note", bind=True, ignore_result=True)
def note(self: Any, *args: Any, **kwargs: Any) -> None:
    """Note a call."""
    header = (self.request.headers or {}).get("periodic_task_name") or self.request.get("periodic_task_name")
    with redis.Redis.from_url(os.environ["LEDGER"]) as client:
        client.rpush("noted", json.dumps([args, kwargs, header]))
