"""Watchdog: leases last as long as their processes, and what a dead process held comes back once, soon, in order."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import redis

from celery_delayq.basics.errors import LeaseLost
from celery_delayq.fetching import abandoned
from celery_delayq.fetching.held import Redelivery
from celery_delayq.fetching.watchdog import Watchdog
from celery_delayq.queue import keys, scripts
from celery_delayq.queue.call import Call
from celery_delayq.queue.keeper import Keeper
from celery_delayq.queue.scripts import Renewed
from tests.consumer.conftest import Consumers, in_another_thread
from tests.consumer.lone import LONG_S, known, lone, wait_for_end_of_lease
from tests.soak.proxy import Proxy
from tests.state import looks_for_consumers, now_ms, oldest_first
from tests.support import wait_until


def looks(consumers: Consumers) -> int:
    """Return how often watchdogs have looked for missing consumers."""
    return looks_for_consumers(consumers.client)


def wait_for_looks(consumers: Consumers, more: int) -> None:
    """Wait until watchdogs have looked so many times more; one after the other does, at least once a second."""
    until = looks(consumers) + more
    wait_until(lambda: looks(consumers) >= until, "watchdogs look", 30)


def recovered(*messages: bytes) -> list[bytes]:
    """Return messages as another consumer puts them back."""
    return [message + b" recovered" for message in messages]


class TestOwnLease:
    def test_lasts_whatever_the_main_thread_does(self, consumers: Consumers) -> None:
        consumer = consumers.start(lease_s=0.6)
        (tag,) = consumers.take(consumer, b"1")
        first_end = consumers.score(consumer)
        for _ in range(3):
            wait_for_end_of_lease(consumers, consumer)
            wait_until(lambda: consumers.score(consumer) > now_ms(consumers.client), "it is renewed")
        assert consumers.score(consumer) > first_end
        assert consumers.in_flight(consumer) == [b"1"]
        assert consumer.ack(tag)

    def test_runs_in_a_thread_of_its_own_until_it_is_stopped(self, consumers: Consumers) -> None:
        consumer = consumers.make()
        watchdog = Watchdog(consumer, Keeper(consumer.connect))
        watchdog.start()
        wait_until(lambda: consumers.is_visible(consumer), "it runs")
        watchdog.stop()
        wait_until(lambda: not consumers.is_visible(consumer), "it has ended")

    def test_survives_a_lost_connection_and_says_so_once(
        self, consumers: Consumers, caplog: pytest.LogCaptureFixture
    ) -> None:
        consumer = consumers.start(lease_s=1)
        end = consumers.score(consumer)
        consumers.client.client_kill_filter(_type="pubsub", skipme=True)
        consumers.cut_connections()
        wait_until(lambda: consumers.is_visible(consumer), "it is connected again")
        wait_until(lambda: consumers.score(consumer) > end + 1000, "it renews")
        assert caplog.text.count("interrupted") == 1
        assert not consumer.is_lost

    def test_settles_acknowledgements_that_are_owed(self, lasting: Consumers) -> None:
        consumer = lasting.start()
        tags = lasting.take(consumer, b"1", b"2")
        lasting.server.kill()
        assert consumer.ack(tags[0])
        assert in_another_thread(consumer.ack, tags[1])
        consumer.conversation.read_answers()
        lasting.server.start()
        wait_until(lambda: not consumer.outbox.owed and not consumer.held, "they are settled", 20)
        assert lasting.in_flight(consumer) == []
        assert lasting.waiting() == []

    def test_that_was_lost_is_told_once(self, consumers: Consumers) -> None:
        consumer = consumers.make(lease_s=0.5)
        told: list[None] = []
        consumers.watch(consumer, lambda: told.append(None))
        consumers.take(consumer, b"1")
        consumers.client.zadd("delayq:consumers:{q}", {consumer.id: -1})
        wait_until(lambda: not consumers.is_watched(consumer), "its watchdog has ended")
        assert len(told) == 1
        with pytest.raises(LeaseLost, match=r"\(1 .*held"):
            consumer.check()


class TestKilled:
    def test_process_has_its_messages_back_within_three_seconds(self, consumers: Consumers) -> None:
        consumers.start(lease_s=LONG_S)
        with lone(consumers, b"1", b"2", b"3") as process:
            consumers.publish(b"waiting")
            process.kill()
            killed_at = time.monotonic()
            wait_until(lambda: len(consumers.waiting()) == 4, "they are put back", 10)
            took_s = time.monotonic() - killed_at
        assert consumers.waiting() == [*recovered(b"1", b"2", b"3"), b"waiting"]
        assert took_s < 3.5  # 3 as promised, and a slow machine

    def test_one_of_many(self, consumers: Consumers) -> None:
        """More than a script call takes; whoever of the others it is, each message comes back once."""
        others = [consumers.start(lease_s=LONG_S) for _ in range(3)]
        messages = [b"%d" % number for number in range(250)]
        with lone(consumers, *messages) as process:
            process.kill()
            wait_until(lambda: len(consumers.waiting()) == 250, "they are put back", 10)
        assert consumers.waiting() == recovered(*messages)
        wait_until(lambda: set(known(consumers)) == {other.id for other in others}, "it is forgotten")

    def test_process_that_consumed_from_other_lists_too(self, consumers: Consumers) -> None:
        """Whoever consumes from a list recovers it."""
        gone = consumers.start("q", "r", lease_s=LONG_S)
        consumers.take(gone, b"1")
        consumers.take(gone, b"2", name="r")
        consumers.start("q", lease_s=LONG_S)
        consumers.start("r", lease_s=LONG_S)
        consumers.wait_until_seen(gone.id)
        consumers.unwatch(gone)
        wait_until(lambda: consumers.waiting() and consumers.waiting("r"), "they are put back", 10)
        assert (consumers.waiting(), consumers.waiting("r")) == (recovered(b"1"), recovered(b"2"))

    def test_though_the_one_who_saw_it_comes_to_nothing(self, consumers: Consumers) -> None:
        """One that comes later learns of it: where workers are killed again and again, nobody lives for long."""
        has_seen, may_end = threading.Event(), threading.Event()

        def stop_here(message: bytes) -> tuple[bytes, bool]:
            has_seen.set()
            may_end.wait(60)
            return message, False

        consumers.start(lease_s=LONG_S, redelivery=Redelivery(recover=stop_here))
        try:
            with lone(consumers, b"1", b"2") as process:
                process.kill()
                assert has_seen.wait(20)
                consumers.start(lease_s=LONG_S)
                wait_until(consumers.waiting, "they are put back", 10)
            assert consumers.waiting() == recovered(b"1", b"2")
        finally:
            may_end.set()

    def test_and_newcomers_do_not_put_it_off(self, consumers: Consumers) -> None:
        """A hello makes everybody look soon; a restarted worker says one while others miss what it was."""
        consumers.start(lease_s=LONG_S)
        with lone(consumers, b"1") as other:
            other.kill()
            killed_at, number = time.monotonic(), 0
            while not consumers.waiting():
                assert time.monotonic() - killed_at < 10
                number += 1
                consumers.client.publish(keys.hello_channel(), f"newcomer {number}")
                time.sleep(0.02)
        assert consumers.waiting() == recovered(b"1")

    def test_before_anybody_could_see_it(self, consumers: Consumers) -> None:
        """All were killed, and one is started again: it knows at once, whatever its patience, and so forgets them."""
        with lone(consumers, b"1", b"2") as process:
            process.kill()
        other = consumers.start(lease_s=LONG_S, patience_s=LONG_S)
        wait_until(consumers.waiting, "they are put back", 10)
        assert consumers.waiting() == recovered(b"1", b"2")
        wait_until(lambda: known(consumers) == [other.id], "it is forgotten")

    @pytest.mark.parametrize("seen", [True, False], ids=["seen before", "never seen"])
    def test_process_whose_lease_was_deleted(self, consumers: Consumers, seen: bool) -> None:
        if seen:
            consumers.start(lease_s=LONG_S)
        with lone(consumers, b"1", b"2") as process:
            consumers.client.delete("delayq:consumers:{q}")
            process.kill()
            if not seen:
                consumers.start(lease_s=LONG_S)
            wait_until(lambda: len(consumers.waiting()) == 2, "they are put back")
        assert consumers.waiting() == recovered(b"1", b"2")
        assert not consumers.client.exists(f"delayq:inflight:{{q}}:{process.id}")

    def test_process_whose_lease_was_deleted_before_its_list_was_joined(self, consumers: Consumers) -> None:
        """Whoever joins a list looks what was left behind there, and not half a minute later."""
        with lone(consumers, b"1", b"2") as process:
            consumers.client.delete("delayq:consumers:{q}")
            process.kill()
            consumer = consumers.start("other", lease_s=LONG_S)
            wait_for_looks(consumers, 1)
            consumer.join("q")
            wait_until(lambda: len(consumers.waiting()) == 2, "they are put back", 15)
        assert consumers.waiting() == recovered(b"1", b"2")

    def test_nobody_who_has_left_in_order(self, consumers: Consumers, caplog: pytest.LogCaptureFixture) -> None:
        others = {consumers.start(lease_s=LONG_S).id for _ in range(2)}
        leaver = consumers.start(lease_s=LONG_S)
        consumers.wait_until_seen(leaver.id)
        assert leaver.close()
        consumers.unwatch(leaver)
        wait_for_looks(consumers, 6)
        assert set(known(consumers)) == others
        assert "went back to the queue" not in caplog.text


class TestLone:
    def test_it_looks_at_once_when_somebody_is_silent(self, consumers: Consumers) -> None:
        """It looks twice a minute, and has not heard of who was there before it connected again."""
        consumer = consumers.make(lease_s=3)
        before = looks(consumers)
        consumers.watch(consumer, patience_s=LONG_S)
        wait_until(lambda: looks(consumers) >= before + 2, "it has looked as it began, and when it heard itself", 10)
        before = looks(consumers)
        consumers.client.zadd("delayq:consumers:{q}", {"silent": now_ms(consumers.client) + 500})
        wait_until(lambda: looks(consumers) > before, "it looks", 10)
        assert not consumer.is_lost


class TestAlive:
    @pytest.mark.thorough
    def test_consumer_whose_subscription_was_cut_is_not_recovered(self, consumers: Consumers) -> None:
        """Not even if others look several times just then, and have done so before."""
        other = consumers.start(lease_s=LONG_S)
        here = consumers.start(lease_s=LONG_S, client_name="here")
        consumers.take(here, b"1")
        consumers.wait_until_seen(here.id)
        for _ in range(2):
            (subscription,) = [c for c in consumers.client.client_list(_type="pubsub") if c["name"] == "here"]
            consumers.client.client_kill_filter(_id=subscription["id"])
            for _ in range(2):
                before = looks(consumers)
                consumers.client.publish(keys.hello_channel(), "somebody")
                wait_until(lambda: looks(consumers) > before, "the other one looks")  # noqa: B023
            wait_until(lambda: consumers.is_visible(here), "it is visible again")
            wait_for_looks(consumers, 6)
        assert consumers.in_flight(here) == [b"1"]
        assert min(consumers.score(here), consumers.score(other)) > now_ms(consumers.client)

    def test_consumer_that_renews_is_not_recovered_though_its_channel_is_missing(self, consumers: Consumers) -> None:
        for _ in range(2):
            consumers.start(lease_s=LONG_S)
        here = consumers.start(lease_s=LONG_S)
        consumers.take(here, b"1")
        consumers.wait_until_seen(here.id)
        consumers.unwatch(here)
        until = looks(consumers) + 6
        wait_until(lambda: here.renew() and looks(consumers) >= until, "watchdogs look while it renews", 30)
        assert consumers.in_flight(here) == [b"1"]

    @pytest.mark.thorough
    def test_nobody_is_recovered_after_a_restart_of_the_server(
        self, lasting: Consumers, caplog: pytest.LogCaptureFixture
    ) -> None:
        """All leases look ended then, and all channels are missing."""
        both = [lasting.start(lease_s=2), lasting.start(lease_s=2)]
        for consumer in both:
            lasting.take(consumer, consumer.id.encode())
            lasting.wait_until_seen(consumer.id)
        ends = [lasting.score(consumer) for consumer in both]
        early, late = both
        may_connect, connect = threading.Event(), late.connect

        def connect_late() -> AbstractContextManager[redis.Redis]:
            may_connect.wait(20)
            return connect()

        late.connect = connect_late
        lasting.server.kill()
        wait_until(lambda: time.time() * 1000 > max(ends) + 500, "their leases look ended", 20)
        lasting.server.start()
        wait_until(lambda: lasting.score(early) > max(ends), "one is there before the other", 20)
        may_connect.set()
        wait_until(lambda: all(map(lasting.is_visible, both)), "they are connected again", 20)
        wait_for_looks(lasting, 6)
        for consumer in both:
            assert lasting.score(consumer) > max(ends)
            assert lasting.in_flight(consumer) == [consumer.id.encode()]
            assert not consumer.is_lost
        assert "went back to the queue" not in caplog.text


class TestAtWork:
    @pytest.mark.thorough
    def test_its_own_lease_lasts_while_it_puts_back_what_many_held(self, consumers: Consumers) -> None:
        """Over a slow network, that takes longer than the lease."""
        names = [f"list {number}" for number in range(10)]
        for name in names:
            queue_keys = keys.QueueKeys.of(name)
            consumers.client.zadd(queue_keys.consumers, {f"gone {number:02}": 1000 for number in range(10)})
            for number in range(10):
                consumers.client.lpush(queue_keys.in_flight(f"gone {number:02}"), b"1")
        proxy = Proxy(consumers.server.port)
        try:
            here = consumers.start(*names, lease_s=3, patience_s=LONG_S, port=proxy.port)
            proxy.delay(0.01)

            def is_done() -> bool:
                assert min(consumers.score(here, name) for name in names) > now_ms(consumers.client)
                return sum(len(consumers.waiting(name)) for name in names) == 100

            wait_until(is_done, "all of it is put back", 60)
        finally:
            consumers.stop()
            proxy.close()

    def test_who_was_given_up_takes_no_place_from_others(self, consumers: Consumers) -> None:
        """Nor does a list that the server refuses."""
        for name in ("a", "q", "z"):
            queue_keys = keys.QueueKeys.of(name)
            given_up = {f"given up {number:03}": -now_ms(consumers.client) for number in range(150)}
            consumers.client.zadd(queue_keys.consumers, {**given_up, "gone": 1000})
            consumers.client.lpush(queue_keys.in_flight("gone"), b"1")
        consumers.client.set("a", "no list")
        consumers.start("a", "q", "z", lease_s=0.5, patience_s=LONG_S)
        wait_until(lambda: consumers.waiting() and consumers.waiting("z"), "it is put back")
        assert (consumers.waiting(), consumers.waiting("z")) == (recovered(b"1"), recovered(b"1"))


class TestServerClock:
    @pytest.mark.thorough
    def test_that_is_set_forward_ends_no_lease(
        self, consumers: Consumers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It seems to, to whoever renews first. One that does not renew is given up a lease later."""
        lease_s, step_ms = 3.0, 100_000
        both = [consumers.make(lease_s=lease_s) for _ in range(2)]
        for consumer in both:
            consumers.watch(consumer)
        believed_from = time.monotonic() + lease_s
        stuck = consumers.make(lease_s=LONG_S)
        for consumer in (*both, stuck):
            consumers.take(consumer, consumer.id.encode())
        renew, is_set = scripts.renew, threading.Event()

        def renew_later(*args: Any, **options: Any) -> Call[Any]:
            call = renew(*args, **options)

            def read(reply: Any) -> list[Renewed]:
                return [
                    replace(done, now_ms=done.now_ms + step_ms * is_set.is_set())
                    for done in call.read(reply)
                    if isinstance(done, Renewed)
                ]

            return replace(call, read=read)

        with closing(consumers.client.pubsub()) as pubsub:
            pubsub.subscribe(keys.alive_channel(stuck.id))
            wait_until(lambda: time.monotonic() > believed_from, "they believe that leases end")
            monkeypatch.setattr(scripts, "renew", renew_later)
            # As if the clock had been set: what was written before is so much nearer to its end.
            with consumers.client.pipeline() as pipe:
                for consumer in (*both, stuck):
                    pipe.zincrby("delayq:consumers:{q}", -step_ms - LONG_S * 1000, consumer.id)
                is_set.set()
                pipe.execute()
            set_at = time.monotonic()
            wait_until(consumers.waiting, "the one that does not renew is recovered", 20)
            assert time.monotonic() - set_at >= lease_s
        assert consumers.waiting() == recovered(stuck.id.encode())
        for consumer in both:
            assert consumers.in_flight(consumer) == [consumer.id.encode()]
            assert consumer.renew()
        assert "was set forward" in caplog.text


class TestSuspended:
    def test_process_loses_its_messages_and_learns_of_it(self, consumers: Consumers) -> None:
        other = consumers.start(lease_s=2)
        with lone(consumers, b"1", b"2", lease_s=2) as process:
            process.process.send_signal(signal.SIGSTOP)
            wait_until(lambda: len(consumers.waiting()) == 2, "they are put back", 20)
            assert consumers.waiting() == recovered(b"1", b"2")
            # It is still connected: a blocking command may give it a message.
            assert consumers.client.zscore("delayq:consumers:{q}", process.id) < 0
            consumers.client.lpush(f"delayq:inflight:{{q}}:{process.id}", b"late")
            wait_until(lambda: len(consumers.waiting()) == 3, "this is put back, too", 20)
            process.process.send_signal(signal.SIGCONT)
            assert process.output.readline() == "lost 0\n"
            assert process.process.wait(20) == 0
        a_minute_ago = -(now_ms(consumers.client) - 61_000)
        assert consumers.client.zadd("delayq:consumers:{q}", {process.id: a_minute_ago}, xx=True, ch=True)
        wait_until(lambda: known(consumers) == [other.id], "it is forgotten", 20)
        consumers.client.delete("q")
        assert other.close()
        assert consumers.names_of_keys() == set()

    def test_process_keeps_its_messages_for_as_long_as_its_lease_lasts(self, consumers: Consumers) -> None:
        consumers.start(lease_s=0.5)
        with lone(consumers, b"1", lease_s=3) as process:
            process.process.send_signal(signal.SIGSTOP)
            end = consumers.client.zscore("delayq:consumers:{q}", process.id)
            wait_until(consumers.waiting, "it is put back", 20)
            assert now_ms(consumers.client) >= end


class TestWhereNobodyMayLook:
    @pytest.fixture
    def blind(self, consumers: Consumers) -> Iterator[dict[str, str]]:
        """Options of a user who may not ask for channels."""
        consumers.client.acl_setuser(
            "blind", enabled=True, nopass=True, commands=["+@all", "-pubsub"], keys=["*"], channels=["*"]
        )
        yield {"username": "blind", "password": "any"}
        consumers.client.acl_deluser("blind")

    def test_leases_decide(self, consumers: Consumers, blind: dict[str, str]) -> None:
        gone = consumers.start(lease_s=3, **blind)
        consumers.take(gone, b"1")
        consumers.start(lease_s=0.5, **blind)
        consumers.unwatch(gone)
        end = consumers.score(gone)
        wait_until(consumers.waiting, "it is put back", 20)
        assert now_ms(consumers.client) >= end
        assert consumers.waiting() == recovered(b"1")


class TestTwoAtOnce:
    def test_put_each_message_back_once(self, consumers: Consumers) -> None:
        """Both have read what the consumer holds before either acts on it."""
        barrier = threading.Barrier(2)

        class Meeting(threading.local):
            """Waits for the other thread before the first message."""

            met = False

            def recover(self, message: bytes) -> tuple[bytes, bool]:
                if not self.met:
                    self.met = True
                    barrier.wait(20)
                return message + b" recovered", False

        gone = consumers.make(lease_s=0.5)
        messages = [b"%d" % (number % 200) for number in range(250)]
        consumers.take(gone, *messages)
        meeting = Meeting()
        both = [consumers.start(lease_s=2, redelivery=Redelivery(recover=meeting.recover)) for _ in range(2)]
        wait_until(lambda: not consumers.in_flight(gone), "they are recovered", 20)
        assert consumers.score(gone) <= 0, "given up or forgotten"
        assert consumers.waiting() == recovered(*messages)
        assert barrier.broken is False
        for consumer in both:
            assert not consumer.is_lost


class TestClosed:
    @pytest.fixture(autouse=True)
    def short_blocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(abandoned, "BLOCK_S", 1.0)

    @pytest.mark.parametrize("thread", ["own", "another"])
    def test_while_the_server_is_away(self, lasting: Consumers, thread: str) -> None:
        """Whatever is not worked on comes back with the server, the rest can still be acknowledged."""
        consumer = lasting.start(lease_s=2)
        running, _, also_running = lasting.take(consumer, b"running", b"held", b"also running")
        lasting.publish(b"not held", b"waiting")
        consumer.fetch("q", 1)
        lasting.server.kill()
        assert consumer.close(keep=[running, also_running]) is False
        ack = consumer.ack if thread == "own" else partial(in_another_thread, consumer.ack)
        assert ack(also_running)
        lasting.server.start()
        wait_until(lambda: len(lasting.waiting()) == 3, "they are put back", 20)
        assert lasting.waiting() == [b"held again", b"not held again", b"waiting"]
        wait_until(lambda: lasting.in_flight(consumer) == [b"running"], "the acknowledgement is made up for")
        assert ack(running)
        wait_until(lambda: not lasting.is_watched(consumer), "its watchdog is done", 20)
        assert lasting.names_of_keys() == {"q"}

    def test_while_a_task_runs_keeps_its_lease(self, consumers: Consumers) -> None:
        consumer = consumers.start(lease_s=0.5)
        (running,) = consumers.take(consumer, b"running")
        assert consumer.close(keep=[running]) is False
        for _ in range(3):
            wait_for_end_of_lease(consumers, consumer)
            wait_until(lambda: consumers.score(consumer) > now_ms(consumers.client), "it is renewed")
        assert in_another_thread(consumer.ack, running)
        wait_until(lambda: not consumers.is_watched(consumer), "its watchdog is done", 20)
        assert consumers.names_of_keys() == set()

    def test_and_a_forked_child_ends(self, consumers: Consumers) -> None:
        """A child inherits what is to be done when the process ends; the task that runs is its parent's."""
        code = """
import os, sys, redis
from celery_delayq.fetching.consumer import Consumer
from celery_delayq.fetching.watchdog import Watchdog
from celery_delayq.queue.keeper import Keeper

consumer = Consumer(lambda: redis.Redis(port=int(sys.argv[1])))
consumer.join("q")
(message,) = consumer.fetch("q", 1)
watchdog = Watchdog(consumer, Keeper(consumer.connect))
watchdog.start()
consumer.close(keep=[consumer.hold("q", message)])
if not os.fork():
    sys.exit()
os.wait()
print(consumer.client.llen("q"))
"""
        consumers.publish(b"running")
        command = [sys.executable, "-W", "ignore", "-c", code, str(consumers.server.port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout == "0\n", done.stderr
        assert consumers.waiting() == [b"running"]
        assert consumers.names_of_keys() == {"q"}

    def test_and_the_process_killed(self, consumers: Consumers) -> None:
        """Before its task was done: others put it back."""
        consumers.start(lease_s=LONG_S)
        gone = consumers.start(lease_s=LONG_S)
        (running,) = consumers.take(gone, b"running")
        consumers.wait_until_seen(gone.id)
        gone.close(keep=[running])
        consumers.unwatch(gone)
        wait_until(lambda: consumers.waiting() == recovered(b"running"), "it is put back", 10)

    def test_consumers_leave_no_key(self, consumers: Consumers) -> None:
        all_of_them = [consumers.start("q", "r") for _ in range(4)]
        for consumer in all_of_them:
            consumers.take(consumer, b"1")
        with lone(consumers, b"2") as process:
            process.kill()
            wait_until(lambda: consumers.waiting() == recovered(b"2"), "one was killed, and is recovered", 20)
        wait_until(lambda: process.id not in known(consumers), "it is forgotten")
        for consumer in all_of_them:
            assert consumer.close() is True
        assert oldest_first(consumers.client, "q").count(b"1 again") == 4
        assert consumers.names_of_keys() == {"q"}
