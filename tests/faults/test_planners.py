"""A ledger of occurrences: whatever happens to planners and servers, each one is sent once, and none is left out."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from dateutil.parser import isoparse

from celery_delayq.queue.keys import QueueKeys, ScheduleKeys
from examples.private_redis import PrivateRedis
from tests.brokers import ClusterServer, Server
from tests.planner.wandering import QUEUES
from tests.redis_cluster.servers import Cluster, ClusterNode, cut_from_master, slot_of
from tests.support import wait_until
from tests.transferring import transferring
from tests.worker_app import publisher

pytestmark = pytest.mark.on_cluster

#: Whatever was missed is made up for: so nothing may ever be left out.
OPTIONS = {"missed": "all", "catch_up": 10_000}

#: Name -> interval in ms.
INTERVALS = {f"every {ms} ms, {n}": ms for ms in (150, 200, 350, 1000) for n in range(6)}
SCHEDULE = {
    name: {
        "task": "note",
        "schedule": ms / 1000,
        "args": [name],
        "options": {"queue": QUEUES[number % 3], "delayq": OPTIONS},
    }
    for number, (name, ms) in enumerate(INTERVALS.items())
}

#: So long after its time, an occurrence of every entry has been missed, in ms: the longest interval, and what is merely
#: late.
MISSED_MS = 3500

#: How far the planners' clocks are off, in ms.
CLOCKS = (0, 3_600_000, -3_600_000, 30_000)

#: So many bytes its replica lacks when a master dies: some occurrences. Fewer where entries move: they may not leave
#: that node, so soon all of them rest there, and nothing more is written.
LOST_BYTES, LOST_OF_MOVING_BYTES = 10_000, 3_000

#: How many occurrences of an entry are sent twice at most because a master was lost: each time it goes to another
#: node, a withdrawn message may be back.
MOST_TWICE = 3


class Planners:
    """Planner processes, one for each clock."""

    def __init__(self, broker_url: str, ledger_url: str, **conf: Any) -> None:
        self._arguments = (broker_url, ledger_url, json.dumps({"beat_schedule": SCHEDULE, **conf}))
        self.processes = [self._start(offset_ms) for offset_ms in CLOCKS]

    def _start(self, offset_ms: int) -> subprocess.Popen[bytes]:
        command = ("-m", "tests.planner.lone_planner", *self._arguments, str(offset_ms))
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
def planners(broker_url: str, ledger_url: str, **conf: Any) -> Iterator[Planners]:
    """Planners for as long as a block lasts, with further configuration of their app."""
    found = Planners(broker_url, ledger_url, **conf)
    try:
        yield found
    finally:
        for number in range(len(CLOCKS)):
            found.kill(number)


class Sent:
    """What reached the queues, from which nobody takes it; each message is read once."""

    def __init__(self, broker: Server, names: Collection[str] = INTERVALS.keys()) -> None:
        self._broker = broker
        self._names = set(names)
        self._times: dict[str, dict[str, int]] = defaultdict(dict)
        self._counts: Counter[str] = Counter()

    def times(self) -> dict[str, list[int]]:
        """Return what there is by now: name -> the due times, in ms."""
        with self._broker.client() as client:
            for queue in QUEUES:
                for raw in client.lrange(queue, 0, -1 - self._counts[queue]):
                    headers: dict[str, Any] = json.loads(raw)["headers"]
                    due_ms = round(isoparse(headers["eta"]).timestamp() * 1000)
                    self._times[headers["argsrepr"].strip("[]'")][headers["id"]] = due_ms
                    self._counts[queue] += 1
        return {name: list(of_name.values()) for name, of_name in self._times.items()}

    def read_again(self) -> set[str]:
        """Read everything again; return the ids of messages that were there before, and are not any more."""
        before = self._ids()
        self._times.clear()
        self._counts.clear()
        self.times()
        return before - self._ids()

    def _ids(self) -> set[str]:
        return {task_id for of_name in self._times.values() for task_id in of_name}

    def wait_for(self, due_ms: int) -> None:
        """Wait until every entry has been sent up to a time, however long after it that is."""

        def all_are_sent() -> bool:
            found = self.times()
            return found.keys() == self._names and all(max(times) > due_ms for times in found.values())

        wait_until(all_are_sent, "all entries go on", 120)

    def wait_for_progress(self) -> None:
        """Wait until all entries were sent up to now, and what a suspended planner may have planned."""
        with self._broker.client() as client:
            now_ms = client.time()[0] * 1000
        self.wait_for(now_ms + 2 * max(INTERVALS.values()))

    def check(self) -> None:
        """Fail unless each occurrence was sent once, from the first to the last."""
        self.read_again()
        found = self.times()
        assert found.keys() == self._names
        for name, times in found.items():
            assert max(Counter(times).values()) == 1, f"{name}: twice"
            missing = set(range(min(times), max(times) + 1, INTERVALS[name])) ^ set(times)
            assert not missing, f"{name}: {len(missing)} of {len(times)} left out, or at another time"


@pytest.fixture
def replicas() -> int:
    """How many replicas each master has: they take over."""
    return 1


@pytest.fixture
def sent(broker: Server) -> Sent:
    """What the planners of a test have sent."""
    return Sent(broker)


class Scene:
    """What faults strike, and the luck that chooses."""

    def __init__(self, running: Planners, sent: Sent, broker: Server, choose: random.Random) -> None:
        self.running, self.sent, self.broker, self.choose = running, sent, broker, choose

    def any_planner(self) -> int:
        """Choose a planner."""
        return self.choose.randrange(len(CLOCKS))

    @property
    def cluster(self) -> Cluster:
        """The nodes of the broker."""
        assert isinstance(self.broker, ClusterServer)
        return self.broker.cluster


def suspend(scene: Scene) -> None:
    """Suspend a planner until the others have gone on without it, so that all it knows is old."""
    number = scene.any_planner()
    scene.running.signal(number, signal.SIGSTOP)
    scene.sent.wait_for_progress()
    scene.running.signal(number, signal.SIGCONT)


def kill_while_suspended(scene: Scene) -> None:
    number = scene.any_planner()
    scene.running.signal(number, signal.SIGSTOP)
    scene.running.restart(number)


def restart(scene: Scene) -> None:
    scene.running.restart(scene.any_planner())


def cut_off(scene: Scene) -> None:
    with scene.broker.client() as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "normal")
        client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")


def restart_server(scene: Scene) -> None:
    scene.broker.kill()
    scene.broker.start()


def fail_over(scene: Scene) -> None:
    """A replica takes over as it is told: nothing is forgotten."""
    scene.sent.times()
    scene.cluster.failover(scene.choose.choice(scene.cluster.masters()))
    assert not scene.sent.read_again()


def lose_master(scene: Scene) -> None:
    """A master dies, and its replica takes over, although it lacks what planners and loops wrote last."""
    lose(scene.cluster, scene.cluster.owner(scene.choose.choice(QUEUES)))
    scene.sent.read_again()


def move_queue(scene: Scene) -> None:
    """The slot of a queue goes to another node."""
    move_slot(scene, scene.choose.choice(QUEUES))


def move_schedule(scene: Scene) -> None:
    """The slot of what all entries have in common goes to another node."""
    move_slot(scene, ScheduleKeys.of(together=True).definitions)


def move_slot(scene: Scene, key: str) -> None:
    """Move the slot of a key; planners meet it while half of it has moved."""
    cluster = scene.cluster
    target = scene.choose.choice([node for node in cluster.masters() if node is not cluster.owner(key)])
    scene.sent.times()
    cluster.move(slot_of(key), target, pause_s=0.5)
    assert not scene.sent.read_again()


def lose(cluster: Cluster, victim: ClusterNode, lost_bytes: int = LOST_BYTES) -> None:
    """Kill a master when its replica lacks its last writes; return when that is the master, and the other is back."""
    (replica,) = cluster.replicas_of(victim)
    with cut_from_master(replica, victim):
        wait_until(
            lambda: (
                victim.client.info("replication")["master_repl_offset"]
                > replica.client.info("replication")["slave_repl_offset"] + lost_bytes
            ),
            "the replica lacks something",
        )
        victim.kill()
    wait_until(lambda: replica in cluster.masters(), f"{replica} takes over", 60)
    victim.restart()
    cluster.wait_until_ok()


Fault = Callable[[Scene], None]

#: What strikes planners and any broker; and what strikes the nodes of a cluster.
FAULTS: tuple[Fault, ...] = (suspend, kill_while_suspended, restart, cut_off, restart_server)
NODE_FAULTS: tuple[Fault, ...] = (fail_over, lose_master, move_queue, move_schedule)


@pytest.mark.parametrize("seed", [1, 2])
def test_every_occurrence_is_sent_once(broker: Server, broker_url: str, ledger_url: str, sent: Sent, seed: int) -> None:
    """Planners are killed, suspended, cut off, an hour apart; servers crash, are replaced, and slots move."""
    choose = random.Random(seed)
    faults = [*FAULTS, *(FAULTS if isinstance(broker, PrivateRedis) else NODE_FAULTS * 2)]
    choose.shuffle(faults)
    with ExitStack() as stack:
        stack.enter_context(transferring(broker))
        running = stack.enter_context(planners(broker_url, ledger_url))
        sent.wait_for_progress()
        scene = Scene(running, sent, broker, choose)
        for fault in faults:
            fault(scene)
            time.sleep(choose.uniform(0, 0.8))  # waits for nothing: the next fault comes at any moment
        sent.wait_for_progress()
        sent.check()


def test_all_planners_down_for_a_while(broker: Server, broker_url: str, ledger_url: str, sent: Sent) -> None:
    """What was planned runs, and what was not is made up for when the first of them is back."""
    with transferring(broker), planners(broker_url, ledger_url) as running, broker.client() as client:
        sent.wait_for_progress()
        for number in range(len(CLOCKS)):
            running.kill(number)
        waiting = [QueueKeys.of(queue).timeout_set for queue in QUEUES]
        wait_until(lambda: client.exists(*waiting) == 0, "what was planned has run")
        sent.check()
        newest_ms = max(max(times) for times in sent.times().values())
        wait_until(lambda: client.time()[0] * 1000 > newest_ms + MISSED_MS, "of all entries, an occurrence is missed")
        running.restart(0)
        sent.wait_for_progress()
        sent.check()


def change_at_random(schedule: Any, number: int, choose: random.Random) -> None:
    """Change an entry, pause it, resume it, or move it to a queue on another node."""
    change = choose.choice([schedule.update, schedule.update, schedule.pause, schedule.resume])
    new = {"args": [number], "options": {"queue": choose.choice(QUEUES)}} if change == schedule.update else {}
    change("mine", **new)


@pytest.mark.parametrize("seed", range(2))
def test_changes_while_planners_come_and_go(broker: Server, broker_url: str, ledger_url: str, seed: int) -> None:
    """An entry is changed, paused and moved to another queue again and again: no occurrence is sent twice."""
    choose = random.Random(seed)
    conf = {"delayq": {"missed": "all"}}
    with ExitStack() as stack:
        app = stack.enter_context(publisher(broker_url, ledger_url))
        stack.enter_context(transferring(broker))
        running = stack.enter_context(planners(broker_url, ledger_url))
        client = stack.enter_context(broker.client())
        schedule = app.delayq.schedule
        schedule.add("mine", "note", 0.1, ["first"], options=conf)
        wait_until(lambda: schedule.get("mine").runs > 3, "it runs", 30)
        for number in range(60):
            change_at_random(schedule, number, choose)
            if number % 15 == 14:
                running.restart(choose.randrange(len(CLOCKS)))
            if number % 20 == 19 and not isinstance(broker, PrivateRedis):
                broker.cluster.failover(choose.choice(broker.cluster.masters()))
            time.sleep(choose.uniform(0, 0.1))  # waits for nothing: the next change comes at any moment
        check_changed(schedule, client)


def check_changed(schedule: Any, client: redis.Redis) -> None:
    """Fail unless the entry runs as it is now, in its last queue only, and no occurrence was sent twice."""
    schedule.resume("mine")
    schedule.update("mine", args=["last"], options={"queue": QUEUES[0]})

    def headers() -> list[dict[str, Any]]:
        return [json.loads(raw)["headers"] for queue in ("celery", *QUEUES) for raw in client.lrange(queue, 0, -1)]

    def own() -> list[dict[str, Any]]:
        return [one for one in headers() if "every" not in one["argsrepr"]]

    wait_until(lambda: [one["argsrepr"] for one in own()].count("['last']") >= 3, "it runs as it is now", 60)
    times = Counter(one["eta"] for one in own())
    assert max(times.values()) == 1, {eta: count for eta, count in times.items() if count > 1}
    for queue in QUEUES[1:]:
        assert not client.hexists(QueueKeys.of(queue).schedule, "mine")
    assert schedule.get("mine").error is None


#: Entries that go from queue to queue.
WANDERING = {
    name: {"task": "note", "schedule": ms / 1000, "args": [name], "options": {"delayq": OPTIONS}}
    for name, ms in INTERVALS.items()
    if ms >= 350 and name.endswith(("0", "1"))
}


def test_entries_move_between_nodes_that_die(durable_cluster: ClusterServer, ledger_url: str) -> None:
    """Nothing is left out. Sent twice is at most what was planned since a replica lacked something."""
    broker, cluster, choose = durable_cluster, durable_cluster.cluster, random.Random(1)
    conf = {
        "beat_schedule": WANDERING,
        "task_routes": "tests.planner.wandering.route",
        "broker_transport_options": {"replicas": 1, "replicas_timeout": 5.0},
    }
    sent, harms = Sent(broker, WANDERING), []
    with transferring(broker), planners(cluster.url(3), ledger_url, **conf), broker.client() as client:
        sent.wait_for_progress()
        for queue in choose.sample(QUEUES, 3):
            # On a busy machine, planners are late: what is sent twice may have been due long before.
            begin_ms = min(client.time()[0] * 1000 - MISSED_MS, *map(max, sent.times().values()))
            lose(cluster, cluster.owner(queue), LOST_OF_MOVING_BYTES)
            harms.append((begin_ms, client.time()[0] * 1000 + MISSED_MS))
            sent.wait_for_progress()
        # An entry goes to another queue before this one's loop has transferred what is due.
        until = {name: max(times) for name, times in sent.times().items()}
        sent.read_again()

        def left_out() -> list[tuple[str, int]]:
            found = sent.times()
            return [
                (name, due_ms)
                for name, last_ms in until.items()
                for due_ms in set(range(min(found[name]), last_ms + 1, INTERVALS[name])).difference(found[name])
            ]

        wait_until(lambda: not left_out(), "none is left out")
        for name, found in sent.times().items():
            times = [due_ms for due_ms in found if due_ms <= until[name]]
            assert {(due_ms - min(times)) % INTERVALS[name] for due_ms in times} == {0}, f"{name}: at another time"
            twice = [due_ms for due_ms, count in Counter(times).items() if count > 1]
            beyond = [due_ms for due_ms in twice if not any(begin <= due_ms <= end for begin, end in harms)]
            assert beyond == [], f"{name}: twice, although the masters were lost in {harms}"
            assert len(twice) <= MOST_TWICE * len(harms)
