"""The example project of Django: what its README says, played with real processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, OpenerDirector, Request, build_opener

import pytest

from examples.private_redis import PrivateRedis
from tests import brokers
from tests.support import wait_until
from tests.web.sites import Site
from tests.workers import CeleryCommand

pytestmark = pytest.mark.one_server("the example is about Django")

PROJECT = Path(__file__).parents[2] / "examples" / "django"

#: `manage.py runserver` prints the port that it was given, not the one that it got.
_SERVE = """
from waitress import create_server
from bookshop.wsgi import application

server = create_server(application, host="127.0.0.1", port=0)
print(f"http://127.0.0.1:{server.effective_port}/", flush=True)
server.run()
"""

Manage = Callable[..., str]


@pytest.fixture
def env(tmp_path: Path, redis_server: PrivateRedis) -> dict[str, str]:
    """The environment of the project: an empty broker, and a database of its own."""
    with redis_server.client() as client:
        client.flushall()
    return {
        "BROKER": brokers.url_of(redis_server),
        "DATABASE": str(tmp_path / "db.sqlite3"),
        "DJANGO_SETTINGS_MODULE": "bookshop.settings",
        "DJANGO_SUPERUSER_PASSWORD": "secret",
    }


@pytest.fixture
def manage(env: dict[str, str]) -> Manage:
    """Runs `manage.py ...`, with the tables and a user of the admin, `ada`."""

    def run(*args: str) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "error::DeprecationWarning:celery_delayq", "manage.py", *args],
            cwd=PROJECT,
            env={**os.environ, "PYTHONPATH": str(PROJECT.parents[1]), **env},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    run("migrate", "--verbosity=0")
    run("createsuperuser", "--noinput", "--username=ada", "--email=ada@example.com")
    return run


class Browser:
    """Sends forms, with cookies, as a browser does."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.cookies = CookieJar()
        self._opener: OpenerDirector = build_opener(HTTPCookieProcessor(self.cookies))

    def get(self, path: str) -> str:
        with self._opener.open(self.url + path, timeout=60) as answer:
            return str(answer.read().decode())

    def post(self, path: str, *fields: tuple[str, str], status: int = 200) -> str:
        request = Request(
            self.url + path,
            urlencode(fields).encode(),
            {"Sec-Fetch-Site": "same-origin", "Referer": self.url + path},
        )
        try:
            with self._opener.open(request, timeout=60) as answer:
                found, text = answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                found, text = error.code, error.read().decode()
        assert found == status, text
        return str(text)

    def log_in(self, name: str, password: str) -> None:
        """Log in to the admin."""
        form = self.get("/admin/login/")
        (token,) = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', form)
        fields = {"csrfmiddlewaretoken": token, "username": name, "password": password, "next": "/admin/"}
        assert "Log out" in self.post("/admin/login/", *fields.items())


@pytest.fixture
def browser(env: dict[str, str], manage: Manage) -> Iterator[Browser]:
    """A browser at the project's server."""
    given: dict[str, Any] = {"broker": env["BROKER"], "ledger": ""}
    with Site(command=["-c", _SERVE], env=env, paths=[PROJECT], **given) as site:
        yield Browser(site.url)


def lines_of(manage: Manage, code: str) -> list[str]:
    """Run code in the project, and return what it prints."""
    return manage("shell", "--no-imports", "-c", code).splitlines()


def states(manage: Manage) -> dict[str, str]:
    """Return the state of each book's order."""
    code = "from orders.models import Order; [print(o.book, o.state) for o in Order.objects.all()]"
    return dict(line.split() for line in lines_of(manage, code))


def test_all_is_well_with_the_project(manage: Manage) -> None:
    assert "no issues" in manage("check")
    assert "No changes detected" in manage("makemigrations", "--check")


def test_its_own_tests_pass(manage: Manage) -> None:
    assert "Ran 4 tests" in manage("test")


def test_an_order_that_is_not_paid_is_cancelled(env: dict[str, str], manage: Manage, browser: Browser) -> None:
    browser.log_in("ada", "secret")
    books = ("Emma", "Dracula", "Faust", "Ulysses")
    made = json.loads(browser.post("/orders", *(("book", book) for book in books), status=201))["orders"]
    ids = [f"cancel-order-{pk}" for pk in made]

    assert 'href="/admin/delayq/delayedtask/"' in browser.get("/admin/")
    waiting = browser.get("/admin/delayq/delayedtask/waiting")
    assert all(task_id in waiting for task_id in ids)
    assert "orders.tasks.cancel_unpaid" in waiting

    page = "/admin/delayq/delayedtask/waiting"
    for action, task_id in (("cancel", ids[0]), ("run_now", ids[2])):
        browser.post(page, ("action", action), ("confirmed", "yes"), ("id", task_id))
    code = "from django.contrib.admin.models import LogEntry; [print(one) for one in LogEntry.objects.all()]"
    log = lines_of(manage, code)
    assert "cancel: 1 done, 0 not" in log[1]
    assert "run_now: 1 done, 0 not" in log[0]
    assert ids[0] in browser.get("/admin/")  # the recent actions

    assert json.loads(browser.post(f"/orders/{made[1]}/payment")) == {"state": "paid"}
    waiting = browser.get(page)
    assert [task_id in waiting for task_id in ids] == [False, False, False, True]

    with CeleryCommand(
        "worker", "--pool=solo", broker=env["BROKER"], ledger="", app="bookshop", env=env, paths=[PROJECT]
    ) as worker:
        try:
            wait_until(lambda: states(manage)["Faust"] == "cancelled", "the task runs", 60)
        except AssertionError:
            print(worker.log)
            raise
    assert states(manage) == {"Emma": "open", "Dracula": "paid", "Faust": "cancelled", "Ulysses": "open"}
    browser.post(f"/orders/{made[2]}/payment", status=409)


def test_an_order_is_cancelled_although_the_broker_was_away(env: dict[str, str], manage: Manage) -> None:
    """The order is committed by then, so the customer gets it; the periodic task `sweep` does the rest."""
    env["BROKER"] = "delayq://127.0.0.1:1/0"
    with Site(command=["-c", _SERVE], env=env, paths=[PROJECT], broker=env["BROKER"], ledger="") as site:
        browser = Browser(site.url)
        browser.post("/orders", ("book", "Emma"), status=201)
        assert "in on_commit()" in site.log
    assert states(manage) == {"Emma": "open"}
    sweep = "from orders.tasks import sweep; print(sweep())"
    assert lines_of(manage, sweep) == ["0"]
    env["PAY_WITHIN"] = "-61"
    assert lines_of(manage, sweep) == ["1"]
    assert states(manage) == {"Emma": "cancelled"}
