"""Metrics: what counting costs a worker, and what a scrape costs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import median
from urllib.request import Request, urlopen

from celery_delayq import DelayedQueue
from celery_delayq.metrics.endpoint import server_at
from celery_delayq.metrics.source import Source
from celery_delayq.queue import measuring
from celery_delayq.queue.keys import QueueKeys
from examples.private_redis import PrivateRedis
from tests.benchmarks.copies import Copier, seconds_to_publish
from tests.benchmarks.figures import OURS, STOCK, Target, in_turns
from tests.benchmarks.filling import Filler
from tests.benchmarks.idle import sent_to
from tests.benchmarks.report import Report
from tests.benchmarks.scale import Scale
from tests.benchmarks.shop import broker_url, make_app
from tests.benchmarks.worker import BenchWorker
from tests.support import wait_until
from tests.workers import Worker

WITHOUT = "without metrics"

_OFF = {"delayq_metrics": False}

_DUE, _BACKLOG = "due at one instant", "a backlog of immediate tasks"

_DEADLINE_S = 300

#: After so many seconds an idle worker has begun everything that it does periodically.
_SETTLED_S = 3.0

#: What a queue's totals have if everything that can happen did.
_TOTALS = {f"{histogram}_lateness:{le}": 1 for histogram in ("transfer", "start") for le in range(15)}

_HOUR_MS = 3_600_000

#: What Prometheus asks for.
_AS_PROMETHEUS = {"Accept": "application/openmetrics-text; version=1.0.0", "Accept-Encoding": "gzip"}


def run(scale: Scale) -> Report:
    report = Report(
        f"metrics: {scale.metrics_tasks:,} tasks a turn, prefork -c 2, with and without them; a scrape of "
        f"{scale.scrape_messages:,} messages in {scale.scrape_queues} queues",
        notes=["The rate is that of starts. Both workers run all the time; one of them has nothing to do."],
    )
    _throughput(report, scale)
    _scrape(report, scale)
    _idle(report, scale)
    return report


def _throughput(report: Report, scale: Scale) -> None:
    at_least = Target(0.98, at_most=False, ratio=True)
    rates = {
        kind: report.figure(f"{kind}: rate", "tasks/s", baseline=WITHOUT, target=at_least) for kind in (_BACKLOG, _DUE)
    }
    with _workers() as workers:
        for kind, rate in rates.items():
            turns = {name: partial(_run, worker, scale.metrics_tasks, kind == _DUE) for name, worker in workers.items()}
            for name, found in in_turns(scale.metrics_turns, turns).items():
                for tasks_per_s in found:
                    rate.add(name, tasks_per_s)


@contextmanager
def _workers() -> Iterator[dict[str, BenchWorker]]:
    with ExitStack() as stack:
        workers = {}
        for name, conf in ((WITHOUT, _OFF), (OURS, {})):
            server = stack.enter_context(PrivateRedis())
            workers[name] = stack.enter_context(BenchWorker(OURS, server.port, conf=conf))
        yield workers


def _run(worker: BenchWorker, count: int, is_delayed: bool) -> float:
    """Let a worker run so many tasks; return how many a second."""
    copier = Copier(worker.app, worker.client)
    worker.forget()
    if is_delayed:
        began_at = time.time() + seconds_to_publish(count)
        copier.publish(range(count), began_at)
    else:
        copier.prepare(range(count))
        began_at = time.time()
        copier.release()
    wait_until(lambda: worker.count() >= count, "all have run", _DEADLINE_S)
    return count / (max(one.ran_at for one in worker.runs()) - began_at)


def _scrape(report: Report, scale: Scale) -> None:
    took = report.figure("a scrape", "ms", target=Target(100.0))
    sent = report.figure("its commands", "")
    with PrivateRedis() as server, server.client() as client:
        now_s = int(time.time())
        for number in range(scale.scrape_queues):
            queue = DelayedQueue(client, f"queue{number}")
            fill = Filler(queue, first_due_ms=(now_s - 60) * 1000, span_ms=_HOUR_MS, payload_bytes=100)
            fill.fill_up_to(scale.scrape_messages // scale.scrape_queues)
            measuring.count(QueueKeys.of(queue.name), now_s=now_s, numbers=_TOTALS).run(client)
        app = make_app(broker_url(OURS, server.port))
        source = Source(app)
        with server_at("127.0.0.1", 0, source) as endpoint:
            threading.Thread(target=endpoint.serve_forever, daemon=True).start()
            scraped = Request(f"http://127.0.0.1:{endpoint.server_port}/metrics", headers=_AS_PROMETHEUS)
            _answer(scraped)
            for _ in range(scale.scrapes):
                client.config_resetstat()
                began = time.perf_counter()
                _answer(scraped)
                took.add(OURS, (time.perf_counter() - began) * 1000)
                sent.add(OURS, client.info("stats")["total_commands_processed"])
            endpoint.shutdown()
        source.close()
        app.close()


def _answer(scraped: Request) -> bytes:
    with urlopen(scraped, timeout=_DEADLINE_S) as answer:
        body: bytes = answer.read()
        return body


def _idle(report: Report, scale: Scale) -> None:
    commands = report.figure("idle worker: commands", "commands/s", target=Target(1.0, ratio=True))
    with ExitStack() as stack:
        servers = {}
        for name, variant, conf in ((STOCK, STOCK, {}), (WITHOUT, OURS, _OFF), (OURS, OURS, {})):
            servers[name] = server = stack.enter_context(PrivateRedis())
            worker = Worker(
                broker=broker_url(variant, server.port),
                ledger="/dev/null",
                app="tests.benchmarks.shop",
                pool="prefork",
                conf=conf,
            )
            stack.push(worker)
            worker.start()
            stack.callback(worker.kill)  # to end well takes each of them seconds
            worker.wait_until_ready()
        time.sleep(_SETTLED_S)
        # Longer than the time between two flushes.
        seconds = scale.idle_s + 5
        with ThreadPoolExecutor() as threads:
            counts = threads.map(lambda server: sent_to(server, seconds), servers.values())
            for name, (sent, _) in zip(servers, counts, strict=True):
                commands.add(name, sum(sent.values()) / seconds)
    ours, without = (median(commands.samples[name]) for name in (OURS, WITHOUT))
    report.notes.append(f"Metrics add {ours - without:+.2f} commands a second to an idle worker.")
