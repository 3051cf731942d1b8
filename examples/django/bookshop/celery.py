"""The Celery app of the project: `celery -A bookshop worker`."""

from __future__ import annotations

import os

from celery import Celery

from celery_delayq import DelayQ

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bookshop.settings")

app = Celery("bookshop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
delayq = DelayQ(app)
