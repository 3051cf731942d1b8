"""Planners whose commands reach the server in any order: before each one, whose turn it is is drawn by lot."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import redis
from greenlet import greenlet

from celery_delayq.cluster.client import Routed
from celery_delayq.cluster.pipeline import RoutedPipeline
from celery_delayq.options.settings import ScheduleSettings
from celery_delayq.schedule.configured import Configured
from celery_delayq.schedule.definition import Definition
from celery_delayq.schedule.planner import Planner
from celery_delayq.schedule.records import Record, State
from celery_delayq.schedule.scripts import Message
from celery_delayq.schedule.store import ScheduleStore
from celery_delayq.schedule.transitions import policy_of
from tests.planner.conftest import APP, definition
from tests.support import wait_until

pytestmark = pytest.mark.on_cluster

QUEUES = ("celery", "mine", "other")
INTERVAL_MS = 10

#: Turns of one run: some 2 s, in which the entry is changed some 200 times.
TURNS = 50_000


def give_way() -> None:
    """Let another actor send its command first."""
    director = greenlet.getcurrent().parent
    if director is not None:
        director.switch()


class Pipeline(redis.client.Pipeline):
    refuses: Callable[[], bool]

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        give_way()
        commands = len(self.command_stack)
        if not raise_on_error and self.refuses():
            self.reset()
            return [redis.ResponseError("OOM")] * commands
        return super().execute(raise_on_error)


class Client(redis.Redis):
    """A client whose user may be interrupted before each round trip, and whose pipelines the server may refuse."""

    refuses: Callable[[], bool]

    def execute_command(self, *args: Any, **options: Any) -> Any:
        give_way()
        return super().execute_command(*args, **options)

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        pipeline = Pipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)
        pipeline.refuses = self.refuses
        return pipeline


class RoutedClient(Routed):
    """The same for a cluster, where a pipeline is no single step: the nodes get its commands at different times."""

    refuses: Callable[[], bool]

    def execute_command(self, *args: Any, **options: Any) -> Any:
        give_way()
        return super().execute_command(*args, **options)

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> RoutedPipeline:
        pipeline = InterruptedPipeline(self.router, self.response_callbacks, transaction, shard_hint)
        pipeline.refuses = self.refuses
        return pipeline


class InterruptedPipeline(RoutedPipeline):
    refuses: Callable[[], bool]

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        give_way()
        commands = len(self.command_stack)
        if not raise_on_error and self.refuses():
            self.reset()
            return [redis.ResponseError("OOM")] * commands
        return super().execute(raise_on_error)

    def execute_routed(self, stack: Sequence[Any]) -> list[Any]:
        replies = []
        for command in stack:
            give_way()
            replies += super().execute_routed([command])
        return replies


def interrupted(client: redis.Redis) -> Client | RoutedClient:
    """Return another client of the same broker, whose user may be interrupted."""
    if isinstance(client, Routed):
        return RoutedClient(client.topology)
    return Client(connection_pool=client.connection_pool)


class Play:
    """One entry `a`, and those who plan, change and transfer it."""

    def __init__(self, client: Client | RoutedClient, seed: int) -> None:
        self.client, self.store = client, ScheduleStore(client)
        self._in_trouble = True
        self.choose = random.Random(seed)
        self._messages = 0
        self.inboxes: dict[int, list[int]] = {}
        client.refuses = self._refuses

    def _refuses(self) -> bool:
        """Whether the server refuses what a planner wants."""
        return self._in_trouble and self.choose.random() < 0.01

    def planner(self, number: int) -> None:
        """Plan; hear of changes after a while; never end."""
        heard = self.inboxes[number] = []
        planner = Planner(
            self.store,
            Configured("shop", {}, {}, "none"),
            parse=lambda name, data: Definition.of(name, data, APP),
            build=self._build,
            policy=lambda one: policy_of(one, ScheduleSettings(missed="all")),
            id=f"planner {number}",
        )
        planner.read()
        while True:
            planner.run_due()
            while heard:
                planner.on_changes([(heard.pop(0), "a")])
            if self.choose.random() < 0.01:
                planner.look()
            give_way()

    def _build(self, one: Definition, at_ms: int, lateness_s: float) -> Message:
        self._messages += 1
        task_id = f"{at_ms}/{self._messages}"
        return Message(one.options["queue"], task_id, at_ms, str(at_ms).encode())

    def changer(self, number: int) -> None:
        """Pause the entry, resume it, or give it another queue, again and again."""
        while True:
            change = self.choose.choice([self.move, self.move, self.pause, self.resume])
            with suppress(redis.ResponseError):
                change()
            for _ in range(self.choose.randrange(100)):
                give_way()

    def move(self, queue: str = "") -> None:
        """Let the entry go to a queue."""
        one = definition(
            "a", {"schedule": INTERVAL_MS / 1000, "options": {"queue": queue or self.choose.choice(QUEUES)}}
        )
        self._change(lambda record: replace(record, fingerprint=one.fingerprint, definition=one.data()))

    def pause(self) -> None:
        record = self._change(lambda record: replace(record, paused=True))
        if record.queue is not None:
            self.store.rest("a", record.queue)

    def resume(self) -> None:
        self._change(lambda record: replace(record, paused=False))

    def _change(self, change: Callable[[Record], Record]) -> Record:
        while True:
            seen = self.store.record("a")
            record = change(Record.parse(seen) if seen else Record("", self.store.now_ms(), None))
            number = self.store.write_record("a", seen, record)
            if number:
                for heard in self.inboxes.values():
                    heard.append(number)
                return record

    def transferrer(self, number: int) -> None:
        """What is due is transferred; other entries are removed."""
        while True:
            queue = self.choose.choice(QUEUES)
            self.store.queue(queue).transfer(100)
            if self.choose.random() < 0.1:
                with suppress(redis.ResponseError):
                    self.store.forget_all("another", [queue])

    def run(self, turns: int, *, planners: int = 3) -> None:
        """Give turns to all; now and then a planner is killed, and another one comes; some get no turn for a while."""
        self.move("celery")
        actors = {number: greenlet(self.planner) for number in range(planners)}
        actors[-1], actors[-2] = greenlet(self.changer), greenlet(self.transferrer)
        newest = planners - 1
        awake = list(actors)
        for _ in range(turns):
            if self.choose.random() < 0.002:
                actors.pop(gone := self.choose.choice([n for n in actors if n >= 0])).throw()
                self.inboxes.pop(gone, None)
                newest += 1
                actors[newest] = greenlet(self.planner)
                awake = list(actors)
            if self.choose.random() < 0.02:
                asleep = self.choose.choice([*actors, None])
                awake = [number for number in actors if number != asleep]
            number = self.choose.choice(awake)
            actors[number].switch(number)
        for actor in actors.values():
            actor.throw()

    def settle(self) -> None:
        """Let one planner alone end what the others left half done, and pause the entry."""
        self._in_trouble = False
        last = greenlet(self.planner)
        self.resume()
        wait_until(lambda: self._go_on(last) and self._state() and self._state().task_id, "it is planned")
        self.pause()
        wait_until(lambda: self._go_on(last) and self._state().at_ms is None, "it rests")
        last.throw()

    def _go_on(self, actor: greenlet) -> bool:
        for _ in range(100):
            actor.switch(-3)
        return True

    def _state(self) -> State | None:
        raw = self.store.seen([("a", Record.parse(self.store.record("a")).queue)])[0].raw
        return State.parse(raw) if raw else None

    def runs(self) -> int:
        """Return how often it ran, as its state says."""
        state = self._state()
        assert state is not None
        return state.runs

    def sent(self) -> list[int]:
        """Return the times of all that was sent."""
        for queue in QUEUES:
            while self.store.queue(queue).transfer(100).moved:
                pass
            assert self.store.queue(queue).size() == 0
        return [int(raw) for queue in QUEUES for raw in self.client.lrange(queue, 0, -1)]


@pytest.mark.parametrize("seed", range(6))
def test_no_occurrence_is_sent_twice(client: redis.Redis, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """An entry is paused, and goes from queue to queue; planners come and go, have old views of it, or are refused."""
    monkeypatch.setattr("celery_delayq.schedule.planner._RETRY_MS", (5, 20))
    play = Play(interrupted(client), seed)
    play.run(TURNS)
    play.settle()
    times = play.sent()
    assert len(times) > 10
    assert max(Counter(times).values()) == 1, {at for at, n in Counter(times).items() if n > 1}
    assert play.runs() == len(times)
