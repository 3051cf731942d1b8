"""Consumer: whatever happens between a fetch and an acknowledgement, the message is somewhere."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from celery_delayq import consumer as consumer_module
from celery_delayq import keys, scripts
from celery_delayq.consumer import Consumer
from celery_delayq.errors import LeaseLost
from celery_delayq.fetch_connection import Identity, identify
from celery_delayq.scripts import MAX_PUT_BACK
from tests.consumer.conftest import Consumers, hold_all, in_another_thread
from tests.state import calls, nothing_changes
from tests.support import wait_until

CLIENTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "decoding": {"decode_responses": True},
    "latin1": {"decode_responses": True, "encoding": "latin-1"},
    "database-3": {"db": 3},
}
if int(redis.__version__.split(".")[0]) >= 5:
    CLIENTS["resp2"] = {"protocol": 2}
    CLIENTS["resp3"] = {"protocol": 3}


def give_up(consumers: Consumers, lost: Consumer, name: str = "q") -> None:
    """Recover a consumer that is alive, as another one does."""
    queue_keys = keys.QueueKeys.of(name)
    messages = [(message, message + b" recovered", False) for message in reversed(consumers.in_flight(lost, name))]
    done = scripts.recover(
        consumers.client,
        queue_keys,
        consumer=lost.id,
        score=b"%d" % consumers.score(lost, name),
        gone=True,
        alive_channel=keys.alive_channel(lost.id),
        messages=messages,
    )
    assert done.given_up
    assert done.left == 0


#: Lets a consumer wait on the server, on a connection that nobody reads; returns which.
Blmove = Callable[[Consumer], Identity | None]


def blocked(consumers: Consumers) -> int:
    """Return how many connections wait on the server."""
    count: int = consumers.client.info("clients")["blocked_clients"]
    return count


@pytest.fixture
def blmove(consumers: Consumers) -> Iterator[Blmove]:
    connections = []

    def send(consumer: Consumer) -> Identity | None:
        connection = consumer.client.connection_pool.make_connection()
        connections.append(connection)
        connection.connect()
        identity = identify(connection)
        connection.send_command("BLMOVE", "q", consumer.joined["q"].in_flight(consumer.id), "RIGHT", "LEFT", 30)
        wait_until(lambda: blocked(consumers) == len(connections), "it waits on the server")
        return identity

    yield send
    for connection in connections:
        connection.disconnect()


def swallow_replies(connection: Any, expected: bytes) -> None:
    """Read what the server has answered, so that redis-py does not get it."""
    found = b""
    while len(found) < len(expected):
        found += connection._sock.recv(len(expected) - len(found))
    assert found == expected


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
            assert consumer.give_back("q", [b"3"]) == 1
            consumer.put_back([second])
            assert consumer.close()
            assert client.lrange("q", 0, -1) == [b"3", b"2 again"]
            assert client.keys() == [b"q"]

    def test_from_several_lists(self, consumers: Consumers) -> None:
        consumer = consumers.make("q", "r")
        (tag,) = consumers.take(consumer, b"1")
        consumers.take(consumer, b"1", name="r")
        assert consumer.ack(tag)
        consumer.read_answers()
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

    def test_in_another_thread(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        first, second = consumers.take(consumer, b"1", b"2")
        assert in_another_thread(consumer.ack, first)
        assert consumer.held.keys() == {second}
        assert consumers.in_flight(consumer) == [b"2"]

    def test_in_many_threads_at_once(self, consumers: Consumers) -> None:
        """And in the one that fetches, on its own connection."""
        consumer = consumers.make()
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
        consumer.read_answers()
        assert consumer.held == {}
        assert consumer.owed == set()
        assert consumers.in_flight(consumer) == []

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
        consumer.read_answers()
        assert consumers.in_flight(consumer) == [b"same"]
        assert consumer.held.keys() == {second}


class TestAcksWhoseConnectionIsLost:
    """They are owed, and sent again; meanwhile the message is held, so nobody puts it back."""

    def test_between_sending_and_reading(self, consumers: Consumers, caplog: pytest.LogCaptureFixture) -> None:
        consumer, tags = self.with_lost_replies(consumers)
        consumer.read_answers()
        self.check_that_they_are_settled(consumers, consumer, tags)
        assert caplog.text.count("An acknowledgement did not reach Redis and will be sent again") == 1

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
        consumer.read_answers()
        assert consumers.in_flight(consumer) == [b"1", b"2"]
        self.check_that_they_are_settled(consumers, consumer, tags)

    def test_before_sending(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        tags = consumers.take(consumer, b"1", b"2")
        consumers.cut_connections()
        for tag in tags:
            assert consumer.ack(tag)
        consumer.read_answers()
        assert set(consumers.in_flight(consumer)) == {b"1", b"2"}
        self.check_that_they_are_settled(consumers, consumer, tags)

    def test_and_the_next_fetch_tells(self, consumers: Consumers) -> None:
        consumer, tags = self.with_lost_replies(consumers)
        with pytest.raises(redis.ConnectionError):
            consumer.fetch("q", 1)
        self.check_that_they_are_settled(consumers, consumer, tags)

    def test_in_another_thread_while_the_server_is_away(self, lasting: Consumers) -> None:
        consumer = lasting.make()
        tags = lasting.take(consumer, b"1", b"2")
        lasting.server.kill()
        assert all(in_another_thread(consumer.ack, tag) for tag in tags)
        assert consumer.owed == set(tags)
        with pytest.raises(redis.ConnectionError):
            consumer.settle()
        lasting.server.start()
        assert lasting.in_flight(consumer) == [b"1", b"2"]
        self.check_that_they_are_settled(lasting, consumer, tags)

    def test_and_which_are_owed_are_not_put_back(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        done, waits = consumers.take(consumer, b"done", b"waits")
        consumers.cut_connections()
        consumer.ack(done)
        consumer.put_back([done, waits])
        consumer.close()
        assert consumers.waiting() == [b"waits again"]
        assert consumers.in_flight(consumer) == []

    def with_lost_replies(self, consumers: Consumers) -> tuple[Consumer, list[str]]:
        """Return a consumer and the tags of what it has acknowledged, which it does not know yet."""
        consumer = consumers.make()
        tags = consumers.take(consumer, b"1", b"2")
        for tag in tags:
            assert consumer.ack(tag)
        assert consumer._connection is not None
        swallow_replies(consumer._connection._connection, b":1\r\n" * len(tags))
        consumers.cut_connections()
        return consumer, tags

    def check_that_they_are_settled(self, consumers: Consumers, consumer: Consumer, tags: list[str]) -> None:
        assert consumer.owed == set(tags)
        assert consumer.held.keys() == set(tags)
        consumer.settle()
        assert (consumer.owed, consumer.held) == (set(), {})
        assert consumers.in_flight(consumer) == []
        assert consumers.waiting() == []


class TestGivingBack:
    def test_requeue_goes_to_the_back(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        first, second = consumers.take(consumer, b"1", b"2")
        consumers.publish(b"waiting")
        assert consumer.requeue(first)
        assert not consumer.requeue(first)
        assert consumers.waiting() == [b"waiting", b"1 again"]
        assert consumer.held.keys() == {second}
        assert consumers.in_flight(consumer) == [b"2"]

    def test_what_was_not_delivered_goes_to_the_front_as_it_is(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        consumers.publish(b"1", b"2", b"3", b"waiting")
        assert consumer.fetch("q", 3) == [b"1", b"2", b"3"]
        assert consumer.give_back("q", [b"1", b"2", b"3"]) == 3
        assert consumers.waiting() == [b"1", b"2", b"3", b"waiting"]

    def test_what_was_delivered_goes_to_the_front_marked(self, consumers: Consumers) -> None:
        consumer = consumers.make("q", "r")
        one, two = consumers.take(consumer, b"1", b"2")
        three, four = consumers.take(consumer, b"3", b"4", name="r")
        consumers.publish(b"waiting")
        consumer.put_back([three, one, "never", four, two])
        assert consumers.waiting() == [b"1 again", b"2 again", b"waiting"]
        assert consumers.waiting("r") == [b"3 again", b"4 again"]
        assert consumer.held == {}

    def test_more_than_a_script_call_takes(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        messages = [b"%d" % number for number in range(2 * MAX_PUT_BACK + 50)]
        consumer.put_back(consumers.take(consumer, *messages))
        assert consumers.waiting() == [message + b" again" for message in messages]
        assert consumer.give_back("q", consumer.fetch("q", 1000)) == len(messages)
        assert consumers.waiting() == [message + b" again" for message in messages]

    def test_what_was_acknowledged_just_before_stays_away(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        first, second = consumers.take(consumer, b"1", b"2")
        consumer.ack(first)
        consumer.put_back([first, second])
        assert consumers.waiting() == [b"2 again"]

    def test_to_the_dead_list(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        garbage, _ = consumers.take(consumer, b"garbage", b"2")
        consumer.set_aside(garbage, b"record of it")
        assert consumers.client.lrange("delayq:dead:{q}", 0, -1) == [b"record of it"]
        assert consumers.in_flight(consumer) == [b"2"]

    def test_what_is_not_held_is_found(self, consumers: Consumers) -> None:
        """A reply was lost: the message is in flight, but nobody in this process knows."""
        consumer = consumers.make()
        consumers.take(consumer, b"1", b"same")
        consumers.publish(b"unread 1", b"same", b"unread 2", b"waiting")
        consumer.fetch("q", 3)
        assert consumer.reconcile() is False
        assert sorted(consumers.in_flight(consumer)) == [b"1", b"same"]
        assert consumers.waiting()[-1] == b"waiting"
        assert sorted(consumers.waiting()[:-1]) == [b"same again", b"unread 1 again", b"unread 2 again"]
        assert consumers.waiting().index(b"unread 1 again") < consumers.waiting().index(b"unread 2 again")


class TestLease:
    def test_lasts_from_joining_on(self, consumers: Consumers) -> None:
        before = time.time() * 1000
        consumer = consumers.make(lease_s=30)
        assert before + 29_000 < consumers.score(consumer) < time.time() * 1000 + 31_000

    def test_is_not_asked_for_while_it_lasts(self, consumers: Consumers) -> None:
        consumer = consumers.make(lease_s=1000)
        consumer.join("q")
        consumers.client.config_resetstat()
        consumer.check()
        consumer.join("q")
        assert calls(consumers.client, "evalsha") == 0

    def test_that_should_have_ended_is_renewed(self, consumers: Consumers) -> None:
        consumer = consumers.make(lease_s=0.2)
        end = consumers.score(consumer)
        wait_until(lambda: time.time() * 1000 > end + 50, "it has ended")
        consumer.check()
        assert consumers.score(consumer) > end

    def test_that_was_given_up_meanwhile_is_noticed(self, consumers: Consumers) -> None:
        consumer = consumers.make(lease_s=0.2)
        consumers.take(consumer, b"1")
        give_up(consumers, consumer)
        with pytest.raises(LeaseLost):
            wait_until(lambda: consumer.check(), "it notices")

    def test_on_a_list_that_is_not_consumed_any_more(self, consumers: Consumers) -> None:
        """It lasts for as long as anything of the list is held."""
        consumer = consumers.make("q", "r")
        (tag,) = consumers.take(consumer, b"1")
        consumer.part("q")
        assert consumer.leave_all() is False
        assert consumers.score(consumer) > 0
        assert in_another_thread(consumer.ack, tag)
        assert consumer.leave_all() is False
        assert consumers.score(consumer) == 0
        assert consumers.score(consumer, "r") > 0

    def test_is_given_up_for_lists_that_are_not_consumed_any_more(self, consumers: Consumers) -> None:
        consumer = consumers.make("q", "r")
        (tag,) = consumers.take(consumer, b"1", name="r")
        consumer.part("r")
        consumer.leave_all()
        assert consumers.score(consumer, "r") > 0, "something of it is held"
        consumer.ack(tag)
        consumer.read_answers()
        consumer.leave_all()
        assert not consumers.score(consumer, "r")
        assert consumers.score(consumer) > 0


class TestLeaseLost:
    @pytest.mark.parametrize("how", ["fetch", "renew", "join"])
    def test_is_told_by_whatever_asks_the_server(self, consumers: Consumers, how: str) -> None:
        consumer = consumers.make()
        tags = consumers.take(consumer, b"1", b"2")
        give_up(consumers, consumer)
        # On another list it has a lease, and would get one there.
        consumers.client.zadd(keys.QueueKeys.of("r").consumers, {consumer.id: -1})
        ask = {"fetch": lambda: consumer.fetch("q", 1), "renew": consumer.renew, "join": lambda: consumer.join("r")}
        with pytest.raises(LeaseLost, match=rf"{consumer.id} .*\(2 .*held"):
            ask[how]()
        assert consumer.is_lost
        with pytest.raises(LeaseLost):
            consumer.check()
        with nothing_changes(consumers.client):
            assert not any(consumer.ack(tag) for tag in tags)
            consumer.put_back(tags)
            assert consumer.close(keep=tags) is True
        assert consumers.waiting() == [b"1 recovered", b"2 recovered"]

    def test_nothing_is_fetched(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        give_up(consumers, consumer)
        consumers.publish(b"1")
        with pytest.raises(LeaseLost):
            consumer.fetch("q", 1)
        assert consumers.waiting() == [b"1"]

    @pytest.mark.parametrize("thread", ["own", "another"])
    def test_an_acknowledgement_before_it_knows(
        self, consumers: Consumers, thread: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """What is no longer its own stays where it is."""
        consumer = consumers.make()
        (tag,) = consumers.take(consumer, b"1")
        give_up(consumers, consumer)
        with nothing_changes(consumers.client), caplog.at_level(logging.WARNING):
            if thread == "own":
                consumer.ack(tag)
            else:
                in_another_thread(consumer.ack, tag)
            consumer.read_answers()
        assert "is not this consumer's own any more" in caplog.text
        assert consumer.held == {}

    def test_a_requeue_before_it_knows(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        (tag,) = consumers.take(consumer, b"1")
        give_up(consumers, consumer)
        with nothing_changes(consumers.client):
            assert consumer.requeue(tag) is False

    def test_putting_back_before_it_knows(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        tags = consumers.take(consumer, b"1", b"2")
        give_up(consumers, consumer)
        with nothing_changes(consumers.client):
            consumer.put_back(tags)
            assert consumer.give_back("q", [b"1", b"2"]) == 0


class TestClosing:
    def test_puts_everything_back_and_leaves_no_key(self, consumers: Consumers) -> None:
        consumer = consumers.make("q", "r")
        consumers.take(consumer, b"held")
        consumers.publish(b"not held", b"waiting")
        consumer.fetch("q", 1)
        assert consumer.close() is True
        assert consumers.waiting() == [b"held again", b"not held again", b"waiting"]
        assert consumers.names_of_keys() == {"q"}
        assert consumer.close() is True

    @pytest.mark.parametrize("thread", ["own", "another"])
    def test_keeps_what_is_being_worked_on(self, consumers: Consumers, thread: str) -> None:
        consumer = consumers.make("q", "r")
        running, held = consumers.take(consumer, b"running", b"held")
        assert consumer.close(keep=[running]) is False
        assert consumers.waiting() == [b"held again"]
        assert consumers.in_flight(consumer) == [b"running"]
        assert consumers.score(consumer) > 0
        assert not consumer.ack(held)
        assert consumer.ack(running) if thread == "own" else in_another_thread(consumer.ack, running)
        wait_until(lambda: not consumers.in_flight(consumer), "it is acknowledged")
        assert in_another_thread(consumer.finish) is True  # by the watchdog
        assert consumers.names_of_keys() == {"q"}

    def test_what_is_worked_on_may_be_requeued(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        (running,) = consumers.take(consumer, b"running")
        consumer.close(keep=[running])
        assert consumer.requeue(running)
        assert consumer.finish() is True
        assert consumers.waiting() == [b"running again"]
        assert consumers.names_of_keys() == {"q"}

    def test_while_the_server_refuses(self, consumers: Consumers) -> None:
        """Nothing is raised; the watchdog goes on."""
        consumer = consumers.make()
        consumers.take(consumer, b"1")
        consumers.client.set("q", "no list")
        assert consumer.close() is False
        assert consumers.in_flight(consumer) == [b"1"]
        consumers.client.delete("q")
        assert consumer.finish() is True
        assert consumers.waiting() == [b"1 again"]
        assert consumers.names_of_keys() == {"q"}

    def test_ends_a_blocking_command_that_nobody_listens_to(self, consumers: Consumers, blmove: Blmove) -> None:
        consumer = consumers.make()
        consumer.haunt([blmove(consumer)])
        assert consumer.close() is True
        assert blocked(consumers) == 0
        consumers.publish(b"late")
        assert consumers.waiting() == [b"late"]
        assert consumers.names_of_keys() == {"q"}

    def test_waits_for_a_blocking_command_that_it_does_not_know(
        self, consumers: Consumers, blmove: Blmove, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(consumer_module, "BLOCK_S", 1.5)
        consumer = consumers.make()
        blmove(consumer)
        consumer.haunt([None])
        assert consumer.close() is False
        consumers.publish(b"late")
        wait_until(lambda: consumers.in_flight(consumer) == [b"late"], "it was given a message")
        assert consumer.finish() is False
        assert consumers.waiting() == [b"late again"]
        wait_until(consumer.finish, "the command must have ended")
        assert consumers.names_of_keys() == {"q"}

    def test_disconnects_everything(self, consumers: Consumers) -> None:
        before = len(consumers.client.client_list())
        consumer = consumers.make()
        (tag,) = consumers.take(consumer, b"1")
        in_another_thread(consumer.ack, tag)
        consumer.close()
        consumer.disconnect()
        wait_until(lambda: len(consumers.client.client_list()) == before, "its connections are closed")


def test_tags_are_those_of_one_consumer_only(consumers: Consumers) -> None:
    """A task that still runs when its consumer is closed must not be mistaken for one of the next consumer."""
    (first,), (second,) = (consumers.take(consumers.make(), b"1") for _ in range(2))
    assert first != second
