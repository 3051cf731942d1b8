"""A Redis Cluster as the broker: its scene, and what is done to its nodes and to workers, in random order.

With the transport option `replicas=1`, what a publisher takes for done has to survive all of it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

from celery_delayq.queue.keys import QueueKeys
from tests.clocks import clock_from, has_faketime
from tests.redis_cluster.servers import Cluster, ClusterNode, cluster, slot_of
from tests.soak.looks import busy, ended, is_lasting, leases
from tests.soak.publisher import Publisher
from tests.soak.scene import Scene
from tests.soak.setting import Setting
from tests.soak.verdict import Harm
from tests.support import lasting_keys, wait_until
from tests.workers import Worker

#: Queues on all nodes.
_QUEUES = tuple(f"q{number}" for number in range(6))

#: A node that does not answer for so long is dead to the others.
_NODE_TIMEOUT_S = 3.0

#: Suspended for so long, a master stays one, or its replica takes over.
_SHORT_S, _LONG_S = 1.0, 7.0

#: A slot is on its way for so long, and at the other node.
_MOVING_S, _MOVED_S = 1.0, 1.5

#: A replica takes over within so many seconds, on a busy machine.
_TAKEN_OVER_S = 60.0

#: How long the replica of a master that dies may lack what workers wrote, in seconds.
_BEHIND_S = 1.0

#: What a master answered that did not know yet that it had been replaced is run within so many seconds.
_STALE_S = 0.5

#: So far a wrong clock is off, in seconds.
_WRONG_S = 60

#: Every so many tasks, one is due at a full second.
_PUNCTUAL_EVERY = 7


class ClusterScene(Scene):
    """Three masters and three replicas, six queues, two workers.

    Attributes:
        cluster: the servers.
        luck: what is random.
    """

    queues = _QUEUES

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.luck = random.Random()
        self._turns: list[str] = []
        self._masters: set[ClusterNode] = set()
        self._checked_s = time.time()

    def _start_broker(self, stack: ExitStack) -> list[str]:
        timeout = ("--cluster-node-timeout", str(round(_NODE_TIMEOUT_S * 1000)))
        self.cluster: Cluster = stack.enter_context(cluster(replicas=1, settings=timeout))
        self._masters, self._checked_s = set(self.cluster.masters()), time.time()
        return [self.cluster.url(3)] * 3

    def _publisher(self) -> Publisher:
        return Publisher(self.app, self.setting.rate, self.queues, punctual_every=_PUNCTUAL_EVERY)

    # -- what is done to it

    def next_turn(self) -> str:
        """Return what is to be done next: everything once, in random order, and again in another one."""
        if not self._turns:
            self._turns = [name for name in STRIKES if name != "wrong clock" or has_faketime()]
            self.luck.shuffle(self._turns)
        return self._turns.pop()

    @contextmanager
    def losing(self, victim: ClusterNode) -> Iterator[None]:
        """Let a master die in the block, and wait until its replica has taken over.

        What workers had fetched or acknowledged may be forgotten, so what they ran meanwhile may run again.
        """
        begin_s = time.time()
        (replica,) = self.cluster.replicas_of(victim)
        yield
        wait_until(lambda: replica in self.cluster.masters(), f"{replica} takes over", _TAKEN_OVER_S)
        self.say(f"{replica} took over")
        self._masters = self._masters - {victim} | {replica}
        self.hurt_all(begin_s - _BEHIND_S)

    def hurt_all(self, begin_s: float) -> None:
        """Take down that what workers have run since then may run again."""
        self.harms.append(Harm(frozenset(worker.pid for worker in self.workers), begin_s, time.time()))

    def promoted(self, victim: ClusterNode, replica: ClusterNode) -> None:
        """Take down that a replica took over as it was told, without loss."""
        self._masters = self._masters - {victim} | {replica}

    def make_whole(self) -> None:
        """Wait until all nodes are there, and each master has a replica that has everything."""
        self.cluster.wait_until_ok()
        for master in self.cluster.masters():
            wait_until(lambda: _has_replica(master), f"the replica of {master} has everything", 60)  # noqa: B023
        now = set(self.cluster.masters())
        if now != self._masters:  # the machine is so busy that a node was taken for dead
            self.say("a replica took over though nobody asked for it")
            self.hurt_all(self._checked_s - _BEHIND_S)
        self._masters, self._checked_s = now, time.time()

    def start(self, workers: Sequence[Worker], env: Mapping[str, str] | None = None) -> None:
        """Start workers that were killed; returns when they consume."""
        counts = [worker.log.count(" ready.") for worker in workers]
        for worker in workers:
            worker.start(env)
        for worker, count in zip(workers, counts, strict=True):
            worker.wait_for_log(" ready.", times=count + 1, timeout=60)

    # -- the end

    def dead(self) -> list[bytes]:
        """Return the dead letters of all queues."""
        return [
            letter
            for queue in self.queues
            for letter in self.cluster.owner(queue).client.hvals(QueueKeys.of(queue).records)
        ]

    def complaints(self) -> list[str]:
        """Return what is wrong besides tasks: workers that ended by themselves, and dead letters."""
        return [
            *ended(self.workers),
            *busy(self.workers),
            *self.failed,
            *(f"a dead letter: {letter!r}" for letter in self.dead()),
        ]

    def leftovers(self) -> set[str]:
        """Return the names of all keys on masters that should not be there once everything has stopped."""
        return {
            key
            for node in self.cluster.masters()
            for key in lasting_keys(node.client)
            if not is_lasting(node.client, key)
        }

    def _places(self, task_id: str) -> list[str]:
        found = []
        for node in self.cluster.nodes:
            for name in node.client.scan_iter(count=1000, _type="list") if node.answers else ():
                if node in self._masters and any(task_id.encode() in it for it in node.client.lrange(name, 0, -1)):
                    found.append(f"{name.decode(errors='replace')} at {node}")
        return found

    def _is_settled(self) -> bool:
        for node in self.cluster.masters():
            if any(node.client.scan_iter("delayq:inflight:*", count=1000)):
                return False
        for queue in self.queues:
            client, keys = self.cluster.owner(queue).client, QueueKeys.of(queue)
            if client.exists(queue, keys.timeout_set) or len(leases(client, keys.consumers)) != len(self.workers):
                return False
        return True


def strike_cluster(scene: ClusterScene, number: int) -> None:
    strike_with(scene, scene.next_turn())


def strike_with(scene: ClusterScene, name: str) -> None:
    """Do what STRIKES has under a name; before and afterwards, all nodes are there."""
    scene.make_whole()
    STRIKES[name](scene)
    scene.make_whole()


# -- what strikes


def _kill_master(scene: ClusterScene) -> None:
    victim = scene.luck.choice(scene.cluster.masters())
    scene.say(f"kill -9 of {victim}")
    with scene.losing(victim):
        victim.kill()
    victim.restart()


def _kill_master_and_worker(scene: ClusterScene) -> None:
    victim, worker = scene.luck.choice(scene.cluster.masters()), scene.luck.choice(scene.workers)
    scene.say(f"kill -9 of {victim} and of worker {worker.pid}")
    with scene.losing(victim):
        victim.kill()
        scene.kill([worker])
        scene.start([worker])  # while there is no master for some of its queues
    scene.say(f"worker {worker.pid} is there")
    victim.restart()


def _fail_over(scene: ClusterScene) -> None:
    master = scene.luck.choice(scene.cluster.masters())
    scene.say(f"CLUSTER FAILOVER for {master}")
    scene.promoted(master, scene.cluster.failover(master))


def _move_slots(scene: ClusterScene) -> None:
    """Two queues go to other masters, one after the other, and back."""
    moved = []
    for queue in scene.luck.sample(scene.queues, 2):
        slot, source = slot_of(queue), scene.cluster.owner(queue)
        target = scene.luck.choice([node for node in scene.cluster.masters() if node is not source])
        scene.say(f"slot {slot} of {queue} goes from {source} to {target}")
        with scene.cluster.moving(slot, target):
            time.sleep(_MOVING_S)
        moved.append((slot, source))
    time.sleep(_MOVED_S)
    for slot, source in moved:
        scene.say(f"slot {slot} goes back to {source}")
        scene.cluster.move(slot, source, pause_s=_MOVING_S)


def _hang_shortly(scene: ClusterScene) -> None:
    """Nobody takes over, so nothing is forgotten."""
    node = scene.luck.choice(scene.cluster.nodes)
    scene.say(f"SIGSTOP of {node} for {_SHORT_S:g} s")
    node.suspend()
    try:
        time.sleep(_SHORT_S)
    finally:
        node.resume()


def _hang_long(scene: ClusterScene) -> None:
    """The replica takes over, and then the old master is back: for a moment, it does not know that it is none."""
    victim = scene.luck.choice(scene.cluster.masters())
    scene.say(f"SIGSTOP of {victim} for {_LONG_S:g} s or more")
    until_s = time.monotonic() + _LONG_S
    try:
        with scene.losing(victim):
            victim.suspend()
        time.sleep(max(0.0, until_s - time.monotonic()))
    finally:
        scene.say(f"SIGCONT of {victim}")
        resumed_s = time.time()
        victim.resume()
    scene.cluster.wait_until_ok()
    time.sleep(_STALE_S)
    scene.hurt_all(resumed_s)


def _cut(scene: ClusterScene) -> None:
    """Everybody loses all connections to a node, and may connect again at once."""
    _cut_from(scene, scene.luck.choice(scene.cluster.masters()))


def _cut_from(scene: ClusterScene, node: ClusterNode) -> None:
    scene.say(f"CLIENT KILL of all connections to {node}")
    node.client.client_kill_filter(_type="normal", skipme=True)
    node.client.client_kill_filter(_type="pubsub", skipme=True)


def cut_after_new_children(scene: ClusterScene, number: int) -> None:
    """Each master in turn, as soon as each worker has another child."""
    scene.replace_children()
    _cut_from(scene, scene.cluster.masters()[number % 3])


def _wrong_clock(scene: ClusterScene) -> None:
    """A worker is killed, and starts with a clock that is a minute ahead or behind, until it is killed again."""
    worker, seconds = scene.luck.choice(scene.workers), scene.luck.choice((-_WRONG_S, _WRONG_S))
    scene.say(f"kill -9 of worker {worker.pid}; the next one has a clock that is {seconds} s off")
    scene.kill([worker])
    scene.start([worker], clock_from(datetime.now(timezone.utc) + timedelta(seconds=seconds)))
    scene.say(f"worker {worker.pid} is there")


STRIKES: dict[str, Callable[[ClusterScene], None]] = {
    "master killed": _kill_master,
    "both killed": _kill_master_and_worker,
    "failover": _fail_over,
    "slots": _move_slots,
    "short hang": _hang_shortly,
    "long hang": _hang_long,
    "cut": _cut,
    "wrong clock": _wrong_clock,
}


def _has_replica(master: ClusterNode) -> bool:
    """Return whether a replica has acknowledged all that the master had a moment ago."""
    before: Any = master.client.info("replication")
    wanted = before["master_repl_offset"]
    found: Any = master.client.info("replication")
    return any(found[f"slave{number}"]["offset"] >= wanted for number in range(found["connected_slaves"]))
