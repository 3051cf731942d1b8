"""The broker of a test: one server, or a Redis Cluster with the same methods.

A test module with `pytest.mark.on_cluster` runs with either, see `tests.conftest.pytest_generate_tests`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any, TypeAlias

import redis
from kombu import pools

from celery_delayq.cluster.client import Routed
from celery_delayq.cluster.names import priority_list
from celery_delayq.cluster.node import Address
from celery_delayq.cluster.topology import Topology
from examples.private_redis import PrivateRedis
from tests.redis_cluster.servers import Cluster, ClusterNode
from tests.soak.proxy import Proxy
from tests.support import wait_until

#: What a node answers to a command that it should not have got: `INFO errorstats` counts them.
_ASTRAY = ("CROSSSLOT", "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN")


def _sum_of_each(replies: list[Any]) -> list[tuple[Any, int]]:
    """Merge replies to PUBSUB NUMSUB."""
    return [(channels[0][0], sum(count for _, count in channels)) for channels in zip(*replies, strict=True)]


def _union(replies: list[Any]) -> list[Any]:
    return list(dict.fromkeys(one for reply in replies for one in reply))


def _chain(replies: list[Any]) -> list[Any]:
    return [one for reply in replies for one in reply]


def _sum_of_calls(replies: list[Any]) -> dict[str, dict[str, int]]:
    """Merge replies to INFO commandstats."""
    return {
        name: {
            count: sum(reply.get(name, {}).get(count, 0) for reply in replies) for count in ("calls", "failed_calls")
        }
        for name in _union(replies)
    }


#: Commands that are about one server, and how the answers of all nodes become one.
_OF_ALL_NODES: dict[tuple[str, ...], Callable[[list[Any]], Any]] = {
    ("CLIENT", "KILL"): sum,
    ("CLIENT", "LIST"): _chain,
    ("CLIENT", "PAUSE"): all,
    ("CONFIG", "RESETSTAT"): all,
    ("CONFIG", "SET"): all,
    ("FLUSHALL",): all,
    ("FLUSHDB",): all,
    ("INFO", "COMMANDSTATS"): _sum_of_calls,
    ("KEYS",): _union,
    ("PUBSUB", "CHANNELS"): _union,
    ("PUBSUB", "NUMPAT"): sum,
    ("PUBSUB", "NUMSUB"): _sum_of_each,
    ("SCRIPT", "EXISTS"): lambda replies: [all(known) for known in zip(*replies, strict=True)],
    ("SCRIPT", "FLUSH"): all,
}

#: Commands whose keys may be at several nodes. The answer is the sum.
_SUMMED = ("DEL", "EXISTS", "UNLINK")


class EveryNode(Routed):
    """A client of a cluster that answers for all nodes what a plain client answers for its server."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command to its node; one that is about a server to all."""
        words = " ".join(map(str, args[:2])).upper().split()
        merge = _OF_ALL_NODES.get(tuple(words[:2])) or _OF_ALL_NODES.get(tuple(words[:1]))
        if words[0] in _SUMMED:
            send = super().execute_command
            return sum(send(words[0], key, **{**options, "keys": [key]}) for key in args[1:])
        if merge is None:
            return super().execute_command(*args, **options)
        return merge([node.client.execute_command(*args, **options) for node in self.masters()])

    def close(self) -> None:
        """Close all connections; redis-py also calls this for a client that was never made completely."""
        if hasattr(self, "router"):
            self.topology.close()


class ClusterServer:
    """A cluster that looks like a `PrivateRedis`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def client(self, **options: Any) -> redis.Redis:
        """Return a new client, see `PrivateRedis.client`; the caller closes it."""

        def connect(address: Address) -> redis.ConnectionPool:
            return redis.ConnectionPool(host=address.host, port=address.port, **options)

        seeds = [Address("127.0.0.1", node.port) for node in self.cluster.nodes]
        return EveryNode(Topology(seeds, connect))

    def kill(self) -> None:
        """Kill all nodes."""
        for node in self.cluster.nodes:
            node.kill()

    def stop(self) -> None:
        """Stop all nodes, which write down what they have first."""
        for node in self.cluster.nodes:
            node.stop()

    def start(self) -> None:
        """Start all nodes again."""
        for node in self.cluster.nodes:
            node.restart()
        self.cluster.wait_until_ok()

    @contextmanager
    def nothing_astray(self) -> Iterator[None]:
        """Fail if a node gets a command for keys of another one, or of several, while the block lasts."""
        self.cluster.reset_counts()
        yield
        found = [problem for node in self.cluster.nodes if node.answers for problem in _astray_at(node)]
        assert not found, found


def _astray_at(node: ClusterNode) -> Iterator[str]:
    """Yield what a node answered to commands that it should not have got, and which commands it refused."""
    stats = node.client.info("errorstats")
    errors = {name: stats[f"errorstat_{name}"]["count"] for name in _ASTRAY if f"errorstat_{name}" in stats}
    if errors:
        refused = {name: stat["rejected_calls"] for name, stat in node.client.info("commandstats").items()}
        yield f"{node}: {errors}; refused: { {name: count for name, count in refused.items() if count} }"


Server: TypeAlias = PrivateRedis | ClusterServer


def url_of(server: Server, db: int = 0) -> str:
    """Return the URL of a broker, for our transport."""
    if isinstance(server, PrivateRedis):
        return f"delayq://127.0.0.1:{server.port}/{db}"
    return server.cluster.url()


@contextmanager
def proxied(server: Server) -> Iterator[tuple[str, list[Proxy]]]:
    """The URL of a broker whose clients get there through proxies, one for each server, and these."""
    if isinstance(server, PrivateRedis):
        with closing(Proxy(server.port)) as proxy:
            yield url_of(server).replace(str(server.port), str(proxy.port)), [proxy]
        return
    with ExitStack() as stack:
        nodes = server.cluster.nodes
        proxies = [stack.enter_context(closing(Proxy(node.port))) for node in nodes]
        stack.callback(_announce, nodes, [0] * len(nodes))
        _announce(nodes, [proxy.port for proxy in proxies])
        yield ";".join(f"delayq+cluster://127.0.0.1:{proxy.port}" for proxy in proxies), proxies


def _announce(nodes: list[ClusterNode], ports: list[int]) -> None:
    """Let the nodes of a cluster tell clients these ports, or their own ones if they are 0; return when all do."""
    for node, port in zip(nodes, ports, strict=True):
        node.client.config_set("cluster-announce-port", port)
    wanted = {port or node.port for node, port in zip(nodes, ports, strict=True)}
    wait_until(lambda: all(_told(node) == wanted for node in nodes), "all nodes tell these ports")


def _told(node: ClusterNode) -> set[int]:
    """Return the ports that a node tells, its own and those of others."""
    return {int(address.rpartition("@")[0].rpartition(":")[2]) for _, address, *_ in node.rows()}


def list_for(client: redis.Redis, queue: str, priority: int = 0) -> str:
    """Return the name of a queue's broker list for a priority of kombu's: 0, 3, 6 or 9."""
    suffix = f"\x06\x16{priority}" if priority else ""
    return priority_list(queue, suffix) if isinstance(client, Routed) else f"{queue}{suffix}"


def emptied(cluster: Cluster) -> ClusterServer:
    """Return a cluster as a broker that is as good as new."""
    # kombu's pooled connections know of queues that are deleted here.
    pools.reset()
    cluster.flush()
    cluster.put_slots_back()
    return ClusterServer(cluster)
