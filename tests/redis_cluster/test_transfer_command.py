"""`celery delayq transfer` on a cluster: what happens to one node concerns only its own queues."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest
import redis
from celery import Celery

from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.keys import QueueKeys, registry
from examples.private_redis import PrivateRedis
from tests.brokers import ClusterServer
from tests.redis_cluster import servers
from tests.redis_cluster.servers import slot_of
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import CeleryCommand

#: On all nodes.
QUEUES = ("blue", "green", "red")

#: How long a test waits for what may have to wait until others have noticed something, in seconds.
LONG_S = 60


@pytest.fixture
def ledger_url(redis_server: PrivateRedis) -> str:
    return f"redis://127.0.0.1:{redis_server.port}/9"


@pytest.fixture
def replicas(request: pytest.FixtureRequest) -> int:
    return int(getattr(request, "param", 0))


@pytest.fixture
def broker(replicas: int) -> Iterator[ClusterServer]:
    """A cluster of its own, whose nodes forget nothing when they are killed. No node is taken for dead soon."""
    settings = ("--appendonly", "yes", "--appendfsync", "always", "--cluster-node-timeout", "15000")
    with servers.cluster(replicas=replicas, settings=settings) as cluster:
        yield ClusterServer(cluster)


@pytest.fixture
def app(broker: ClusterServer, ledger_url: str) -> Iterator[Celery]:
    with publisher(broker.cluster.url(3), ledger_url) as app:
        yield app


@pytest.fixture
def client(broker: ClusterServer) -> Iterator[redis.Redis]:
    with broker.client() as client:
        yield client


@contextmanager
def transferring(broker: ClusterServer, ledger_url: str, queues: Iterable[str] = QUEUES) -> Iterator[CeleryCommand]:
    """Run the command, and wait until it serves all nodes."""
    arguments = ("delayq", "transfer", "-Q", ",".join(queues))
    with CeleryCommand(*arguments, broker=broker.cluster.url(3), ledger=ledger_url) as command, ExitStack() as stack:
        stack.callback(lambda: print(command.log))  # pytest shows it with the failure
        command.wait_for_log("Transferring")
        yield command


def transferred(command: CeleryCommand) -> int:
    """End the command, and return how many tasks it says that it has transferred."""
    command.send_signal(signal.SIGTERM)
    assert command.wait() == 0
    assert "Traceback" not in command.log
    (number,) = re.findall(r"^(\d+) tasks? transferred\.$", command.log, re.MULTILINE)
    return int(number)


def publish(app: Celery, queues: Iterable[str]) -> None:
    for queue in queues:  # the countdown is longer than it takes to connect: what is due is not transferred
        app.tasks["note"].apply_async(countdown=2, queue=queue)


def wait_for(client: redis.Redis, queue: str, number: int) -> None:
    """Wait until so many tasks are in the list of a queue: nobody takes them."""
    wait_until(lambda: client.llen(queue) == number, f"{number} are in {queue}", LONG_S)


def publish_and_wait(app: Celery, client: redis.Redis, queues: Sequence[str], number: int) -> None:
    """Publish a task to each queue, and wait until each has so many in all."""
    publish(app, queues)
    for queue in queues:
        wait_for(client, queue, number)


@pytest.mark.parametrize("has_registry", [False, True], ids=["any node", "node of the registry"])
def test_queues_of_other_nodes_go_on_while_one_is_away(
    broker: ClusterServer, ledger_url: str, app: Celery, client: redis.Redis, has_registry: bool
) -> None:
    cluster = broker.cluster
    home = cluster.owner(registry(""))
    away = next(queue for queue in QUEUES if (cluster.owner(queue) is home) is has_registry)
    others = [queue for queue in QUEUES if queue != away]
    with transferring(broker, ledger_url) as command:
        publish_and_wait(app, client, QUEUES, 1)
        publish(app, [away])
        lost = cluster.owner(away)
        wait_for(client, away, 2)
        app.tasks["note"].apply_async(countdown=3, queue=away)
        lost.kill()
        publish_and_wait(app, client, others, 2)
        lost.restart()
        cluster.wait_until_ok()
        wait_for(client, away, 3)
        assert "and no longer" not in command.log, "no node is compared with another one"
        assert transferred(command) == 7


def test_the_nodes_that_it_starts_without_are_served_later(
    broker: ClusterServer, ledger_url: str, app: Celery, client: redis.Redis
) -> None:
    cluster = broker.cluster
    publish(app, ["blue"])
    lost = cluster.owner("blue")
    lost.kill()
    with transferring(broker, ledger_url) as command:
        publish_and_wait(app, client, ["green", "red"], 1)
        lost.restart()
        cluster.wait_until_ok()
        wait_for(client, "blue", 1)
        assert transferred(command) == 3


def test_a_queue_is_served_at_its_new_node(
    broker: ClusterServer, ledger_url: str, app: Celery, client: redis.Redis
) -> None:
    cluster = broker.cluster
    with transferring(broker, ledger_url) as command:
        publish(app, QUEUES)
        wait_for(client, "blue", 1)
        source = cluster.owner("blue")
        target = next(node for node in cluster.masters() if node is not source)
        cluster.move(slot_of("blue"), target)
        channel = QueueKeys.of("blue").channel
        wait_until(lambda: target.client.pubsub_numsub(channel)[0][1] == 1, "it listens there", LONG_S)
        wait_until(lambda: source.client.pubsub_numsub(channel)[0][1] == 0, "and no longer there", LONG_S)
        publish_and_wait(app, client, QUEUES, 2)
        assert transferred(command) == 6


@pytest.mark.parametrize("replicas", [1], indirect=True)
def test_it_goes_on_with_the_successor_of_a_master(
    broker: ClusterServer, ledger_url: str, app: Celery, client: redis.Redis
) -> None:
    cluster = broker.cluster
    with transferring(broker, ledger_url) as command:
        publish_and_wait(app, client, QUEUES, 1)
        former = cluster.owner("blue")
        successor = cluster.failover(former)
        publish_and_wait(app, client, QUEUES, 2)
        command.wait_for_log(f"the master is {successor.address} now, and no longer {former.address}")
        assert command.log.count("and no longer") == 1
        assert transferred(command) == 6


def test_it_goes_on_after_all_nodes_were_away(
    broker: ClusterServer, ledger_url: str, app: Celery, client: redis.Redis
) -> None:
    with transferring(broker, ledger_url) as command:
        publish_and_wait(app, client, QUEUES, 1)
        broker.kill()
        command.wait_for_log("interrupted", times=3)
        broker.start()
        publish_and_wait(app, client, QUEUES, 2)
        broker.kill()
        assert transferred(command) == 6


def test_it_goes_on_while_nobody_has_the_slots_of_a_node(
    broker: ClusterServer, ledger_url: str, app: Celery, client: redis.Redis
) -> None:
    cluster = broker.cluster
    with transferring(broker, ledger_url) as command:
        lost = cluster.owner("red")
        assert lost is not cluster.owner(registry(""))
        wait_until(lambda: lost.client.pubsub_numsub(QueueKeys.of("red").channel)[0][1] == 1, "it listens")
        lost.kill()
        for node in cluster.masters():
            node.client.execute_command("CLUSTER", "FORGET", lost.id)
        command.wait_for_log(f"{lost.address} is no longer a master")
        for queue in ("blue", "green"):
            DelayedQueue(client, queue).offer(b"a message", countdown=0.2)
            wait_for(client, queue, 1)
        assert transferred(command) == 2
