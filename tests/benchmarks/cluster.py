"""Cluster: what a Redis Cluster of three masters costs beside one server, and what it gains."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_delayq import DelayedQueue
from celery_delayq.cluster.client import Routed
from celery_delayq.cluster.node import Address
from celery_delayq.cluster.topology import Topology
from examples.private_redis import PrivateRedis
from tests.benchmarks.copies import Copier
from tests.benchmarks.figures import OURS, Figure, Target, in_turns
from tests.benchmarks.filling import INSTANT, Filler
from tests.benchmarks.moves import report_moves
from tests.benchmarks.outages import report_outages
from tests.benchmarks.report import Report
from tests.benchmarks.scale import Scale
from tests.benchmarks.worker import BenchWorker
from tests.redis_cluster.servers import Cluster, cluster
from tests.support import wait_until

#: The variant beside ours, which is on the cluster; and other clients.
SINGLE = "one server"
_PLAIN, _REDIS_PY = "redis-py, one server", "RedisCluster"

QUEUES = tuple(f"q{number}" for number in range(12))

_MASTERS = 3

#: No node is taken for dead because the machine is busy.
_SETTINGS = ("--cluster-node-timeout", "15000")

#: More commands than that, a task or an idle worker should not need.
_TASK, _IDLE = Target(1.05, ratio=True), Target(1.5)

#: After so many seconds a worker has begun everything that it does periodically.
_SETTLED_S = 3.0

#: Tasks that are published one by one, a second: so few that a worker has time for each.
_RATE = 150

#: Delayed tasks are due after so many seconds.
_COUNTDOWN_S = 2.0

#: After the last task, so long may pass before its acknowledgement has left the worker.
_ACKNOWLEDGED_S = 0.3

_DEADLINE_S = 300

#: Names of what tasks were measured with.
_KINDS = ("immediate tasks, one by one", "delayed tasks, one by one", "a backlog of immediate tasks")


def run(scale: Scale) -> Report:
    report = Report(
        f"cluster: {_MASTERS} masters beside one server, {len(QUEUES)} queues, a prefork worker each with 2 processes, "
        f"{scale.cluster_tasks:,} tasks in each of {scale.cluster_rounds} turns"
    )
    with _sides() as sides:
        _commands(report, scale, sides)
        _throughput(report, scale, sides[OURS])
    _other_idle(report, scale.idle_s)
    with cluster(_MASTERS, settings=_SETTINGS) as nodes:
        _transfer(report, scale, nodes)
        _single_commands(report, scale, nodes)
    report_moves(report, _SETTINGS)
    report_outages(report, scale.outage_s)
    report.notes += [
        f"{OURS}: on the cluster. Commands are those of clients, publisher and worker together; what an idle worker "
        "sends meanwhile is subtracted.",
        "The servers, the workers and the publisher share the cores of this machine: nodes are no faster than one.",
    ]
    return report


# -- workers at work


@dataclass
class Side:
    """One server, or a cluster, with a worker.

    Attributes:
        clients: of the masters.
        worker: that consumes all queues.
        homes: queue -> the client of its master.
    """

    clients: list[redis.Redis]
    worker: BenchWorker
    homes: Mapping[str, redis.Redis]


@contextmanager
def _sides() -> Iterator[dict[str, Side]]:
    with ExitStack() as stack:
        server = stack.enter_context(PrivateRedis())
        nodes = stack.enter_context(cluster(_MASTERS, settings=_SETTINGS))
        client = stack.enter_context(server.client())
        workers = {
            SINGLE: BenchWorker(OURS, server.port, queues=QUEUES),
            OURS: BenchWorker(OURS, nodes.nodes[0].port, broker=nodes.url(_MASTERS), queues=QUEUES),
        }
        for worker in workers.values():
            stack.push(worker)
            worker.start()
        for worker in workers.values():
            worker.wait_until_ready()
        time.sleep(_SETTLED_S)
        homes = {queue: nodes.owner(queue).client for queue in QUEUES}
        yield {
            SINGLE: Side([client], workers[SINGLE], dict.fromkeys(QUEUES, client)),
            OURS: Side([node.client for node in nodes.masters()], workers[OURS], homes),
        }


@dataclass
class Sent:
    """What clients sent to each master, and for how long.

    Attributes:
        nodes: command -> how often, for each master.
        seconds: how long it was counted.
    """

    nodes: list[Counter[str]]
    seconds: float = 0.0

    @property
    def total(self) -> Counter[str]:
        """What was sent to all of them."""
        return sum(self.nodes, Counter())

    def count(self) -> int:
        """Return how many commands that were."""
        return self.total.total()


@contextmanager
def watched(clients: Sequence[redis.Redis]) -> Iterator[Sent]:
    """Count what clients send to servers while the block lasts; what scripts call does not count."""
    sent = Sent([Counter() for _ in clients])
    with ExitStack() as stack:
        threads = []
        for client, counter in zip(clients, sent.nodes, strict=True):
            # A connection of its own, which has no timeout.
            options = {name: client.get_connection_kwargs()[name] for name in ("host", "port")}
            watcher = stack.enter_context(redis.Redis(**options, socket_timeout=None))
            monitor = stack.enter_context(watcher.monitor())
            threads.append(threading.Thread(target=_count, args=(monitor, counter), daemon=True))
            threads[-1].start()
        begin = time.perf_counter()
        try:
            yield sent
        finally:
            sent.seconds = time.perf_counter() - begin
            for client in clients:
                client.echo(_END)
            for thread in threads:
                thread.join(60)


#: Ends the counting on a server.
_END = "no more is counted"

#: What opens connections, what replicas say, and what the measurement itself sends.
_NOT_COUNTED = {"HELLO", "CLIENT SETINFO", "ECHO", "RENAME", "REPLCONF", "PSYNC"}
_WITH_SUBCOMMAND = {"CLIENT", "CLUSTER", "PUBSUB", "SCRIPT"}


def _count(monitor: Any, counter: Counter[str]) -> None:
    for line in monitor.listen():
        words = line["command"].upper().split(" ", 2)
        if line["command"] == f"ECHO {_END}":
            return
        name = " ".join(words[:2]) if words[0] in _WITH_SUBCOMMAND else words[0]
        if line["client_type"] != "lua" and name not in _NOT_COUNTED:
            counter[name] += 1


def _commands(report: Report, scale: Scale, sides: Mapping[str, Side]) -> None:
    idle = {name: _idle(side, scale.idle_s) for name, side in sides.items()}
    runs = dict(zip(_KINDS, (_one_by_one, partial(_one_by_one, countdown_s=_COUNTDOWN_S), _backlog), strict=True))
    spread: list[Sent] = []
    for kind, call in runs.items():
        figure = report.figure(f"{kind}: commands a task", "", baseline=SINGLE, target=_TASK)
        turns = {name: partial(call, scale.cluster_tasks, side) for name, side in sides.items()}
        for name, results in in_turns(scale.cluster_rounds, turns).items():
            per_task: Counter[str] = Counter()
            for sent in results:
                unasked = idle[name].count() / idle[name].seconds * sent.seconds
                figure.add(name, (sent.count() - unasked) / scale.cluster_tasks)
                per_task += sent.total
            most = ", ".join(
                f"{command} {count / scale.cluster_tasks / scale.cluster_rounds:.3f}"
                for command, count in per_task.most_common(8)
            )
            report.notes.append(f"{kind}, {name}, a task, with what is sent while idle: {most}")
            spread += results if name == OURS else []
    _report_idle(report, idle)
    _report_spread(report, sides[OURS], spread)


def _idle(side: Side, seconds: float) -> Sent:
    with watched(side.clients) as sent:
        time.sleep(seconds)
    return sent


def _one_by_one(count: int, side: Side, countdown_s: float = 0.0) -> Sent:
    """Publish tasks at a steady rate, until all have run."""
    worker = side.worker
    worker.forget()
    with watched(side.clients) as sent:
        begin = time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, begin + number / _RATE - time.monotonic()))
            worker.publish(number, countdown_s)
        wait_until(lambda: worker.count() >= count, "all have run", _DEADLINE_S)
        time.sleep(_ACKNOWLEDGED_S)
    return sent


def _backlog(count: int, side: Side) -> Sent:
    """Let a worker find tasks in all queues; that they are published does not count."""
    copiers = _prepared(side, QUEUES, count, "note")
    side.worker.forget()
    with watched(side.clients) as sent:
        for copier in copiers:
            copier.release()
        wait_until(lambda: side.worker.count() >= count, "all have run", _DEADLINE_S)
        time.sleep(_ACKNOWLEDGED_S)
    return sent


def _prepared(side: Side, queues: Sequence[str], count: int, task: str) -> list[Copier]:
    copiers = [Copier(side.worker.app, side.homes[queue], task, queue) for queue in queues]
    for copier in copiers:
        copier.prepare(range(count // len(queues)))
    return copiers


def _drain(side: Side, queues: Sequence[str], count: int) -> float:
    """Let a worker find so many tasks in some queues; return how many it took a second."""
    copiers = _prepared(side, queues, count, "empty")
    clients = {queue: side.homes[queue] for queue in queues}
    begin = time.perf_counter()
    for copier in copiers:
        copier.release()
    wait_until(lambda: not any(client.llen(name) for name, client in clients.items()), "it is gone", _DEADLINE_S)
    return count / (time.perf_counter() - begin)


def _other_idle(report: Report, seconds: float) -> None:
    """Watch an idle worker with a queue on each node, and one with all queues on nodes that have a replica each."""
    for what, replicas in (("a queue a node", 0), (f"{len(QUEUES)} queues, and a replica a node", 1)):
        figure = report.figure(f"an idle worker with {what}: commands a second and node", "commands/s", target=_IDLE)
        with cluster(_MASTERS, replicas, settings=_SETTINGS) as nodes:
            queues = QUEUES if replicas else spread_over_nodes(QUEUES, nodes.owner)[1]
            with BenchWorker(OURS, nodes.nodes[0].port, broker=nodes.url(_MASTERS), queues=queues) as worker:
                worker.wait_until_ready()
                time.sleep(_SETTLED_S)
                with watched([node.client for node in nodes.masters()]) as sent:
                    time.sleep(seconds)
        for counter in sent.nodes:
            figure.add(OURS, counter.total() / sent.seconds)


def _report_idle(report: Report, idle: Mapping[str, Sent]) -> None:
    figure = report.figure(
        f"an idle worker with {len(QUEUES)} queues: commands a second and node",
        "commands/s",
        target=_IDLE,
    )
    for name, sent in idle.items():
        nodes = [counter.total() / sent.seconds for counter in sent.nodes]
        for rate in nodes:
            figure.add(name, rate)
        report.notes.append(f"an idle worker, {name}, on each node: {', '.join(f'{rate:.2f}' for rate in nodes)}")
        most = ", ".join(f"{command} {count}" for command, count in sent.total.most_common(8))
        report.notes.append(f"an idle worker, {name}, in {sent.seconds:.0f} s on all nodes: {most}")


def _report_spread(report: Report, side: Side, runs: Sequence[Sent]) -> None:
    """Say how commands are spread over the nodes, beside the queues."""
    total = sum(sent.count() for sent in runs)
    for number, client in enumerate(side.clients):
        figure = report.figure(f"node {number + 1}: share", "%", baseline="queues")
        figure.add("queues", 100 * sum(side.homes[queue] is client for queue in QUEUES) / len(QUEUES))
        figure.add(OURS, 100 * sum(sent.nodes[number].total() for sent in runs) / total)


def _throughput(report: Report, scale: Scale, side: Side) -> None:
    figure = report.figure("a worker takes a backlog", "tasks/s", baseline=_SPREADS[0])
    spreads = dict(zip(_SPREADS, spread_over_nodes(QUEUES, side.homes.__getitem__), strict=True))
    turns = {name: partial(_drain, side, queues, scale.cluster_tasks) for name, queues in spreads.items()}
    figure.samples = in_turns(scale.cluster_rounds, turns)


#: One hot queue, one on each node, all.
_SPREADS = ("1 queue", "3 queues, one a node", "12 queues")


def spread_over_nodes(queues: Sequence[str], home: Callable[[str], object]) -> tuple[list[str], list[str], list[str]]:
    """Return the queues of `_SPREADS`."""
    firsts: dict[int, str] = {}
    for queue in queues:
        firsts.setdefault(id(home(queue)), queue)
    return [queues[0]], list(firsts.values()), list(queues)


# -- without workers


def _transfer(report: Report, scale: Scale, nodes: Cluster) -> None:
    rate = report.figure("due messages that are moved, by a thread for each node", "messages/s", baseline=_SPREADS[0])
    share = report.figure("the same in the time of a server", "messages/s", baseline=_SPREADS[0])
    spreads = dict(zip(_SPREADS, spread_over_nodes(QUEUES, nodes.owner), strict=True))
    with routed(nodes) as client:
        turns = {name: partial(move_due, nodes, client, queues, scale.cluster_due) for name, queues in spreads.items()}
        in_turns(1, turns)  # knows the scripts from here on
        for name, results in in_turns(scale.cluster_rounds, turns).items():
            for wall, server in results:
                rate.add(name, wall)
                share.add(name, server)


def move_due(nodes: Cluster, client: Routed, queues: Sequence[str], count: int) -> tuple[float, float]:
    """Return how many messages a second are moved, and how many in a second of the time that scripts take."""
    fillers: dict[int, list[Filler]] = {}
    for name in queues:
        filler = Filler(DelayedQueue(client, name), first_due_ms=0, span_ms=1, order=INSTANT)
        filler.fill_up_to(count // len(queues))
        fillers.setdefault(nodes.owner(name).port, []).append(filler)
    nodes.reset_counts()
    begin = time.perf_counter()
    with ThreadPoolExecutor(len(fillers)) as threads:
        moved = sum(threads.map(_move_all, fillers.values()))
    seconds = time.perf_counter() - begin
    used: list[Any] = [node.client.info("commandstats").get("cmdstat_evalsha", {"usec": 0}) for node in nodes.masters()]
    for some in fillers.values():
        for filler in some:
            filler.forget_transferred()
    return moved / seconds, moved / sum(stat["usec"] for stat in used) * 1_000_000


def _move_all(fillers: Sequence[Filler]) -> int:
    """Move all that is due in some queues of a node, in turns as a loop does."""
    queues = [filler.queue for filler in fillers]
    total = 0
    while queues:
        for queue in list(queues):
            moved = queue.transfer(transferrer="benchmark", grace=0.25).moved
            total += moved
            if not moved:
                queues.remove(queue)
    return total


def _single_commands(report: Report, scale: Scale, nodes: Cluster) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(PrivateRedis())
        plain = stack.enter_context(server.client())
        seed = nodes.nodes[0].port
        theirs = redis.RedisCluster(host="127.0.0.1", port=seed)
        stack.callback(theirs.close)
        clients: dict[str, Any] = {_PLAIN: plain, _REDIS_PY: theirs, OURS: stack.enter_context(routed(nodes))}
        figure: Figure = report.figure("GET of a short value", "µs", baseline=_PLAIN)
        for client in clients.values():
            client.set("key", "value")
        turns = {name: partial(_us, client.get, scale.limit_calls) for name, client in clients.items()}
        in_turns(1, turns)
        figure.samples = in_turns(2 * scale.cluster_rounds, turns)


@contextmanager
def routed(nodes: Cluster) -> Iterator[Routed]:
    topology = Topology([Address("127.0.0.1", nodes.nodes[0].port)], _pool)
    try:
        yield Routed(topology)
    finally:
        topology.close()


def _pool(address: Address) -> redis.ConnectionPool:
    return redis.ConnectionPool(host=address.host, port=address.port, retry=Retry(NoBackoff(), 0))


def _us(get: Callable[[str], object], calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        get("key")
    return (time.perf_counter() - begin) / calls * 1_000_000
