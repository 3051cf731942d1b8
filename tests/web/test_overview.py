"""The overview: what it shows of a queue."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis
from celery import Celery

from celery_delayq.queue import dead_letter
from celery_delayq.queue.keys import QueueKeys
from celery_delayq.queue.set_aside import keep
from celery_delayq.transport.reading import connection_for_reading
from celery_delayq.transport.urls import place_of
from tests.state import bury
from tests.web import direct
from tests.web.direct import User, user_of
from tests.web.filling import fill, message_of

app, client, user = direct.app, direct.client, direct.user


def test_a_queue_is_paused_and_resumed(app: Celery, user: User) -> None:
    shown = user.get("/")
    assert "celery paused" not in shown.page.text
    paused = user.submit(shown, "queue.pause")
    assert "Paused." in paused.page.text
    assert "celery paused" in paused.page.text
    assert app.delayq.paused() == ["celery"]
    resumed = user.submit(user.get("/"), "queue.resume")
    assert "Resumed." in resumed.page.text
    assert app.delayq.paused() == []


def test_an_unknown_queue_is_refused(app: Celery, user: User) -> None:
    answer = user.act("/", "queue.pause", queue="nowhere")
    assert (answer.status, app.delayq.paused()) == (404, [])


def alone(user: User) -> list[str]:
    """Return the queues that the page marks as without a consumer."""
    text = user.get("/").page.text
    return [
        name for name in ("celery", "mail") if f"{name} no consumer" in text or f"{name} paused no consumer" in text
    ]


def test_a_queue_whose_tasks_nobody_consumes_is_marked(app: Celery, user: User, client: redis.Redis) -> None:
    assert alone(user) == []
    app.tasks["shop.orders.ship"].apply_async((1,), countdown=3600)
    assert alone(user) == ["celery"]
    app.tasks["shop.orders.ship"].apply_async((1,), queue="mail")
    assert alone(user) == ["celery", "mail"]
    client.zadd(QueueKeys.of("celery").consumers, {"host:1:x": (time.time() + 60) * 1000})
    client.zadd(QueueKeys.of("mail").consumers, {"host:1:x": (time.time() - 60) * 1000})
    assert alone(user) == ["mail"]
    client.lpop("mail")
    assert alone(user) == []


def test_the_numbers_of_a_queue_lead_to_its_lists(app: Celery, user: User) -> None:
    app.tasks["shop.orders.ship"].apply_async((1,), queue="mail")
    assert "waiting?state=ready&queue=mail" in set(user.get("/").page.values("href"))


def test_the_numbers_of_dead_letters_and_failed_tasks_lead_to_them(
    app: Celery, user: User, client: redis.Redis
) -> None:
    """One queue has only dead letters, another one only failed tasks."""
    bury(client, "a queue", dead_letter.pack(b"x", reason=dead_letter.NOT_A_MESSAGE))
    client.zadd("delayq:queues", {"a queue": 4_000_000_000_000})
    message = message_of(app, client, "shop.orders.ship", 77)[1]
    record = dead_letter.pack(message, reason=dead_letter.FAILED, runs=1, error="ValueError: 1")
    keep(QueueKeys.of("celery"), record=record, most=10, kept_ms=60_000).run(client)
    assert {"dead?queue=a+queue", "dead?queue=celery&reason=failed"} <= set(user.get("/").page.values("href"))
    failed = user.get("/dead", {"reason": "failed"})
    assert failed.title == "Failed tasks"
    assert "ValueError: 1" in failed.page.text
    assert "ValueError: 1" not in user.get("/dead").page.text


def test_the_numbers_of_delayed_and_overdue_tasks_lead_to_them(app: Celery, user: User, client: redis.Redis) -> None:
    filled = fill(app, client)
    assert {"waiting", "waiting?due_before=0s"} <= set(user.get("/").page.values("href"))
    shown = user.get("/waiting", {"due_before": "0s"}).page.text
    assert filled.overdue in shown
    assert not any(task_id in shown for task_id in filled.waiting.values())


# -- the place


def test_each_page_says_where_it_is(app: Celery, user: User) -> None:
    place = place_of(connection_for_reading(app, 1))
    assert place.startswith("127.0.0.1:")
    for path in ("/", "/waiting", "/nowhere"):
        shown = user.get(path)
        assert place in shown.page.texts_of("span")
        (title,) = shown.page.texts_of("title")
        assert title.endswith(f" · shop · {place}")


def test_whoever_may_not_look_learns_no_place(app: Celery) -> None:
    shown = user_of(app, None).get("/")
    assert shown.status == 403
    assert "127.0.0.1" not in shown.text
    assert shown.page.texts_of("title")[0].endswith(" · celery_delayq")


@pytest.mark.parametrize(
    ("url", "options", "place"),
    [
        ("delayq://", {}, "localhost:6379/0"),
        ("delayq://ann:s3cret@redis.example:6380/2", {}, "redis.example:6380/2"),
        ("delayqs://:s3cret@[::1]/1", {}, "[::1]:6379/1"),
        ("delayq+socket:///run/redis.sock?virtual_host=3", {}, "/run/redis.sock 3"),
        (
            "delayq+sentinel://:s3cret@a.example:26379/2;delayq+sentinel://b.example:26379",
            {"master_name": "shop"},
            "Sentinel shop/2",
        ),
        ("delayq+cluster://ann:s3cret@a.example:7000;delayq+cluster://b.example:7000", {}, "Cluster a.example:7000"),
    ],
)
def test_the_place_names_a_server_and_no_password(url: str, options: dict[str, Any], place: str) -> None:
    with Celery(broker=url, set_as_current=False) as app:
        app.conf.broker_transport_options = options
        assert place_of(connection_for_reading(app, 1)) == place
