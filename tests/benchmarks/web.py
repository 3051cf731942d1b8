"""Web: what the page takes on the server, however much waits; and what open tabs cost Redis."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from itertools import count, cycle
from pathlib import Path
from typing import Any

import redis

from celery_delayq.queue import measuring, scripts
from celery_delayq.queue.call import load
from celery_delayq.queue.keys import QueueKeys
from celery_delayq.web.request import Params, Request, encoded
from celery_delayq.web.site import Site
from examples.private_redis import PrivateRedis
from tests.benchmarks.copies import Copier
from tests.benchmarks.figures import OURS, Target, percentile
from tests.benchmarks.report import Report
from tests.benchmarks.scale import SEED, Scale
from tests.benchmarks.shop import broker_url, make_app

#: Queues of the tasks that wait, and their priorities.
_QUEUES, _PRIORITIES = ("celery", "mail", "orders", "reports"), (0, 3, 6, 9)

#: Tasks wait for up to a month.
_SPAN_S = 30 * 86400

#: How often an open tab asks, as `web.js` does.
_EVERY_S = 3.0

#: What a busy queue counts in a minute.
_HISTORY = {"transferred": 600, **{f"transfer_lateness:{le}": 100 for le in ("0.0025", "0.005", "0.01", "0.025")}}

#: Where the scripts are.
_LUA = Path(scripts.__file__).parent / "lua"

_POST = {"host": "bench", "origin": "http://bench"}


def run(scale: Scale) -> Report:
    report = Report(
        f"web: {scale.web_tasks:,} tasks in {len(_QUEUES)} queues with {len(_PRIORITIES)} priorities, "
        f"p95 of {scale.web_requests} requests",
        notes=["The time is that of `Site.handle`: all but HTTP itself."],
    )
    with PrivateRedis() as server, server.client() as client:
        with make_app(broker_url(OURS, server.port)) as filling:
            _fill(filling, client, scale.web_tasks)
        app = make_app(broker_url(OURS, server.port))  # another one, which does not know what copies were made of
        client.config_set("slowlog-log-slower-than", 500)
        client.config_set("slowlog-max-len", 10_000)
        client.slowlog_reset()
        site = Site(app, access=lambda request: "all")
        _pages(report, scale, site)
        _chunks(report, scale, site)
        calls = sorted(_calls(client), key=lambda call: -call["duration"])
        slowest = calls[0]["duration"] / 1000 if calls else 0.5
        report.figure("the longest call of Redis", "ms", target=Target(5.0)).add(OURS, slowest)
        report.notes += [f"A long call of Redis: {_shown(call)}." for call in calls[:3]]
        _tabs(report, scale, site, client)
        app.close()
    return report


def _fill(app: Any, client: redis.Redis, number: int) -> None:
    """Let tasks wait in each list of each queue, and let all queues have a history."""
    chance, now_s = random.Random(SEED), int(time.time())
    with app.connection_for_write() as connection:
        lists = [name for queue in _QUEUES for name in connection.default_channel.broker_lists(queue)]
    assert len(lists) == len(_QUEUES) * len(_PRIORITIES)
    for at, name in enumerate(lists):
        numbers = range(at, number, len(lists))
        dues = (now_s + 60 + chance.random() * _SPAN_S for _ in numbers)
        Copier(app, client, queue=name).publish(numbers, *dues)
    for queue in _QUEUES:
        for ago_s in range(0, 8 * 3600, 60):
            measuring.count(QueueKeys.of(queue), now_s=now_s - ago_s, numbers=_HISTORY).run(client)


def _pages(report: Report, scale: Scale, site: Site) -> None:
    hour_ms, now_ms = 3_600_000, int(time.time() * 1000)
    numbers = count(1)
    ids = cycle([task.id for task in site.broker.app.delayq.scheduled(due_after=time.time() + 3600, limit=1000)])

    def windows() -> str:
        return f"/?{encoded({'from': now_ms + next(numbers) * hour_ms, 'span': 86400})}"

    def in_the_middle() -> str:
        return f"/waiting?{encoded({'due_after': f'+{next(numbers)}h'})}"

    for name, limit_ms, url in (
        ("overview", 100, lambda: "/"),
        ("overview, a day further on", 100, windows),
        ("list", 100, lambda: "/waiting"),
        ("list, further on", 100, in_the_middle),
        ("list of a queue", 100, lambda: "/waiting?queue=mail"),
        ("task", 30, lambda: f"/task?id={next(ids)}"),
        ("text that one task has", 300, lambda: f"/waiting?{encoded({'text': f'({scale.web_tasks // 2},)'})}"),
        ("workers", 100, lambda: "/workers"),
    ):
        figure = report.figure(name, "ms", target=Target(limit_ms))
        for _ in range(scale.web_rounds):
            figure.add(OURS, _p95(site, (_get(url()) for _ in range(scale.web_requests))))


def _chunks(report: Report, scale: Scale, site: Site) -> None:
    for action in ("reschedule", "run_now", "cancel"):
        figure = report.figure(f"a chunk of 1,000: {action}", "ms", target=Target(200))
        form = {
            "action": action,
            "scope": "matching",
            "confirmed": "yes",
            "when": "40d" if action == "reschedule" else "",
        }
        requests = (
            Request("POST", "/waiting", Params("due_before=29d"), _POST, Params(encoded(form)))
            for _ in range(scale.web_chunks)
        )
        figure.add(OURS, _p95(site, requests))


def _get(url: str, **headers: str) -> Request:
    path, _, query = url.partition("?")
    return Request("GET", path, Params(query), headers)


def _p95(site: Site, requests: Iterator[Request]) -> float:
    took = []
    for request in requests:
        began = time.perf_counter()
        response = site.handle(request)
        took.append((time.perf_counter() - began) * 1000)
        assert response.status == 200, response
    return percentile(took, 95)


def _calls(client: redis.Redis) -> list[dict[str, Any]]:
    """Return the slow calls of the page: not those of this benchmark, and not of Redis itself."""
    own = (b"INFO", b"CONFIG", b"SLOWLOG")
    return [call for call in client.slowlog_get(10_000) if not call["command"].upper().startswith(own)]


def _shown(call: dict[str, Any]) -> str:
    """Return a call of the slow log in words: how long it took, and what it was."""
    name, digest, *_ = (part.decode(errors="replace") for part in [*call["command"].split(b" "), b""])
    scripts_by_digest = {load(path.stem).sha: path.stem for path in _LUA.glob("*.lua")}
    return f"{call['duration'] / 1000:.1f} ms, {name} {scripts_by_digest.get(digest, '')}".rstrip()


def _tabs(report: Report, scale: Scale, site: Site, client: redis.Redis) -> None:
    """Let one tab, and then ten, ask for the overview; count the commands."""
    figure = report.figure("commands for open tabs", "commands/s", baseline="1 tab", target=Target(1.2, ratio=True))
    for name, tabs in (("1 tab", 1), (OURS, 10)):
        client.config_resetstat()
        _ask(site, tabs, scale.web_tabs_s)
        figure.add(name, _commands(client) / scale.web_tabs_s)
    report.notes.append(f"{OURS} of the last figure are ten tabs of the overview that ask every {_EVERY_S:g} s.")


def _ask(site: Site, tabs: int, seconds: float) -> None:
    end = time.monotonic() + seconds

    def tab(offset: float) -> None:
        at = time.monotonic() + offset
        while at < end:
            time.sleep(max(0.0, at - time.monotonic()))
            site.handle(_get("/", **{"x-delayq-live": "1"}))
            at += _EVERY_S

    threads: list[threading.Thread] = [
        threading.Thread(target=tab, args=(_EVERY_S * number / tabs,)) for number in range(tabs)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _commands(client: redis.Redis) -> int:
    return int(client.info("stats")["total_commands_processed"])
