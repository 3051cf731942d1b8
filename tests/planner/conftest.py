"""Planners in this process, on a real server; messages are built without Celery, so that they say what they are."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import redis
from celery import Celery

from celery_delayq.basics.times import to_datetime
from celery_delayq.options.settings import ScheduleSettings
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.holds import Claim
from celery_delayq.schedule import encoding
from celery_delayq.schedule.configured import Configured
from celery_delayq.schedule.definition import Definition
from celery_delayq.schedule.planner import Planner
from celery_delayq.schedule.records import Record, State
from celery_delayq.schedule.scripts import Message, Step
from celery_delayq.schedule.store import ScheduleStore
from celery_delayq.schedule.transitions import policy_of
from tests.support import wait_until

APP = Celery("shop", set_as_current=False)

#: What messages of unique tasks claim.
KEY = Claim("key", "done", 60_000, "keep")


class Stage:
    """One Redis, planners with configurations of their own, and what they offered."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.store = ScheduleStore(client)
        self.built = 0
        #: Tasks whose messages claim `KEY`.
        self.unique = {"unique"}
        self._ids = itertools.count(1)

    def planner(
        self,
        entries: Mapping[str, Any] | None = None,
        *,
        app: str = "shop",
        queues: Mapping[str, str] | None = None,
        is_back: bool = False,
        on_missed: Callable[[str, str, int], None] | None = None,
    ) -> Planner:
        """Return a planner.

        Args:
            entries: the configuration: name -> interval in seconds, or the fields of an entry.
            app: whose configuration.
            queues: task -> broker list, `celery` for others.
            is_back: whether its process had a planner before.
            on_missed: see `Planner`.
        """
        routing = json.dumps(queues or {})
        definitions = {name: definition(name, given, routing) for name, given in (entries or {}).items()}
        together = encoding.fingerprint(sorted(one.fingerprint for one in definitions.values()))
        return Planner(
            ScheduleStore(self.client),
            Configured(app, definitions, {}, together),
            parse=lambda name, data: Definition.of(name, data, APP),
            build=partial(self._build, queues or {}),
            policy=lambda one: policy_of(one, ScheduleSettings()),
            id=f"planner {next(self._ids)}",
            is_back=is_back,
            on_missed=on_missed,
        )

    def _build(self, queues: Mapping[str, str], one: Definition, at_ms: int, lateness_s: float) -> Message:
        self.built += 1
        if one.task == "broken":
            raise RuntimeError("it cannot be built")
        task_id = f"{one.name}/{at_ms}/{self.built}"
        claim = KEY if one.task in self.unique else None
        payload = f"{one.name} {list(one.args)} {at_ms}".encode()
        due_ms = at_ms + one.delay_ms(at_ms)
        return Message(queues.get(one.task, "celery"), task_id, due_ms, payload, claim, can_wait=claim is None)

    def add(self, name: str, given: Any, **record: Any) -> None:
        """Add an entry at run time, or change it."""
        one = definition(name, given)
        seen = self.store.record(name)
        since_ms = Record.parse(seen).since_ms if seen else self.store.now_ms()
        fresh = Record(one.fingerprint, since_ms, one.data(), **record)
        assert self.store.write_record(name, seen, fresh)

    def state(self, name: str, queue: str = "celery") -> State | None:
        """Return where an entry is."""
        raw = self.store.seen([(name, queue)])[0].raw
        return State.parse(raw) if raw else None

    def record(self, name: str) -> Record | None:
        """Return what an entry is."""
        raw = self.store.record(name)
        return Record.parse(raw) if raw else None

    def set_back(self, name: str, ms: int, queue: str = "celery", *, transferred: bool = False) -> None:
        """Let an entry be where it was long ago, as if nobody had planned since."""
        delayed = self.queue(queue)
        old = self.state(name, queue)
        assert old is not None
        assert old.at_ms is not None
        at_ms = old.at_ms - ms
        self.client.hset(
            delayed.keys.schedule, name, State(old.fingerprint, old.planner, at_ms, old.task_id, None, old.runs).dump()
        )
        delayed.cancel(old.task_id)
        if not transferred:
            delayed.offer(b"late", eta=to_datetime(at_ms), message_id=old.task_id)

    def attended_for(self, ms: int, *, silent_ms: int = 0) -> None:
        """Let planners have been there for so long without a gap, and give no sign since."""
        now_ms = self.store.now_ms()
        key = self.store.keys.configurations
        for name in self.client.hkeys(key):
            self.client.hset(key, name, f"1:{now_ms - silent_ms}:{now_ms - ms}")

    def set_runs(self, name: str, runs: int) -> None:
        """Let an entry have run that often."""
        state = self.state(name)
        assert state is not None
        self.client.hset(self.queue().keys.schedule, name, replace(state, runs=runs).dump())

    def leave(self, name: str, queue: str = "celery") -> None:
        """Take an entry out of a queue, as a planner does that moves it."""
        self.store.forget_all(name, [queue])

    def slow_step(self, name: str, queue: str) -> Step:
        """Return what a planner has decided, and not done yet: to plan an entry in a queue, as it is there now."""
        due_ms = self.store.now_ms() + 60_000
        state = State("", "slow", due_ms, "slow").dump()
        offer = Message(queue, "slow", due_ms, b"slow")
        return Step(name, queue, *self.store.seen([(name, queue)]), state, offer=offer)

    def queue(self, name: str = "celery") -> DelayedQueue:
        """Return a delayed queue."""
        return DelayedQueue(self.client, name)

    def waiting(self, queue: str = "celery") -> list[str]:
        """Return what waits, without the time."""
        return [entry.payload.decode().rpartition(" ")[0] for entry in self.queue(queue).peek(1000)]

    def offered(self, queue: str = "celery") -> list[str]:
        """Return everything that was ever offered, in due order."""
        while self.queue(queue).transfer(1000).moved:
            pass
        ready = [raw.decode() for raw in self.client.lrange(queue, 0, -1)][::-1]
        return ready + [entry.payload.decode() for entry in self.queue(queue).peek(1000)]


def definition(name: str, given: Any, routing: str = "") -> Definition:
    """Return the definition of an entry: its fields, or its interval in seconds."""
    fields = dict(given) if isinstance(given, Mapping) else {"schedule": given}
    return Definition.of(name, {"task": "t", **fields}, APP, routing)


def run(*planners: Planner) -> None:
    """Let planners do what is to be done now."""
    for planner in planners:
        while planner.run_due():
            pass


def started(stage: Stage, *args: object, **kwargs: object) -> Planner:
    """Return a planner that has read everything, and planned what was to be planned."""
    planner = stage.planner(*args, **kwargs)  # type: ignore[arg-type]
    planner.read()
    run(planner)
    return planner


def run_until(predicate: Callable[[], Any], description: str, *planners: Planner) -> None:
    """Let planners work until something is so."""

    def done() -> Any:
        run(*planners)
        return predicate()

    wait_until(done, description)


@pytest.fixture
def stage(client: redis.Redis) -> Stage:
    """An empty Redis."""
    return Stage(client)
