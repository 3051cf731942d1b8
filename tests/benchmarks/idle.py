"""Idle: how many commands a worker with nothing to do sends to Redis."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from examples.private_redis import PrivateRedis
from tests.benchmarks.figures import OURS, STOCK, Target
from tests.benchmarks.report import Report
from tests.benchmarks.scale import Scale
from tests.benchmarks.shop import broker_url
from tests.workers import Worker

#: After so many seconds a worker has begun everything that it does periodically.
_SETTLED_S = 3.0


def run(scale: Scale) -> Report:
    report = Report(f"idle: what workers with one queue send to Redis in {scale.idle_s:g} s")
    with ExitStack() as stack:
        servers = {variant: stack.enter_context(PrivateRedis()) for variant in (STOCK, OURS)}
        running = 0
        for workers in scale.idle_workers:
            _start(stack, servers, workers - running)
            running = workers
            time.sleep(_SETTLED_S)
            _watch(report, servers, workers, scale.idle_s)
    return report


def _start(stack: ExitStack, servers: dict[str, PrivateRedis], workers: int) -> None:
    """Start so many more workers of each variant."""
    started = [
        Worker(broker=broker_url(name, server.port), ledger="/dev/null", app="tests.benchmarks.shop", pool="prefork")
        for name, server in servers.items()
        for _ in range(workers)
    ]
    for worker in started:
        stack.push(worker)
        worker.start()
        stack.callback(worker.kill)  # to end well takes each of them seconds
    for worker in started:
        worker.wait_until_ready()


def _watch(report: Report, servers: dict[str, PrivateRedis], workers: int, seconds: float) -> None:
    """Count commands and connections, on all servers at the same time."""
    rate = report.figure(
        f"{workers} workers: commands of each" if workers > 1 else "a worker alone: commands",
        "commands/s",
        target=Target(1.5) if workers == 1 else None,
    )
    each = report.figure(f"{workers} workers: connections of each" if workers > 1 else "its connections", "")
    with ThreadPoolExecutor() as threads:
        counts = threads.map(lambda server: sent_to(server, seconds), servers.values())
        for variant, (sent, connections) in zip(servers, counts, strict=True):
            rate.add(variant, sum(sent.values()) / workers / seconds)
            each.add(variant, connections / workers)
            names = ", ".join(f"{name} {count}" for name, count in sent.most_common(6))
            report.notes.append(f"{variant}, {workers}: {names}")


def sent_to(server: PrivateRedis, seconds: float) -> tuple[Counter[str], int]:
    """Return the commands that clients send meanwhile, by name, and the number of connections."""
    sent: Counter[str] = Counter()
    with server.client() as client, client.monitor() as monitor:
        connections = len(client.client_list()) - len((client, monitor))
        stop = threading.Timer(seconds, lambda: server.client().set("stop", 1))
        stop.start()
        for command in monitor.listen():
            name = command["command"].split()[0].upper()
            if name == "SET":
                break
            if command["client_type"] != "lua" and name not in ("HELLO", "CLIENT"):  # the monitor's own
                sent[name] += 1
        stop.join()
    return sent, connections
