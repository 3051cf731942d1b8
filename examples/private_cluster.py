"""A Redis Cluster of one's own, joined from Python alone: the wheels that carry a server have no redis-cli.

The demo and the tests start it. All of its servers are processes of this machine, see `PrivateRedis`.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from examples.private_redis import PrivateRedis, find_server

SLOTS = 16384

#: The port of the cluster bus is the port of the clients plus this. Redis 6.2 cannot change it.
_BUS_OFFSET = 10_000

#: Ports to choose from. They and their buses are below those that Linux gives to outgoing connections, from 32768 on.
_PORTS = (10_000, 22_700)

_PORT_ATTEMPTS = 20

_DEADLINE_S = 30.0

_SETTINGS = (
    *("--cluster-enabled", "yes"),
    *("--cluster-announce-ip", "127.0.0.1"),
    *("--cluster-node-timeout", "1000"),
    *("--cluster-require-full-coverage", "no"),
    *("--cluster-replica-validity-factor", "0"),  # a replica stands for election however long it was away
    *("--repl-diskless-sync-delay", "0"),  # otherwise a replica waits for 5 s before it follows
)


class PrivateNode:
    """A server of the cluster.

    Attributes:
        port: the port.
        client: a plain client of this server. It raises an error after one retry.
        id: the id that the nodes know it by.
        is_running: whether it was started and not killed.
    """

    def __init__(self, server: PrivateRedis) -> None:
        self._server = server
        self.port = server.port
        self.is_running = True
        self.client = server.client(socket_timeout=60, retry=Retry(NoBackoff(), 1))
        self.id = self.client.execute_command("CLUSTER", "MYID").decode()

    @property
    def address(self) -> str:
        """Its address, as in "127.0.0.1:6379"."""
        return f"127.0.0.1:{self.port}"

    def kill(self) -> None:
        """Kill the server as a crash would."""
        self._server.kill()
        self.is_running = False

    def info(self) -> dict[str, str]:
        """Return what CLUSTER INFO says."""
        lines = self.client.execute_command("CLUSTER", "INFO").decode().split()
        return dict(line.split(":", 1) for line in lines)

    def rows(self) -> list[list[str]]:
        """Return what CLUSTER NODES says: the fields of each node."""
        # The command in two words: redis-py parses the reply to "CLUSTER NODES", and in each version differently.
        return [line.split(" ") for line in self.client.execute_command("CLUSTER", "NODES").decode().splitlines()]

    def owners(self) -> dict[int, str]:
        """Return the node id of each slot's master, as this node sees it. Slots without one are missing."""
        return {slot: fields[0] for fields in self.rows() for slot in slots_of(fields)}


def slots_of(fields: Sequence[str]) -> Iterator[int]:
    """Yield the slots of a node, see `PrivateNode.rows`; not those that move, such as "[93->-id]"."""
    for part in fields[8:]:
        if not part.startswith("["):
            first, _, last = part.partition("-")
            yield from range(int(first), int(last or first) + 1)


def share(number: int, masters: int) -> range:
    """Return the slots that one of the masters has at first."""
    return range(number * SLOTS // masters, (number + 1) * SLOTS // masters)


@contextmanager
def private_cluster(
    masters: int = 3, replicas: int = 0, *, server: Path | None = None, settings: Sequence[str] = ()
) -> Iterator[list[PrivateNode]]:
    """Run a cluster, and give its nodes: first the masters. It takes 2 to 3 s: no master serves any sooner.

    Args:
        masters: number of masters; three or more, if others are to agree that one is dead.
        replicas: number of replicas of each master.
        server: the binary to start instead of what `find_server` finds.
        settings: further command line options of each server; they win over ours.

    Raises:
        ServerNotFound: there is no server.
        RuntimeError: a server does not start, or they do not become a cluster.
    """
    with cluster_servers(masters * (1 + replicas), server=server, settings=settings) as servers, ExitStack() as stack:
        nodes = [PrivateNode(server) for server in servers]
        for node in nodes:
            stack.callback(node.client.close)
        join(nodes, masters)
        yield nodes


@contextmanager
def cluster_servers(
    count: int,
    *,
    server: Path | None = None,
    settings: Sequence[str] = (),
    make: Callable[..., PrivateRedis] = PrivateRedis,
) -> Iterator[list[PrivateRedis]]:
    """Run servers that `join` makes a cluster; see `private_cluster`.

    Args:
        count: how many.
        server: see `private_cluster`.
        settings: see `private_cluster`.
        make: makes a server that is not started yet, from the arguments of `PrivateRedis`.
    """
    binary = server or find_server()
    with ExitStack() as stack:
        servers = []
        for _ in range(count):
            servers.append(_started(make, binary, settings))
            stack.callback(servers[-1].close)
            # Nobody needs their data: not even a master that would wait for its replicas may take its time.
            stack.callback(servers[-1].kill)
        yield servers


def join(nodes: Sequence[PrivateNode], masters: int) -> None:
    """Make a cluster of nodes, of which the first are the masters; return when it serves.

    Raises:
        RuntimeError: it does not within half a minute.
    """
    for number, node in enumerate(nodes[:masters]):
        slots = share(number, masters)
        for start in range(0, len(slots), 2000):
            node.client.execute_command("CLUSTER", "ADDSLOTS", *slots[start : start + 2000])
        node.client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
    for number, node in enumerate(nodes):  # each with each: gossip would take longer
        for other in nodes[:number]:
            node.client.execute_command("CLUSTER", "MEET", "127.0.0.1", other.port)
    for number, node in enumerate(nodes[masters:]):
        master = nodes[number % masters]
        _wait(lambda: _knows_master(node, master), f"{node.address} knows {master.address}")  # noqa: B023
        node.client.execute_command("CLUSTER", "REPLICATE", master.id)
    wait_until_ok(nodes)


def wait_until_ok(nodes: Sequence[PrivateNode]) -> None:
    """Wait until all nodes are there, know each other and who has which slot, and all replicas follow.

    Raises:
        RuntimeError: not within half a minute.
    """
    for node in nodes:
        _wait(lambda: _is_ok(node, len(nodes)), f"{node.address} sees a cluster that is ok")  # noqa: B023
    _wait(lambda: len({frozenset(node.owners().items()) for node in nodes}) == 1, "all nodes agree")
    for node in nodes:
        if _is_replica(node):
            _wait(lambda: follows(node), f"{node.address} follows its master")  # noqa: B023


def follows(replica: PrivateNode) -> bool:
    """Return whether a node is a replica that has what its master has."""
    with suppress(redis.ConnectionError):
        return bool(replica.client.info("replication").get("master_link_status") == "up")
    return False


def _is_replica(node: PrivateNode) -> bool:
    return any({"myself", "slave"} <= set(fields[2].split(",")) for fields in node.rows())


def _knows_master(node: PrivateNode, master: PrivateNode) -> bool:
    return any(fields[0] == master.id and "master" in fields[2] for fields in node.rows())


def _is_ok(node: PrivateNode, nodes: int) -> bool:
    with suppress(redis.ConnectionError):
        info = node.info()
        return (
            (info["cluster_state"], info["cluster_known_nodes"]) == ("ok", str(nodes))
            and info["cluster_slots_ok"] == str(SLOTS)
            and all(fields[7] == "connected" and "handshake" not in fields[2] for fields in node.rows())
        )
    return False


def _wait(is_so: Callable[[], bool], description: str) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise RuntimeError(f"Redis Cluster did not come up: not within {_DEADLINE_S:g} s: {description}")
        time.sleep(0.01)


def _started(make: Callable[..., PrivateRedis], binary: Path, settings: Sequence[str]) -> PrivateRedis:
    """Start a server on a port that is free together with that of its bus."""
    for attempt in range(_PORT_ATTEMPTS):
        private = make(*_SETTINGS, *settings, server=binary, port=free_port())
        try:
            private.start()
        except RuntimeError as error:
            private.close()
            was_taken = "listen" in str(error) or "in use" in str(error)  # by somebody quicker than the server
            if not was_taken or attempt == _PORT_ATTEMPTS - 1:
                raise
        else:
            return private
    raise AssertionError("unreachable")


def free_port() -> int:
    """Return a port that is free together with that of its bus."""
    # Not the shared generator: Hypothesis seeds it, in each process with the same number.
    ports = random.Random()
    for _ in range(1000):
        port = ports.randrange(*_PORTS)
        with suppress(OSError), socket.socket() as one, socket.socket() as bus:
            one.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + _BUS_OFFSET))
            return port
    raise RuntimeError(f"no free port between {_PORTS[0]} and {_PORTS[1]}")
