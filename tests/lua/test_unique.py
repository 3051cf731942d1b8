"""offer_unique.lua, hold.lua, and what the other scripts do with unique keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import redis

from celery_delayq.basics.times import to_datetime
from celery_delayq.queue import codec, holds, scripts
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.holds import Claim, Hold, Holder, Offered, acknowledge, hold, unique_of
from celery_delayq.queue.keys import registry
from celery_delayq.schedule.records import Seen
from celery_delayq.schedule.scripts import CHANGED, DONE, ELSEWHERE, LEFT_OUT, Message, Planned, Step, plan
from tests.state import nothing_changes, now_ms, out_of_memory
from tests.support import wait_until

LATER = 2**44
KEY = "remind:42"

#: What an offer writes besides.
REGISTRY = {registry().encode()}


def offered(
    queue: DelayedQueue,
    task_id: str,
    due_ms: int | None = LATER,
    *,
    until: Any = "due",
    conflict: Any = "keep",
    key: str = KEY,
    payload: bytes | None = None,
    turn: int = 0,
) -> Offered:
    return queue.offer_unique(
        payload if payload is not None else task_id.encode(),
        Claim(key, until, 60_000, conflict),
        eta=None if due_ms is None else to_datetime(due_ms),
        message_id=task_id,
        turn=turn,
    )


def waiting(queue: DelayedQueue) -> list[tuple[int, bytes]]:
    return [(entry.score, entry.payload) for entry in queue.peek(100)]


def held_by(queue: DelayedQueue, key: str = KEY) -> str | None:
    found = record(queue, key)
    return None if found is None else found.task_id


def record(queue: DelayedQueue, key: str = KEY) -> Hold | None:
    (found,) = holds.holds_of(queue.client, [queue.keys], key) or [None]
    return found


@pytest.fixture(params=[False, True], ids=["plain", "mirrored"])
def mirrored(request: pytest.FixtureRequest, queue: DelayedQueue) -> DelayedQueue:
    return DelayedQueue(queue.client, "q", mirror_list=request.param)


def has_no_trace(queue: DelayedQueue) -> bool:
    """Whether nothing waits, and nothing is left of it."""
    keys = queue.keys
    return not queue.client.exists(keys.timeout_set, keys.index, keys.repeated, keys.delay_list, keys.holds)


class TestOffer:
    def test_the_first_one_waits_and_holds(self, mirrored: DelayedQueue) -> None:
        assert offered(mirrored, "one") == Offered("stored", alone=True, task_id="one")
        assert waiting(mirrored) == [(LATER, b"one")]
        assert record(mirrored) == Hold("due", True, 0, "q", "one")
        raw = mirrored.client.hget(mirrored.keys.holds, unique_of(KEY))
        assert isinstance(raw, bytes)
        assert raw.startswith(codec.message_key("one") + b"\0ww" + (60_000).to_bytes(8, "big"))
        (entry,) = mirrored.find("one")
        found = codec.OfferId.from_bytes(entry.id)
        assert found is not None
        assert (found.message_key, found.mirrored) == (codec.message_key("one"), mirrored.mirror_list)
        assert (found.unique, found.repeated) == (True, False)

    def test_the_first_one_stays(self, mirrored: DelayedQueue) -> None:
        offered(mirrored, "one")
        for due in (LATER, LATER - 1, LATER + 1, None):
            assert offered(mirrored, "two", due) == Offered("held", task_id="one")
        assert waiting(mirrored) == [(LATER, b"one")]
        assert held_by(mirrored) == "one"

    def test_other_keys_are_free(self, mirrored: DelayedQueue) -> None:
        offered(mirrored, "one")
        assert offered(mirrored, "two", key="remind:43").outcome == "stored"

    @pytest.mark.parametrize("due", [LATER, LATER - 1, LATER + 1])
    def test_the_last_one_stays(self, mirrored: DelayedQueue, due: int) -> None:
        offered(mirrored, "one")
        assert offered(mirrored, "two", due, conflict="replace").outcome == "stored"
        assert waiting(mirrored) == [(due, b"two")]
        assert held_by(mirrored) == "two"
        assert not mirrored.find("one")
        mirrored.cancel("two")
        assert has_no_trace(mirrored)

    def test_one_that_is_due_now_takes_the_place_of_one_that_waits(self, mirrored: DelayedQueue) -> None:
        offered(mirrored, "one")
        assert offered(mirrored, "two", None, conflict="replace").outcome == "stored"
        assert mirrored.client.lrange("q", 0, -1) == [b"two"]
        mirrored.client.delete("q")
        assert has_no_trace(mirrored)

    def test_the_later_time_counts(self, mirrored: DelayedQueue) -> None:
        offered(mirrored, "one")
        assert offered(mirrored, "two", LATER, conflict="extend") == Offered("held", task_id="one")
        assert offered(mirrored, "two", LATER - 1, conflict="extend") == Offered("held", task_id="one")
        found = offered(mirrored, "two", LATER + 1, conflict="extend")
        (entry,) = mirrored.find("one")
        assert found == Offered("extend", entry=entry.raw, broker_list="q")
        assert mirrored.amend(entry, b"changed", eta=to_datetime(LATER + 1))
        assert waiting(mirrored) == [(LATER + 1, b"changed")]
        assert offered(mirrored, "three", LATER + 1) == Offered("held", task_id="one")

    def test_the_same_call_again(self, mirrored: DelayedQueue) -> None:
        """Its reply may have been lost."""
        for conflict in ("keep", "replace", "extend"):
            assert offered(mirrored, "one", conflict=conflict).outcome == "stored"
            assert waiting(mirrored) == [(LATER, b"one")]

    def test_the_same_id_again_with_something_else(self, mirrored: DelayedQueue) -> None:
        offered(mirrored, "one")
        assert offered(mirrored, "one", payload=b"other") == Offered("held", task_id="one")
        assert offered(mirrored, "one", LATER + 5, payload=b"other", conflict="replace").outcome == "stored"
        assert waiting(mirrored) == [(LATER + 5, b"other")]
        assert offered(mirrored, "one", key="another") == Offered("repeated")
        assert waiting(mirrored) == [(LATER + 5, b"other")]
        mirrored.cancel("one")
        assert has_no_trace(mirrored)

    @pytest.mark.parametrize("until", ["start", "done"])
    @pytest.mark.parametrize("conflict", ["keep", "replace", "extend"])
    def test_the_same_call_again_without_a_due_time(self, queue: DelayedQueue, until: str, conflict: str) -> None:
        """It is in the broker list, or runs. Its next retry is another message."""
        for _ in range(2):
            assert offered(queue, "one", None, until=until, conflict=conflict).outcome == "stored"
            assert queue.client.lrange("q", 0, -1) == [b"one"]
        assert offered(queue, "one", None, until=until, turn=1).outcome == "stored"
        assert queue.client.llen("q") == 2

    @pytest.mark.parametrize("garbage", [b"", b"A" * 19, b"A" * 18 + b"w" + b"A" * 20, b"A" * 18 + b"r" + b"\0" * 18])
    def test_records_that_somebody_else_wrote(self, mirrored: DelayedQueue, garbage: bytes) -> None:
        for key in (KEY, *(str(number) for number in range(20))):
            mirrored.client.hset(mirrored.keys.holds, unique_of(key), garbage)
        for number in range(30):
            assert offered(mirrored, str(number), 1, key=str(number), until="done").outcome == "stored"
        for name in mirrored.client.hkeys(mirrored.keys.holds)[:10]:
            mirrored.client.hset(mirrored.keys.holds, name, garbage)
        assert mirrored.transfer(100).moved == 30
        assert not mirrored.client.exists(*mirrored.keys.waiting)

    def test_a_holder_that_waits_nowhere(self, queue: DelayedQueue) -> None:
        head = codec.message_key("x") + b"\0dw" + bytes(16)
        queue.client.hset(queue.keys.holds, unique_of(KEY), head + b"\0\2\xff\xfe" + b"id")
        assert offered(queue, "one").outcome == "stored"
        assert held_by(queue) == "one"

    def test_records_of_tasks_that_vanished_go_with_time(self, queue: DelayedQueue) -> None:
        for number in range(30):
            offered(queue, str(number), key=str(number))
        queue.client.delete(*queue.keys.waiting)
        for number in range(30, 330):
            offered(queue, str(number), key=str(number))
            queue.cancel(str(number))
        assert not queue.client.exists(queue.keys.holds)

    def test_an_id_that_waits_without_a_key(self, mirrored: DelayedQueue) -> None:
        mirrored.offer(b"plain", eta=to_datetime(LATER), message_id="one")
        assert offered(mirrored, "one") == Offered("repeated")
        assert held_by(mirrored) is None
        offered(mirrored, "two")
        mirrored.offer(b"plain", eta=to_datetime(LATER), message_id="two")
        assert mirrored.cancel("two") == 2
        assert held_by(mirrored) is None

    def test_another_queue_has_keys_of_its_own(self, mirrored: DelayedQueue) -> None:
        other = DelayedQueue(mirrored.client, "other")
        assert offered(mirrored, "one").outcome == offered(other, "two").outcome == "stored"
        assert (held_by(mirrored), held_by(other)) == ("one", "two")

    def test_a_holder_that_java_removed(self, mirrored: DelayedQueue) -> None:
        offered(mirrored, "one")
        mirrored.client.delete(mirrored.keys.timeout_set, mirrored.keys.delay_list)
        assert offered(mirrored, "two").outcome == "stored"
        assert waiting(mirrored) == [(LATER, b"two")]

    def test_keys_of_another_type(self, queue: DelayedQueue) -> None:
        for key in (*queue.keys.waiting, queue.keys.holds, "q"):
            queue.client.flushall()
            queue.client.set(key, "a string")
            with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
                offered(queue, "one")
            assert set(queue.client.keys()) - REGISTRY == {key.encode()}

    def test_a_server_without_memory(self, queue: DelayedQueue) -> None:
        offered(queue, "one")
        with out_of_memory(queue.client), nothing_changes(queue.client):
            for conflict in ("keep", "extend"):
                assert offered(queue, "two", conflict=conflict).outcome == "held"
            with pytest.raises(redis.ResponseError, match="maxmemory"):  # each version has its own words around that
                offered(queue, "two", key="another")
            assert held_by(queue, "another") is None


class TestPriorities:
    """One key holds for all priorities of a queue."""

    @pytest.fixture
    def high(self, queue: DelayedQueue) -> DelayedQueue:
        return DelayedQueue(queue.client, "q\x06\x163")

    def test_the_first_one_stays(self, queue: DelayedQueue, high: DelayedQueue) -> None:
        offered(queue, "one")
        assert offered(high, "two") == Offered("held", task_id="one")
        found = offered(high, "two", LATER + 1, conflict="extend")
        assert (found.outcome, found.broker_list) == ("extend", "q")

    def test_the_last_one_stays(self, queue: DelayedQueue, high: DelayedQueue) -> None:
        offered(queue, "one")
        assert offered(high, "two", conflict="replace").outcome == "stored"
        assert (waiting(queue), waiting(high)) == ([], [(LATER, b"two")])
        assert not queue.client.exists(*queue.keys.waiting)
        high.cancel("two")
        assert set(queue.client.keys()) <= REGISTRY

    def test_one_that_another_program_removed(self, queue: DelayedQueue, high: DelayedQueue) -> None:
        offered(queue, "one")
        queue.client.delete(queue.keys.timeout_set)
        assert offered(high, "two").outcome == "stored"
        assert held_by(queue) == "two"


class TestTheEndOfWaiting:
    """The step that moves a task gives its key up."""

    def test_cancel(self, mirrored: DelayedQueue) -> None:
        offered(mirrored, "one", until="done")
        assert mirrored.cancel("one") == 1
        assert has_no_trace(mirrored)

    def test_remove(self, mirrored: DelayedQueue) -> None:
        offered(mirrored, "one", until="start")
        assert mirrored.remove(mirrored.find("one")) == [True]
        assert has_no_trace(mirrored)

    @pytest.mark.parametrize("how", ["transfer", "release"])
    @pytest.mark.parametrize("until", ["due", "start", "done"])
    def test_into_the_broker_list(self, mirrored: DelayedQueue, how: str, until: str) -> None:
        offered(mirrored, "one", LATER if how == "release" else 1, until=until)
        if how == "release":
            assert mirrored.release([(entry, entry.payload) for entry in mirrored.find("one")]) == [True]
        else:
            assert mirrored.transfer().moved == 1
        assert mirrored.client.lrange("q", 0, -1) == [b"one"]
        if until == "due":
            mirrored.client.delete("q")
            assert has_no_trace(mirrored)
        else:
            found = record(mirrored)
            assert found is not None
            assert (found.task_id, found.waits, found.until) == ("one", False, until)
            assert abs(found.ends_ms - 60_000 - mirrored.client.time()[0] * 1000) < 30_000
            assert offered(mirrored, "two", until=until) == Offered("held", task_id="one")

    def test_among_others(self, queue: DelayedQueue) -> None:
        for number in range(60):
            offered(queue, f"unique {number}", 1 + number, key=str(number), until="start" if number % 2 else "due")
            queue.offer(b"plain", eta=to_datetime(1 + number), message_id=f"plain {number}")
            queue.offer(b"again", eta=to_datetime(1 + number), message_id=f"plain {number}")
        while queue.transfer(7).moved:
            pass
        assert queue.client.llen("q") == 180
        assert [held_by(queue, str(number)) for number in range(4)] == [None, "unique 1", None, "unique 3"]
        assert queue.client.hlen(queue.keys.holds) == 30
        assert not queue.client.exists(*queue.keys.waiting)

    def test_a_holder_whose_key_another_one_holds_now(self, queue: DelayedQueue) -> None:
        """It has left the queue. So the newer one waits, and holds the key; the older one must not give that up."""
        offered(queue, "one", 1, until="done")
        queue.transfer()
        assert offered(queue, "two", until="done", conflict="replace").outcome == "stored"
        one = Holder.of(KEY, "one")
        assert hold(queue.keys, holders=[one], what="done").run(queue.client) == 0
        assert held_by(queue) == "two"

    def test_rescheduling_keeps_the_key(self, mirrored: DelayedQueue) -> None:
        offered(mirrored, "one")
        (entry,) = mirrored.find("one")
        assert mirrored.amend(entry, b"later", eta=to_datetime(LATER + 9))
        assert offered(mirrored, "two") == Offered("held", task_id="one")
        mirrored.cancel("one")
        assert has_no_trace(mirrored)


class TestStartedAndDone:
    def one(self, queue: DelayedQueue, until: str) -> Holder:
        offered(queue, "one", None, until=until)
        assert queue.client.lrange("q", 0, -1) == [b"one"]
        return Holder.of(KEY, "one")

    def test_until_it_starts(self, queue: DelayedQueue) -> None:
        one = self.one(queue, "start")
        assert offered(queue, "two") == Offered("held", task_id="one")
        assert hold(queue.keys, holders=[one], what="start").run(queue.client) == 1
        assert held_by(queue) is None

    def test_until_it_is_done(self, queue: DelayedQueue) -> None:
        one = self.one(queue, "done")
        assert hold(queue.keys, holders=[one], what="start").run(queue.client) == 0
        assert offered(queue, "two") == Offered("held", task_id="one")
        assert hold(queue.keys, holders=[one], what="done").run(queue.client) == 1
        assert held_by(queue) is None

    def test_one_that_waits_for_its_next_retry(self, queue: DelayedQueue) -> None:
        one = self.one(queue, "done")
        assert offered(queue, "one", payload=b"retry", until="done").outcome == "stored"
        assert hold(queue.keys, holders=[one], what="done").run(queue.client) == 0
        assert held_by(queue) == "one"
        assert offered(queue, "two") == Offered("held", task_id="one")

    def test_one_whose_next_retry_is_on_its_way(self, queue: DelayedQueue) -> None:
        """Without a countdown, a retry is in the broker list before the task says that it is done."""
        one = self.one(queue, "done")
        assert offered(queue, "one", None, payload=b"retry", until="done", turn=1).outcome == "stored"
        for what in ("start", "done"):
            assert hold(queue.keys, holders=[one], what=what).run(queue.client) == 0
        assert offered(queue, "two") == Offered("held", task_id="one")
        assert hold(queue.keys, holders=[Holder.of(KEY, "one", 1)], what="done").run(queue.client) == 1

    def test_nobody_gives_it_up(self, queue: DelayedQueue) -> None:
        one = self.one(queue, "done")
        found = record(queue)
        assert found is not None
        raw = queue.client.hget(queue.keys.holds, unique_of(KEY))
        assert isinstance(raw, bytes)
        queue.client.hset(queue.keys.holds, unique_of(KEY), raw[:27] + (1).to_bytes(8, "big") + raw[35:])
        assert offered(queue, "two").outcome == "stored"
        assert held_by(queue) == "two"
        assert hold(queue.keys, holders=[one], what="done").run(queue.client) == 0

    def test_one_that_waits_is_as_it_was(self, queue: DelayedQueue) -> None:
        offered(queue, "one")
        assert hold(queue.keys, holders=[Holder.of(KEY, "one")], what="done").run(queue.client) == 0
        assert held_by(queue) == "one"

    @pytest.mark.parametrize("what", ["renew", "start"])
    def test_one_that_goes_on_keeps_it_for_longer(self, queue: DelayedQueue, what: Any) -> None:
        one = self.one(queue, "done")
        before = record(queue)
        wait_until(lambda: now_ms(queue.client) > (before.ends_ms if before else 0) - 60_000, "the clock goes on")
        assert hold(queue.keys, holders=[one], what=what).run(queue.client) == 0
        after = record(queue)
        assert before is not None
        assert after is not None
        assert after.ends_ms > before.ends_ms
        assert replace(after, ends_ms=0) == replace(before, ends_ms=0)

    def test_one_that_goes_on_at_a_server_without_memory_keeps_it_for_longer(self, queue: DelayedQueue) -> None:
        one = self.one(queue, "done")
        before = record(queue)
        assert before is not None
        wait_until(lambda: now_ms(queue.client) > before.ends_ms - 60_000, "the clock goes on")
        with out_of_memory(queue.client):
            assert hold(queue.keys, holders=[one], what="renew").run(queue.client) == 0
        after = record(queue)
        assert after is not None
        assert after.ends_ms > before.ends_ms

    def test_one_that_is_reserved_has_not_started(self, queue: DelayedQueue) -> None:
        one = self.one(queue, "start")
        assert hold(queue.keys, holders=[one], what="renew").run(queue.client) == 0
        assert held_by(queue) == "one"


class TestAcknowledge:
    def fetched(self, queue: DelayedQueue, until: str) -> Holder:
        offered(queue, "one", None, until=until)
        queue.client.lmove("q", queue.keys.in_flight("me"), "RIGHT", "LEFT")
        return Holder.of(KEY, "one")

    def acknowledge(self, queue: DelayedQueue, holder: Holder, what: Any, message: bytes = b"one") -> bool:
        return acknowledge(queue.keys, consumer="me", message=message, holder=holder, what=what).run(queue.client)

    @pytest.mark.parametrize(
        ("until", "what", "holder"),
        [("start", "start", None), ("done", "start", "one"), ("start", "done", None), ("done", "done", None)],
    )
    def test_the_message_goes_and_maybe_the_key(
        self, queue: DelayedQueue, until: str, what: str, holder: str | None
    ) -> None:
        assert self.acknowledge(queue, self.fetched(queue, until), what)
        assert not queue.client.exists(queue.keys.in_flight("me"))
        assert held_by(queue) == holder

    def test_one_that_others_have_recovered(self, queue: DelayedQueue) -> None:
        holder = self.fetched(queue, "done")
        queue.client.lmove(queue.keys.in_flight("me"), "q", "RIGHT", "LEFT")
        assert not self.acknowledge(queue, holder, "done")
        assert held_by(queue) == "one"

    def test_a_key_of_another_type(self, queue: DelayedQueue) -> None:
        holder = self.fetched(queue, "done")
        queue.client.set(queue.keys.holds, "a string")
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            self.acknowledge(queue, holder, "done")
        assert queue.client.llen(queue.keys.in_flight("me")) == 1


class TestDeadLetters:
    """A dead letter has given its key up, in the script that moves it."""

    @pytest.fixture
    def messages(self, queue: DelayedQueue) -> list[Holder]:
        """Two in flight that hold keys."""
        for name, key in (("one", KEY), ("two", "other")):
            offered(queue, name, None, until="done", key=key)
        queue.client.zadd(queue.keys.consumers, {"me": LATER})
        assert scripts.fetch(queue.keys, consumer="me", limit=2).run(queue.client) == [b"one", b"two"]
        return [Holder.of(KEY, "one"), Holder.of("other", "two")]

    def test_of_its_own_consumer(self, queue: DelayedQueue, messages: list[Holder]) -> None:
        pairs = [(b"gone", b"gone"), (b"one", b"letter")]
        holders = [messages[1], messages[0]]
        moved = scripts.put_back(
            queue.keys, consumer="me", messages=pairs, dead=True, holders=[holders[0], holders[1]]
        ).run(queue.client)
        assert moved == 1
        assert held_by(queue) is None
        assert held_by(queue, "other") == "two", "its message was not in flight any more"

    def test_of_a_consumer_that_is_gone(self, queue: DelayedQueue, messages: list[Holder]) -> None:
        done = scripts.recover(
            queue.keys,
            consumer="me",
            score=str(LATER).encode(),
            gone=True,
            alive_channel="",
            messages=[(b"two", b"two again", False), (b"one", b"letter", True)],
            holders=[None, messages[0]],
        ).run(queue.client)
        assert done.moved == [True, True]
        assert held_by(queue) is None
        assert held_by(queue, "other") == "two"


class TestPlan:
    """The occurrences of periodic tasks."""

    def plan(self, queue: DelayedQueue, name: str, due_ms: int = LATER, seen: bytes = b"", **step: Any) -> Planned:
        claim = Claim(KEY, "due", 60_000, "keep")
        offer = Message(queue.name, name, due_ms, name.encode(), claim)
        there, state_if_held = step.pop("there", None), f"no {name}".encode()
        one = Step(
            "e", queue.name, Seen(seen), name.encode(), **{"offer": offer, "state_if_held": state_if_held, **step}
        )
        return plan(queue.keys, one, there=there).run(queue.client)

    def test_one_that_waits_holds_the_key(self, queue: DelayedQueue) -> None:
        assert self.plan(queue, "one").alone
        assert held_by(queue) == "one"
        assert offered(queue, "two") == Offered("held", task_id="one")

    def test_one_is_left_out_while_another_task_holds_the_key(self, queue: DelayedQueue) -> None:
        offered(queue, "mine", until="done")
        done = self.plan(queue, "one")
        assert (done.outcome, done.state, done.alone) == (LEFT_OUT, b"no one", False)
        assert queue.client.hget(queue.keys.schedule, "e") == b"no one"
        assert waiting(queue) == [(LATER, b"mine")]
        queue.cancel("mine")
        assert self.plan(queue, "two", seen=b"no one").outcome == DONE
        assert waiting(queue) == [(LATER, b"two")]

    @pytest.mark.parametrize("state_of_holder", ["waits", "is in its queue"])
    def test_one_whose_step_is_refused_touches_no_key(self, queue: DelayedQueue, state_of_holder: str) -> None:
        offered(queue, "mine", due_ms=1, until="done")
        if state_of_holder != "waits":
            queue.transfer()
        with nothing_changes(queue.client):
            assert self.plan(queue, "one", seen=b"another state").outcome == CHANGED

    def test_one_that_waits_in_another_list_is_looked_for(self, queue: DelayedQueue) -> None:
        other = DelayedQueue(queue.client, "q\x06\x163")
        offered(other, "theirs")
        done = self.plan(queue, "one")
        assert (done.outcome, done.state) == (ELSEWHERE, other.name.encode())
        assert self.plan(queue, "one", there=other.keys).outcome == LEFT_OUT
        assert not queue.size()
        other.client.delete(other.keys.timeout_set)  # somebody who knows no keys
        assert self.plan(queue, "two", seen=b"no one").outcome == ELSEWHERE
        assert self.plan(queue, "two", seen=b"no one", there=other.keys).outcome == DONE
        assert waiting(queue) == [(LATER, b"two")]
