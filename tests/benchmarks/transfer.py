"""Transfer: how many due messages the server moves per second, and how long one call keeps it busy."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis

from celery_delayq import DelayedQueue
from celery_delayq.delayed_queue import BATCH_SIZE
from examples.private_redis import PrivateRedis
from tests.benchmarks.figures import OURS, Target, in_turns, percentile
from tests.benchmarks.filling import PAYLOAD_BYTES, fill
from tests.benchmarks.report import Report
from tests.benchmarks.scale import Scale

_REDISSON = "Redisson's way"
_MIRRORED = "with its mirror list"

#: Of what is pending, the share that is transferred: the rest keeps the queue as large as it is said to be.
_DRAINED = 0.3
_CALLS_A_TURN = 40
_MIRRORED_CALLS = 3
_SPAN_MS = 5_000_000

_PERCENTS = {"p50": 50, "p99": 99, "max": 100}


def run(scale: Scale) -> Report:
    report = Report(
        f"transfer: due messages of {PAYLOAD_BYTES} bytes in random order, {BATCH_SIZE} a call, on the server's side"
    )
    for pending in scale.pending:
        at_scale = pending == max(scale.pending)
        rate = report.figure(
            f"{pending:,} pending: rate",
            "messages/s",
            baseline=_REDISSON,
            target=Target(150_000, at_most=False) if at_scale else None,
        )
        a_call = {
            name: report.figure(
                f"{pending:,} pending: a call, {name}",
                "ms",
                baseline=_REDISSON,
                target=Target(2.0) if at_scale and name == "p99" else None,
            )
            for name in _PERCENTS
        }
        for variant, caller in _measure(pending, scale).items():
            rate.samples[variant] = caller.rates
            for name, value in caller.call_ms().items():
                a_call[name].add(variant, value)
    report.notes += [
        f"{_REDISSON}: the commands of Redisson's script but for its mirror list, on the same delayed "
        "queue in turns; it keeps no index for cancelling.",
        "The server's time includes that in which another process had its core.",
    ]
    return report


class _Caller:
    """Runs one script, and knows what that cost the server.

    Args:
        call: one call of the script.
        command: by which command it calls; each variant has its own, so that the server counts them apart.
    """

    def __init__(self, queue: DelayedQueue, call: Callable[[], Any], command: str) -> None:
        self.queue = queue
        self.call = call
        self.command = command
        self.rates: list[float] = []
        self._seen_by_client_ms: list[float] = []

    def turn(self, calls: int) -> None:
        """Call so many times, and take a sample of the rate."""
        client = self.queue.client
        before_us = self._used_us()
        for _ in range(calls):
            start = time.perf_counter()
            self.call()
            self._seen_by_client_ms.append((time.perf_counter() - start) * 1000)
        used_us = self._used_us() - before_us
        self.rates.append(int(client.llen(self.queue.name)) / used_us * 1_000_000)
        client.delete(self.queue.name)

    def call_ms(self) -> dict[str, float]:
        """Return percentiles of all calls: the server's, or the client's where the server is older than 7.0."""
        known = self.latencies.get(f"latency_percentiles_usec_{self.command}")
        if known:
            return {name: known[f"p{percent}"] / 1000 for name, percent in _PERCENTS.items()}
        seen = self._seen_by_client_ms
        return {name: percentile(seen, percent) for name, percent in _PERCENTS.items()}

    def finish(self) -> None:
        """Ask the server for what it has measured, before it ends."""
        self.latencies: dict[str, Any] = self.queue.client.info("latencystats")

    def _used_us(self) -> int:
        known: Any = self.queue.client.info("commandstats")
        return int(known.get(f"cmdstat_{self.command}", {}).get("usec", 0))


def _measure(pending: int, scale: Scale) -> dict[str, _Caller]:
    callers: dict[str, _Caller] = {}
    with PrivateRedis() as server, server.client() as client:
        queue = _filled(client, pending, mirrored=False)
        callers = {_REDISSON: _redissons_way(queue), OURS: _ours(queue)}
        most = int(pending * _DRAINED) // BATCH_SIZE // len(callers)
        calls = min(_CALLS_A_TURN, max(1, most // 3))
        in_turns(
            min(scale.transfer_rounds, most // calls),
            {
                name: lambda caller=caller: caller.turn(calls)  # type: ignore[misc]
                for name, caller in callers.items()
            },
        )
        for caller in callers.values():
            caller.finish()
    if pending <= scale.mirrored_up_to:
        with PrivateRedis() as server, server.client() as client:
            caller = _redissons_way(_filled(client, pending, mirrored=True))
            caller.turn(_MIRRORED_CALLS)
            caller.finish()
            callers[_MIRRORED] = caller
    return callers


def _filled(client: redis.Redis, pending: int, *, mirrored: bool) -> DelayedQueue:
    queue = DelayedQueue(client, "celery", mirror_list=mirrored)
    first_due_ms = int(time.time() * 1000) - 2 * _SPAN_MS
    fill(queue, pending, first_due_ms=first_due_ms, span_ms=_SPAN_MS)
    queue.transfer(1)  # knows the script from here on
    client.delete(queue.name)
    client.config_resetstat()
    with suppress(redis.ResponseError):  # older than 7.0
        client.config_set("latency-tracking-info-percentiles", "50 99 100")
    return queue


def _ours(queue: DelayedQueue) -> _Caller:
    return _Caller(queue, lambda: queue.transfer(transferrer="benchmark", grace_ms=250), "evalsha")


def _redissons_way(queue: DelayedQueue) -> _Caller:
    text = Path(__file__).with_name("redisson_way.lua").read_text()
    keys = [queue.keys.queue, queue.keys.timeout_set]
    if queue.mirror_list:
        keys.append(queue.keys.delay_list)
    return _Caller(
        queue,
        lambda: queue.client.eval(text, len(keys), *keys, int(time.time() * 1000), BATCH_SIZE),
        "eval",
    )
