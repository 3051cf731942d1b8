"""What `startproject` writes, and the last lines."""

from __future__ import annotations

import os
from pathlib import Path

BASE_DIR = Path(__file__).parents[1]

SECRET_KEY = os.environ.get("SECRET_KEY", "only for this example")
DEBUG = True
ALLOWED_HOSTS: list[str] = []

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "celery_delayq.contrib.django",
    "orders",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "bookshop.urls"
WSGI_APPLICATION = "bookshop.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DATABASE", BASE_DIR / "db.sqlite3"),
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

TIME_ZONE = "Europe/Berlin"
USE_TZ = True
STATIC_URL = "static/"

CELERY_BROKER_URL = os.environ.get("BROKER", "delayq://localhost:6379/0")
CELERY_BEAT_SCHEDULER = "celery_delayq.beat:Scheduler"
CELERY_BEAT_SCHEDULE = {"sweep": {"task": "orders.tasks.sweep", "schedule": 600}}
CELERY_TIMEZONE = TIME_ZONE

#: How long a customer has time to pay, in seconds.
PAY_WITHIN_S = float(os.environ.get("PAY_WITHIN", 30 * 60))
