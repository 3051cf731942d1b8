"""Periodic tasks: how a planner starts with many entries, what a full minute costs, and how late occurrences are."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

import redis

from celery_delayq import DelayedQueue
from celery_delayq.queue.keys import QueueKeys
from examples.private_redis import PrivateRedis
from tests.benchmarks.beats import REDBEAT, Beat, installed
from tests.benchmarks.figures import OURS, STOCK, percentile
from tests.benchmarks.loops import Fleet
from tests.benchmarks.report import Report
from tests.benchmarks.scale import Scale
from tests.benchmarks.usage import process_bytes, process_cpu_s, server_bytes, server_cpu_s
from tests.support import wait_until

_QUEUE = "celery"
_KEYS = QueueKeys.of(_QUEUE)
_REDBEAT_SCHEDULE = "redbeat::schedule"

_PERCENTS = {"p50": 50, "p99": 99, "max": 100}

#: How long a start and a storm may take, in seconds.
_DEADLINE_S = 600

#: How often is looked how many messages have come, in seconds.
_LOOK_EVERY_S = 0.002

#: So long before the minute CPU begins to count, in seconds.
_JUST_BEFORE_S = 0.5

#: How long a planner takes to start, and to plan an entry, at most, in seconds.
_TO_START_S, _TO_PLAN_S = 10.0, 0.005

#: Occurrences a second of entries that are not due at one instant.
_A_SECOND = 333

#: A planner that used less CPU than this, in seconds, within this time, has nothing more to do.
_IDLE_CPU_S, _IDLE_FOR_S = 0.05, 1.5


def run(scale: Scale) -> Report:
    report = Report(f"periodic tasks: {scale.entries:,} entries, and {scale.storm:,} that are due at one full minute")
    _start(report, scale)
    _full_minute(report, scale)
    _spread(report, scale)
    report.notes += [
        f"Start: from the start of the process until all entries are in Redis, with {OURS} also their next "
        f"occurrences; {scale.peer_entries:,} entries with {REDBEAT}, {scale.entries:,} with {OURS}.",
        "Lateness: from the time of an occurrence until its message is in the broker list.",
        f"Spread: {scale.spread:,} entries, due at equal distances, {_A_SECOND} a second: one occurrence of each.",
        "CPU: of the process that plans, and of Redis, from just before the minute until both have nothing more to do; "
        "with ours the transfer loop, which every worker has, is not counted.",
    ]
    if REDBEAT not in installed(REDBEAT):
        report.notes.append(f"{REDBEAT} is not installed (pip install --group bench): left out, or stock beat.")
    if scale.storms_together:
        report.notes.append("All variants at the same full minute, so they disturb each other: for a quick run only.")
    return report


def _start(report: Report, scale: Scale) -> None:
    seconds = report.figure(f"start of a planner with {scale.entries:,} entries", "s")
    cpu = report.figure(f"start of a planner with {scale.entries:,} entries: its CPU", "s")
    each = report.figure("start of a planner, an entry", "ms", baseline=REDBEAT)
    used = report.figure("Redis, an entry", "bytes", baseline=REDBEAT)
    resident = report.figure("planner, resident memory", "MiB", baseline=REDBEAT)
    for variant in installed(REDBEAT, OURS):
        entries = scale.entries if variant == OURS else scale.peer_entries
        with PrivateRedis() as server, server.client() as client:
            before, begin = server_bytes(client), time.monotonic()
            with Beat(variant, server.port, "daily", entries) as beat:
                wait_until(partial(_has_all, client, variant, entries), "all entries are there", _DEADLINE_S)
                took_s = time.monotonic() - begin
                if variant == OURS:
                    seconds.add(variant, took_s)
                    cpu.add(variant, process_cpu_s(beat.pid))
                each.add(variant, took_s * 1000 / entries)
                used.add(variant, (server_bytes(client) - before) / entries)
                resident.add(variant, process_bytes(beat.pid) / 2**20)
                beat.kill()


def _has_all(client: redis.Redis, variant: str, entries: int) -> bool:
    if variant == REDBEAT:
        return int(client.zcard(_REDBEAT_SCHEDULE)) >= entries
    return int(client.zcard(_KEYS.timeout_set)) >= entries


def _spread(report: Report, scale: Scale) -> None:
    late = {words: report.figure(f"spread: lateness {words}", "ms") for words in _PERCENTS}
    with PrivateRedis() as server, server.client() as client, _transfer_loop(server, client):
        begin = time.time() + _TO_START_S + scale.spread * _TO_PLAN_S
        with Beat(OURS, server.port, "spread", scale.spread, begin, scale.spread / _A_SECOND):
            wait_until(partial(_has_all, client, OURS, scale.spread), "all are planned", _DEADLINE_S)
            if time.time() > begin:
                raise RuntimeError("planning took longer than expected: the first were due before its end")
            found = [_taken(client) for _ in range(scale.spread)]
    for words, percent in _PERCENTS.items():
        late[words].add(OURS, percentile(found, percent))


def _taken(client: redis.Redis) -> float:
    """Take a message as a worker would; return how late it came, in ms."""
    taken: Any = client.brpop([_QUEUE], timeout=_DEADLINE_S)
    now = time.time()
    return (now - datetime.fromisoformat(json.loads(taken[1])["headers"]["eta"]).timestamp()) * 1000


@dataclass
class _Storm:
    """One planner before, at and after a full minute.

    Attributes:
        late_ms: of each message.
        cpu_ms: of the planner and of Redis.
    """

    variant: str
    entries: int
    server: PrivateRedis
    client: redis.Redis
    beat: Beat
    late_ms: list[float] = field(default_factory=list)
    cpu_ms: tuple[float, float] = (0.0, 0.0)

    def cpu_s(self) -> tuple[float, float]:
        """Return the CPU that the planner and the server have used."""
        return process_cpu_s(self.beat.pid), server_cpu_s(self.client)

    def look(self, minute: float) -> bool:
        """Note what has come; returns whether that is all."""
        come = int(self.client.llen(_QUEUE)) - len(self.late_ms)
        self.late_ms += [(time.time() - minute) * 1000] * come
        return len(self.late_ms) >= self.entries


def _full_minute(report: Report, scale: Scale) -> None:
    late = {words: report.figure(f"full minute: lateness {words}", "ms") for words in _PERCENTS}
    planner = report.figure("full minute: CPU of the planner, an occurrence", "ms")
    server = report.figure("full minute: CPU of Redis, an occurrence", "ms")
    variants = [(installed(REDBEAT) or [STOCK])[0], OURS]
    for together in [variants] if scale.storms_together else [[variant] for variant in variants]:
        for storm in _storms(together, scale.storm):
            for words, percent in _PERCENTS.items():
                late[words].add(storm.variant, percentile(storm.late_ms, percent))
            planner.add(storm.variant, storm.cpu_ms[0] / storm.entries)
            server.add(storm.variant, storm.cpu_ms[1] / storm.entries)


def _storms(variants: list[str], entries: int) -> list[_Storm]:
    with ExitStack() as stack:
        storms = []
        for variant in variants:
            server = stack.enter_context(PrivateRedis())
            client = stack.enter_context(server.client())
            if variant == OURS:
                stack.enter_context(_transfer_loop(server, client))
            beat = stack.enter_context(Beat(variant, server.port, "minutely", entries))
            storms.append(_Storm(variant, entries, server, client, beat))
        for storm in storms:
            _wait_until_idle(storm)
        minute = _next_minute()
        for storm in storms:
            storm.client.delete(_QUEUE)  # RedBeat sends an entry that never ran at once
        waiting = list(storms)
        _sleep_until(minute - _JUST_BEFORE_S)
        before = [storm.cpu_s() for storm in storms]
        _sleep_until(minute)
        while waiting and time.time() < minute + _DEADLINE_S:
            waiting = [storm for storm in waiting if not storm.look(minute)]
            time.sleep(_LOOK_EVERY_S)
        for storm, (planner_s, server_s) in zip(storms, before, strict=True):
            idle_after = _wait_until_idle(storm)
            storm.cpu_ms = ((idle_after[0] - planner_s) * 1000, (idle_after[1] - server_s) * 1000)
        return storms


def _next_minute() -> float:
    """Return the next full minute that is some seconds away."""
    return (int(time.time() + 2) // 60 + 1) * 60.0


def _sleep_until(when: float) -> None:
    time.sleep(max(0.0, when - time.time()))


def _wait_until_idle(storm: _Storm) -> tuple[float, float]:
    """Wait until a planner and its server have nothing more to do; return the CPU they had used by then."""
    wait_until(lambda: _knows_all(storm), "the planner has all entries", _DEADLINE_S)
    used = storm.cpu_s()
    until = time.monotonic() + _DEADLINE_S
    while time.monotonic() < until:
        time.sleep(_IDLE_FOR_S)
        now = storm.cpu_s()
        if now[0] - used[0] < _IDLE_CPU_S:
            return used
        used = now
    raise RuntimeError(f"{storm.variant} is never done with {storm.entries:,} entries")


def _knows_all(storm: _Storm) -> bool:
    return storm.variant == STOCK or _has_all(storm.client, storm.variant, storm.entries)


def _transfer_loop(server: PrivateRedis, client: redis.Redis) -> Fleet:
    DelayedQueue(client, _QUEUE).register()
    return Fleet(server.port, 1)
