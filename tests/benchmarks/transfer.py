"""Transfer: how many due messages the server moves per second, and how long one call keeps it busy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from celery_delayq import DelayedQueue
from celery_delayq.queue.delayed_queue import BATCH_SIZE
from examples.private_redis import PrivateRedis
from tests.benchmarks.figures import OURS, Target, in_turns, percentile
from tests.benchmarks.filling import INSTANT, ORDERED, PAYLOAD_BYTES, RANDOM, Filler
from tests.benchmarks.report import Report
from tests.benchmarks.scale import Scale

_REDISSON = "Redisson's way"
_MIRRORED = "with its mirror list"

_ORDERS = {RANDOM: "random order", ORDERED: "in order", INSTANT: "due at one instant"}

#: Of what is pending, the share that a turn moves at most: so the queue is as large as it is said to be.
_SHARE_A_TURN = 0.3
_CALLS_A_TURN = 40
_MIRRORED_CALLS = 3
_SPAN_MS = 5_000_000

_PERCENTS = {"p50": 50, "p99": 99, "max": 100}

#: Targets: at so many pending in random order the rate and p99 of a call; from the fewest to the most the growth.
_AT, _RATE, _CALL_P99_MS, _GROWTH = 1_000_000, 150_000, 2.0, 0.7


def run(scale: Scale) -> Report:
    report = Report(f"transfer: due messages of {PAYLOAD_BYTES} bytes, {BATCH_SIZE} a call, on the server's side")
    fewest, most = min(scale.pending), max(scale.pending)
    rates: dict[str, dict[int, dict[str, list[float]]]] = {order: {} for order in _ORDERS}
    with _filled(INSTANT) as filler:
        rates[INSTANT][fewest] = _measure(report, scale, filler, INSTANT, fewest)
    with _filled(RANDOM) as at_random, _filled(ORDERED) as in_order:
        for pending in scale.pending[:-1]:
            rates[RANDOM][pending] = _measure(report, scale, at_random, RANDOM, pending)
        rates[ORDERED][fewest] = _measure(report, scale, in_order, ORDERED, fewest)
        with ThreadPoolExecutor() as threads:  # takes minutes: at the same time
            list(threads.map(lambda filler: filler.fill_up_to(most), (at_random, in_order)))
        rates[RANDOM][most] = _measure(report, scale, at_random, RANDOM, most)
        rates[ORDERED][most] = _measure(report, scale, in_order, ORDERED, most)
        in_order.make_instant()
        rates[INSTANT][most] = _measure(report, scale, in_order, INSTANT, most)
    for order, words in _ORDERS.items():
        growth = report.figure(
            f"{words}: rate at {most:,} pending to that at {fewest:,}",
            "times",
            baseline=_REDISSON,
            target=Target(_GROWTH, at_most=False),
        )
        for variant in (_REDISSON, OURS):
            few, many = (median(rates[order][pending][variant]) for pending in (fewest, most))
            growth.add(variant, many / few)
    report.notes += [
        f"{_REDISSON}: the commands of Redisson's script but for its mirror list, on the same delayed "
        "queue in turns; it keeps no index for cancelling.",
        f"{_MIRRORED}: of all orders the slowest is random; up to {scale.mirrored_up_to:,} pending only, since its "
        "cost grows with the number.",
        "The server's time includes that in which another process had its core.",
    ]
    return report


def _measure(report: Report, scale: Scale, filler: Filler, order: str, pending: int) -> dict[str, list[float]]:
    """Measure at one size; return the rates by variant."""
    is_bound = order == RANDOM and pending == min(_AT, max(scale.pending))
    name = f"{_ORDERS[order]}, {pending:,} pending"
    target = Target(_RATE, at_most=False) if is_bound else None
    rate = report.figure(f"{name}: rate", "messages/s", baseline=_REDISSON, target=target)
    callers = {_REDISSON: redissons_way(filler.queue), OURS: our_way(filler.queue)}
    turns = {variant: partial(_turn, caller, filler, pending) for variant, caller in callers.items()}
    in_turns(1, turns)  # knows the scripts from here on
    rate.samples = in_turns(scale.transfer_rounds, turns)
    if order == RANDOM and pending <= scale.mirrored_up_to:
        callers[_MIRRORED], sample = _mirrored(pending)
        rate.add(_MIRRORED, sample)
    for words, percent in _PERCENTS.items() if pending >= min(_AT, max(scale.pending)) else ():
        target = Target(_CALL_P99_MS) if is_bound and words == "p99" else None
        figure = report.figure(f"{name}: a call, {words}", "ms", baseline=_REDISSON, target=target)
        for variant, caller in callers.items():
            figure.add(variant, percentile(caller.calls_ms, percent))
    return rate.samples


@contextmanager
def _filled(order: str) -> Iterator[Filler]:
    """Give a delayed queue on a server of its own, and what fills it."""
    # What is done to millions at once takes longer than redis-py waits.
    with PrivateRedis() as server, server.client(socket_timeout=None) as client:
        yield _filler(DelayedQueue(client, "celery"), order)


def _mirrored(pending: int) -> tuple[Caller, float]:
    with PrivateRedis() as server, server.client() as client:
        queue = DelayedQueue(client, "celery", mirror_list=True)
        caller = redissons_way(queue)
        return caller, _turn(caller, _filler(queue, RANDOM), pending, _MIRRORED_CALLS)


def _filler(queue: DelayedQueue, order: str) -> Filler:
    return Filler(queue, first_due_ms=int(time.time() * 1000) - 2 * _SPAN_MS, span_ms=_SPAN_MS, order=order)


def _turn(caller: Caller, filler: Filler, pending: int, most_calls: int = _CALLS_A_TURN) -> float:
    """Fill up, call some times, return messages a second of the server's time."""
    calls = min(most_calls, max(1, int(pending * _SHARE_A_TURN) // BATCH_SIZE))
    filler.fill_up_to(pending)
    used_ms = sum(caller.call() for _ in range(calls))
    return filler.forget_transferred() / used_ms * 1000


class Caller:
    """Runs one script, and knows what each call cost the server.

    Args:
        queue: the delayed queue.
        run: one call of the script.
        command: by which command it calls.
    """

    def __init__(self, queue: DelayedQueue, run: Callable[[], Any], command: str) -> None:
        self.queue = queue
        self.calls_ms: list[float] = []
        self._run = run
        self._command = command

    def call(self) -> float:
        """Call once; return the server's time in ms."""
        before_us = self._used_us()
        self._run()
        self.calls_ms.append((self._used_us() - before_us) / 1000)
        return self.calls_ms[-1]

    def _used_us(self) -> int:
        known: Any = self.queue.client.info("commandstats")
        return int(known.get(f"cmdstat_{self._command}", {}).get("usec", 0))


def our_way(queue: DelayedQueue) -> Caller:
    return Caller(queue, lambda: queue.transfer(transferrer="benchmark", grace=0.25), "evalsha")


def redissons_way(queue: DelayedQueue) -> Caller:
    text = Path(__file__).with_name("redisson_way.lua").read_text()
    keys = [queue.keys.queue, queue.keys.timeout_set]
    if queue.mirror_list:
        keys.append(queue.keys.delay_list)
    return Caller(
        queue,
        lambda: queue.client.eval(text, len(keys), *keys, int(time.time() * 1000), BATCH_SIZE),
        "eval",
    )
