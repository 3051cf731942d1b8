"""recover.lua: a consumer that is gone is given up, and its messages go back to the front, each once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from celery_delayq.queue import scripts
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.scripts import Recovered
from tests.state import (
    DEAD,
    RECORDS,
    bury,
    delivered,
    give,
    held,
    lease,
    nothing_changes,
    now_ms,
    out_of_memory,
    publish,
    records,
    renew,
    state,
    wrong_type,
)
from tests.support import wait_until

GONE = "host:2:gone"
CHANNEL = "delayq:alive:0:host:2:gone"
IN_FLIGHT = "delayq:inflight:{q}:host:2:gone"
CONSUMERS = "delayq:consumers:{q}"
MINUTE_MS = 60_000


def recover(
    queue: DelayedQueue,
    score: bytes,
    *messages: bytes,
    gone: bool = False,
    has_ended: bool = True,
    mark: bytes = b"",
    dead: bool = False,
) -> Recovered:
    """Run the script for messages in this order; each is stored with the mark appended.

    Who is gone, its process has ended, unless `has_ended` is False.
    """
    return scripts.recover(
        queue.keys,
        consumer=GONE,
        score=score,
        gone=gone,
        alive_channel=CHANNEL if gone and has_ended else "",
        messages=[(message, message + mark, dead) for message in messages],
    ).run(queue.client)


def ended(queue: DelayedQueue) -> bytes:
    """Give the consumer a lease that has ended."""
    return lease(queue, GONE, ms_left=-1000)


def score(queue: DelayedQueue) -> float | None:
    found: float | None = queue.client.zscore(CONSUMERS, GONE)
    return found


@pytest.fixture
def subscribed(queue: DelayedQueue) -> Iterator[None]:
    """The consumer is still subscribed to its channel."""
    with closing(queue.client.pubsub()) as pubsub:
        pubsub.subscribe(CHANNEL)
        wait_until(lambda: queue.client.pubsub_numsub(CHANNEL)[0][1] == 1, "it is subscribed")
        yield


class TestMessages:
    def test_go_to_the_front_in_their_old_order(self, queue: DelayedQueue) -> None:
        publish(queue, b"waiting")
        give(queue, GONE, b"1", b"2", b"3")
        done = recover(queue, ended(queue), b"3", b"2", b"1", mark=b" again", gone=True)
        assert done == Recovered(given_up=True, moved=[True] * 3, left=0, score=b"")
        assert state(queue.client) == {"q": [b"waiting", b"3 again", b"2 again", b"1 again"]}

    def test_in_several_calls(self, queue: DelayedQueue) -> None:
        give(queue, GONE, b"1", b"2", b"3")
        first = recover(queue, ended(queue), b"3", b"2")
        assert (first.given_up, first.moved, first.left) == (True, [True, True], 1)
        assert first.score == b"%d" % score(queue)
        last = recover(queue, first.score, b"1", gone=True)
        assert last == Recovered(given_up=True, moved=[True], left=0, score=b"")
        assert delivered(queue) == [b"1", b"2", b"3"]

    def test_that_are_dead_become_dead_letters(self, queue: DelayedQueue) -> None:
        bury(queue.client, "q", b"dead before")
        give(queue, GONE, b"1", b"2")
        before = ended(queue)
        first = recover(queue, before, b"2", dead=True, mark=b" letter")
        assert recover(queue, first.score, b"1", gone=True).left == 0
        assert records(queue.client, "q") == [b"dead before", b"2 letter"]
        assert state(queue.client).keys() == {"q", DEAD, RECORDS}
        assert delivered(queue) == [b"1"]

    def test_that_are_not_in_flight_any_more_are_added_nowhere(self, queue: DelayedQueue) -> None:
        give(queue, GONE, b"1", b"3")
        done = recover(queue, ended(queue), b"3", b"acknowledged", b"1")
        assert (done.moved, done.left) == ([True, False, True], 0)
        assert delivered(queue) == [b"1", b"3"]

    def test_of_which_there_are_two_the_same(self, queue: DelayedQueue) -> None:
        give(queue, GONE, b"same", b"other", b"same")
        done = recover(queue, ended(queue), b"same")
        assert (done.moved, done.left) == ([True], 2)
        assert held(queue, GONE) == [b"same", b"other"]
        assert recover(queue, done.score, b"other", b"same", b"same").moved == [True, True, False]
        assert delivered(queue) == [b"same", b"other", b"same"]

    def test_of_any_bytes(self, queue: DelayedQueue) -> None:
        message = bytes(range(256))
        give(queue, GONE, message, b"")
        recover(queue, ended(queue), b"", message)
        assert delivered(queue) == [message, b""]

    def test_of_other_consumers_stay(self, queue: DelayedQueue) -> None:
        give(queue, GONE, b"1")
        give(queue, "another", b"1")
        lease(queue, "another")
        recover(queue, ended(queue), b"1", gone=True)
        assert held(queue, "another") == [b"1"]
        assert queue.client.zrange(CONSUMERS, 0, -1) == [b"another"]


class TestOnlyOnce:
    def test_not_if_the_lease_was_renewed_since_then(self, queue: DelayedQueue) -> None:
        give(queue, GONE, b"1")
        seen = ended(queue)
        renewed = lease(queue, GONE)
        for gone in (True, False):
            with nothing_changes(queue.client):
                assert recover(queue, seen, b"1", gone=gone) == Recovered(False, [], 0, renewed)

    def test_not_while_the_lease_lasts_unless_the_connections_are_gone(self, queue: DelayedQueue) -> None:
        give(queue, GONE, b"1")
        seen = lease(queue, GONE)
        with nothing_changes(queue.client):
            assert recover(queue, seen, b"1") == Recovered(False, [], 0, seen)
        assert recover(queue, seen, b"1", gone=True) == Recovered(True, [True], 0, b"")

    def test_not_if_another_caller_was_faster(self, queue: DelayedQueue, subscribed: None) -> None:
        give(queue, GONE, b"1", b"1")
        seen = ended(queue)
        assert recover(queue, seen, b"1").moved == [True]
        with nothing_changes(queue.client):
            done = recover(queue, seen, b"1")
        assert (done.given_up, done.moved) == (False, [])

    @pytest.mark.parametrize("seen", [b"1", b"-1"])
    def test_not_of_a_consumer_that_is_not_known_any_more(self, queue: DelayedQueue, seen: bytes) -> None:
        give(queue, GONE, b"1")
        for gone in (True, False):
            with nothing_changes(queue.client):
                assert recover(queue, seen, b"1", gone=gone) == Recovered(False, [], 0, b"")

    def test_of_a_consumer_whose_lease_was_deleted(self, queue: DelayedQueue) -> None:
        give(queue, GONE, b"1", b"2")
        with nothing_changes(queue.client):
            assert recover(queue, b"", b"1").given_up is False, "nobody has said that it is gone"
        first = recover(queue, b"", b"2", gone=True)
        assert (first.given_up, first.moved, first.left) == (True, [True], 1)
        with nothing_changes(queue.client):
            assert recover(queue, b"", b"1", gone=True).given_up is False, "another caller was faster"
        assert recover(queue, first.score, b"1", gone=True).moved == [True]
        assert queue.client.lrange("q", 0, -1) == [b"2", b"1"]

    def test_of_nobody_who_holds_nothing(self, queue: DelayedQueue) -> None:
        with nothing_changes(queue.client):
            assert recover(queue, b"", gone=True) == Recovered(False, [], 0, b"")


class TestGivenUp:
    def test_is_marked_with_the_time_while_it_holds_anything(self, queue: DelayedQueue) -> None:
        give(queue, GONE, b"1")
        before = now_ms(queue.client)
        done = recover(queue, ended(queue))
        assert (done.given_up, done.moved, done.left) == (True, [], 1)
        assert before <= -int(done.score) <= now_ms(queue.client)
        assert score(queue) == float(done.score)

    def test_learns_of_it(self, queue: DelayedQueue) -> None:
        give(queue, GONE, b"1", b"2")
        publish(queue, b"waiting")
        recover(queue, ended(queue), b"2")
        assert not renew(queue, GONE, join=True).renewed
        assert scripts.fetch(queue.keys, consumer=GONE, limit=1).run(queue.client) is None
        assert queue.client.lrem(IN_FLIGHT, -1, b"2") == 0  # its acknowledgement
        assert delivered(queue) == [b"2", b"waiting"]

    def test_is_forgotten_at_once_if_its_connections_are_closed(self, queue: DelayedQueue) -> None:
        assert recover(queue, ended(queue), gone=True) == Recovered(True, [], 0, b"")
        assert state(queue.client) == {}

    @pytest.mark.parametrize("gone", [True, False])
    def test_is_remembered_if_its_process_may_live(self, queue: DelayedQueue, gone: bool) -> None:
        """Its subscription may be lost, and one of its connections still wait: that one may get another message."""
        done = recover(queue, ended(queue), gone=gone, has_ended=False)
        assert score(queue) == float(done.score) < 0

    def test_is_remembered_while_it_is_connected(self, queue: DelayedQueue, subscribed: None) -> None:
        done = recover(queue, ended(queue), gone=True)
        assert (done.given_up, done.left) == (True, 0)
        assert score(queue) == float(done.score) < 0

    @pytest.mark.parametrize(("ms_ago", "remembered"), [(MINUTE_MS - 20_000, True), (MINUTE_MS + 1, False)])
    def test_is_remembered_for_a_minute(
        self, queue: DelayedQueue, subscribed: None, ms_ago: int, remembered: bool
    ) -> None:
        seen = b"%d" % -(now_ms(queue.client) - ms_ago)
        queue.client.zadd(CONSUMERS, {GONE: int(seen)})
        done = recover(queue, seen)
        assert done.score == (seen if remembered else b"")
        assert (score(queue) is not None) is remembered

    def test_is_not_forgotten_while_it_holds_anything(self, queue: DelayedQueue) -> None:
        seen = b"%d" % -(now_ms(queue.client) - 2 * MINUTE_MS)
        queue.client.zadd(CONSUMERS, {GONE: int(seen)})
        give(queue, GONE, b"1")
        with nothing_changes(queue.client):
            assert recover(queue, seen) == Recovered(True, [], 1, seen)

    def test_may_get_another_message_which_is_put_back_then(self, queue: DelayedQueue, subscribed: None) -> None:
        """By a blocking command that it sent before."""
        first = recover(queue, ended(queue))
        give(queue, GONE, b"late")
        done = recover(queue, first.score, b"late")
        assert (done.moved, done.score) == ([True], first.score)
        assert delivered(queue) == [b"late"]

    def test_is_remembered_for_a_minute_where_nobody_may_look(self, queue: DelayedQueue) -> None:
        admin = queue.client
        admin.acl_setuser("blind", enabled=True, nopass=True, commands=["+@all", "-pubsub"], keys=["*"])
        port = admin.get_connection_kwargs()["port"]
        try:
            with redis.Redis(port=port, username="blind", password="any") as blind:
                queue.client = blind
                done = recover(queue, ended(queue), gone=True)
                assert score(queue) == float(done.score) < 0
                seen = b"%d" % -(now_ms(blind) - MINUTE_MS - 1)
                blind.zadd(CONSUMERS, {GONE: int(seen)})
                assert recover(queue, seen).score == b""
        finally:
            admin.acl_deluser("blind")


class TestTrouble:
    @pytest.mark.parametrize("key", ["q", CONSUMERS, IN_FLIGHT, DEAD, RECORDS])
    def test_keys_of_another_type(self, queue: DelayedQueue, key: str) -> None:
        """Not even the mark is there if they cannot be put back."""
        publish(queue, b"waiting")
        give(queue, GONE, b"1", b"2")
        bury(queue.client, "q", b"dead before")
        seen = ended(queue)
        wrong_type(queue, key, lambda: recover(queue, seen, b"2", b"1"))

    @pytest.mark.parametrize("dead", [False, True])
    def test_a_full_server_does_not_stop_it(self, queue: DelayedQueue, dead: bool) -> None:
        give(queue, GONE, b"1", b"2")
        seen = ended(queue)
        with out_of_memory(queue.client):
            first = recover(queue, seen, b"2", dead=dead, mark=b" longer than before")
            assert (first.given_up, first.moved, first.left) == (True, [True], 1)
            last = recover(queue, first.score, b"1", dead=dead, mark=b" longer than before", gone=True)
        assert (last.moved, last.score) == ([True], b"")
        assert len(records(queue.client, "q") if dead else delivered(queue)) == 2


MESSAGES = st.sampled_from([b"a", b"b", b"c", b"\x00\xff"])
CONSUMER_NAMES = st.sampled_from(["one", "two"])
SOME = st.lists(st.integers(0, 5), max_size=6)


class Interleaved(RuleBasedStateMachine):
    """Two consumers and those who recover them, step by step: what they look at may be old when they act on it.

    A message that is put back gets one more "+". It is the same message by its first byte or bytes.
    """

    queue: DelayedQueue

    def __init__(self) -> None:
        super().__init__()
        self.queue.client.flushall()
        self.there: Counter[bytes] = Counter()
        self.ids = {"one": "one 0", "two": "two 0"}
        self.looks: list[tuple[str, bytes, list[bytes]]] = []
        for name in self.ids:
            self.join(name)

    def call(self, name: str) -> dict[str, Any]:
        return {"keys": self.queue.keys, "consumer": self.ids[name]}

    def join(self, name: str) -> None:
        """Join; a consumer that was given up is replaced by one with another id."""
        while not renew(self.queue, self.ids[name], lease_ms=1_000_000, join=True).renewed:
            self.ids[name] = f"{name} {int(self.ids[name].split()[1]) + 1}"

    def chosen(self, name: str, places: list[int]) -> list[bytes]:
        """Return some of what a consumer holds, and some that it does not."""
        messages = [*held(self.queue, self.ids[name]), b"never"]
        return [messages[place % len(messages)] for place in places]

    @rule(message=MESSAGES)
    def publish(self, message: bytes) -> None:
        publish(self.queue, message)
        self.there[message] += 1

    @rule(name=CONSUMER_NAMES, limit=st.integers(1, 4))
    def fetch(self, name: str, limit: int) -> None:
        waiting = delivered(self.queue)
        found = scripts.fetch(**self.call(name), limit=limit).run(self.queue.client)
        if found is None:
            self.join(name)
        else:
            assert found == waiting[:limit]

    @rule(name=CONSUMER_NAMES, places=SOME)
    def acknowledge(self, name: str, places: list[int]) -> None:
        for message in self.chosen(name, places):
            if self.queue.client.lrem(self.queue.keys.in_flight(self.ids[name]), -1, message):
                self.there[message.rstrip(b"+")] -= 1

    @rule(name=CONSUMER_NAMES, places=SOME, to_front=st.booleans(), dead=st.booleans())
    def put_back(self, name: str, places: list[int], to_front: bool, dead: bool) -> None:
        pairs = [(message, message + b"+") for message in self.chosen(name, places)]
        scripts.put_back(**self.call(name), messages=pairs, to_front=to_front, dead=dead).run(self.queue.client)

    @rule(name=CONSUMER_NAMES)
    def look(self, name: str) -> None:
        consumer = self.ids[name]
        found = self.queue.client.zscore(CONSUMERS, consumer)
        if found is not None:
            in_flight = self.queue.client.lrange(self.queue.keys.in_flight(consumer), 0, 2)
            self.looks.append((consumer, b"%d" % found, in_flight))

    @precondition(lambda self: self.looks)
    @rule(place=st.integers(0, 20), dead=st.booleans())
    def recover(self, place: int, dead: bool) -> None:
        consumer, seen, in_flight = self.looks.pop(place % len(self.looks))
        scripts.recover(
            self.queue.keys,
            consumer=consumer,
            score=seen,
            gone=True,
            alive_channel="nobody",
            messages=[(message, message + b"+", dead) for message in in_flight],
        ).run(self.queue.client)

    @rule(name=CONSUMER_NAMES)
    def leave(self, name: str) -> None:
        if scripts.leave(**self.call(name)).run(self.queue.client):
            assert not held(self.queue, self.ids[name])

    @invariant()
    def each_message_is_there_once(self) -> None:
        lists = [value for key, value in state(self.queue.client).items() if key not in (CONSUMERS, DEAD, RECORDS)]
        lists.append(records(self.queue.client, "q"))
        found = Counter(message.rstrip(b"+") for messages in lists for message in messages)
        assert found == +self.there

    @invariant()
    def whoever_holds_anything_is_known(self) -> None:
        prefix = self.queue.keys.in_flight("")
        holders = {key.removeprefix(prefix) for key in state(self.queue.client) if key.startswith(prefix)}
        assert holders <= {name.decode() for name in self.queue.client.zrange(CONSUMERS, 0, -1)}


@pytest.mark.parametrize("examples", [10, pytest.param(60, marks=pytest.mark.thorough)])
def test_no_message_is_lost_or_doubled_whoever_comes_between(one_queue: DelayedQueue, examples: int) -> None:
    machine = type("Machine", (Interleaved,), {"queue": one_queue})
    run_state_machine_as_test(
        machine,
        settings=settings(
            deadline=None, max_examples=examples, stateful_step_count=40, suppress_health_check=list(HealthCheck)
        ),
    )
