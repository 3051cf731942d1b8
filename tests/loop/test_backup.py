"""One loop is punctual, the others cost nothing and take over."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from celery_delayq.basics.times import to_datetime
from celery_delayq.queue.delayed_queue import DelayedQueue
from tests.loop.conftest import Loops
from tests.state import calls, delivered, now_ms, offer
from tests.support import wait_until

REPOSITORY = Path(__file__).parents[2]


def punctual(client: redis.Redis) -> str:
    """Return the id of the loop that is recorded as the punctual one of `q`."""
    recorded: bytes = client.get("delayq:transfer:{q}") or b":"
    return recorded.decode().partition(":")[2]


def become_punctual(queue: DelayedQueue, loop: str) -> None:
    """Let the only loop that runs move a message."""
    queue.offer(b"first", eta=to_datetime(1))
    wait_until(lambda: punctual(queue.client) == loop, f"{loop} is punctual")
    wait_until(lambda: queue.take(0) == b"first", "the message is delivered")


class TestFollowers:
    def test_send_nothing_for_the_messages_of_the_punctual_loop(self, loops: Loops, queue: DelayedQueue) -> None:
        client = queue.client
        loops.start("leader", grace_s=30.0)
        become_punctual(queue, "leader")
        followers = [f"follower {number}" for number in range(4)]
        for follower in followers:
            loops.start(follower, grace_s=30.0)
        loops.wait_for(queue, 5)
        wait_until(lambda: {p.loop for p in loops.passes} >= {*followers}, "all have looked")

        client.config_resetstat()
        before = len(loops.passes)
        for number in range(50):
            offer(queue, str(number), now_ms(client) + 5 * number)
        wait_until(lambda: loops.moved("leader") == 51, "all are delivered", timeout=30)
        assert loops.moved(*followers) == 0

        passes = loops.passes[before:]
        followed = [p for p in passes if p.loop != "leader"]
        # At most one more look of each, that of its subscription.
        assert len(followed) <= len(followers)
        # And there are no commands beside the passes.
        assert calls(client, "evalsha") == len(passes) + 50
        assert calls(client, "exists") <= len(passes), "only scripts ask this: no loop looks at its queues"

    def test_hear_of_the_punctual_loop_by_its_signs_of_life(self, loops: Loops, queue: DelayedQueue) -> None:
        """They put off their look as long as it lives, and so do not take over."""
        loops.start("leader", grace_s=0.5)
        become_punctual(queue, "leader")
        loops.start("follower", grace_s=0.5)
        loops.wait_for(queue, 2)
        for number in range(30):
            queue.offer(b"%d" % number, countdown=0.05 * number)
        wait_until(lambda: queue.size() == 0, "all are delivered", timeout=30)
        assert sorted(map(int, delivered(queue))) == list(range(30))


class TestTakeover:
    @pytest.fixture
    def lone_loop(self, loops: Loops, queue: DelayedQueue) -> Iterator[subprocess.Popen[bytes]]:
        """The punctual loop, in a process of its own."""
        command = [sys.executable, "-m", "tests.loop.lone_loop", str(loops.server.port), "lone"]
        process = subprocess.Popen(command, cwd=REPOSITORY)
        try:
            become_punctual(queue, "lone")
            yield process
        finally:
            process.kill()
            process.wait()

    def test_after_the_punctual_loop_was_killed(
        self, loops: Loops, queue: DelayedQueue, lone_loop: subprocess.Popen[bytes]
    ) -> None:
        """Without a notification, without an interval: at the end of the grace period."""
        loops.start("backup", grace_s=0.2)
        loops.wait_for(queue, 2)
        for number in range(20):
            queue.offer(b"%d" % number, countdown=0.5 + 0.05 * number)
        wait_until(lambda: delivered(queue), "the first is delivered")
        lone_loop.kill()
        lone_loop.wait()
        wait_until(lambda: len(delivered(queue)) == 20, "all are delivered", timeout=20)
        assert delivered(queue) == [b"%d" % number for number in range(20)]
        assert punctual(queue.client) == "backup"

    def test_by_one_of_many(self, loops: Loops, queue: DelayedQueue, lone_loop: subprocess.Popen[bytes]) -> None:
        for number in range(3):
            loops.start(f"backup {number}", grace_s=0.2)
        loops.wait_for(queue, 4)
        lone_loop.kill()
        lone_loop.wait()
        for number in range(100):
            queue.offer(b"%d" % number, countdown=0.1 + 0.005 * number)
        wait_until(lambda: len(delivered(queue)) >= 100, "all are delivered", timeout=20)
        assert delivered(queue) == [b"%d" % number for number in range(100)]

    def test_at_once_when_the_punctual_loop_stops(self, loops: Loops, queue: DelayedQueue) -> None:
        """It resigns: the grace period of a minute is not waited for."""
        leader = loops.start("leader", grace_s=60.0)
        become_punctual(queue, "leader")
        loops.start("backup", grace_s=60.0)
        loops.wait_for(queue, 2)
        queue.offer(b"pay", countdown=1.0)
        leader.stop()
        assert punctual(queue.client) in ("", "backup")
        wait_until(lambda: delivered(queue) == [b"pay"], "the backup delivers")
        assert punctual(queue.client) == "backup"

    def test_by_none_when_a_follower_stops(self, loops: Loops, queue: DelayedQueue) -> None:
        loops.start("leader", grace_s=60.0)
        become_punctual(queue, "leader")
        loops.start("follower", grace_s=60.0).stop()
        assert punctual(queue.client) == "leader"
        queue.offer(b"pay", countdown=0.1)
        wait_until(lambda: delivered(queue) == [b"pay"], "the leader delivers")
