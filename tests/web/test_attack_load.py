"""What is too much for one page: long messages, many queues, tasks that do not match."""

from __future__ import annotations

import json
from typing import Any

import redis
from celery import Celery

from celery_delayq import DelayedQueue
from celery_delayq.basics.times import to_datetime
from celery_delayq.queue.dead_letter import REASONS
from celery_delayq.queue.keys import registry
from tests import state
from tests.state import FAR, bury
from tests.web import direct
from tests.web.direct import OWN, User
from tests.web.filling import body_of, message_of

app, client, user = direct.app, direct.client, direct.user

MEGABYTE = 1024 * 1024

#: How many bytes of messages a page holds in memory, about.
MOST_MB = 32


def wait_with(app: Celery, client: redis.Redis, number: int, megabytes: int) -> list[str]:
    """Let tasks with long arguments wait, and return their ids in due order."""
    _, raw = message_of(app, client, "shop.orders.remind", 1)
    message: dict[str, Any] = json.loads(raw)
    message["body"] = body_of(["x" * (megabytes * MEGABYTE * 3 // 4)])
    queue, now_ms = DelayedQueue(client, "celery"), state.now_ms(client)
    ids = [f"long {at}" for at in range(number)]
    for at, task_id in enumerate(ids):
        message["headers"]["id"] = task_id
        queue.offer(json.dumps(message).encode(), eta=to_datetime(now_ms + 3_600_000 + at), message_id=task_id)
    return ids


def test_a_page_of_long_messages_ends_early_and_the_next_one_goes_on(
    app: Celery, client: redis.Redis, user: User
) -> None:
    ids = wait_with(app, client, 9, 10)
    answer, pages = user.get("/waiting"), []
    while True:
        shown = [task_id for task_id in ids if f"Select {task_id}" in answer.page.values("aria-label")]
        pages.append(shown)
        links = [attributes["href"] for _, attributes in answer.page.elements if attributes.get("rel") == "next"]
        if not links:
            break
        answer = user.get("/waiting", str(links[0]).partition("?")[2])
    assert [task_id for page in pages for task_id in page] == ids
    assert max(map(len, pages)) <= MOST_MB // 10 + 1


def test_long_messages_are_cancelled_in_steps(app: Celery, client: redis.Redis, user: User) -> None:
    ids = wait_with(app, client, 9, 10)
    fields: Any = {"action": "cancel", "scope": "matching", "confirmed": "yes"}
    steps = 0
    while fields:
        answer = user.post("/waiting", fields, **OWN)
        steps += 1
        fields = next((form.fields for form in answer.page.forms if ("action", "cancel") in form.fields), None)
    assert f"{len(ids)} tasks cancelled." in answer.page.text
    assert steps > 1
    assert state.waiting(DelayedQueue(client, "celery")) == []


def test_one_call_reads_few_long_messages(app: Celery, client: redis.Redis) -> None:
    wait_with(app, client, 5, 10)
    (_, first), *_ = DelayedQueue(client, "celery").search([], limit=100)
    assert len(first) == 1


def test_a_search_without_a_match_goes_on_behind_what_it_has_looked_at(
    app: Celery, client: redis.Redis, user: User
) -> None:
    state.fill(DelayedQueue(client, "celery"), 10_500)
    answer = user.get("/waiting", {"text": "nobody wrote this"})
    assert "Looked at 10," in answer.page.text
    assert "There may be more on the next pages." in answer.page.text
    (link,) = (attributes["href"] for _, attributes in answer.page.elements if attributes.get("rel") == "next")
    assert "No waiting tasks match." in user.get("/waiting", str(link).partition("?")[2]).page.text


def test_many_queues_are_not_all_offered(app: Celery, client: redis.Redis, user: User) -> None:
    client.zadd(registry(), dict.fromkeys((f"tenant-{number}" for number in range(700)), FAR))
    bury(client, "tenant-699", b"x")
    page = user.get("/dead").page
    others = len(REASONS) + sum(not name.startswith("celery.") for name in app.tasks)  # those of other fields
    assert sum(tag == "option" for tag, _ in page.elements) == 500 + 1 + others
    assert "tenant-699" in page.values("value")
