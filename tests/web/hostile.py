"""Fill a broker with what somebody who may publish would put there to harm who looks at it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import redis
from celery import Celery

from celery_delayq import DelayedQueue
from celery_delayq.basics.times import to_datetime
from celery_delayq.queue import dead_letter
from celery_delayq.queue.connections import as_text
from celery_delayq.queue.keys import QueueKeys, ScheduleKeys, registry
from celery_delayq.queue.set_aside import keep
from tests import state
from tests.state import FAR
from tests.web.filling import body_of, message_of

#: Texts by what is wrong with them. Those that get their way show a dialog, send a request, or break the page.
TEXTS: dict[str, str] = {
    "script": "<script>alert('script')</script>",
    "closing script": "</script></style></title></textarea><script>alert('closing')</script>",
    "image": '<img src="http://127.0.0.2:1/hostile.png" onerror="alert(1)">',
    "double quotes": '" autofocus onfocus="alert(2)',
    "single quotes": "' autofocus onfocus='alert(3)",
    "template": "{{ 7 * 7 }}{% raw %}${7 * 7}{# #}",
    "link": "javascript:alert(4)",
    "entities": "&lt;b&gt; &amp;amp; &#x3c;",
    "comment": "<!--",
    "cdata": "]]>",
    "controls": "a\x00b\x07c\x1b]0;title\x07d\x7fe\x9bf",
    "lines": "first\r\nSet-Cookie: hostile=1\r\n\r\nsecond\u2028third",
    "bidi": "invoice\u202eexe.\u2066fdp\u2069",
    "combining": "Z" + "\u0335\u0321\u034f" * 40,
    "emoji": "\U0001f469\u200d\U0001f680\ufeff",
    "slashes": "../../etc//passwd/./..",
    "percents": "%2e%2e%2f100%%3Cb%3E%00%zz",
    "query": "a?b=c&d=e#f;g=h+i j",
    "backslashes": "..\\..\\c:\\x",
    "spaces": "  \t two  spaces  ",
    "dot": ".",
    "dots": "..",
    "very long": "long." * 2_000,
    "wide": "W" * 300,
}

#: A text that no UTF-8 can hold; JSON can.
SURROGATE = "half \ud800 a pair"

#: Bytes that are no UTF-8.
BYTES = b"\xff\xfe<b>\x80"

LARGE_MB = 10


@dataclass
class Hostile:
    """What `fill_hostile` put into the broker.

    Attributes:
        waiting: ids of tasks that wait in queue `celery`, by what is wrong with them.
        queues: names of queues in which a task waits.
        dead: ids of the dead letters of queue `celery`.
        periodic: names of periodic tasks.
        entries: how many entries wait that are not tasks.
    """

    waiting: dict[str, str] = field(default_factory=dict)
    queues: list[str] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    periodic: list[str] = field(default_factory=list)
    entries: int = 0


def fill_hostile(app: Celery, client: redis.Redis, *, large: bool = True) -> Hostile:
    """Put the corpus into a broker.

    Args:
        app: the shop.
        client: a client of the broker.
        large: with a task of 10 MB.
    """
    filled = Hostile()
    _, raw = message_of(app, client, "shop.orders.remind", 1)
    message: dict[str, Any] = json.loads(raw)
    _tasks(client, message, filled, large=large)
    _queues(client, message, filled)
    _entries(client, message, filled)
    _dead(client, message, filled)
    _periodic(app, client, filled)
    return filled


def hostile_message(message: dict[str, Any], text: str, task_id: str) -> bytes:
    """Return a message with a text wherever a text can be."""
    headers = {"task": text, "id": task_id, "root_id": task_id, "origin": text, "shadow": text, "lang": text}
    reprs = {"argsrepr": f"({text})", "kwargsrepr": f"{{{text}}}"}
    return json.dumps(
        {
            **message,
            "headers": {**message["headers"], **headers, **reprs, text: text},
            "properties": {**message["properties"], "correlation_id": task_id, "reply_to": text},
            "body": body_of([text, {text: [text]}], {text: text}),
        }
    ).encode()


def _tasks(client: redis.Redis, message: dict[str, Any], filled: Hostile, *, large: bool) -> None:
    queue = DelayedQueue(client, "celery")
    due_ms = state.now_ms(client) + 3_600_000
    for number, (what, text) in enumerate({**TEXTS, "surrogate": SURROGATE}.items()):
        task_id = f"{text} {number}" if what == "surrogate" else text
        queue.offer(
            hostile_message(message, text, task_id), eta=to_datetime(due_ms + number * 1000), message_id=task_id
        )
        filled.waiting[what] = task_id
    if large:
        task_id = "large"
        body = body_of(["x<b>" * (LARGE_MB * 250_000)])
        headers = {**message["headers"], "id": task_id}
        raw = json.dumps({**message, "headers": headers, "body": body}).encode()
        queue.offer(raw, eta=to_datetime(due_ms + 1_000_000), message_id=task_id)
        filled.waiting["large"] = task_id


def _queues(client: redis.Redis, message: dict[str, Any], filled: Hostile) -> None:
    for what, text in TEXTS.items():
        task_id = f"task in queue {what}"
        raw = json.dumps({**message, "headers": {**message["headers"], "id": task_id}}).encode()
        DelayedQueue(client, text).offer(raw, countdown=7200, message_id=task_id)
        filled.queues.append(text)
    client.zadd(registry(), {BYTES: FAR})


def _entries(client: redis.Redis, message: dict[str, Any], filled: Hostile) -> None:
    queue = DelayedQueue(client, "celery")
    deep = "[" * 20_000 + "]" * 20_000
    garbage = [
        *(BYTES, b"", b"\x00" * 100, b"null", b"[]", b'{"properties": {}}', deep.encode()),
        json.dumps({**message, "headers": {"task": {}, "id": []}}).encode(),
        json.dumps({**message, "body": BYTES.hex(), "content-type": TEXTS["script"]}).encode(),
        json.dumps(message).encode()[:-40],
    ]
    for number, payload in enumerate(garbage):
        queue.offer(payload, countdown=5400 + number, message_id=f"garbage {number}")
    in_a_day = state.now_ms(client) + 86_400_000
    state.seed(queue, {BYTES: in_a_day, b"cut off": in_a_day + 0.5, b"\x08": float("inf")})
    filled.entries = len(garbage) + 3


def _dead(client: redis.Redis, message: dict[str, Any], filled: Hostile) -> None:
    raws = [
        dead_letter.pack(hostile_message(message, text, text), reason=dead_letter.INVALID_TASK, error=text)
        for number, text in enumerate(TEXTS.values())
    ]
    raws += [
        dead_letter.pack(BYTES, reason=TEXTS["script"], deliveries=-1),
        dead_letter.pack(b"", reason="", deliveries=10**30),
        BYTES,
        b"",
        TEXTS["script"].encode(),
    ]
    filled.dead = state.bury(client, "celery", *raws)
    keys = QueueKeys.of("celery")
    for text in TEXTS.values():
        known: dict[str, Any] = {"error": text, "traceback": text, "worker": text, "runs": -1}
        record = dead_letter.pack(hostile_message(message, text, text), reason=dead_letter.FAILED, **known)
        keep(keys, record=record, most=100, kept_ms=86_400_000).run(client)
    filled.dead += map(as_text, client.zrange(keys.failed, 0, -1))


def _periodic(app: Celery, client: redis.Redis, filled: Hostile) -> None:
    keys = ScheduleKeys.of()
    for text in TEXTS.values():
        app.delayq.schedule.add(text, text, "0 6 * * *", [text], {text: text}, options={"headers": {text: text}})
        client.hset(keys.errors, text, text)
        filled.periodic.append(text)
    client.hset(keys.definitions, "unreadable", TEXTS["script"])
    client.hset(keys.definitions, BYTES.hex(), BYTES)
    client.hset(keys.definitions, BYTES, BYTES)
