"""Periodic tasks by the page: add, edit, pause, run, remove."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

import pytest
import redis
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.queue.keys import ScheduleKeys
from celery_delayq.schedule.encoding import decode, encode, written
from celery_delayq.schedule.periodic_task import PeriodicTask
from celery_delayq.web.pages.entry_form import fields_of, form_of, line_of
from celery_delayq.web.request import Params
from tests.foreign import FOREIGN, FOREIGN_GOOD
from tests.web import direct
from tests.web.direct import Answer, User

app, client, user = direct.app, direct.client, direct.user

NEW = {
    "name": "news é",
    "task": "shop.mail.send",
    "when": "0 6 * * mon-fri",
    "tz": "Europe/Berlin",
    "arguments": "a@shop.example\nx=[1, null]",
    "queue": "mail",
    "priority": "3",
    "options": "expires=60",
    "max_runs": "10",
}


def saved(user: User, answer: Answer, action: str, **typed: str) -> Answer:
    """Save a form: what would be is shown first."""
    shown = user.submit(answer, action, **typed)
    assert shown.status == 200, shown.page.text
    assert "Not saved yet." in shown.page.text
    return user.submit(shown, action)


def test_an_entry_is_added_shown_edited_and_removed(app: Celery, user: User) -> None:
    added = saved(user, user.get("/periodic"), "schedule.add", **NEW)
    assert added.status == 200
    assert "news é added." in added.page.text
    (link,) = (url for url in added.page.values("href") if url.startswith("entry?"))
    query = link.partition("?")[2]
    shown = user.get("/entry", query)
    fields = {name: value for name, value in shown.page.form("schedule.update").fields if value}
    assert fields == {name: value for name, value in NEW.items() if name != "name"}
    entry = app.delayq.schedule.get("news é")
    assert (entry.args, entry.kwargs) == (["a@shop.example"], {"x": [1, None]})
    assert entry.options == {"queue": "mail", "priority": 3, "expires": 60}
    assert entry.timing == {"tz": "Europe/Berlin", "max_runs": 10}
    changed = saved(user, shown, "schedule.update", when="90s", arguments="x=é", tz="", max_runs="", options="")
    assert "Saved." in changed.page.text
    entry = app.delayq.schedule.get("news é")
    assert (entry.schedule, entry.args, entry.timing) == ({"every": 90.0}, [], {})
    assert ("when", "every 1m 30s") in changed.page.form("schedule.update").fields
    assert (entry.kwargs, entry.options) == ({"x": "é"}, {"queue": "mail", "priority": 3})
    paused = user.submit(user.get("/entry", query), "schedule.pause")
    assert app.delayq.schedule.get("news é").paused
    user.submit(paused, "schedule.resume")
    assert not app.delayq.schedule.get("news é").paused
    question = user.submit(user.get("/entry", query), "schedule.remove")
    assert "news é" in app.delayq.schedule
    assert "news é removed." in user.submit(question, "schedule.remove").page.text
    assert "news é" not in app.delayq.schedule
    assert user.submit(question, "schedule.remove").status == 404


def test_a_task_that_is_probably_misspelt_gets_a_hint(app: Celery, user: User) -> None:
    for name, task, hint in (("a", "shop.mail.sned", "Did you mean shop.mail.send?"), ("b", "billing.charge", "")):
        saved(user, user.get("/periodic"), "schedule.add", **{**NEW, "name": name, "task": task})
        shown = user.get("/entry", {"name": name}).page.text
        assert "unknown task" in shown
        assert ("Did you mean" in shown) is bool(hint)
        assert hint in shown


def test_an_entry_runs_now_when_that_was_confirmed(app: Celery, user: User, client: redis.Redis) -> None:
    app.delayq.schedule.add("tidy", "shop.carts.tidy", 60.0)
    question = user.submit(user.get("/entry", {"name": "tidy"}), "schedule.run_now")
    assert client.llen("celery") == 0
    assert "Sent." in user.submit(question, "schedule.run_now").page.text
    assert client.llen("celery") == 1


def test_an_entry_that_does_not_run_now_says_why(app: Celery, user: User, client: redis.Redis) -> None:
    """Another task has its unique key."""
    app.delayq.schedule.add("tidy", "shop.carts.tidy", 60.0, options={"unique": "tidy"})
    other = app.send_task("shop.carts.tidy", countdown=600, unique="tidy")
    answer = user.act("/entry", "schedule.run_now", {"name": "tidy"})
    assert f"it was not sent: task {other.id} holds its unique key" in answer.page.text
    assert "Sent." not in answer.page.text
    assert client.llen("celery") == 0


WRONG = [
    ("name", "", "name"),
    ("name", "a\ud800", "name"),
    ("task", "", "task"),
    ("when", "", "neither"),
    ("when", "soon", "soon"),
    ("when", "0s", "interval"),
    ("when", "-5s", "interval"),
    ("when", "9" * 400 + "s", "neither"),
    ("when", "99999999w", "interval"),
    ("when", "* * *", "five fields"),
    ("when", "99 * * * *", "99"),
    ("when", "a b c d e", "valid"),
    ("arguments", "[1, ", "not valid JSON"),
    ("arguments", "x={", "not valid JSON"),
    ("arguments", "[" * 100_000, "not valid JSON"),
    ("arguments", "9" * 5000, "not valid JSON"),
    ("options", "4", "name=value"),
    ("options", "expires=[", "not valid JSON"),
    ("options", "countdown=x", "countdown"),
    ("priority", "high", "priority must be a whole number"),
    ("tz", "Nowhere/Else", "Nowhere"),
    ("jitter", "x", "jitter"),
    ("start", "x", "start"),
    ("end", "9" * 30 + "d", "end"),
    ("max_runs", "0", "max_runs"),
    ("max_runs", "x", "max_runs"),
    ("max_lateness", "-", "max_lateness"),
    ("catch_up", "-1", "catch_up"),
    ("missed", "perhaps", "missed"),
]


@pytest.mark.parametrize("part", range(3))
def test_what_is_wrong_is_said_and_nothing_is_lost(app: Celery, user: User, part: int) -> None:
    for field, value, words in WRONG[part::3]:
        check_wrong(app, user, field, value, words)
        if "tidy" in app.delayq.schedule:
            app.delayq.schedule.remove("tidy")


def check_wrong(app: Celery, user: User, field: str, value: str, words: str) -> None:
    form = {name: text.encode("utf-8", "surrogatepass") for name, text in {**NEW, field: value}.items()}
    answer = user.post("/periodic", {**form, "action": "schedule.add"})
    assert answer.status == 400, answer.text
    (error,) = (text for tag, text in answer.page.texts if tag == "p" and words.lower() in text.lower())
    assert error
    fields = dict(answer.page.form("schedule.add").fields)
    for name, text in NEW.items():
        assert fields[name] == text or name == field
    assert list(app.delayq.schedule) == []
    if field == "name":
        return
    app.delayq.schedule.add("tidy", "shop.carts.tidy", 60.0, [1])
    before = app.delayq.schedule.get("tidy")
    answer = user.post("/entry", {**form, "action": "schedule.update"}, {"name": "tidy"})
    assert answer.status == 400, answer.text
    assert app.delayq.schedule.get("tidy") == before


def test_a_name_is_taken(app: Celery, user: User) -> None:
    saved(user, user.get("/periodic"), "schedule.add", **NEW)
    answer = saved(user, user.get("/periodic"), "schedule.add", **NEW | {"when": "5m"})
    assert answer.status == 400
    assert "exists already" in answer.page.text
    assert app.delayq.schedule.get("news é").schedule == {"crontab": "0 6 * * mon-fri"}


def test_entries_of_the_configuration_are_changed_there(app: Celery, user: User, client: redis.Redis) -> None:
    record = {"app": "shop", "definition": {"task": "shop.carts.tidy", "schedule": {"every": 300.0}, "timing": {}}}
    record |= {"earlier": [], "fingerprint": "x", "paused": False, "queue": None, "since_ms": 1}
    client.hset(ScheduleKeys.of().definitions, "tidy carts", json.dumps(record))
    query = {"name": "tidy carts"}
    shown = user.get("/entry", query)
    offered = {value for form in shown.page.forms for name, value in form.buttons if name == "action"}
    assert offered == {"schedule.run_now", "schedule.pause"}
    for action in ("schedule.update", "schedule.remove"):
        answer = user.act("/entry", action, query, **{**NEW, "name": "x"})
        assert answer.status == 400
        assert "configuration" in answer.page.text
    assert json.loads(client.hget(ScheduleKeys.of().definitions, "tidy carts") or b"") == record
    assert "Paused." in user.submit(shown, "schedule.pause").page.text


def test_an_unreadable_entry_is_shown_and_removed(app: Celery, user: User, client: redis.Redis) -> None:
    client.hset(ScheduleKeys.of().definitions, "broken", b"\xff{")
    assert "broken" in user.get("/periodic").page.text
    query = {"name": "broken"}
    shown = user.get("/entry", query)
    assert shown.status == 200
    for action in ("schedule.update", "schedule.pause", "schedule.resume", "schedule.run_now"):
        assert user.act("/entry", action, query, **{**NEW, "name": "x"}).status == 400
    question = user.submit(shown, "schedule.remove")
    assert "broken removed." in user.submit(question, "schedule.remove").page.text
    assert list(app.delayq.schedule) == []


@pytest.mark.parametrize("part", range(3))
def test_whatever_another_program_wrote_is_shown_and_removed(user: User, client: redis.Redis, part: int) -> None:
    records = {**FOREIGN, **FOREIGN_GOOD}
    client.hset(ScheduleKeys.of().definitions, mapping=records)
    for name in list(records)[part::3]:
        assert name in user.get("/periodic").page.text
        shown = user.get("/entry", {"name": name})
        assert shown.status == 200, shown.text
        question = user.submit(shown, "schedule.remove")
        assert f"{name} removed." in user.submit(question, "schedule.remove").page.text


def test_there_is_no_such_entry(user: User) -> None:
    assert user.get("/entry", {"name": "nobody"}).status == 404
    assert user.get("/entry").status == 400
    for action in ("schedule.update", "schedule.remove", "schedule.pause", "schedule.run_now"):
        assert user.act("/entry", action, {"name": "nobody"}, **NEW).status == 404
        assert user.act("/entry", action).status == 400


@pytest.mark.parametrize(
    "schedule",
    [
        {"every": 1_234_567.0},
        {"every": 86_400.5},
        {"every": 0.000125},
        {"every": 60.0, "relative": True},
        {"solar": "sunset", "lat": 52.5, "lon": 13.4},
        {"crontab": "*/5 8-17 1,15 */2 mon-fri"},
    ],
    ids=str,
)
def test_saving_keeps_the_schedule(app: Celery, user: User, schedule: dict[str, Any]) -> None:
    if "solar" in schedule:
        pytest.importorskip("ephem")
    app.delayq.schedule.add("kept", "shop.carts.tidy", schedule, [1], tz="Europe/Berlin", jitter=5.0)
    before = app.delayq.schedule.get("kept")
    assert before.schedule == schedule
    answer = saved(user, user.get("/entry", {"name": "kept"}), "schedule.update", arguments="1\na=1")
    assert "Saved." in answer.page.text, answer.page.text
    after = app.delayq.schedule.get("kept")
    assert (after.schedule, after.args, after.timing) == (schedule, [1], before.timing)
    assert after.kwargs == {"a": 1}


@given(st.floats(min_value=1e-6, max_value=1e9).map(lambda seconds: timedelta(seconds=seconds).total_seconds()))
def test_an_interval_is_written_as_it_is(seconds: float) -> None:
    if seconds > 0:
        assert encode(decode(written(line_of({"every": seconds})), None)) == {"every": seconds}


def test_an_interval_of_another_program_may_be_nonsense(app: Celery, user: User, client: redis.Redis) -> None:
    app.delayq.schedule.add("odd", "shop.carts.tidy", 60.0)
    key = ScheduleKeys.of().definitions
    record = json.loads(client.hget(key, "odd") or b"")
    for every in (float("inf"), float("nan"), 1e300, -5, 0, "60", None, True, [1], {}):
        record["definition"]["schedule"]["every"] = every
        client.hset(key, "odd", json.dumps(record))
        assert user.get("/periodic").status == 200, every
        assert user.get("/entry", {"name": "odd"}).status == 200, every


def test_what_celery_refuses_to_send_is_said(app: Celery, user: User, client: redis.Redis) -> None:
    app.delayq.schedule.add("odd", "shop.carts.tidy", 60.0, options={"expires": "nonsense"})
    answer = user.act("/entry", "schedule.run_now", {"name": "odd"})
    assert answer.status == 400
    assert client.llen("celery") == 0


def test_a_long_definition_is_shown_but_not_edited(app: Celery, user: User) -> None:
    app.delayq.schedule.add("long", "shop.carts.tidy", 60.0, ["x" * 100_000])
    answer = user.get("/entry", {"name": "long"})
    assert len(answer.text) < 50_000
    assert not [form for form in answer.page.forms if ("action", "schedule.update") in form.buttons]


# -- seen before it is saved


def runs(answer: Answer) -> list[str]:
    """Return the times that the page foretells before it saves."""
    _, _, rest = answer.text.partition('id="preview"')
    return re.findall(r'<time datetime="([^"]+)"', rest.partition("</form>")[0])


def test_the_next_five_runs_are_shown_before_anything_is_saved(app: Celery, user: User) -> None:
    shown = user.submit(user.get("/periodic"), "schedule.add", **NEW)
    assert list(app.delayq.schedule) == []
    times = [datetime.fromisoformat(one).astimezone(ZoneInfo("Europe/Berlin")) for one in runs(shown)]
    assert len(times) == 5
    assert times == sorted(set(times))
    assert {(one.hour, one.minute) for one in times} == {(6, 0)}
    assert all(one.weekday() < 5 for one in times)
    # A field is changed once more: that has to be seen, too.
    again = user.submit(shown, "schedule.add", when="90s", max_runs="3")
    assert list(app.delayq.schedule) == []
    first, second, third = (datetime.fromisoformat(one) for one in runs(again))
    assert third - second == second - first == timedelta(seconds=90)
    assert "news é added." in user.submit(again, "schedule.add").page.text
    assert app.delayq.schedule.get("news é").when == "every 1m 30s"


def test_a_change_is_shown_before_it_is_saved(app: Celery, user: User) -> None:
    entry = app.delayq.schedule.add("tidy", "shop.carts.tidy", 60.0)
    shown = user.submit(user.get("/entry", {"name": "tidy"}), "schedule.update", enabled="no")
    assert runs(shown) == []
    assert "Never." in shown.page.text
    assert app.delayq.schedule.get("tidy") == entry
    shown = user.submit(shown, "schedule.update", enabled="", start="2031-01-01 00:00", when="1h")
    assert runs(shown)[0].startswith("2031-01-01T00:00:00")
    assert runs(shown)[1].startswith("2031-01-01T01:00:00")
    assert "Saved." in user.submit(shown, "schedule.update").page.text
    assert app.delayq.schedule.get("tidy").timing == {"start": "2031-01-01T00:00:00+00:00"}


_TEXTS = st.text() | st.sampled_from(["42", "null", "x=1", "[", '"a"', " ", "a b", "-1", "NaN", "\u2028", "\ud800"])
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=8,
)
_NAMES = st.sampled_from(["a", "to_whom", "é", "x1"])


@given(st.lists(_JSON, max_size=4), st.dictionaries(_NAMES, _JSON, max_size=3), st.dictionaries(_NAMES, _JSON))
def test_a_form_means_what_it_was_made_of(args: list[Any], kwargs: dict[str, Any], options: dict[str, Any]) -> None:
    timing = {"tz": "Asia/Kolkata", "start": "2031-01-01T00:00:00+00:00", "jitter": 0.125, "lazy": True}
    timing |= {"missed": "all", "catch_up": 7, "enabled": False, "max_lateness": 90.0}
    entry = PeriodicTask("n", "t", {"every": 60.0}, args, kwargs, {"queue": "q", "priority": 0, **options}, timing)
    form = form_of(entry)
    assert form is not None
    found = fields_of(Params(urlencode([(name, value.replace("\n", "\r\n")) for name, value in form])))
    assert (found["args"], found["kwargs"], found["options"]) == (args, kwargs, entry.options)
    assert found["timing"] == timing
    assert found["schedule"] == timedelta(seconds=60)


@pytest.mark.parametrize("kwargs", [{"a b": 1}, {"": 1}, {"1": 1}, {"a\nb": 1}])
def test_what_a_form_cannot_say_is_not_edited_there(app: Celery, user: User, kwargs: dict[str, Any]) -> None:
    app.delayq.schedule.add("odd", "shop.carts.tidy", 60.0, kwargs=kwargs)
    shown = user.get("/entry", {"name": "odd"})
    assert "It has more than this form can show." in shown.page.text
    assert not [form for form in shown.page.forms if ("action", "schedule.update") in form.buttons]
