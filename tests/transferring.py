"""What a worker does with what is due, without the worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import redis

from celery_delayq.cluster.client import own_connections
from celery_delayq.cluster.node import Address
from celery_delayq.cluster.topology import Topology
from celery_delayq.queue.keeper import Keeper
from celery_delayq.transfer.loop import TransferLoop
from celery_delayq.transfer.settings import TransferSettings
from celery_delayq.transport.watch import NodesWatch
from examples.private_redis import PrivateRedis
from tests.brokers import Server
from tests.redis_cluster.servers import Cluster, slot_of

_OFTEN = TransferSettings(interval_s=0.5)


@contextmanager
def transferring(broker: Server, settings: TransferSettings = _OFTEN) -> Iterator[None]:
    """Transfer what is due as long as the block lasts; nobody takes it from its queue."""
    with ExitStack() as stack:
        if isinstance(broker, PrivateRedis):
            loops = [TransferLoop(Keeper(broker.client), settings=settings)]
        else:
            loops = stack.enter_context(_loops_of_nodes(broker.cluster, settings))
        for loop in loops:
            loop.start()
            stack.callback(loop.stop)
        yield


@contextmanager
def _loops_of_nodes(cluster: Cluster, settings: TransferSettings) -> Iterator[list[TransferLoop]]:
    """A loop for each node, which works while that is a master; and a thread that looks which ones are."""
    addresses = [Address("127.0.0.1", node.port) for node in cluster.nodes]
    topology = Topology(addresses, _connect)
    loops = [
        TransferLoop(
            Keeper(partial(own_connections, topology, address, hurries_elsewhere=True)),
            settings=settings,
            serves=partial(topology.serves, address),
            slot_of=slot_of,
        )
        for address in addresses
    ]

    def wake_all() -> None:
        for loop in loops:
            loop.wake()

    watch = NodesWatch(topology, wake_all)
    watch.start()
    try:
        yield loops
    finally:
        watch.stop()
        topology.close()


def _connect(address: Address) -> redis.ConnectionPool:
    return redis.ConnectionPool(host=address.host, port=address.port)
