"""Consumer: a message that was fetched is somewhere until it was acknowledged or given back."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from celery_delayq.fetching.consumer import Consumer
from celery_delayq.queue import scripts
from celery_delayq.queue.scripts import MAX_PUT_BACK
from tests.consumer.conftest import Consumers, hold_all, in_another_thread
from tests.soak.proxy import Proxy
from tests.state import nothing_changes, records
from tests.support import wait_until

CLIENTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "decoding": {"decode_responses": True},
    "latin1": {"decode_responses": True, "encoding": "latin-1"},
    "database-3": {"db": 3},
    "resp2": {"protocol": 2},
    "resp3": {"protocol": 3},
}


def is_kept_waiting(client: redis.Redis) -> bool:
    """Whether anybody waits for a reply of a server that pauses."""
    return any("b" in connection["flags"] for connection in client.client_list())


def connections(consumers: Consumers) -> int:
    return len(consumers.client.client_list())


class TestFetching:
    @pytest.mark.parametrize("options", CLIENTS.values(), ids=CLIENTS)
    def test_a_message_through_any_client(self, consumers: Consumers, options: dict[str, Any]) -> None:
        message = bytes(range(256))
        with consumers.server.client(db=options.get("db", 0)) as client:
            client.lpush("q", message, b"2", b"3")
            consumer = consumers.make(**options)
            assert consumer.fetch("q", 2) == [message, b"2"]
            first, second = hold_all(consumer, [message, b"2"])
            assert consumer.ack(first)
            assert consumer.fetch("q", 1) == [b"3"]
            assert consumer.held.keys() == {second}
            consumer.give_back("q", [b"3"])
            consumer.put_back([second])
            assert consumer.close()
            assert client.lrange("q", 0, -1) == [b"3", b"2 again"]
            assert client.keys() == [b"q"]

    def test_from_several_lists(self, consumers: Consumers) -> None:
        consumer = consumers.make("q", "r")
        (tag,) = consumers.take(consumer, b"1")
        consumers.take(consumer, b"1", name="r")
        assert consumer.ack(tag)
        consumer.conversation.read_answers()
        assert consumers.in_flight(consumer, "q") == []
        assert consumers.in_flight(consumer, "r") == [b"1"]

    def test_no_more_than_a_script_call_may(self, consumers: Consumers) -> None:
        consumers.publish(*(b"%d" % number for number in range(scripts.MAX_FETCH + 5)))
        assert len(consumers.make().fetch("q", 10_000)) == scripts.MAX_FETCH

    def test_after_the_server_has_forgotten_its_scripts(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        (tag,) = consumers.take(consumer, b"1")
        consumer.ack(tag)
        consumers.client.script_flush()
        consumers.publish(b"2")
        assert consumer.fetch("q", 1) == [b"2"]
        assert consumer.held == {}

    def test_from_a_list_that_is_none(self, consumers: Consumers) -> None:
        """And it goes on with the others."""
        consumer = consumers.make("q", "broken")
        consumers.client.set("broken", "no list")
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            consumer.fetch("broken", 1)
        consumers.publish(b"1")
        assert consumer.fetch("q", 1) == [b"1"]

    def test_from_a_list_that_is_none_forgets_no_acknowledgement(self, consumers: Consumers) -> None:
        consumer = consumers.make("q", "broken")
        (tag,) = consumers.take(consumer, b"1")
        consumers.client.set("broken", "no list")
        consumer.ack(tag)
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            consumer.fetch("broken", 1)
        consumer.settle()
        assert consumers.in_flight(consumer) == []
        assert consumer.held == {}


class TestAcknowledging:
    def test_its_reply_is_read_with_the_next_fetch(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        first, second = consumers.take(consumer, b"1", b"2")
        assert consumer.ack(first)
        assert consumer.held.keys() == {first, second}  # until it is known that the server has it
        assert consumer.fetch("q", 1) == []
        assert consumer.held.keys() == {second}
        assert consumers.in_flight(consumer) == [b"2"]

    def test_or_when_it_is_asked_for(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        (tag,) = consumers.take(consumer, b"1")
        consumer.ack(tag)
        consumer.conversation.read_answers()
        assert consumer.held == {}

    def test_in_another_thread(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        first, second = consumers.take(consumer, b"1", b"2")
        assert in_another_thread(consumer.ack, first)
        wait_until(lambda: consumers.in_flight(consumer) == [b"2"], "it is sent at once")
        assert consumer.held.keys() == {first, second}  # until the thread that fetches has read that the server has it
        consumer.conversation.read_answers()
        assert consumer.held.keys() == {second}

    def test_in_many_threads_at_once(self, consumers: Consumers) -> None:
        """And in the one that fetches, all on its connection."""
        consumer = consumers.make()
        before = connections(consumers)
        tags = consumers.take(consumer, *(b"%d" % number for number in range(300)))
        barrier = threading.Barrier(30)

        def acknowledge(mine: list[str]) -> None:
            barrier.wait(20)
            for tag in mine:
                assert consumer.ack(tag)

        threads = [threading.Thread(target=acknowledge, args=(tags[at:290:29],)) for at in range(29)]
        for thread in threads:
            thread.start()
        acknowledge(tags[290:])
        for thread in threads:
            thread.join(20)
        consumer.conversation.read_answers()
        assert consumer.held == {}
        assert consumer.outbox.owed == {}
        assert consumers.in_flight(consumer) == []
        assert connections(consumers) <= before + 1

    def test_what_is_not_held(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        (tag,) = consumers.take(consumer, b"1")
        assert in_another_thread(consumer.ack, tag)
        with nothing_changes(consumers.client):
            assert not consumer.ack(tag)
            assert not consumer.ack("never")
            assert not consumer.requeue("never")

    def test_one_of_two_with_the_same_bytes(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        first, second = consumers.take(consumer, b"same", b"same")
        consumer.ack(first)
        consumer.conversation.read_answers()
        assert consumers.in_flight(consumer) == [b"same"]
        assert consumer.held.keys() == {second}


class TestAcksWhoseConnectionIsLost:
    """They are owed, and sent again; meanwhile the message is held, so nobody puts it back."""

    def test_between_sending_and_reading(
        self, consumers: Consumers, proxy: Proxy, caplog: pytest.LogCaptureFixture
    ) -> None:
        consumer, tags = self.with_lost_replies(consumers, proxy)
        consumer.conversation.read_answers()
        self.check_that_they_are_settled(consumers, consumer, tags)
        assert caplog.text.count("Redis did not confirm that 2 messages left the in-flight list") == 1

    def test_between_sending_and_executing(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        tags = consumers.take(consumer, b"1", b"2")
        consumers.client.execute_command("CLIENT", "PAUSE", 20_000, "WRITE")
        try:
            for tag in tags:
                assert consumer.ack(tag)
            consumers.cut_connections()
        finally:
            consumers.client.client_unpause()
        consumer.conversation.read_answers()
        assert consumers.in_flight(consumer) == [b"1", b"2"]
        self.check_that_they_are_settled(consumers, consumer, tags)

    def test_before_sending(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        tags = consumers.take(consumer, b"1", b"2")
        consumers.cut_connections()
        for tag in tags:
            assert consumer.ack(tag)
        consumer.conversation.read_answers()
        assert set(consumers.in_flight(consumer)) == {b"1", b"2"}
        self.check_that_they_are_settled(consumers, consumer, tags)

    def test_and_the_next_fetch_tells(self, consumers: Consumers, proxy: Proxy) -> None:
        consumer, tags = self.with_lost_replies(consumers, proxy)
        with pytest.raises(redis.ConnectionError):
            consumer.fetch("q", 1)
        self.check_that_they_are_settled(consumers, consumer, tags)

    def test_in_another_thread_while_the_server_is_away(self, lasting: Consumers) -> None:
        consumer = lasting.make()
        tags = lasting.take(consumer, b"1", b"2")
        lasting.server.kill()
        assert all(in_another_thread(consumer.ack, tag) for tag in tags)
        consumer.conversation.read_answers()
        assert consumer.outbox.owed.keys() == set(tags)
        with pytest.raises(redis.ConnectionError):
            consumer.settle()
        lasting.server.start()
        assert lasting.in_flight(consumer) == [b"1", b"2"]
        self.check_that_they_are_settled(lasting, consumer, tags)

    def test_what_another_thread_puts_back_without_a_reply(self, consumers: Consumers) -> None:
        """As when gevent runs a task that rejects itself and Celery's connecting anew side by side."""
        consumer = consumers.make()
        (tag,) = consumers.take(consumer, b"1")
        consumers.client.execute_command("CLIENT", "PAUSE", 20_000, "WRITE")
        with ThreadPoolExecutor() as executor:
            assert executor.submit(consumer.requeue, tag).result(20)
        wait_until(lambda: is_kept_waiting(consumers.client), "the server has the command")
        consumers.cut_connections()
        consumers.client.client_unpause()
        consumer.conversation.read_answers()
        assert consumer.outbox.owed.keys() == {tag}
        consumer.settle()
        assert (consumer.outbox.owed, consumer.held) == ({}, {})
        assert consumers.in_flight(consumer) == []

    def test_and_which_are_owed_are_not_put_back(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        done, waits = consumers.take(consumer, b"done", b"waits")
        consumers.cut_connections()
        consumer.ack(done)
        consumer.put_back([done, waits])
        consumer.close()
        assert consumers.waiting() == [b"waits again"]
        assert consumers.in_flight(consumer) == []

    def with_lost_replies(self, consumers: Consumers, proxy: Proxy) -> tuple[Consumer, list[str]]:
        """Return a consumer and the tags of what it has acknowledged, which it does not know yet."""
        consumer = consumers.make(port=proxy.port)
        tags = consumers.take(consumer, b"1", b"2")
        proxy.swallows = b""
        for tag in tags:
            assert consumer.ack(tag)
        wait_until(lambda: not consumers.in_flight(consumer), "the server has acknowledged them")
        proxy.cut()
        proxy.swallows = None  # not earlier: a reply may be on its way to the proxy
        return consumer, tags

    def check_that_they_are_settled(self, consumers: Consumers, consumer: Consumer, tags: list[str]) -> None:
        assert consumer.outbox.owed.keys() == set(tags)
        assert consumer.held.keys() == set(tags)
        consumer.settle()
        assert (consumer.outbox.owed, consumer.held) == ({}, {})
        assert consumers.in_flight(consumer) == []
        assert consumers.waiting() == []


class TestGivingBack:
    def test_requeue_goes_to_the_back(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        first, second = consumers.take(consumer, b"1", b"2")
        consumers.publish(b"waiting")
        assert consumer.requeue(first)
        assert not consumer.requeue(first)
        assert consumer.conversation.read_answers()
        assert consumers.waiting() == [b"waiting", b"1 again"]
        assert consumer.held.keys() == {second}
        assert consumers.in_flight(consumer) == [b"2"]

    def test_what_was_not_delivered_goes_to_the_front_as_it_is(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        consumers.publish(b"1", b"2", b"3", b"waiting")
        assert consumer.fetch("q", 3) == [b"1", b"2", b"3"]
        consumer.give_back("q", [b"1", b"2", b"3"])
        assert consumer.conversation.read_answers()
        assert consumers.waiting() == [b"1", b"2", b"3", b"waiting"]

    def test_what_was_delivered_goes_to_the_front_marked(self, consumers: Consumers) -> None:
        consumer = consumers.make("q", "r")
        one, two = consumers.take(consumer, b"1", b"2")
        three, four = consumers.take(consumer, b"3", b"4", name="r")
        consumers.publish(b"waiting")
        consumer.put_back([three, one, "never", four, two])
        assert consumer.conversation.read_answers()
        assert consumers.waiting() == [b"1 again", b"2 again", b"waiting"]
        assert consumers.waiting("r") == [b"3 again", b"4 again"]
        assert consumer.held == {}

    def test_more_than_a_script_call_takes(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        messages = [b"%d" % number for number in range(2 * MAX_PUT_BACK + 50)]
        consumer.put_back(consumers.take(consumer, *messages))
        assert consumer.conversation.read_answers()
        assert consumers.waiting() == [message + b" again" for message in messages]
        fetched = consumer.fetch("q", 1000)
        assert len(fetched) == len(messages)
        consumer.give_back("q", fetched)
        assert consumer.conversation.read_answers()
        assert consumers.waiting() == [message + b" again" for message in messages]

    def test_what_was_acknowledged_just_before_stays_away(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        first, second = consumers.take(consumer, b"1", b"2")
        consumer.ack(first)
        consumer.put_back([first, second])
        assert consumer.conversation.read_answers()
        assert consumers.waiting() == [b"2 again"]

    def test_to_the_dead_letters(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        garbage, _ = consumers.take(consumer, b"garbage", b"2")
        consumer.set_aside(garbage, b"record of it")
        assert consumer.conversation.read_answers()
        assert records(consumers.client, "q") == [b"record of it"]
        assert consumers.in_flight(consumer) == [b"2"]

    def test_what_is_not_held_is_found(self, consumers: Consumers) -> None:
        """A reply was lost: the message is in flight, but nobody in this process knows."""
        consumer = consumers.make()
        consumers.take(consumer, b"1", b"same")
        consumers.publish(b"unread 1", b"same", b"unread 2", b"waiting")
        consumer.fetch("q", 3)
        assert consumer.outbox.reconcile(consumer.client) is False
        assert sorted(consumers.in_flight(consumer)) == [b"1", b"same"]
        assert consumers.waiting()[-1] == b"waiting"
        assert sorted(consumers.waiting()[:-1]) == [b"same again", b"unread 1 again", b"unread 2 again"]
        assert consumers.waiting().index(b"unread 1 again") < consumers.waiting().index(b"unread 2 again")
