"""Django's settings for `tests.contrib.beat_app`. The environment says where the database is, and what else differs."""

from __future__ import annotations

import json
import os

DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["DATABASE"]}}
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
INSTALLED_APPS = ["django.contrib.contenttypes", "django_celery_beat"]
SECRET_KEY = "only for tests"
TIME_ZONE = "America/New_York"
USE_TZ = True

CELERY_BEAT_SCHEDULE = {"mine": {"task": "note", "schedule": 3600}}
CELERY_BEAT_SCHEDULER = "delayq"
CELERY_BROKER_URL = os.environ["BROKER"]
CELERY_WORKER_HIJACK_ROOT_LOGGER = False

globals().update(json.loads(os.environ.get("SETTINGS", "{}")))
