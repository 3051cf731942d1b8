"""Consumer: its leases, and what happens when one is lost."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any

import pytest
import redis

from celery_delayq.basics.errors import LeaseLost
from celery_delayq.fetching.consumer import Consumer
from celery_delayq.queue import keys, scripts
from celery_delayq.queue.call import Call
from tests.consumer.conftest import Consumers, in_another_thread
from tests.state import calls, nothing_changes
from tests.support import wait_until


def give_up(consumers: Consumers, lost: Consumer, name: str = "q") -> None:
    """Recover a consumer that is alive, as another one does."""
    queue_keys = keys.QueueKeys.of(name)
    messages = [(message, message + b" recovered", False) for message in reversed(consumers.in_flight(lost, name))]
    done = scripts.recover(
        queue_keys,
        consumer=lost.id,
        score=b"%d" % consumers.score(lost, name),
        gone=True,
        alive_channel="",
        messages=messages,
    ).run(consumers.client)
    assert done.given_up
    assert done.left == 0


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
        assert consumer.end_leases() is False
        assert consumers.score(consumer) > 0
        assert in_another_thread(consumer.ack, tag)
        consumer.conversation.read_answers()
        assert consumer.end_leases() is False
        assert consumers.score(consumer) == 0
        assert consumers.score(consumer, "r") > 0

    def test_is_given_up_for_lists_that_are_not_consumed_any_more(self, consumers: Consumers) -> None:
        consumer = consumers.make("q", "r")
        (tag,) = consumers.take(consumer, b"1", name="r")
        consumer.part("r")
        consumer.end_leases()
        assert consumers.score(consumer, "r") > 0, "something of it is held"
        consumer.ack(tag)
        consumer.conversation.read_answers()
        consumer.end_leases()
        assert not consumers.score(consumer, "r")
        assert consumers.score(consumer) > 0

    def test_is_not_missed_while_it_is_given_up(self, consumers: Consumers, monkeypatch: pytest.MonkeyPatch) -> None:
        """The watchdog renews all leases just then."""
        consumer = consumers.make("q", "r")
        leave = scripts.leave

        def leave_and_renew(*args: Any, **options: Any) -> Call[bool]:
            call = leave(*args, **options)

            def read(reply: Any) -> bool:
                consumer.renew()
                return call.read(reply)

            return replace(call, read=read)

        monkeypatch.setattr(scripts, "leave", leave_and_renew)
        consumer.part("r")
        consumer.end_leases()
        assert not consumer.is_lost
        assert not consumers.score(consumer, "r")

    def test_is_not_missed_when_it_was_joined_again(
        self, consumers: Consumers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The watchdog had begun to renew it before."""
        consumer = consumers.make("r")
        renew = scripts.renew

        def renew_in_between(queue_keys: Any, **options: Any) -> Call[Any]:
            monkeypatch.undo()
            consumer.part("r")
            consumer.end_leases()
            call = renew(queue_keys, **options)

            def read(reply: Any) -> Any:
                consumer.join("r")
                return call.read(reply)

            return replace(call, read=read)

        monkeypatch.setattr(scripts, "renew", renew_in_between)
        consumer.renew()
        assert not consumer.is_lost
        assert consumers.score(consumer, "r") > 0

    def test_is_kept_in_mind_when_it_could_not_be_given_up(
        self, consumers: Consumers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        consumer = consumers.make("r")
        consumer.part("r")
        monkeypatch.setattr(scripts, "leave", _refuse)
        with pytest.raises(redis.ConnectionError):
            consumer.end_leases()
        assert "r" in consumer.leases.lists

    def test_others_go_on_if_the_server_refuses_one(
        self, consumers: Consumers, caplog: pytest.LogCaptureFixture
    ) -> None:
        consumer = consumers.make("q", "r", "s")
        for name in "qs":
            consumers.client.zadd(keys.QueueKeys.of(name).consumers, {consumer.id: 1})
        consumers.client.set(keys.QueueKeys.of("r").consumers, "text")
        until = consumer.leases.until
        for _ in range(2):
            assert [name for name, _ in consumer.renew()] == ["q", "s"]
        assert caplog.text.count("Cannot renew the lease on 'r': WRONGTYPE") == 1
        assert consumer.leases.until > until
        assert [consumers.score(consumer, name) > 1 for name in "qs"] == [True, True]
        assert not consumer.is_lost

    def test_others_go_on_if_the_server_refuses_the_command_for_one(
        self, consumers: Consumers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The user may not use a key, or its hash slot is moving."""
        consumer = consumers.make("q", "r", "s")
        renew = scripts.renew

        def refuse(lists: Any, **options: Any) -> Any:
            if any("{r}" in queue_keys.consumers for queue_keys in lists):
                raise redis.exceptions.NoPermissionError("no permissions to access one of the keys")
            return renew(lists, **options)

        monkeypatch.setattr(scripts, "renew", refuse)
        assert [name for name, _ in consumer.renew()] == ["q", "s"]

    def test_all_that_are_refused_are_an_error(self, consumers: Consumers) -> None:
        consumer = consumers.make("q")
        consumers.client.set(keys.QueueKeys.of("q").consumers, "text")
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            consumer.renew()

    @pytest.mark.parametrize("slots", [1, 3])
    def test_are_renewed_with_one_command_a_hash_slot(
        self, consumers: Consumers, slots: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names = [f"list {number}" for number in range(2 * scripts.MAX_RENEW)]
        consumer = consumers.make(*names, slot_of=lambda key: int(key.strip("}").split()[-1]) % slots)
        sizes = []
        renew = scripts.renew

        def count(lists: Any, **options: Any) -> Any:
            sizes.append(len(lists))
            return renew(lists, **options)

        monkeypatch.setattr(scripts, "renew", count)
        assert sorted(name for name, done in consumer.renew() if done.renewed) == sorted(names)
        assert sorted(sizes) == ([50, 50] if slots == 1 else [33, 33, 34])


def _refuse(*args: Any, **options: Any) -> bool:
    raise redis.ConnectionError("lost")


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
            consumer.conversation.read_answers()
        assert "no longer owns a message of" in caplog.text
        assert consumer.held == {}

    def test_an_acknowledgement_when_it_knows(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        (tag,) = consumers.take(consumer, b"1")
        give_up(consumers, consumer)
        with pytest.raises(LeaseLost):
            consumer.renew()
        assert not consumer.ack(tag)

    def test_a_requeue_before_it_knows(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        (tag,) = consumers.take(consumer, b"1")
        give_up(consumers, consumer)
        with nothing_changes(consumers.client):
            consumer.requeue(tag)
            consumer.conversation.read_answers()

    def test_putting_back_before_it_knows(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        tags = consumers.take(consumer, b"1", b"2")
        give_up(consumers, consumer)
        with nothing_changes(consumers.client):
            consumer.put_back(tags)
            consumer.give_back("q", [b"1", b"2"])
            consumer.conversation.read_answers()


def forget(consumers: Consumers, *names: str) -> None:
    """Delete the leases on these lists, as FLUSHDB does."""
    consumers.client.delete(*(keys.QueueKeys.of(name).consumers for name in names or ("q",)))


class TestForgotten:
    @pytest.mark.parametrize("how", ["fetch", "renew"])
    def test_joins_again_and_keeps_what_it_holds(self, consumers: Consumers, how: str) -> None:
        consumer = consumers.make("q", "r")
        first, second = consumers.take(consumer, b"1", b"2")
        consumer.ack(first)  # nobody has read the answer
        forget(consumers, "q", "r")
        consumers.publish(b"3")
        if how == "renew":
            consumer.renew()
        assert consumer.fetch("q", 1) == [b"3"]
        assert consumers.score(consumer) > 0 < consumers.score(consumer, "r")
        assert list(consumer.held) == [second]
        assert consumer.ack(second)
        consumer.check()
        assert consumers.in_flight(consumer) == [b"3"]

    def test_while_its_watchdog_renews(self, consumers: Consumers) -> None:
        consumer = consumers.start(lease_s=0.5)
        (tag,) = consumers.take(consumer, b"1")
        forget(consumers)
        wait_until(lambda: consumers.score(consumer), "it has joined again")
        assert consumer.ack(tag)
        assert consumer.close()
        assert consumers.names_of_keys() == set()

    @pytest.mark.parametrize("how", ["fetch", "renew"])
    def test_lets_go_what_was_deleted(self, consumers: Consumers, how: str) -> None:
        """It puts the rest back, but for what runs, before it ends."""
        consumer = consumers.make("q", "r")
        deleted, *_ = consumers.take(consumer, b"1")
        runs, _ = consumers.take(consumer, b"2", b"3", name="r")
        forget(consumers, "q", "r")
        consumers.client.delete(consumer.leases.keys_of("q").in_flight(consumer.id))
        with pytest.raises(LeaseLost, match=f"1 message that consumer {consumer.id} held disappeared from Redis"):
            consumer.renew() if how == "renew" else consumer.fetch("q", 1)
        with pytest.raises(LeaseLost):
            consumer.check()
        assert not consumer.is_held(deleted)
        assert consumer.is_held(runs)
        assert consumer.close(keep=[runs]) is False
        assert consumers.waiting("r") == [b"3 again"]
        assert consumer.ack(runs)
        assert consumer.finish()
        consumers.client.delete("r")
        assert consumers.names_of_keys() == set()

    def test_and_closed_leaves_nothing(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        consumers.take(consumer, b"1", b"2")
        forget(consumers)
        assert consumer.close()
        assert consumers.waiting() == [b"1 again", b"2 again"]
        assert consumers.names_of_keys() == {"q"}

    def test_whoever_was_given_up_long_ago_begins_nothing_that_others_run(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        (tag,) = consumers.take(consumer, b"1")
        give_up(consumers, consumer)
        forget(consumers)  # as a minute later
        with pytest.raises(LeaseLost):
            consumer.fetch("q", 1)
        assert not consumer.is_held(tag)
        assert consumers.waiting() == [b"1 recovered"]
