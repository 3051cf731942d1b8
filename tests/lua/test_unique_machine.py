"""Any sequence of steps with unique keys, compared with a model of a few lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from celery_delayq.basics.times import to_datetime
from celery_delayq.queue import codec
from celery_delayq.queue.call import Attempt
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.holds import Claim, Conflict, Hold, Holder, Until, hold, unique_of
from celery_delayq.queue.keys import without_priority
from examples.private_redis import PrivateRedis

LISTS = ("q", "q\x06\x163", "other")
KEYS = ("a", "b", "c")
#: Far enough not to be due while a test runs.
FAR = 2**44

UNTIL: list[Until] = ["due", "start", "done", "period"]
CONFLICT: list[Conflict] = ["keep", "replace", "extend"]


@dataclass
class Task:
    """A message that was stored."""

    id: str
    key: str
    until: Until
    due: int | None
    broker_list: str
    #: "waits", "ready" or "gone".
    place: str
    holds: bool = True
    #: How it was offered.
    offer: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        #: Where it was offered.
        self.first_list = self.broker_list

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def owner(self) -> str:
        """The queue of the key."""
        return without_priority(self.broker_list)


class Machine(RuleBasedStateMachine):
    """The scripts, and what they should do."""

    client: redis.Redis

    def __init__(self) -> None:
        super().__init__()
        self.client.flushall()
        self.queues = {name: DelayedQueue(self.client, name) for name in LISTS}
        self.tasks: list[Task] = []
        self.removed_by_java: set[str] = set()

    # -- the model

    def holder(self, key: str, owner: str) -> Task | None:
        holding = (task for task in self.tasks if task.holds and (task.place != "gone" or task.until == "period"))
        return next((task for task in holding if (task.key, task.owner) == (key, owner)), None)

    def of_place(self, place: str) -> list[Task]:
        return [task for task in self.tasks if task.place == place]

    @staticmethod
    def leaves(task: Task) -> None:
        task.place = "ready"
        if task.until == "due":
            task.holds = False

    # -- the steps

    @rule(
        key=st.sampled_from(KEYS),
        until=st.sampled_from(UNTIL),
        conflict=st.sampled_from(CONFLICT),
        due=st.sampled_from([None, 1, 2, FAR, FAR + 1, FAR + 2]),
        name=st.sampled_from(LISTS),
    )
    def offer(self, key: str, until: Until, conflict: Conflict, due: int | None, name: str) -> None:
        task = Task(str(len(self.tasks)), key, until, due, name, "waits" if due is not None else "ready")
        task.offer = {
            "claim": Claim(key, until, 3_600_000, conflict),
            "message_id": task.id,
            "eta": None if due is None else to_datetime(due),
            "payload": task.id.encode(),
            "attempt": Attempt(task.id, bytes(16)),
        }
        found = self.queues[name].offer_unique(**task.offer)
        other = self.holder(key, task.owner)
        if other is None or conflict == "replace":
            assert found.outcome == "stored"
            if other is not None and other.place == "waits" and other.until != "period":
                other.place = "gone"
            elif other is not None:
                other.holds = False
            if due is None:
                self.leaves(task)
            self.tasks.append(task)
        elif (
            conflict == "extend"
            and other.place == "waits"
            and other.until != "period"
            and due is not None
            and due > (other.due or 0)
        ):
            assert (found.outcome, found.broker_list) == ("extend", other.broker_list)
            self.reschedule_one(other, due)
        else:
            assert (found.outcome, found.task_id) == ("held", other.id)

    @precondition(lambda self: self.tasks)
    @rule(data=st.data())
    def offer_again(self, data: Any) -> None:
        """Its publisher missed the reply: nothing changes, whatever has become of it."""
        task = data.draw(st.sampled_from(self.tasks))
        assert self.queues[task.first_list].offer_unique(**task.offer).outcome == "stored"

    def reschedule_one(self, task: Task, due: int) -> None:
        queue = self.queues[task.broker_list]
        (entry,) = queue.find(task.id)
        assert queue.amend(entry, entry.payload, eta=to_datetime(due))
        task.due = due

    @precondition(lambda self: self.of_place("waits"))
    @rule(data=st.data(), due=st.sampled_from([1, 2, FAR, FAR + 1]))
    def reschedule(self, data: Any, due: int) -> None:
        self.reschedule_one(data.draw(st.sampled_from(self.of_place("waits"))), due)

    @precondition(lambda self: self.of_place("waits"))
    @rule(data=st.data())
    def move(self, data: Any) -> None:
        """To the other priority of its queue, and back."""
        task = data.draw(st.sampled_from(self.of_place("waits")))
        name = {LISTS[0]: LISTS[1], LISTS[1]: LISTS[0]}.get(task.broker_list)
        if name is None:
            return
        here, there = self.queues[task.broker_list], self.queues[name]
        (entry,) = here.find(task.id)
        assert here.move(entry, entry.payload, there)
        assert not here.move(entry, entry.payload, there)
        task.broker_list = name

    @rule(name=st.sampled_from(LISTS))
    def transfer(self, name: str) -> None:
        due = [task for task in self.of_place("waits") if task.broker_list == name and (task.due or 0) < FAR]
        assert self.queues[name].transfer(1000).moved == len(due)
        for task in due:
            self.leaves(task)

    @precondition(lambda self: self.of_place("waits"))
    @rule(data=st.data())
    def run_now(self, data: Any) -> None:
        task = data.draw(st.sampled_from(self.of_place("waits")))
        queue = self.queues[task.broker_list]
        assert queue.release([(entry, entry.payload) for entry in queue.find(task.id)]) == [True]
        self.leaves(task)

    @precondition(lambda self: self.of_place("waits"))
    @rule(data=st.data(), how=st.sampled_from(["cancel", "remove", "java"]))
    def take_away(self, data: Any, how: str) -> None:
        task = data.draw(st.sampled_from(self.of_place("waits")))
        queue = self.queues[task.broker_list]
        if how == "cancel":
            assert queue.cancel(task.id) == 1
        elif how == "remove":
            assert queue.remove(queue.find(task.id)) == [True]
        else:
            (entry,) = queue.find(task.id)
            assert self.client.zrem(queue.keys.timeout_set, entry.raw) == 1
            self.removed_by_java.add(task.id)
        task.place = "gone"

    @precondition(lambda self: any(task.until != "period" for task in self.of_place("ready")))
    @rule(data=st.data(), what=st.sampled_from(["start", "renew", "done"]))
    def go_on(self, data: Any, what: Any) -> None:
        # A message whose key is held for a period does not carry it.
        task = data.draw(st.sampled_from([task for task in self.of_place("ready") if task.until != "period"]))
        gives_up = task.holds and (what == "done" or (what == "start" and task.until == "start"))
        holders = [Holder.of(task.key, task.id)]
        assert hold(self.queues[task.broker_list].keys, holders=holders, what=what).run(self.client) == gives_up
        task.holds = task.holds and not gives_up
        if what == "done":
            task.place = "gone"

    # -- what holds always

    @invariant()
    def what_waits_is_what_should(self) -> None:
        for name, queue in self.queues.items():
            expected = sorted(task.id for task in self.of_place("waits") if task.broker_list == name)
            assert sorted(entry.payload.decode() for entry in queue.peek(1000)) == expected

    @invariant()
    def at_most_one_of_a_key_waits(self) -> None:
        waiting = [(task.key, task.owner) for task in self.of_place("waits") if task.until != "period"]
        assert len(waiting) == len(set(waiting))

    @invariant()
    def who_waits_holds(self) -> None:
        assert all(task.holds or task.until == "period" for task in self.of_place("waits"))

    @invariant()
    def the_records_say_who_holds(self) -> None:
        for key, owner in product(KEYS, ("q", "other")):
            raw = self.client.hget(self.queues[owner].keys.holds, unique_of(key))
            record = Hold.of(raw) if isinstance(raw, bytes) else None
            holder = self.holder(key, owner)
            if holder is not None:
                assert record is not None
                waits = holder.place == "waits" and holder.until != "period"
                assert (record.task_id, record.waits) == (holder.id, waits)
            elif record is not None:  # its task was removed by somebody who knows no keys
                assert record.task_id in self.removed_by_java

    @invariant()
    def the_index_is_complete(self) -> None:
        for queue in self.queues.values():
            for entry in queue.peek(1000):
                offer_id = codec.OfferId.from_bytes(entry.id)
                assert offer_id is not None
                place = self.client.hget(queue.keys.index, offer_id.message_key)
                assert place is not None
                assert len(place) == codec.PLACE_SIZE + 16 * offer_id.unique
                assert offer_id.unique == (self.tasks[int(entry.payload)].until != "period")


@pytest.fixture
def machine(redis_server: PrivateRedis) -> Iterator[type[Machine]]:
    with redis_server.client() as client:
        Machine.client = client
        yield Machine
        client.flushall()


@pytest.mark.parametrize("examples", [15, pytest.param(150, marks=pytest.mark.thorough)])
def test_any_sequence(machine: type[Machine], examples: int) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
