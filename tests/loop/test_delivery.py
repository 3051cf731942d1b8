"""What a loop delivers, and what makes it do so."""

from __future__ import annotations

import random
from logging import INFO

import pytest
import redis

from celery_delayq import DeadLetters
from celery_delayq.basics.times import to_datetime
from celery_delayq.queue import codec
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.registry import LASTS_S, Registry
from tests.loop.conftest import Loops
from tests.state import FAR, INDEX, REPEATED, delivered, floor_ms, now_ms, offer, seed
from tests.support import wait_until


def wait_for_delivery(queue: DelayedQueue, *payloads: bytes) -> None:
    """Wait until the broker list holds exactly these, in this order."""
    wait_until(lambda: delivered(queue) == list(payloads), f"{payloads} in {queue.name}", timeout=20)


class TestOneLoop:
    def test_delivers_what_it_is_notified_of_and_not_before_its_time(self, loops: Loops, queue: DelayedQueue) -> None:
        queue.register()
        loops.start()
        loops.wait_for(queue)
        queue.offer(b"second", countdown=0.5)
        queue.offer(b"first", countdown=0.2)
        due = {entry.payload: entry.score for entry in queue.peek(2)}
        wait_for_delivery(queue, b"first", b"second")
        loops.stop()  # a pass is recorded after it has delivered
        moved_ms = [floor_ms(p.done.now) for p in loops.passes for _ in range(p.done.moved)]
        assert [now_ms >= due[payload] for now_ms, payload in zip(moved_ms, (b"first", b"second"), strict=True)] == [
            True
        ] * 2

    def test_delivers_what_became_due_while_no_one_listened(self, loops: Loops, queue: DelayedQueue) -> None:
        queue.offer(b"long ago", eta=to_datetime(1))
        queue.offer(b"just now", eta=to_datetime(now_ms(queue.client)))
        queue.offer(b"soon", countdown=0.3)
        loops.start()
        wait_for_delivery(queue, b"long ago", b"just now", b"soon")

    def test_finds_what_it_was_not_notified_of(self, loops: Loops, queue: DelayedQueue) -> None:
        """A lost notification costs an interval."""
        queue.register()
        loops.start(interval_s=0.2)
        loops.wait_for(queue)
        seed(queue, {codec.pack(b"12345678", b"silent"): 1})
        wait_for_delivery(queue, b"silent")

    def test_finds_what_it_was_not_notified_of_in_each_hash_slot(self, loops: Loops, queue: DelayedQueue) -> None:
        """On a cluster, where a command looks at one slot only, they take turns."""
        queues = [DelayedQueue(queue.client, f"q{number}") for number in range(30)]
        for one in queues:
            one.register()
        loops.start(interval_s=0.1, slot_of=lambda key: int(key.strip("}").rpartition("q")[2]) // 2)
        for one in queues:
            loops.wait_for(one)
        for one in queues:
            seed(one, {codec.pack(b"12345678", b"silent"): 1})
        for one in queues:
            wait_for_delivery(one, b"silent")

    def test_finds_an_earlier_head_that_it_was_not_notified_of(self, loops: Loops, queue: DelayedQueue) -> None:
        offer(queue, "far")
        queue.register()
        loops.start(interval_s=0.2)
        loops.wait_for(queue)
        seed(queue, {codec.pack(b"12345678", b"silent"): 1})
        wait_for_delivery(queue, b"silent")

    def test_delivers_a_backlog_in_batches(self, loops: Loops, queue: DelayedQueue) -> None:
        entries = [codec.pack(b"%04d" % i, b"%d" % i) for i in range(500)]
        seed(queue, {entry: i for i, entry in enumerate(entries)})
        queue.register()
        loops.start(batch_size=30)
        wait_until(lambda: loops.moved() == 500, "the backlog is gone")
        assert delivered(queue) == [b"%d" % i for i in range(500)]
        assert max(p.done.moved for p in loops.passes) == 30

    def test_goes_on_after_garbage_and_says_where_it_is(
        self, loops: Loops, queue: DelayedQueue, caplog: pytest.LogCaptureFixture
    ) -> None:
        seed(queue, {b"garbage": 1, b"": 3})
        offer(queue, "before", 0)
        offer(queue, "between", 2)
        queue.offer(b"after", countdown=0.3)
        loops.start()
        wait_for_delivery(queue, b"before", b"between", b"after")
        assert [letter.message for letter in DeadLetters(queue.client, "q")] == [b"garbage", b""]
        (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
        assert "': 2" in record.getMessage()
        assert "delayq:dead:{q}" in record.getMessage()

    def test_goes_ahead_only_for_queues_of_the_caller(self, loops: Loops, queue: DelayedQueue) -> None:
        """Who consumes elsewhere does not wait for the rest: for him, early would be wrong."""
        other = DelayedQueue(queue.client, "other")
        loops.start(queues=lambda: ["q"], lead_s=60.0)
        for each in (queue, other):
            each.offer(b"in half a minute", countdown=30)
            each.offer(b"now", countdown=0.2)
        wait_until(lambda: sorted(delivered(queue)) == [b"in half a minute", b"now"], "both are there")
        wait_for_delivery(other, b"now")
        assert other.size() == 1

    def test_goes_ahead_further_after_a_message_came_too_late(self, loops: Loops, queue: DelayedQueue) -> None:
        loop = loops.start(queues=lambda: ["q"], lead_s=0.01)
        due_ms = now_ms(queue.client) + 300
        queue.offer(b"late", eta=to_datetime(due_ms))
        wait_for_delivery(queue, b"late")
        wait_until(lambda: now_ms(queue.client) >= due_ms + 60, "somebody receives it late")
        loop.lead.arrived(due_ms, -0.06)
        due_ms = now_ms(queue.client) + 300
        queue.offer(b"next", eta=to_datetime(due_ms))
        wait_until(lambda: delivered(queue) == [b"late", b"next"], "the next one is there")
        done = loops.passes[-1].done
        assert due_ms - floor_ms(done.now) > 30

    def test_follows_a_head_that_is_cancelled(self, loops: Loops, queue: DelayedQueue) -> None:
        queue.register()
        loops.start()
        loops.wait_for(queue)
        queue.offer(b"cancelled", countdown=0.2, message_id="a")
        queue.offer(b"stays", countdown=0.4)
        assert queue.cancel("a") == 1
        wait_for_delivery(queue, b"stays")

    @pytest.mark.parametrize("data", [b"", b"soon", b"nan", b"inf", b"-inf", b"-1", b"\xff", b"1e9"])
    def test_is_not_disturbed_by_any_notification(
        self, loops: Loops, queue: DelayedQueue, caplog: pytest.LogCaptureFixture, data: bytes
    ) -> None:
        queue.register()
        loops.start()
        loops.wait_for(queue)
        for channel in (queue.keys.channel, queue.keys.transferrer_channel):
            queue.client.publish(channel, data)
            queue.client.publish(channel, data + b":" + data + b":other")
        queue.offer(b"pay", countdown=0.2)
        wait_for_delivery(queue, b"pay")
        assert not [record for record in caplog.records if record.levelno > INFO]


class TestQueues:
    def test_a_new_one_is_served_at_once(self, loops: Loops, client: redis.Redis) -> None:
        loops.start()
        for name in ("new", "größe", "a{b}c", "q\x06\x163"):
            queue = DelayedQueue(client, name)
            queue.offer(b"pay", countdown=0.1)
            wait_for_delivery(queue, b"pay")

    def test_the_first_one_of_a_loop_may_be_offered_while_it_subscribes(
        self, loops: Loops, queue: DelayedQueue
    ) -> None:
        """So that the confirmation and a notification come together, before it knows the server's time."""
        queue.register()
        offered: list[str] = []

        class Client(redis.Redis):
            def exists(self, *names: str) -> int:
                """Called when the loop has subscribed, and before it reads the confirmation."""
                if not offered:
                    loops.wait_for(queue)
                    offered.append(queue.offer(b"pay", countdown=0.3))
                return 0

        loops.start(connect=lambda: Client(port=loops.server.port))
        wait_for_delivery(queue, b"pay")

    def test_one_of_which_nothing_is_left_leaves_the_registry_and_comes_back(
        self, loops: Loops, queue: DelayedQueue
    ) -> None:
        """Though its producer takes it for registered."""
        client = queue.client
        for number in range(2):
            loops.start(f"loop {number}", interval_s=0.1)
        for number in range(2):
            queue.offer(b"%d" % number, countdown=0.1)
            wait_until(lambda: delivered(queue), "delivered")
            client.delete(queue.name)
            client.zincrby("delayq:queues", -1000 * LASTS_S, queue.name)
            wait_until(lambda: not client.exists("delayq:queues"), "it left the registry")
            loops.wait_for(queue, 0)

    def test_that_nobody_announced_are_found_at_every_sixth_look(
        self, loops: Loops, queue: DelayedQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looks, read_at = 0, []
        names = Registry.read

        def count_look() -> tuple[str, ...]:
            nonlocal looks
            looks += 1
            return ()

        def read(registry: Registry) -> dict[str, int]:
            read_at.append(looks)
            return names(registry)

        monkeypatch.setattr(Registry, "read", read)
        loops.start(queues=count_look, interval_s=0.05)
        wait_until(lambda: looks > 1, "it has looked")
        offer(queue, "due", 1)
        queue.client.zadd("delayq:queues", {queue.name: FAR})
        wait_for_delivery(queue, b"due")
        wait_until(lambda: len(read_at) >= 3, "the registry is read again")
        assert read_at[:3] == [1, 7, 13]

    def test_that_never_had_a_delayed_message_are_not_served(self, loops: Loops, queue: DelayedQueue) -> None:
        client = queue.client
        Registry(client).sent(queue.name)
        looks: list[None] = []

        def look() -> tuple[str, ...]:
            looks.append(None)
            return ()

        loops.start(queues=look, interval_s=0.05)
        wait_until(lambda: len(looks) > 7, "the registry was read twice")
        assert client.pubsub_numsub(queue.keys.channel)[0][1] == 0
        queue.offer(b"due", countdown=0.1)
        wait_for_delivery(queue, b"due")

    def test_one_with_a_message_stays_in_the_registry(self, loops: Loops, queue: DelayedQueue) -> None:
        """By a producer that was killed before it could register the name again."""
        queue.register()
        offer(queue, "later")
        queue.client.zincrby("delayq:queues", -1000 * LASTS_S, queue.name)
        old = queue.client.zscore("delayq:queues", queue.name)
        loops.start(interval_s=0.1)
        wait_until(lambda: queue.client.zscore("delayq:queues", queue.name) != old, "a loop has looked")
        offer(queue, "due", 1)
        wait_for_delivery(queue, b"due")

    def test_of_the_caller_are_served_without_being_registered(self, loops: Loops, queue: DelayedQueue) -> None:
        offer(queue, "a", 1)
        loops.start(queues=lambda: ["q"])
        wait_for_delivery(queue, b"a")

    def test_of_the_caller_are_registered_while_they_hold_messages(self, loops: Loops, queue: DelayedQueue) -> None:
        """Whoever stored them may not have been able to: the registry's node of a cluster was away."""
        offer(queue, "later")
        assert not queue.client.exists("delayq:queues")
        loops.start(queues=lambda: ["q"], interval_s=0.1)
        wait_until(lambda: set(queue.client.zrange("delayq:queues", 0, -1)) == {b"q"}, "registered")

    def test_of_the_caller_may_change(self, loops: Loops, queue: DelayedQueue) -> None:
        names: list[str] = []
        loop = loops.start(queues=lambda: names)
        offer(queue, "a", 1)
        names.append("q")
        loop.wake()
        wait_for_delivery(queue, b"a")
        names.remove("q")
        loop.wake()
        loops.wait_for(queue, 0)
        offer(queue, "b", 1)
        names.append("q")
        loop.wake()
        wait_for_delivery(queue, b"a", b"b")

    def test_of_another_prefix_are_left_alone(self, loops: Loops, client: redis.Redis) -> None:
        ours = DelayedQueue(client, "shop.q", keyprefix="shop.")
        theirs = DelayedQueue(client, "bank.q", keyprefix="bank.")
        for queue in (theirs, ours):
            queue.offer(b"pay", eta=to_datetime(1))
        loops.start(keyprefix="shop.")
        wait_for_delivery(ours, b"pay")
        loops.stop()  # a pass is recorded after it has delivered
        assert {p.queue for p in loops.passes} == {"shop.q"}

    def test_are_many(self, loops: Loops, client: redis.Redis) -> None:
        queues = [DelayedQueue(client, f"q{number}") for number in range(50)]
        loops.start()
        for queue in queues:
            queue.offer(b"pay", countdown=random.uniform(0.1, 0.5))
        for queue in queues:
            wait_for_delivery(queue, b"pay")

    def test_one_of_a_wrong_type_does_not_stop_the_others(
        self, loops: Loops, queue: DelayedQueue, caplog: pytest.LogCaptureFixture
    ) -> None:
        client = queue.client
        bad = DelayedQueue(client, "bad")
        bad.register()
        client.set(bad.keys.timeout_set, "no ZSET")
        loops.start(interval_s=0.1)
        for number in range(3):
            queue.offer(b"%d" % number, countdown=0.1)
            wait_until(lambda number=number: len(delivered(queue)) > number, f"{number} is there")
        errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert len(errors) == 1
        assert "'bad'" in errors[0]
        assert "WRONGTYPE" in errors[0]
        client.delete(bad.keys.timeout_set)
        bad.offer(b"mended", eta=to_datetime(1))
        wait_for_delivery(bad, b"mended")

    def test_a_name_that_is_no_text_does_not_stop_the_others(self, loops: Loops, queue: DelayedQueue) -> None:
        client = queue.client
        client.zadd("delayq:queues", {b"\xff\xfe": FAR})
        loops.start()
        client.publish("delayq:queues", b"\xff")
        queue.offer(b"pay", eta=to_datetime(1))
        wait_for_delivery(queue, b"pay")


class TestTidying:
    def test_forgets_places_of_entries_that_java_took_away(self, loops: Loops, queue: DelayedQueue) -> None:
        """As long as others wait, too; and those are found as before."""
        for number in range(300):
            queue.offer(b"", eta=to_datetime(FAR + number), message_id=str(number))
            queue.offer(b"again", eta=to_datetime(FAR + 1000 + number), message_id=str(number % 7))
        gone = [entry.raw for entry in queue.peek(200)]
        queue.client.zrem(queue.keys.timeout_set, *gone)
        loops.start(interval_s=0.1)
        wait_until(lambda: queue.client.hlen(INDEX) + queue.client.zcard(REPEATED) <= 516, "many are forgotten")
        assert not any(queue.find(str(number)) for number in range(7, 200))
        assert all(queue.find(str(number)) for number in range(200, 300))
        assert sum(queue.cancel(str(number)) for number in range(300)) == 400

    def test_leaves_nothing_of_a_queue_that_java_emptied(self, loops: Loops, queue: DelayedQueue) -> None:
        queue.offer(b"", eta=to_datetime(FAR))
        loops.start(interval_s=0.1)
        wait_until(lambda: loops.passes, "it knows the message")
        queue.client.delete(queue.keys.timeout_set)
        wait_until(lambda: not queue.client.exists(INDEX), "its place is forgotten")


class TestManyLoops:
    def test_deliver_exactly_once(self, loops: Loops, queue: DelayedQueue) -> None:
        for number in range(5):
            loops.start(f"loop {number}", interval_s=0.3, batch_size=3)
        for number in range(300):
            queue.offer(b"%d" % number, countdown=random.uniform(0.0, 1.0))
        wait_until(lambda: queue.size() == 0, "nothing waits", timeout=30)
        assert sorted(map(int, delivered(queue))) == list(range(300))

    def test_of_two_databases_do_not_disturb_each_other(self, loops: Loops, queue: DelayedQueue) -> None:
        """Pub/Sub is shared by all databases: each loop hears of the other's queue of that name."""
        loops.start("zero", grace_s=60.0)
        loops.start("one", db=1, grace_s=60.0)
        with loops.server.client(db=1) as client:
            other = DelayedQueue(client, "q")
            for number in range(3):
                queue.offer(b"%d" % number, countdown=0.1)
                other.offer(b"%d" % number, countdown=0.1)
                sent = [b"%d" % i for i in range(number + 1)]
                wait_for_delivery(queue, *sent)
                wait_for_delivery(other, *sent)
            assert client.get("delayq:transfer:{q}").endswith(b":one")
        assert queue.client.get("delayq:transfer:{q}").endswith(b":zero")

    def test_far_messages_keep_them_asleep(self, loops: Loops, queue: DelayedQueue) -> None:
        """Whatever the loop waits for, it does not spin: one pass for each reason to look."""
        queue.register()
        loops.start()
        loops.wait_for(queue)
        for number in range(20):
            offer(queue, str(number), FAR - number)
        queue.offer(b"pay", countdown=0.3)
        wait_for_delivery(queue, b"pay")
        assert len(loops.passes) <= 4
