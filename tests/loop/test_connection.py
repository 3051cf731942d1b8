"""A server or a connection that goes away costs time, never a message."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
import redis

from celery_delayq.basics.times import to_datetime
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.registry import Registry
from examples.private_redis import PrivateRedis
from tests.loop.conftest import CountedConnect, Loops
from tests.state import FAR, delivered
from tests.support import wait_until


@pytest.fixture
def durable_loops(durable_server: PrivateRedis) -> Iterator[Loops]:
    """Loops on that server."""
    loops = Loops(durable_server)
    yield loops
    loops.stop()


def rejected(client: redis.Redis, command: str) -> int:
    """Return how often the server has refused a command since `config_resetstat`."""
    return int(client.info("commandstats").get(f"cmdstat_{command}", {}).get("rejected_calls", 0))


def levels(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the levels of what was logged by us, without DEBUG."""
    ours = [record for record in caplog.records if record.name.startswith("celery_delayq")]
    return [record.levelname for record in ours if record.levelname != "DEBUG"]


class TestServer:
    def test_is_killed_and_started_again(self, durable_loops: Loops, caplog: pytest.LogCaptureFixture) -> None:
        """Logged once when it goes, and once when it is back, however often the loop tries."""
        caplog.set_level("INFO", logger="celery_delayq")
        loops, server = durable_loops, durable_loops.server
        connect = CountedConnect(loops)
        loops.start(connect=connect)
        with server.client() as client:
            queue = DelayedQueue(client, "q")
            queue.offer(b"before", countdown=0.1)
            wait_until(lambda: delivered(queue) == [b"before"], "delivered before")
            queue.offer(b"while", countdown=0.2)
            queue.offer(b"after", countdown=4.0)
        server.kill()
        wait_until(lambda: connect.attempts >= 4, "the loop has tried again and again")
        assert levels(caplog) == ["INFO", "WARNING"]
        server.start()
        with server.client() as client:
            queue = DelayedQueue(client, "q")
            wait_until(lambda: delivered(queue) == [b"before", b"while", b"after"], "all delivered", 20)
        assert levels(caplog) == ["INFO", "WARNING", "INFO"]

    def test_comes_up_after_the_loop(self, caplog: pytest.LogCaptureFixture) -> None:
        with PrivateRedis() as server:
            server.kill()
            loops = Loops(server)
            loop = loops.make()
            loop.start()
            try:
                wait_until(lambda: levels(caplog) == ["WARNING"], "the loop cannot connect")
                server.start()
                with server.client() as client:
                    queue = DelayedQueue(client, "q")
                    queue.offer(b"pay", countdown=0.1)
                    wait_until(lambda: delivered(queue) == [b"pay"], "delivered")
            finally:
                loops.stop()

    def test_stands_still_for_a_while(self, durable_loops: Loops) -> None:
        """Longer than the loop waits for a reply: as with a slow disk or a paused machine."""
        loops, server = durable_loops, durable_loops.server
        connects = 0

        def connect() -> redis.Redis:
            nonlocal connects
            connects += 1
            return loops.client(socket_timeout=0.3)

        loops.start(connect=connect, interval_s=0.2)
        with server.client() as client:
            queue = DelayedQueue(client, "q")
            queue.offer(b"pay", countdown=0.5)
            os.kill(server.pid, signal.SIGSTOP)
            try:
                wait_until(lambda: connects > 1, "the loop connects anew")
            finally:
                os.kill(server.pid, signal.SIGCONT)
            wait_until(lambda: delivered(queue) == [b"pay"], "delivered", timeout=20)

    def test_forgets_the_scripts(self, loops: Loops, queue: DelayedQueue) -> None:
        loops.start()
        for number in range(3):
            queue.offer(b"%d" % number, countdown=0.2)
            queue.client.script_flush()
            wait_until(lambda number=number: len(delivered(queue)) == number + 1, "delivered")


class TestRefusal:
    """A server that lets the loop connect, and then refuses what it needs."""

    def test_of_a_command_is_logged_once_and_does_not_make_the_loop_spin(
        self, loops: Loops, queue: DelayedQueue, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", logger="celery_delayq")
        admin = queue.client
        admin.config_resetstat()
        queue.offer(b"pay", eta=to_datetime(1))
        user = ("ACL", "SETUSER", "loop", "on", "nopass", "~*", "&*")
        admin.execute_command(*user, "+@all", "-exists")
        connect = CountedConnect(loops, username="loop", password="any")

        try:
            started = time.monotonic()
            loops.make(connect=connect).start()
            wait_until(lambda: rejected(admin, "exists") == 5, "the loop has tried again and again")
            assert connect.attempts == 1
            # Pauses of 0.05, 0.1, 0.2 and 0.4 s, or half of that.
            assert time.monotonic() - started >= 0.375
            assert levels(caplog) == ["ERROR"]
            assert "exists" in caplog.text
            admin.execute_command(*user, "+@all")
            wait_until(lambda: delivered(queue) == [b"pay"], "delivered")
            wait_until(lambda: levels(caplog) == ["ERROR", "INFO"], "the loop says so")
        finally:
            loops.stop()
            admin.execute_command("ACL", "DELUSER", "loop")

    def test_of_the_registry_leaves_the_queues_that_are_consumed(
        self, loops: Loops, queue: DelayedQueue, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue.offer(b"pay", eta=to_datetime(1))
        queue.client.delete("delayq:queues")
        queue.client.set("delayq:queues", "of a wrong type")
        loops.make(queues=lambda: ["q"]).start()
        wait_until(lambda: delivered(queue) == [b"pay"], "delivered")
        assert levels(caplog) == ["ERROR"]
        assert "Cannot read the names of delayed queues in 'delayq:queues'" in caplog.text

    def test_of_the_registry_leaves_the_queues_that_were_known(self, loops: Loops, queue: DelayedQueue) -> None:
        queue.register()
        loops.start(interval_s=0.1)
        loops.wait_for(queue)
        queue.client.set("delayq:queues", "of a wrong type")
        looked = len(loops.passes)
        queue.offer(b"later", eta=to_datetime(FAR))
        wait_until(lambda: len(loops.passes) > looked + 9, "it looked three times for new names")
        queue.offer(b"pay", eta=to_datetime(1))
        wait_until(lambda: delivered(queue) == [b"pay"], "delivered")

    def test_of_the_registry_that_loops_share_does_not_mean_that_the_server_is_away(
        self, loops: Loops, queue: DelayedQueue
    ) -> None:
        """Whoever reads it for all of them waits half a second; a loop waits longer for its own server."""
        asked: list[float] = []

        class Impatient(Registry):
            def read(self) -> dict[str, int]:
                asked.append(time.monotonic())
                if len(asked) < 3:
                    raise redis.TimeoutError("this takes too long")
                return super().read()

        queue.offer(b"pay", eta=to_datetime(1))
        connect = CountedConnect(loops)
        loop = loops.make(connect=connect, registry=Impatient(loops.client()), interval_s=0.5)
        loop.start()
        wait_until(lambda: delivered(queue) == [b"pay"], "delivered")
        assert connect.attempts == 1
        assert asked[2] - asked[0] < 5 * 0.5, "each look asks it again, not each sixth one"

    @pytest.mark.thorough
    def test_by_a_replica_is_logged_once(self, durable_loops: Loops, caplog: pytest.LogCaptureFixture) -> None:
        """READONLY, as after a failover: the loop asks again where the master is."""
        caplog.set_level("INFO", logger="celery_delayq")
        loops, server = durable_loops, durable_loops.server
        connect = CountedConnect(loops)
        with PrivateRedis() as master, server.client() as client, master.client() as there:
            client.replicaof("127.0.0.1", master.port)
            DelayedQueue(there, "q").offer(b"pay", eta=to_datetime(1))
            queue = DelayedQueue(client, "q")
            wait_until(queue.size, "replicated", timeout=20)
            loops.make(connect=connect).start()  # it is subscribed for moments only, between two refusals
            wait_until(lambda: connect.attempts >= 4, "the loop has tried again and again")
            assert levels(caplog) == ["WARNING"]
            client.replicaof("NO", "ONE")
            wait_until(lambda: delivered(queue) == [b"pay"], "delivered", timeout=20)
            wait_until(lambda: levels(caplog) == ["WARNING", "INFO"], "the loop says so")

    def test_by_the_callers_own_function(
        self, loops: Loops, queue: DelayedQueue, caplog: pytest.LogCaptureFixture
    ) -> None:
        """An error that is nobody's fault but ours is logged with where it came from."""
        queue.offer(b"pay", eta=to_datetime(1))
        asked = 0

        def queues() -> list[str]:
            nonlocal asked
            asked += 1
            if asked < 4:
                raise KeyError("broken")
            return []

        loops.start(queues=queues)
        wait_until(lambda: delivered(queue) == [b"pay"], "delivered")
        assert levels(caplog).count("ERROR") == 1
        assert "KeyError: 'broken'" in caplog.text


class TestConnection:
    @pytest.mark.parametrize("kind", ["pubsub", "normal"])
    @pytest.mark.parametrize("retries", [True, False])
    def test_either_one_is_killed(self, loops: Loops, queue: DelayedQueue, kind: str, retries: bool) -> None:
        """Whether redis-py connects again by itself, as it does by default, or the loop does."""
        loops.start(connect=loops.server.client if retries else loops.client)
        for number in range(3):
            queue.offer(b"%d" % number, countdown=0.3)
            wait_until(lambda: queue.client.client_kill_filter(_type=kind, skipme=True), "there is one to kill")
            queue.offer(b"%d+" % number, countdown=0.2)
            wait_until(
                lambda number=number: len(delivered(queue)) == 2 * number + 2,
                f"{number} is delivered",
            )

    def test_the_subscription_is_killed_and_a_new_queue_is_missed(self, loops: Loops, client: redis.Redis) -> None:
        """What was announced while no one listened is found when the loop listens again."""
        loops.start()
        assert client.client_kill_filter(_type="pubsub") == 1
        queue = DelayedQueue(client, "new")
        queue.offer(b"pay", eta=to_datetime(1))
        wait_until(lambda: delivered(queue) == [b"pay"], "delivered")

    def test_all_are_killed_again_and_again(self, loops: Loops, queue: DelayedQueue) -> None:
        for number in range(3):
            loops.start(f"loop {number}", interval_s=1.0)
        for number in range(100):
            queue.offer(b"%d" % number, countdown=0.02 * number)
        while queue.size():
            queue.client.client_kill_filter(_type="pubsub")
            queue.client.client_kill_filter(_type="normal", skipme=True)
            seen = len(loops.passes)
            wait_until(lambda seen=seen: len(loops.passes) > seen or not queue.size(), "a pass", timeout=20)
        assert sorted(map(int, delivered(queue))) == list(range(100))

    def test_a_subscription_that_is_never_confirmed_is_noticed(self, loops: Loops, queue: DelayedQueue) -> None:
        """A connection may die without a word right after it was made."""
        queue.offer(b"pay", eta=to_datetime(1))
        unheard: list[str] = []

        class Deaf(redis.Connection):
            def send_command(self, *args: str, **options: object) -> None:
                if args == ("SUBSCRIBE", "delayq:queues") and not unheard:
                    unheard.append(args[1])
                    args = ("PING",)
                super().send_command(*args, **options)

        pool = redis.ConnectionPool(Deaf, port=loops.server.port, socket_timeout=0.5)
        loops.make(connect=lambda: redis.Redis(connection_pool=pool)).start()
        wait_until(lambda: delivered(queue) == [b"pay"], "delivered")
        assert unheard
        loops.stop()
        pool.disconnect()
