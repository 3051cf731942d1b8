"""Django in this process: a project with the admin, whose database is in memory."""

from __future__ import annotations

from collections.abc import Iterator

import django
import pytest
from celery import Celery
from django.conf import settings
from django.core.management import call_command

from tests.contrib import urls
from tests.web import direct

app, client = direct.app, direct.client

#: What Django's `startproject` writes, and ours.
_APPS = (
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "celery_delayq.contrib.django",
)

_MIDDLEWARE = (
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
)

_PROCESSORS = (
    "django.template.context_processors.request",
    "django.contrib.auth.context_processors.auth",
    "django.contrib.messages.context_processors.messages",
)


@pytest.fixture(scope="session")
def project() -> None:
    """Set up Django once a process."""
    settings.configure(
        ALLOWED_HOSTS=["127.0.0.1"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=_APPS,
        LOGGING_CONFIG=None,
        MIDDLEWARE=_MIDDLEWARE,
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        ROOT_URLCONF=urls.__name__,
        SECRET_KEY="only for tests",
        STATIC_URL="static/",
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {"context_processors": _PROCESSORS},
            }
        ],
        USE_TZ=True,
    )
    django.setup()
    call_command("migrate", verbosity=0)


@pytest.fixture
def shop(project: None, app: Celery) -> Iterator[Celery]:
    """The shop, on an empty broker, as the Celery app of the project; no user is there."""
    from django.contrib import admin
    from django.contrib.auth import get_user_model
    from django.test import override_settings

    from tests.contrib.urls import own

    for site in (admin.site, own):  # pages keep their app
        for model_admin in site._registry.values():
            model_admin.__dict__.pop("_page", None)
    with override_settings(DELAYQ_APP=app):
        yield app
    get_user_model().objects.all().delete()
