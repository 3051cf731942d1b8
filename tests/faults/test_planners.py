"""A ledger of occurrences: whatever happens to planners and server, each one is sent once, and none is left out."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from dateutil.parser import isoparse

from celery_delayq.transfer.loop import TransferLoop, TransferSettings
from examples.private_redis import PrivateRedis
from tests.support import wait_until
from tests.worker_app import publisher

#: Name -> interval in ms. Whatever was missed is made up for: so nothing may ever be left out.
INTERVALS = {f"every {ms} ms, {n}": ms for ms in (150, 200, 350, 1000) for n in range(5)}
SCHEDULE = {
    name: {
        "task": "note",
        "schedule": ms / 1000,
        "args": [name],
        "options": {"delayq": {"missed": "all", "catch_up": 10_000}},
    }
    for name, ms in INTERVALS.items()
}

#: So long after its time, an occurrence of every entry has been missed, in ms: the longest interval, and what is merely
#: late.
MISSED_MS = 3500

#: How far the planners' clocks are off, in ms.
CLOCKS = (0, 3_600_000, -3_600_000, 30_000)


class Planners:
    """Planner processes, one for each clock."""

    def __init__(self, broker_url: str) -> None:
        self._broker_url = broker_url
        self.processes = [self._start(offset_ms) for offset_ms in CLOCKS]

    def _start(self, offset_ms: int) -> subprocess.Popen[bytes]:
        command = ("-m", "tests.planner.lone_planner", self._broker_url, json.dumps(SCHEDULE), str(offset_ms))
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", *command],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def restart(self, number: int) -> None:
        """Kill a planner, suspended or not, and start another."""
        self.kill(number)
        self.processes[number] = self._start(CLOCKS[number])

    def kill(self, number: int) -> None:
        """Kill a planner."""
        self.processes[number].kill()
        self.processes[number].wait()

    def signal(self, number: int, which: int) -> None:
        """Send a signal to a planner."""
        self.processes[number].send_signal(which)


@contextmanager
def planners(broker_url: str) -> Iterator[Planners]:
    """Planners for as long as a block lasts."""
    found = Planners(broker_url)
    try:
        yield found
    finally:
        for number in range(len(CLOCKS)):
            found.kill(number)


@contextmanager
def transferring(broker: PrivateRedis) -> Iterator[None]:
    """What a worker does with what is due; nobody takes it from its queue."""
    loop = TransferLoop(broker.client, settings=TransferSettings(interval_s=0.5))
    loop.start()
    try:
        yield
    finally:
        loop.stop()


class Sent:
    """What reached the queue of a server, from which nobody takes it; each message is read once."""

    def __init__(self, broker: PrivateRedis) -> None:
        self._broker = broker
        self._times: dict[str, list[int]] = defaultdict(list)
        self._count = 0

    def times(self) -> dict[str, list[int]]:
        """Return what there is by now: name -> the due times, in ms."""
        with self._broker.client() as client:
            for raw in client.lrange("celery", 0, -1 - self._count):
                message: dict[str, Any] = json.loads(raw)
                name = message["headers"]["argsrepr"].strip("[]'")
                self._times[name].append(round(isoparse(message["headers"]["eta"]).timestamp() * 1000))
                self._count += 1
        return self._times

    def wait_for(self, due_ms: int) -> None:
        """Wait until every entry has been sent up to a time, however long after it that is."""
        wait_until(
            lambda: (
                self.times().keys() == INTERVALS.keys() and all(max(times) > due_ms for times in self.times().values())
            ),
            "all entries go on",
            120,
        )

    def wait_for_progress(self) -> None:
        """Wait until all entries were sent up to now, and what a suspended planner may have planned."""
        with self._broker.client() as client:
            now_ms = client.time()[0] * 1000
        self.wait_for(now_ms + 2 * max(INTERVALS.values()))

    def check(self) -> None:
        """Fail unless each occurrence was sent once, from the first to the last."""
        found = self.times()
        assert found.keys() == INTERVALS.keys()
        for name, times in found.items():
            assert max(Counter(times).values()) == 1, f"{name}: twice"
            missing = set(range(min(times), max(times) + 1, INTERVALS[name])) ^ set(times)
            assert not missing, f"{name}: {len(missing)} of {len(times)} left out, or at another time"


@pytest.fixture
def sent(broker: PrivateRedis) -> Sent:
    """What the planners of a test have sent."""
    return Sent(broker)


def suspend(running: Planners, sent: Sent, broker: PrivateRedis, number: int) -> None:
    """Suspend a planner until the others have gone on without it, so that all it knows is old."""
    running.signal(number, signal.SIGSTOP)
    sent.wait_for_progress()
    running.signal(number, signal.SIGCONT)


def kill_while_suspended(running: Planners, sent: Sent, broker: PrivateRedis, number: int) -> None:
    running.signal(number, signal.SIGSTOP)
    running.restart(number)


def restart(running: Planners, sent: Sent, broker: PrivateRedis, number: int) -> None:
    running.restart(number)


def cut_off(running: Planners, sent: Sent, broker: PrivateRedis, number: int) -> None:
    with broker.client() as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "normal")
        client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")


def restart_server(running: Planners, sent: Sent, broker: PrivateRedis, number: int) -> None:
    broker.kill()
    broker.start()


@pytest.mark.parametrize("seed", [1, 2])
def test_every_occurrence_is_sent_once(broker: PrivateRedis, broker_url: str, sent: Sent, seed: int) -> None:
    """Planners are killed, suspended, cut off, an hour apart; the server crashes."""
    choose = random.Random(seed)
    faults = [suspend, kill_while_suspended, restart, cut_off, restart_server] * 2
    choose.shuffle(faults)
    with ExitStack() as stack:
        stack.enter_context(transferring(broker))
        running = stack.enter_context(planners(broker_url))
        sent.wait_for_progress()
        for fault in faults:
            fault(running, sent, broker, choose.randrange(len(CLOCKS)))
            time.sleep(choose.uniform(0, 0.8))  # waits for nothing: the next fault comes at any moment
        sent.wait_for_progress()
        sent.check()


def test_all_planners_down_for_a_while(broker: PrivateRedis, broker_url: str, sent: Sent) -> None:
    """What was planned runs, and what was not is made up for when the first of them is back."""
    with transferring(broker), planners(broker_url) as running, broker.client() as client:
        sent.wait_for_progress()
        for number in range(len(CLOCKS)):
            running.kill(number)
        wait_until(lambda: client.zcard("redisson_delay_queue_timeout:{celery}") == 0, "what was planned has run")
        sent.check()
        newest_ms = max(max(times) for times in sent.times().values())
        wait_until(lambda: client.time()[0] * 1000 > newest_ms + MISSED_MS, "of all entries, an occurrence is missed")
        running.restart(0)
        sent.wait_for_progress()
        sent.check()


@pytest.mark.parametrize("seed", range(2))
def test_changes_while_planners_come_and_go(broker: PrivateRedis, broker_url: str, seed: int) -> None:
    """An entry is changed, paused and moved to another queue again and again: no occurrence is sent twice."""
    choose = random.Random(seed)
    conf = {"delayq": {"missed": "all"}}
    with publisher(broker_url, broker.url) as app, transferring(broker), planners(broker_url) as running:
        schedule = app.delayq.schedule
        schedule.add("mine", "note", 0.1, ["first"], options=conf)
        wait_until(lambda: schedule.get("mine").runs > 3, "it runs", 30)
        for number in range(60):
            queue = choose.choice(["mine", "other"])
            change = choose.choice([schedule.update, schedule.update, schedule.pause, schedule.resume])
            change("mine", **({"args": [number], "options": {"queue": queue}} if change == schedule.update else {}))
            if number % 15 == 14:
                running.restart(choose.randrange(len(CLOCKS)))
            time.sleep(choose.uniform(0, 0.1))  # waits for nothing: the next change comes at any moment
        schedule.resume("mine")
        schedule.update("mine", args=["last"], options={"queue": "other"})
        with broker.client() as client:

            def arguments(queue: str) -> list[str]:
                return [json.loads(raw)["headers"]["argsrepr"] for raw in client.lrange(queue, 0, -1)]

            wait_until(lambda: arguments("other")[:3] == ["['last']"] * 3, "it runs as it is now", 30)
            assert client.zcard("redisson_delay_queue_timeout:{mine}") == 0
            times = [
                json.loads(raw)["headers"]["eta"]
                for queue in ("celery", "mine", "other")
                for raw in client.lrange(queue, 0, -1)
                if "every" not in json.loads(raw)["headers"]["argsrepr"]
            ]
            assert max(Counter(times).values()) == 1
        assert schedule.get("mine").error is None
