"""An eta without a time zone is UTC, as in Celery; whoever probably means another time is told once."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest
from celery import Celery
from celery.worker.request import Request
from kombu.message import Message

from examples.private_redis import PrivateRedis

_REPOSITORY = Path(__file__).parents[2]

_SHOP = """
import sys
from datetime import datetime, timedelta, timezone
from celery import Celery
from celery_delayq import DelayQ

app = Celery("shop", broker=sys.argv[2])
app.conf.timezone = sys.argv[1] or None
delayq = DelayQ(app)

@app.task
def pay(): ...

"""

NAIVE = "pay.apply_async(eta=datetime.now() + timedelta(minutes=5))"


def warned(zone: str, timezone: str, *lines: str, broker: str = "memory://") -> list[str]:
    """Run lines of an app in a machine's time zone, with the app's `timezone`, and return the warnings."""
    code = _SHOP + "\n".join(lines)
    command = [sys.executable, "-c", code, timezone, broker]
    env = {**os.environ, "TZ": zone, "PYTHONPATH": str(_REPOSITORY), "PYTHONWARNINGS": "always"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    return [line for line in done.stderr.splitlines() if "NaiveEta" in line]


@pytest.mark.parametrize("enable_utc", [True, False])
@pytest.mark.parametrize("zone", ["Asia/Tokyo", "UTC", None])
def test_celery_takes_it_as_utc(enable_utc: bool, zone: str | None) -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(enable_utc=enable_utc, timezone=zone)

    @app.task(name="pay", shared=False)
    def task() -> None: ...

    sent = app.amqp.create_task_message("an-id", "pay", (), {}, eta=datetime(2030, 1, 1, 12))  # noqa: DTZ001
    message = Message(b"[[], {}, {}]", headers=sent.headers, properties={}, content_type="application/json")
    request = Request(message, app=app, task=task, utc=app.uses_utc_timezone())
    assert request.eta == datetime(2030, 1, 1, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("zone", "timezone", "text"),
    [
        ("Asia/Tokyo", "", "9h later than local time"),
        ("America/Phoenix", "", "7h earlier than local time"),
        ("UTC", "Asia/Kolkata", "5h 30m later than Asia/Kolkata, the app's timezone"),
    ],
)
def test_it_is_said_where_local_time_is_another(zone: str, timezone: str, text: str) -> None:
    (line,) = warned(zone, timezone, NAIVE, NAIVE, "pay.s().apply_async(eta=datetime.now())")
    assert text in line
    assert "datetime.now(timezone.utc)" in line


def test_as_an_error_it_is_raised_each_time() -> None:
    attempt = f"try: {NAIVE}\nexcept NaiveEtaWarning: print('NaiveEta', file=sys.stderr)"
    lines = ["import warnings", "from celery_delayq import NaiveEtaWarning", "warnings.simplefilter('error')"]
    assert len(warned("Asia/Tokyo", "", *lines, attempt, attempt, attempt)) == 3


def test_the_line_is_the_callers(redis_server: PrivateRedis) -> None:
    calls = [
        NAIVE,
        "pay.s().set(eta=datetime.now()).delay()",
        "app.send_task('pay', eta=datetime.now())",
        "delayq.apply_async_many([pay.s().set(eta=datetime.now())])",
        "delayq.apply_async_many([pay.s().set(countdown=60), pay.s().set(eta=datetime.now())])",
        "delayq.reschedule('an-id', eta=datetime.now())",
        "delayq.change_some('reschedule', everything=True, eta=datetime.now())",
    ]
    again = "importlib.reload(celery_delayq.publishing.naive)"  # it has not warned yet then
    lines = ["import importlib, celery_delayq.publishing.naive", *(f"{call}; {again}" for call in calls)]
    found = warned("Asia/Tokyo", "", *lines, broker=redis_server.url.replace("redis://", "delayq://"))
    first = len(_SHOP.splitlines()) + 2
    assert [int(line.split(":")[1]) for line in found] == list(range(first, first + len(calls)))


@pytest.mark.parametrize(
    ("zone", "timezone", "lines"),
    [
        ("UTC", "", [NAIVE]),
        ("Africa/Abidjan", "Etc/GMT", [NAIVE]),
        (
            "Asia/Tokyo",
            "",
            [
                "pay.apply_async(eta=datetime.now(timezone.utc))",
                "pay.apply_async(countdown=5); pay.delay()",
                "pay.apply_async(eta='2030-01-01T00:00:00')",
            ],
        ),
    ],
)
def test_otherwise_nothing_is_said(zone: str, timezone: str, lines: list[str]) -> None:
    assert not warned(zone, timezone, *lines)
