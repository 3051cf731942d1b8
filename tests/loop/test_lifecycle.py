"""Starting, stopping and waking: from any thread, in signal handlers, after a fork."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
import warnings

import pytest
import redis

from celery_delayq.basics.times import to_datetime
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.keeper import Keeper
from celery_delayq.queue.scripts import Transferred
from celery_delayq.transfer import failover_log
from celery_delayq.transfer import loop as transfer_module
from celery_delayq.transfer.loop import TransferLoop
from examples.private_redis import PrivateRedis
from tests.loop.conftest import NEVER_S, Loops
from tests.state import delivered, state
from tests.support import wait_until


def connections(client: redis.Redis) -> set[str]:
    """Return the ids of all connections that the server has; other tests may have left some."""
    return {connection["id"] for connection in client.client_list()}


class TestStart:
    def test_is_put_off_until_it_may_begin(self, loops: Loops, queue: DelayedQueue) -> None:
        queue.offer(b"pay", eta=to_datetime(1))
        asked = [False] * 5
        loops.start(may_begin=lambda: not asked or asked.pop())
        assert not asked
        wait_until(lambda: delivered(queue) == [b"pay"], "delivered")

    def test_is_not_put_off_for_ever(self, loops: Loops, queue: DelayedQueue, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(transfer_module, "LONGEST_DELAY_S", 0.1)
        queue.offer(b"pay", eta=to_datetime(1))
        loops.start(may_begin=lambda: False)
        wait_until(lambda: delivered(queue) == [b"pay"], "delivered")

    def test_that_is_put_off_may_be_stopped(self, loops: Loops, queue: DelayedQueue) -> None:
        queue.offer(b"pay", eta=to_datetime(1))
        asked = threading.Event()
        loop = loops.make(may_begin=lambda: asked.set() or False)
        loop.start()
        assert asked.wait(10)
        loop.stop()
        assert not loop.is_alive()
        assert delivered(queue) == []


def test_a_queue_may_move_to_another_server_while_it_is_looked_at(
    loops: Loops, queue: DelayedQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """On Redis Cluster, other threads notice that, too."""
    queue.offer(b"pay", eta=to_datetime(1))
    answers = [True, False]  # then it comes back
    loops.start(serves=lambda name: name != "q" or not answers or answers.pop(0), interval_s=0.1)
    wait_until(lambda: delivered(queue) == [b"pay"], "delivered")
    assert not answers
    assert "interrupted" not in caplog.text


class TestStop:
    def test_again_and_again_at_any_moment(self, loops: Loops, queue: DelayedQueue) -> None:
        queue.offer(b"pay", countdown=0.3)
        before = connections(queue.client)
        for number in range(40):
            loop = loops.make(str(number))
            loop.start()
            time.sleep(random.choice([0, 0.0005, 0.002, 0.01]))  # any moment, not a certain one
            loop.stop()
            assert not loop.is_alive()
        loops.start("last")
        wait_until(lambda: delivered(queue) == [b"pay"], "delivered")
        loops.stop()
        wait_until(lambda: connections(queue.client) <= before, "all connections are closed")

    def test_leaves_nothing_of_the_loop_in_redis(self, loops: Loops, queue: DelayedQueue) -> None:
        loops.start()
        queue.offer(b"pay", eta=to_datetime(1))
        wait_until(lambda: loops.moved() == 1, "delivered")
        loops.stop()
        assert state(queue.client) == {"q": [b"pay"], "delayq:queues": {b"q"}}

    def test_twice_and_before_the_start(self, loops: Loops) -> None:
        loop = loops.start()
        loop.stop()
        loop.stop()
        never_started = loops.make()
        never_started.stop()
        never_started.wake()
        assert not never_started.is_alive()

    def test_while_the_server_is_away(self) -> None:
        with PrivateRedis() as server:
            server.kill()
            connects = []

            def connect() -> redis.Redis:
                connects.append(1)
                return server.client(retry=None)

            loops = Loops(server)
            loop = loops.make(connect=connect)
            loop.start()
            wait_until(lambda: len(connects) > 1, "the loop tries")
            loop.stop()
            assert not loop.is_alive()

    def test_from_its_own_thread(self, loops: Loops, queue: DelayedQueue) -> None:
        queue.offer(b"pay", eta=to_datetime(1))

        def on_pass(queue: DelayedQueue, done: Transferred) -> None:
            loop.stop()

        loop = TransferLoop(Keeper(loops.client), on_pass=on_pass)
        loop.start()
        wait_until(lambda: not loop.is_alive(), "the loop has ended")
        assert delivered(queue) == [b"pay"]

    def test_from_many_threads(self, loops: Loops) -> None:
        loop = loops.start()
        threads = [threading.Thread(target=loop.stop) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert not loop.is_alive()

    @pytest.mark.parametrize("busy_with", ["wake", "nothing"])
    def test_from_a_signal_handler(self, loops: Loops, busy_with: str) -> None:
        """Which may interrupt the main thread anywhere, in a call to the same loop as well."""
        for _ in range(5):
            loop = loops.start()
            stopped = []

            def stop(*args: object, loop: TransferLoop = loop, stopped: list[int] = stopped) -> None:
                loop.stop()
                stopped.append(1)

            before = signal.signal(signal.SIGALRM, stop)
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.001, 0.05))
                while not stopped:
                    if busy_with == "wake":
                        loop.wake()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
            assert not loop.is_alive()


class TestWake:
    def test_again_and_again_is_not_taken_for_a_lost_connection(
        self, loops: Loops, queue: DelayedQueue, caplog: pytest.LogCaptureFixture
    ) -> None:
        asked = 0
        switch_interval = sys.getswitchinterval()

        def queues() -> list[str]:
            nonlocal asked
            asked += 1
            return ["q"]

        loop = loops.start(queues=queues)

        def wake_often() -> None:
            for _ in range(150):
                loop.wake()
                time.sleep(random.choice([0, 0.0002, 0.001, 0.004]))  # any moment

        wakers = [threading.Thread(target=wake_often) for _ in range(4)]
        sys.setswitchinterval(1e-5)
        try:
            for waker in wakers:
                waker.start()
            for waker in wakers:
                waker.join()
        finally:
            sys.setswitchinterval(switch_interval)
        before = asked
        loop.wake()
        wait_until(lambda: asked > before, "the loop has asked again")
        queue.offer(b"pay", countdown=0.1)
        wait_until(lambda: delivered(queue) == [b"pay"], "delivered")
        assert [record.getMessage() for record in caplog.records if record.levelno > 20] == []


class TestFork:
    def test_a_child_does_nothing_to_its_parents_loop(self, loops: Loops, queue: DelayedQueue) -> None:
        loop = loops.start()
        queue.register()
        loops.wait_for(queue)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads, as prefork does
            child = os.fork()
        if child == 0:
            loop.wake()
            loop.stop()
            os._exit(7)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        assert loop.is_alive()
        passes = len(loops.passes)
        queue.offer(b"pay", countdown=0.1)
        wait_until(lambda: delivered(queue) == [b"pay"], "delivered")
        # One pass delivers; a subscription made anew would have cost another one.
        assert len(loops.passes) <= passes + 2


class TestChores:
    """What a loop does for others when it has nothing else to do."""

    def test_are_done_from_time_to_time_with_its_connection(
        self, loops: Loops, queue: DelayedQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transfer_module, "CHORES_S", 0.05)
        done: list[bool] = []
        loops.start(chores=lambda client, serves: done.append(client.ping() and serves("q")))
        wait_until(lambda: len(done) >= 3, "they are done")
        assert all(done)
        queue.offer(b"pay", eta=to_datetime(1))
        wait_until(lambda: delivered(queue) == [b"pay"], "delivered, too")

    def test_are_done_before_a_loop_ends(self, loops: Loops) -> None:
        done: list[bool] = []
        loop = loops.start(chores=lambda client, serves: done.append(client.ping()))
        assert not done
        loop.stop()
        assert done == [True]

    def test_wait_while_much_is_due_but_not_for_ever(
        self, loops: Loops, queue: DelayedQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transfer_module, "CHORES_S", 0.5)
        monkeypatch.setattr(transfer_module, "_CHORES_TAKE_S", 1e9)  # it never has so much time
        monkeypatch.setattr(failover_log, "ALONE_S", NEVER_S)  # nothing else wakes it
        done: list[tuple[float, float]] = []
        began = time.monotonic()
        loops.start(chores=lambda client, serves: done.append((time.monotonic() - began, time.thread_time())))
        wait_until(lambda: done, "they are done")
        ((after_s, computed_s), *_) = done
        assert after_s >= 2 * 0.5
        assert computed_s < 0.25, "it sleeps until then"

    def test_that_lose_the_connection_end_no_loop(self, loops: Loops, queue: DelayedQueue) -> None:
        def lose(client: redis.Redis, serves: object) -> None:
            raise redis.ConnectionError("lost")

        loop = loops.start(chores=lose)
        queue.offer(b"pay", eta=to_datetime(1))
        wait_until(lambda: delivered(queue) == [b"pay"], "delivered")
        loop.stop()
        assert not loop.is_alive()
