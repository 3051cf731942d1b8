"""A line in the log for each change: who, what, of which tasks, how many."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from urllib.parse import quote, urlencode

import pytest
import redis
from celery import Celery

from celery_delayq import DelayedQueue
from celery_delayq.queue import dead_letter
from celery_delayq.web.broker import Broker
from tests import state
from tests.web import direct
from tests.web.direct import User, user_of

app, client = direct.app, direct.client


Lines = Callable[[], list[str]]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    """Returns the lines since it was called last."""
    caplog.set_level("INFO", "celery_delayq.web.audit")

    def take() -> list[str]:
        found = [one.getMessage() for one in caplog.records if one.name == "celery_delayq.web.audit"]
        caplog.clear()
        assert all(line.isprintable() for line in found)
        return found

    return take


@pytest.fixture
def ann(app: Celery) -> User:
    """Somebody who has given a name."""
    return User(user_of(app).application, Authorization="Basic YW5uOng=")


def test_each_change_of_tasks_has_a_line(app: Celery, ann: User, lines: Lines) -> None:
    for task_id in ("a", "b", "c"):
        app.tasks["shop.orders.remind"].apply_async((1,), task_id=task_id, countdown=3600)
    ann.get("/waiting")
    ann.post("/waiting", {"action": "cancel", "id": "a"})
    ann.post("/waiting", {"action": "cancel", "scope": "matching"})
    assert lines() == []
    ann.post("/waiting", [("action", "cancel"), ("confirmed", "yes"), ("id", "a"), ("id", "gone")])
    assert lines() == ["cancel by ann from 192.0.2.1: a, gone: 1 done, 1 not"]
    ann.act("/waiting", "reschedule", {"queue": "celery", "text": "x y"}, scope="matching", when="2h")
    (line,) = lines()
    assert re.fullmatch(
        r"reschedule by ann from 192\.0\.2\.1: all that match queue=celery&text=x\+y to 20\S+\+00:00: 0 done, 0 not",
        line,
    )
    ann.act("/waiting", "run_now", scope="matching")
    assert lines() == ["run_now by ann from 192.0.2.1: all that match everything: 2 done, 0 not"]
    ann.act("/waiting", "reschedule", id="b", when="soon")
    assert lines() == []


def test_each_change_of_dead_letters_has_a_line(client: redis.Redis, ann: User, lines: Lines) -> None:
    raws = [dead_letter.pack(b"x%d" % number, reason="x") for number in range(4)]
    ids = state.bury(client, "celery", *raws)
    query = {"queue": "celery"}
    ann.act("/dead", "dead.purge", query, letter=f"{ids[0]}")
    assert lines() == [f"dead.purge by ann from 192.0.2.1: celery: {ids[0]}: 1 done, 0 not"]
    ann.act("/dead", "dead.requeue", query, letter=f"{ids[1]}")
    assert lines() == [f"dead.requeue by ann from 192.0.2.1: celery: {ids[1]}: 1 done, 0 not"]
    ann.act("/dead", "dead.purge", query, scope="matching")
    assert lines() == ["dead.purge by ann from 192.0.2.1: all of celery: 2 done, 0 not"]


def test_each_change_of_a_periodic_task_has_a_line(ann: User, lines: Lines) -> None:
    form = {"name": "n", "task": "shop.carts.tidy", "when": "5m"}
    query = {"name": "n"}
    ann.act("/periodic", "schedule.add", **form)
    for action in ("update", "pause", "resume", "run_now", "remove"):
        ann.act("/entry", f"schedule.{action}", query, **form)
    names = ("add", "update", "pause", "resume", "run_now", "remove")
    assert lines() == [f"schedule.{name} by ann from 192.0.2.1: n: 1 done, 0 not" for name in names]
    ann.act("/periodic", "schedule.add", **form)
    ann.act("/periodic", "schedule.add", **form)  # is there
    ann.act("/entry", "schedule.update", query, **{**form, "when": "soon"})
    assert lines() == ["schedule.add by ann from 192.0.2.1: n: 1 done, 0 not"]


def test_nobody_is_a_dash(app: Celery, lines: Lines) -> None:
    user_of(app).ask("POST", "/waiting", "", b"action=cancel&confirmed=yes&id=a", direct.OWN, REMOTE_ADDR=None)
    assert lines() == ["cancel by - from -: a: 0 done, 1 not"]


def test_nothing_writes_lines_of_its_own(app: Celery, client: redis.Redis, lines: Lines) -> None:
    evil = "x\r\n2030-01-01 cancel by root\u2028\x1b[2J\u202e"
    user = user_of(app)
    DelayedQueue(client, "celery").offer(json.dumps({"properties": {}}).encode(), countdown=60, message_id=evil)
    form = {"action": "cancel", "confirmed": "yes", "id": quote(evil)}
    user.ask("POST", "/waiting", "", urlencode(form).encode(), direct.OWN, REMOTE_USER=evil, REMOTE_ADDR=evil)
    shown = r"x\r\n2030-01-01 cancel by root\u2028\x1b[2J\u202e"
    assert lines() == [f"cancel by {shown} from {shown}: {shown}: 1 done, 0 not"]
    user.act("/waiting", "cancel", {"queue": evil, "text": "\n"}, scope="matching")
    user.act("/periodic", "schedule.add", name=evil, task="shop.carts.tidy", when="5m")
    user.act("/entry", "schedule.remove", {"name": evil.strip()})
    user.act("/dead", "dead.purge", {"queue": evil}, scope="matching")
    user.act("/dead", "dead.purge", {"queue": evil}, letter=evil)
    assert len(lines()) == 5


def test_long_lines_are_cut(app: Celery, ann: User, lines: Lines) -> None:
    form = [("action", "cancel"), ("confirmed", "yes"), ("id", "i" * 400), ("id", "j" * 400)]
    ann.post("/waiting", form)
    (line,) = lines()
    assert len(line) < 600
    assert line.endswith("…: 0 done, 2 not")


def test_a_change_that_is_broken_off_has_a_line(
    app: Celery, ann: User, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Broker) -> object:
        raise OSError("the line\nwas cut")

    monkeypatch.setattr(Broker, "inspector", broken)
    assert ann.act("/waiting", "cancel", id="a").status == 500
    assert lines() == [r"cancel by ann from 192.0.2.1 was broken off, a part may be done: the line\nwas cut"]
