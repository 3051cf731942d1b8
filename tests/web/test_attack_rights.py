"""What docs/web.md says that a user of Redis needs to look at the page is enough, and lets nobody change anything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from celery import Celery
from kombu import pools

from celery_delayq import DelayedQueue
from examples.private_redis import PrivateRedis
from tests.state import give, lease
from tests.web import direct
from tests.web.direct import OWN, dump, user_of
from tests.web.shop import make_app

app, client = direct.app, direct.client

_MANUAL = Path(__file__).parents[2] / "docs" / "web.md"


@pytest.fixture
def viewer(app: Celery, client: redis.Redis, redis_server: PrivateRedis) -> Iterator[Celery]:
    """The shop as a user sees it who has the rights of the manual, for all of its queues."""
    (rules,) = re.findall(r"^ACL SETUSER viewer (.+)$", _MANUAL.read_text(encoding="utf-8"), re.MULTILINE)
    client.execute_command("ACL", "SETUSER", "viewer", "reset", *rules.split(), "~mail*", "~reports*")
    client.execute_command("ACL", "LOG", "RESET")
    app.tasks["shop.orders.remind"].apply_async((1,), task_id="a", countdown=3600)
    app.delayq.schedule.add("n", "shop.carts.tidy", 60.0)
    seen = make_app(f"delayq://viewer:secret@127.0.0.1:{redis_server.port}/0", "rpc://")
    try:
        yield seen
    finally:
        seen.close()
        pools.reset()
        client.execute_command("ACL", "DELUSER", "viewer")


def test_the_rights_in_the_manual_show_every_page(viewer: Celery, client: redis.Redis) -> None:
    user = user_of(viewer, "read")
    queries = {"/task": {"id": "a"}, "/entry": {"name": "n"}, "/waiting": {"text": "1"}, "/dead": {"queue": "celery"}}
    queue = DelayedQueue(client, "celery")
    lease(queue, "web@host:1:x")
    give(queue, "web@host:1:x", b"held")
    queries["/worker"] = {"name": "web@host:1"}
    for path in ("/", "/waiting", "/task", "/dead", "/periodic", "/entry", "/workers", "/worker"):
        assert user.get(path, queries.get(path, "")).status == 200, path
    assert client.execute_command("ACL", "LOG") == []


def test_they_let_nobody_change_anything(viewer: Celery, client: redis.Redis) -> None:
    user, before = user_of(viewer), dump(client)
    for action in ("cancel", "reschedule", "run_now"):
        for scope in ({"id": "a"}, {"scope": "matching"}):
            answer = user.post("/waiting", {"action": action, "confirmed": "yes", "when": "2h", **scope}, **OWN)
            assert answer.status == 503, (action, scope)
    assert user.post("/entry", {"action": "schedule.pause"}, {"name": "n"}, **OWN).status == 503
    assert dump(client) == before
