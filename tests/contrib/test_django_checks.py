"""System checks: what a Django user gets wrong has an id and a hint."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from celery.app import app_or_default
from django.core.checks import run_checks
from django.test import override_settings

from celery_delayq import DelayQ
from tests.contrib.conftest import _APPS

pytestmark = pytest.mark.usefixtures("project")

URL = "delayq://localhost:6379/0"


def made(**conf: Any) -> Celery:
    """Return an app that is right, but for `conf`."""
    app = Celery("proj", set_as_current=False)
    app.conf.update({"broker_url": URL, **conf})
    DelayQ(app)
    return app


def found(app: Any = None) -> dict[str, str]:
    """Return the ids of what is wrong, and the hints."""
    with override_settings(DELAYQ_APP=app):
        messages = run_checks(tags=["delayq"])
    assert all(message.hint for message in messages)
    return {message.id: f"{message.msg} {message.hint}" for message in messages}


def test_a_project_that_is_right_has_no_message() -> None:
    assert found(made()) == {}


def test_all_checks_of_django_pass() -> None:
    with override_settings(DELAYQ_APP=made()):
        ids = {message.id for message in run_checks()}
    assert not {one for one in ids if one.startswith(("delayq", "models", "admin", "fields"))}


@pytest.mark.parametrize("named", ["nowhere.celery:app", "tests.contrib:app", "sys", 5])
def test_an_app_that_cannot_be_found(named: Any) -> None:
    (message,) = found(named).values()
    assert set(found(named)) == {"delayq.E001"}
    assert 'DELAYQ_APP = "proj.celery:app"' in message
    assert repr(named) in message


def test_nobody_made_an_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery makes one itself then; it must not be taken for the project's."""
    from celery import _state

    monkeypatch.setattr(_state, "default_app", None)
    monkeypatch.setattr(_state._tls, "current_app", None)
    message = found()["delayq.E001"]
    assert "from .celery import app as celery_app" in message


def test_the_current_app_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from celery import _state

    monkeypatch.setattr(_state._tls, "current_app", None)
    app = Celery("default", broker="redis://")  # the name of Celery's own one
    assert app_or_default() is app
    assert set(found()) == {"delayq.E002", "delayq.E003"}


def test_the_app_is_named_as_for_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    module = type(sys)("proj_of_checks")
    module.app = made()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "proj_of_checks", module)
    assert found("proj_of_checks:app") == {}
    assert found("proj_of_checks.app") == {}
    assert found("proj_of_checks") == {}


@pytest.mark.parametrize(
    "url", ["redis://localhost:6379/0", "memory://", "amqp://", "delayqx://h", "sqs://", "delayq://h:x/0"]
)
def test_another_broker(url: str) -> None:
    message = found(made(broker_url=url))["delayq.E002"]
    assert 'CELERY_BROKER_URL = "delayq://localhost:6379/0"' in message


def test_an_app_that_does_not_read_the_settings() -> None:
    with override_settings(CELERY_BROKER_URL=URL):
        message = found(made(broker_url="amqp://"))["delayq.E002"]
    assert 'app.config_from_object("django.conf:settings", namespace="CELERY")' in message


def test_the_hint_knows_the_namespace() -> None:
    app = Celery("proj", set_as_current=False, namespace="JOBS", config_source="django.conf:settings")
    DelayQ(app)
    assert 'JOBS_BROKER_URL = "delayq://' in found(app)["delayq.E002"]


@pytest.mark.parametrize("namespace", ["CELERY", None])
def test_an_app_that_reads_the_settings(namespace: str | None) -> None:
    """Without a namespace, Celery reads all settings, DELAYQ_APP too."""
    app = Celery("proj", set_as_current=False)
    app.config_from_object("django.conf:settings", namespace=namespace)
    DelayQ(app)
    with override_settings(**{"CELERY_BROKER_URL" if namespace else "BROKER_URL": URL}):
        assert found(app) == {}


def test_a_forgotten_delayq() -> None:
    app = Celery("proj", set_as_current=False, broker=URL)
    assert set(found(app)) == {"delayq.E003"}
    assert "delayq = DelayQ(app)" in found(app)["delayq.E003"]


def test_wrong_settings() -> None:
    with override_settings(CELERY_BROKER_URL=URL, CELERY_DELAYQ_TRANSFER_GRACE="long"):
        app = Celery("proj", set_as_current=False)
        app.config_from_object("django.conf:settings", namespace="CELERY")
        DelayQ(app)
        assert set(found(app)) == {"delayq.E004"}
    messages = found(made(broker_transport_options={"sokcet_timeout": 3}))
    assert "Did you mean 'socket_timeout'?" in messages["delayq.W005"]


def test_eager_tasks() -> None:
    assert "whatever their countdown" in found(made(task_always_eager=True))["delayq.W003"]


@pytest.fixture
def zone_of_the_process() -> Iterator[None]:
    """Let the process keep its time zone, which Django sets, and leaves as its own default."""
    before = os.environ.get("TZ")
    yield
    os.environ.pop("TZ", None)
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.usefixtures("zone_of_the_process")
@pytest.mark.parametrize(("zone", "ids"), [("Europe/Berlin", {"delayq.W004"}), ("UTC", set())])
def test_naive_times(zone: str, ids: set[str]) -> None:
    with override_settings(USE_TZ=False, TIME_ZONE=zone):
        assert set(found(made())) == ids


@pytest.fixture
def beat(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An app of that name is enough: its tables are not read."""
    monkeypatch.setitem(sys.modules, "django_celery_beat", sys.modules["tests.contrib"])
    with override_settings(INSTALLED_APPS=[*_APPS, "django_celery_beat"]):
        yield


@pytest.mark.usefixtures("beat")
def test_two_schedulers() -> None:
    assert "import-django-celery-beat" in found(made())["delayq.W001"]
    assert set(found(made(beat_scheduler="django_celery_beat.schedulers:DatabaseScheduler"))) == {"delayq.W001"}
    assert "remove django_celery_beat" in found(made(beat_scheduler="delayq"))["delayq.W002"]
    assert set(found(made(beat_scheduler="celery_delayq.beat:Schedular"))) == {"delayq.E004"}


def test_without_jinja2(monkeypatch: pytest.MonkeyPatch) -> None:
    from celery_delayq.contrib.django import checks

    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    assert "pip install Jinja2; or in a clone" in found(made())["delayq.E005"]
    with override_settings(INSTALLED_APPS=[name for name in _APPS if name != "django.contrib.admin"]):
        assert found(made()) == {}


#: A project whose Python has no Jinja2: `check` says so.
_WITHOUT_JINJA2 = """
import sys
sys.modules["jinja2"] = sys.modules["markupsafe"] = None  # whoever imports it gets an ImportError

import celery, celery_delayq, django
from django.conf import settings
from django.core.checks import run_checks

app = celery.Celery("proj", broker="delayq://localhost:6379/0")
celery_delayq.DelayQ(app)
names = ("admin", "auth", "contenttypes", "messages", "sessions")
settings.configure(
    DELAYQ_APP=app,
    INSTALLED_APPS=[*(f"django.contrib.{name}" for name in names), "celery_delayq.contrib.django"],
    SECRET_KEY="only for tests",
    USE_TZ=True,
)
django.setup()
print([message.id for message in run_checks(tags=["delayq"])])
"""


def test_a_project_without_jinja2_starts_and_its_check_says_what_to_install() -> None:
    """Django must be able to import the app to say that."""
    done = subprocess.run([sys.executable, "-c", _WITHOUT_JINJA2], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("['delayq.E005']\n", "")


@pytest.mark.parametrize("options", [{"leese": 3}, {"lease": "long"}])
def test_a_wrong_option_is_one_error_and_the_broker_is_not_to_blame(options: dict[str, Any]) -> None:
    messages = found(made(broker_transport_options=options))
    assert set(messages) == {"delayq.E004"}
    assert "broker_transport_options" in messages["delayq.E004"]
    both = found(made(broker_transport_options=options, broker_url="redis://localhost:6379/0"))
    assert set(both) == {"delayq.E002", "delayq.E004"}
