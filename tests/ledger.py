"""A ledger of executed tasks, kept in a Redis of its own, that tells lost, twice and early apart."""

from __future__ import annotations

import json
import os
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import redis

_KEY = "ledger"
_STARTS, _ENDS = "starts", "ends"
_ACCEPTED = "accepted"


@dataclass(frozen=True)
class Run:
    """One execution of a task.

    Attributes:
        task_id: the id of the task.
        at_ms: when it began, unix time in ms by the clock of the ledger's Redis: a worker's own may be wrong.
        note: what else the task wrote down.
    """

    task_id: str
    at_ms: float
    note: Any


@dataclass(frozen=True)
class Execution:
    """One execution of a task that writes down its start and its end; unix time, by the clock of the ledger's Redis.

    Attributes:
        task_id: the id of the task.
        worker: the id of the worker's main process, which leads the group of all its processes.
        started_s: when it began.
        ended_s: when it ended; None if it did not.
    """

    task_id: str
    worker: int
    started_s: float
    ended_s: float | None


@dataclass(frozen=True)
class Acceptance:
    """That a worker accepted a task, written down just before it acknowledges those that are acknowledged early.

    Attributes:
        task_id: the id of the task.
        worker: the id of the worker's main process, see `Execution`.
        pid: the process that begins it.
        at_s: when, unix time by the clock of the ledger's Redis.
    """

    task_id: str
    worker: int
    pid: int
    at_s: float


@dataclass(frozen=True)
class Verdict:
    """What became of promised tasks; empty sets if every one ran once, and not before it was due."""

    lost: set[str]
    twice: set[str]
    early: set[str]


ALL_WELL = Verdict(set(), set(), set())


class Ledger:
    """Where tasks write down that they ran, and tests read it. One Redis database, which it may empty."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = redis.Redis.from_url(url)

    def clear(self) -> None:
        """Forget everything."""
        self.client.flushdb()

    def _now_ms(self) -> float:
        """Return the time of the server, unix time in ms: a worker's own clock may be wrong."""
        seconds, microseconds = self.client.time()
        return float(seconds * 1000 + microseconds / 1000)

    def record(self, task_id: str, note: Any = None) -> None:
        """Write down that a task runs now."""
        self.client.rpush(_KEY, json.dumps([task_id, self._now_ms(), note]))

    def runs(self) -> list[Run]:
        """Return all executions, in the order in which they began."""
        return [Run(*json.loads(line)) for line in self.client.lrange(_KEY, 0, -1)]

    @contextmanager
    def execution(self, task_id: str) -> Iterator[None]:
        """Write down that a task runs, and that it has come to its end."""
        key = uuid.uuid4().hex
        self.client.hset(_STARTS, key, json.dumps([task_id, os.getpgrp(), self._now_ms() / 1000]))
        yield
        self.client.hset(_ENDS, key, self._now_ms() / 1000)

    def executions(self) -> list[Execution]:
        """Return what `execution` wrote down."""
        ends = {key: float(end) for key, end in self.client.hgetall(_ENDS).items()}  # first: each has its start then
        starts = {key: json.loads(start) for key, start in self.client.hgetall(_STARTS).items()}
        return [Execution(task_id, worker, at_s, ends.get(key)) for key, (task_id, worker, at_s) in starts.items()]

    def accept(self, task_id: str, pid: int) -> None:
        """Write down that a task was accepted."""
        self.client.rpush(_ACCEPTED, json.dumps([task_id, os.getpgrp(), pid, self._now_ms() / 1000]))

    def acceptances(self) -> list[Acceptance]:
        """Return what `accept` wrote down."""
        return [Acceptance(*json.loads(line)) for line in self.client.lrange(_ACCEPTED, 0, -1)]

    def has(self, task_ids: Iterable[str]) -> bool:
        """Return whether all of these tasks ran at least once."""
        return {run.task_id for run in self.runs()}.issuperset(task_ids)

    def run_of(self, task_id: str) -> Run:
        """Return the only execution of a task."""
        (run,) = [run for run in self.runs() if run.task_id == task_id]
        return run

    def verdict(self, promised_ms: Mapping[str, float]) -> Verdict:
        """Compare the executions with what was promised: task id -> due, unix time in ms."""
        runs = self.runs()
        times = Counter(run.task_id for run in runs)
        return Verdict(
            lost=promised_ms.keys() - times.keys(),
            twice={task_id for task_id, count in times.items() if count > 1},
            early={r.task_id for r in runs if r.at_ms < int(promised_ms.get(r.task_id, 0))},
        )
