"""The workers: a row for each, and what it holds."""

from __future__ import annotations

import json

import redis
from celery import Celery

from celery_delayq import DelayedQueue
from tests.state import give, lease
from tests.web import direct
from tests.web.direct import User

app, client, user = direct.app, direct.client, direct.user

NODE = "celery@web-1"


def message(number: int) -> bytes:
    headers = {"id": f"t{number}", "task": "shop.orders.ship", "argsrepr": f"({number},)", "kwargsrepr": "{}"}
    return json.dumps({"headers": headers, "properties": {}, "body": ""}).encode()


def rows(user: User) -> list[str]:
    return [text for text in user.get("/workers").page.texts_of("a") if "@" in text]


def test_a_worker_is_one_row_whatever_it_consumes(app: Celery, user: User, client: redis.Redis) -> None:
    for queue in ("celery", "mail"):
        for number in (1, 2):  # two connections of a process, and another process
            lease(DelayedQueue(client, queue), f"{NODE}:{number}:x")
        lease(DelayedQueue(client, queue), f"{NODE}:1:y")
        client.zadd("delayq:queues", {queue: 4_000_000_000_000})
    assert rows(user) == [NODE, NODE]
    shown = user.get("/workers").page
    assert shown.texts_of("small") == ["process 1", "process 2"]
    assert shown.texts_of("td").count("celery, mail") == 2
    assert user.get("/worker", {"name": f"{NODE}:1"}).page.texts_of("code") == [f"{NODE}:1:x", f"{NODE}:1:y"]


def test_what_it_holds(app: Celery, user: User, client: redis.Redis) -> None:
    queue = DelayedQueue(client, "celery")
    lease(queue, f"{NODE}:1:x")
    give(queue, f"{NODE}:1:x", *map(message, range(130)), b"not a message")
    (link,) = (url for url in user.get("/workers").page.values("href") if url.startswith("worker?"))
    shown = user.get("/worker", link.partition("?")[2])
    ids = [text for text in shown.page.texts_of("td") if text.startswith("t")]
    assert len(ids) == len(set(ids)) == 100
    assert "It holds 131 messages" in shown.page.text
    assert "The first 100 of 131." in shown.page.text
    client.delete(queue.keys.in_flight(f"{NODE}:1:x"))
    give(queue, f"{NODE}:1:x", b"not a message", message(1))
    shown = user.get("/worker", {"name": f"{NODE}:1"})
    assert "not a task" in shown.page.text
    assert "shop.orders.ship" in shown.page.text


def test_there_is_no_such_worker(user: User) -> None:
    for query in ({}, {"name": "celery@nowhere:1"}):
        assert user.get("/worker", query).status == 404


def test_a_consumer_with_an_id_of_another_form(app: Celery, user: User, client: redis.Redis) -> None:
    queue = DelayedQueue(client, "celery")
    lease(queue, "somebody")
    give(queue, "somebody", message(1))
    assert "t1" in user.get("/worker", {"name": "somebody"}).page.text
