"""A broker for the page in Chinese: whatever is data there has no Latin letters, so each one is a word of the page."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import redis
from celery import Celery

from celery_delayq import DelayedQueue, DelayQ
from celery_delayq.queue.dead_letter import DELIVERY_LIMIT, INVALID_TASK, pack
from celery_delayq.queue.keys import ScheduleKeys
from celery_delayq.schedule.records import Record
from celery_delayq.web.request import Params, Request, Response, encoded
from celery_delayq.web.site import Site
from tests.state import FAR, bury, give, lease, now_ms, offer

QUEUE, EMPTY = "队列甲", "队列乙"

#: A periodic task of the configuration.
CONFIGURED = "代码中的"

#: The first of the waiting tasks, those that show what others do not, and how many others there are.
FIRST, RICH, LONG, PICKLED, MANY = "1000", "2001", "2002", "2003", 60

#: Consumers.
ONE, TWO, GONE = "主机:1:一", "主机:2:二", "主机:3:三"

_IN_AN_HOUR = timedelta(hours=1)


def make_app(broker: str) -> Celery:
    """Return an app with two tasks."""
    app = Celery("商店", broker=broker, set_as_current=False)
    app.conf.update(
        accept_content=["json", "pickle"],
        task_default_queue=QUEUE,
        task_queues=None,
    )
    app.delayq = DelayQ(app)

    def nothing(*args: Any, **kwargs: Any) -> None:
        """Nothing runs here."""

    for name in ("发送", "提醒"):
        app.task(nothing, name=name, lazy=False, shared=False)
    return app


def fill(app: Celery, client: redis.Redis) -> None:
    """Make up what the pages show."""
    send = app.tasks["发送"].apply_async
    for number in range(MANY):
        send((number,), countdown=3600 + number, task_id=str(int(FIRST) + number))
    expires = datetime.now(timezone.utc) + 2 * _IN_AN_HOUR
    rich = {"retries": 2, "expires": expires, "parent_id": "3001", "root_id": "3002", "group_id": "3003"}
    send(("甲",), {"乙": 1}, countdown=600, task_id=RICH, **rich)
    send(("长" * 30_000,), countdown=700, task_id=LONG)
    send((1,), countdown=800, task_id=PICKLED, serializer="pickle")
    queue = DelayedQueue(client, QUEUE)
    offer(queue, "4001", now_ms(client) - 5000, b"1234")  # late, and not a message
    offer(queue, "4002", FAR, b"5678")
    _bury(client)
    for consumer, ms_left in ((ONE, 3_600_000), (TWO, -1000)):
        lease(queue, consumer, ms_left)
    client.zadd(queue.keys.consumers, {GONE: -1_700_000_000_000})
    give(queue, ONE, b"1")
    client.set(queue.keys.transferrer, f"{now_ms(client)}:主机:1:循环")
    schedule = app.delayq.schedule
    schedule.add("每分钟", "发送", 60, args=[1])
    schedule.add("暂停的", "提醒", "0 6 * * *")
    schedule.pause("暂停的")
    schedule.add("没有任务的", "不存在", 60)
    _configure(client)


def _configure(client: redis.Redis) -> None:
    """Let an entry be one of the configuration, as a planner records it."""
    names = ScheduleKeys.of()
    record = Record.parse(client.hget(names.definitions, "每分钟"))
    client.hset(names.definitions, CONFIGURED, replace(record, app="商店").dump())


def _bury(client: redis.Redis) -> None:
    def message(number: int) -> bytes:
        headers = {"id": str(number), "task": "发送", "argsrepr": "(1,)", "kwargsrepr": "{}"}
        return json.dumps({"headers": headers, "properties": {}, "body": ""}).encode()

    letters = [pack(message(n), reason=DELIVERY_LIMIT, deliveries=5) for n in range(MANY)]
    letters.append(pack(message(99), reason=INVALID_TASK, error="没有这个任务"))
    bury(client, QUEUE, b"1234", *letters)


class Chinese:
    """A user who reads Chinese, and may do what `may` says."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.may: Any = "all"
        self.site = Site(app, access=lambda request: self.may, hosts=["here"])

    def ask(self, path: str, method: str = "GET", form: str = "", **headers: str) -> Response:
        """Send a request.

        Args:
            path: with its query.
            method: of the request.
            form: fields of the form, encoded.
            headers: further ones.
        """
        path, _, query = path.partition("?")
        known = {"host": "here", "accept-language": "zh-CN,zh;q=0.9,en;q=0.8", "sec-fetch-site": "same-origin"}
        headers = {**known, **{name.replace("_", "-"): value for name, value in headers.items()}}
        return self.site.handle(Request(method, path, Params(query), headers, Params(form)))

    def act(self, path: str, action: str, *pairs: tuple[str, object], confirmed: bool = True) -> Response:
        """Send a form.

        Args:
            path: with its query.
            action: what is to be done.
            pairs: further fields.
            confirmed: whether the question before it was answered.
        """
        fields = [("action", action), ("confirmed", "yes" if confirmed else ""), *pairs]
        return self.ask(path, "POST", "&".join(encoded({name: value}) for name, value in fields if value))
