"""The page in Django's admin: linked, for those who may, and in the admin's log."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest
from celery import Celery
from django.core.management import call_command
from django.db import connection
from django.test import Client, override_settings

from celery_delayq.web.access import ACTIONS
from celery_delayq.web.broker import Broker
from tests.web.direct import user_of

#: Where the page is, in Django's own site.
PAGE = "/admin/delayq/delayedtask/"
OWN = {"Sec-Fetch-Site": "same-origin"}

Login = Callable[..., Client]


@pytest.fixture
def login(shop: Celery) -> Login:
    """Makes a user with these permissions, and returns a browser in which they are logged in."""

    def make(*permissions: str, **fields: Any) -> Client:
        from django.contrib.auth import get_user_model
        from django.contrib.auth.models import Permission

        user = get_user_model().objects.create_user("ada", password="x", **{"is_staff": True, **fields})
        for name in permissions:
            user.user_permissions.add(Permission.objects.get(content_type__app_label="delayq", codename=name))
        browser = Client(headers={"host": "127.0.0.1"}, enforce_csrf_checks=True)
        browser.force_login(user)
        return browser

    return make


@pytest.fixture
def waiting(shop: Celery) -> list[str]:
    """Ids of tasks that wait."""
    for task_id in ("a", "b", "c"):
        shop.tasks["shop.orders.remind"].apply_async((1,), task_id=task_id, countdown=3600)
    return ["a", "b", "c"]


def act(browser: Client, path: str, action: str, **fields: Any) -> Any:
    """Ask for an action that was confirmed, as the page does."""
    form = urlencode({"action": action, "confirmed": "yes", **fields}, doseq=True)
    return browser.post(PAGE + path, form, content_type="application/x-www-form-urlencoded", headers=OWN)


def log() -> list[tuple[str, str, str]]:
    """Return the admin's log, oldest first: user, object, message."""
    from django.contrib.admin.models import LogEntry

    found = [
        (one.user.get_username(), one.object_repr, one.get_change_message()) for one in LogEntry.objects.order_by("pk")
    ]
    assert all(str(one) for one in LogEntry.objects.all())
    return found


def test_the_index_links_the_page(login: Login, waiting: list[str]) -> None:
    browser = login("view_delayedtask")
    index = browser.get("/admin/").content.decode()
    assert f'href="{PAGE}"' in index
    page = browser.get(PAGE)
    assert page.status_code == 200
    assert "<h1>Overview</h1>" in page.content.decode()
    assert "shop.orders.remind" in browser.get(PAGE + "waiting").content.decode()
    sheet = browser.get(PAGE + "web.css")
    assert sheet.headers["Content-Type"].startswith("text/css")


@pytest.mark.parametrize("prefix", ["/admin", "/ops/own"])
def test_each_site_has_the_page_and_a_way_back(login: Login, shop: Celery, prefix: str) -> None:
    browser = login(is_superuser=True)
    index = browser.get(f"{prefix}/").content.decode()
    assert f'href="{prefix}/delayq/delayedtask/"' in index
    assert browser.get(f"{prefix}/delayq/delayedtask/workers").status_code == 200
    assert browser.get(f"{prefix}/delayq/delayedtask").status_code == 301
    assert "delayedtask/add" not in index
    assert f'<a href="{prefix}/">Admin</a>' in browser.get(f"{prefix}/delayq/delayedtask/waiting").content.decode()
    assert ">Admin<" not in user_of(shop).get("/waiting").text


def test_the_page_says_itself_what_may_be_cached(login: Login) -> None:
    """As it does elsewhere: `admin_view` would forbid to keep the style sheet."""
    browser = login("view_delayedtask")
    for path in ("", "web.css"):
        assert "no-store" not in browser.get(PAGE + path).headers["Cache-Control"]


def test_who_is_not_logged_in_gets_the_login_page(shop: Celery) -> None:
    answer = Client(headers={"host": "127.0.0.1"}).get(PAGE + "waiting")
    assert answer.status_code == 302
    assert answer.headers["Location"].startswith("/admin/login/?next=/admin/delayq/")


def test_who_is_not_of_the_staff_sees_nothing(login: Login) -> None:
    browser = login("change_delayedtask", is_staff=False)
    assert browser.get(PAGE).status_code == 302


def test_without_a_permission_there_is_no_link_and_no_page(login: Login, waiting: list[str]) -> None:
    browser = login()
    assert PAGE not in browser.get("/admin/").content.decode()
    assert browser.get(PAGE).status_code == 403
    assert act(browser, "waiting", "cancel", id="a").status_code == 403


def test_the_permission_to_view_changes_nothing(login: Login, shop: Celery, waiting: list[str]) -> None:
    browser = login("view_delayedtask")
    page = browser.get(PAGE + "waiting").content.decode()
    assert 'value="cancel"' not in page
    assert act(browser, "waiting", "cancel", id="a").status_code == 403
    assert len(list(shop.delayq.scheduled())) == 3
    assert log() == []


def test_the_permission_to_change_allows_everything(login: Login, shop: Celery, waiting: list[str]) -> None:
    browser = login("change_delayedtask")
    assert "1 task cancelled." in act(browser, "waiting", "cancel", id="a").content.decode()
    assert act(browser, "periodic", "schedule.add", name="n", task="shop.carts.tidy", when="5m").status_code < 400
    assert [task.id for task in shop.delayq.scheduled()] == ["b", "c"]
    assert log() == [
        ("ada", "cancel: a", "cancel: 1 done, 0 not"),
        ("ada", "schedule.add: n", "schedule.add: 1 done, 0 not"),
    ]


@pytest.mark.parametrize("action", ACTIONS)
def test_each_action_has_a_permission(login: Login, action: str) -> None:
    from django.contrib.admin import site

    from celery_delayq.contrib.django.models import DelayedTask

    browser = login(action.replace(".", "_"))
    assert browser.get(PAGE).status_code == 200
    request = browser.get("/admin/").wsgi_request
    assert site.get_model_admin(DelayedTask).actions_of(request) == [action]


def test_who_may_cancel_may_do_nothing_else(login: Login, shop: Celery, waiting: list[str]) -> None:
    browser = login("cancel")
    page = browser.get(PAGE + "waiting").content.decode()
    assert 'value="cancel"' in page
    assert 'value="reschedule"' not in page
    assert act(browser, "waiting", "reschedule", id="a", when="2h").status_code == 403
    assert "1 task cancelled." in act(browser, "waiting", "cancel", id="a").content.decode()


def test_the_log_of_the_admin_has_each_change(login: Login, waiting: list[str]) -> None:
    browser = login("change_delayedtask")
    act(browser, "waiting", "cancel", id=["a", "gone"])
    act(browser, "waiting", "cancel", id="a")  # nothing is left to cancel
    act(browser, "waiting", "reschedule", scope="matching", when="2h")
    first, second = log()
    assert first == ("ada", "cancel: a, gone", "cancel: 1 done, 1 not")
    assert second[1].startswith("reschedule: all that match everything to ")
    assert second[2] == "reschedule: 2 done, 0 not"
    index = browser.get("/admin/").content.decode()
    assert "a, gone" in index
    assert "Delayed task" in index


def test_long_and_evil_names_are_logged(login: Login, shop: Celery) -> None:
    ids = ["i" * 300, "x\x00\x1b[2J"]
    for task_id in ids:
        shop.tasks["shop.orders.remind"].apply_async((1,), task_id=task_id, countdown=3600)
    browser = login("change_delayedtask")
    for task_id in ids:
        assert "1 task cancelled." in act(browser, "waiting", "cancel", id=task_id).content.decode()
    assert [what for _, what, _ in log()] == ["cancel: " + "i" * 192, r"cancel: x\x00\x1b[2J"]


def test_a_change_that_is_broken_off_is_logged(
    login: Login, waiting: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Broker) -> object:
        raise OSError("the line was cut")

    browser = login("change_delayedtask")
    monkeypatch.setattr(Broker, "inspector", broken)
    assert act(browser, "waiting", "cancel", id="a").status_code == 500
    assert log() == [("ada", "cancel", "cancel was broken off, a part may be done: the line was cut")]


def test_a_log_that_cannot_be_written_stops_no_change(
    login: Login, waiting: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from django.contrib.admin.models import LogEntry
    from django.db import OperationalError

    def broken(**fields: object) -> None:
        raise OperationalError("the disk is full")

    browser = login("change_delayedtask")
    monkeypatch.setattr(LogEntry.objects, "create", broken)
    assert "1 task cancelled." in act(browser, "waiting", "cancel", id="a").content.decode()
    assert "Cannot record a change elsewhere" in caplog.text
    assert "the disk is full" in caplog.text


def test_a_change_from_elsewhere_is_refused(login: Login, waiting: list[str]) -> None:
    browser = login("change_delayedtask")
    form = urlencode({"action": "cancel", "confirmed": "yes", "id": "a"})
    answer = browser.post(
        PAGE + "waiting",
        form,
        content_type="application/x-www-form-urlencoded",
        headers={"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
    )
    assert answer.status_code == 403
    assert "does not come from this page" in answer.content.decode()


def test_a_missing_celery_app_stops_only_the_page(login: Login) -> None:
    browser = login("view_delayedtask")
    browser.raise_request_exception = False
    with override_settings(DELAYQ_APP="nowhere:app"):
        assert browser.get("/admin/").status_code == 200
        assert browser.get(PAGE).status_code == 500


def test_permissions_have_readable_names(project: None) -> None:
    from django.contrib.auth.models import Permission

    names = Permission.objects.filter(content_type__app_label="delayq").values_list("name", flat=True)
    assert len(names) == len(ACTIONS) + 2
    assert all(re.fullmatch(r"Can [a-z ]+", name) for name in names)


@pytest.mark.parametrize(
    "command",
    [("migrate", "--run-syncdb"), ("makemigrations", "--check"), ("dumpdata",), ("dumpdata", "--all"), ("check",)],
)
def test_commands_of_django_work_without_the_table(shop: Celery, command: tuple[str, ...]) -> None:
    out = io.StringIO()
    call_command(*command, stdout=out)
    assert "delayq_delayedtask" not in connection.introspection.table_names()
    assert '"delayq.delayedtask"' not in out.getvalue()
