"""A Redis Cluster of one's own, started from Python alone: the wheels that carry a server have no redis-cli."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from examples.private_redis import PrivateRedis, find_server
from tests.support import wait_until

SLOTS = 16384

#: The port of the cluster bus is the port of the clients plus this. Redis 6.2 cannot change it.
_BUS_OFFSET = 10_000

#: Ports to choose from. They and their buses are below those that Linux gives to outgoing connections, from 32768 on.
_PORTS = (10_000, 22_700)

_PORT_ATTEMPTS = 20

#: How many keys one MIGRATE moves, as redis-cli could.
_KEYS_A_MIGRATE = 100

_MIGRATE_TIMEOUT_MS = 60_000

_SETTINGS = (
    *("--cluster-enabled", "yes"),
    *("--cluster-announce-ip", "127.0.0.1"),
    *("--cluster-node-timeout", "1000"),
    *("--cluster-require-full-coverage", "no"),
    *("--cluster-replica-validity-factor", "0"),  # a replica stands for election however long it was away
    *("--repl-diskless-sync-delay", "0"),  # otherwise a replica waits for 5 s before it follows
)


def slot_of(key: str | bytes) -> int:
    """Return the hash slot of a key."""
    slot: int = key_slot(key.encode() if isinstance(key, str) else key)
    return slot


@dataclass(frozen=True)
class _Claim:
    """What a node says of itself."""

    is_master: bool
    master_id: str
    epoch: int
    slots: frozenset[int]


class ClusterNode:
    """A server of the cluster.

    Attributes:
        port: the port, which stays the same over `restart`.
        client: a plain client of this server. It raises an error after one retry.
        id: the id that the nodes know it by; it stays the same over `restart`.
        is_running: whether it was started and not killed.
        is_suspended: whether it is suspended.
    """

    def __init__(self, server: PrivateRedis) -> None:
        self._server = server
        self.port = server.port
        self.is_running = True
        self.is_suspended = False
        self.client = server.client(socket_timeout=60, retry=Retry(NoBackoff(), 1))
        self.id = self.client.execute_command("CLUSTER", "MYID").decode()

    def __repr__(self) -> str:
        state = "suspended" if self.is_suspended else "running" if self.is_running else "dead"
        return f"<{state} node {self.port} {self.id[:8]}>"

    @property
    def address(self) -> str:
        """Its address, as in "127.0.0.1:6379"."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        return self._server.pid

    @property
    def log(self) -> str:
        """The log of all runs of the server."""
        return self._server.log_path.read_text(errors="replace")

    @property
    def answers(self) -> bool:
        """Whether it is running and not suspended."""
        return self.is_running and not self.is_suspended

    def kill(self) -> None:
        """Kill the server as a crash would; it may be suspended."""
        self._server.kill()
        self.is_running = self.is_suspended = False

    def suspend(self) -> None:
        """Suspend the server: its connections stay open, but it does not answer."""
        os.kill(self.pid, signal.SIGSTOP)
        self.is_suspended = True

    def resume(self) -> None:
        """Let the server go on."""
        if self.is_suspended:
            os.kill(self.pid, signal.SIGCONT)
            self.is_suspended = False

    def restart(self) -> None:
        """Start the server again, after it was stopped if it runs. It has forgotten all keys unless it has a file.

        A master serves after 2 s at the earliest, see `Cluster.wait_until_ok`.
        """
        self.resume()
        self._server.restart()
        self.is_running = True

    def counts(self) -> dict[str, int]:
        """Return how often each command was called here, such as "set" or "cluster|nodes", since CONFIG RESETSTAT."""
        stats = self.client.info("commandstats")
        return {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}

    def info(self) -> dict[str, str]:
        """Return what CLUSTER INFO says."""
        lines = self.client.execute_command("CLUSTER", "INFO").decode().split()
        return dict(line.split(":", 1) for line in lines)

    def owners(self) -> dict[int, str]:
        """Return the node id of each slot's master, as this node sees it. Slots without one are missing."""
        return {slot: fields[0] for fields in self._nodes() for slot in _slots(fields[8:])}

    def _claim(self) -> _Claim | None:
        """Return what it says of itself; None if it does not answer."""
        if not self.answers:
            return None
        with suppress(redis.ConnectionError):
            for fields in self._nodes():
                flags = fields[2].split(",")
                if "myself" in flags:
                    return _Claim("master" in flags, fields[3], int(fields[6]), frozenset(_slots(fields[8:])))
        return None

    def _epoch_of(self, node: ClusterNode) -> int | None:
        """Return the epoch of another node, or its own, as this node knows it."""
        return next((int(fields[6]) for fields in self._nodes() if fields[0] == node.id), None)

    def _nodes(self) -> list[list[str]]:
        # The command in two words: redis-py parses the reply to "CLUSTER NODES", and in each version differently.
        return [line.split(" ") for line in self.client.execute_command("CLUSTER", "NODES").decode().splitlines()]


def _slots(ranges: Sequence[str]) -> Iterator[int]:
    """Yield the slots of ranges such as "0-5460" or "7"; "[93->-id]" is a slot that moves, and is left out."""
    for part in ranges:
        if not part.startswith("["):
            first, _, last = part.partition("-")
            yield from range(int(first), int(last or first) + 1)


class Cluster:
    """A running cluster. Its methods leave out the nodes that are killed or suspended.

    Attributes:
        nodes: all servers, first those that are the masters at first.
    """

    def __init__(self, nodes: Sequence[ClusterNode], masters: int) -> None:
        self.nodes = list(nodes)
        self._layout = {
            slot: node
            for number, node in enumerate(self.nodes[:masters])
            for slot in range(number * SLOTS // masters, (number + 1) * SLOTS // masters)
        }

    def url(self, n: int = 2) -> str:
        """Return the broker URL with the first `n` servers."""
        return ";".join(f"delayq+cluster://{node.address}" for node in self.nodes[:n])

    # -- who is who

    def masters(self) -> list[ClusterNode]:
        """Return the nodes that are masters now; not one that was replaced and has not heard of it yet."""
        claims = self._claims()
        owners = set(self._owners(claims).values())
        masters = [node for node, claim in claims.items() if claim.is_master]
        return [node for node in masters if node in owners or not claims[node].slots]

    def owner(self, key: str | bytes | int) -> ClusterNode:
        """Return the master that has the slot of a key now. The slot itself does as well.

        Raises:
            LookupError: nobody has it: its master is away, and not yet replaced.
        """
        slot = key if isinstance(key, int) else slot_of(key)
        owners = self._owners(self._claims())
        if slot not in owners:
            raise LookupError(f"no node that answers has slot {slot}")
        return owners[slot]

    def replicas_of(self, node: ClusterNode) -> list[ClusterNode]:
        """Return the replicas of a master."""
        return [replica for replica, claim in self._claims().items() if claim.master_id == node.id]

    def key_of(self, node: ClusterNode, prefix: str = "key") -> str:
        """Return the name of a key whose slot the master has."""
        slots = self._claims()[node].slots
        return next(key for number in range(1_000_000) if slot_of(key := f"{prefix}{number}") in slots)

    def _claims(self) -> dict[ClusterNode, _Claim]:
        claims = {node: node._claim() for node in self.nodes}
        return {node: claim for node, claim in claims.items() if claim}

    @staticmethod
    def _owners(claims: dict[ClusterNode, _Claim]) -> dict[int, ClusterNode]:
        """Return who has each slot: of those that say so, the one with the latest epoch. Redis decides like that."""
        masters = sorted((node for node in claims if claims[node].is_master), key=lambda node: claims[node].epoch)
        return {slot: node for node in masters for slot in claims[node].slots}

    # -- changes

    def flush(self) -> None:
        """Delete all keys."""
        for node in self.masters():
            node.client.flushall()

    def put_slots_back(self) -> None:
        """Move each slot to the server that had it at first."""
        owners = self._owners(self._claims())
        for slot, node in self._layout.items():
            if owners[slot] is not node:
                self.move(slot, node)

    def move(self, slot: int, to: ClusterNode, pause_s: float = 0) -> None:
        """Move a slot and its keys to another master as redis-cli does; return when all nodes know.

        Args:
            slot: the slot.
            to: its next master.
            pause_s: how long to pause when half of the keys are moved.
        """
        with self.moving(slot, to):
            time.sleep(pause_s)

    @contextmanager
    def moving(self, slot: int, to: ClusterNode) -> Iterator[None]:
        """Move a slot to another master. While the block lasts, half of the keys that it had are moved."""
        source = self.owner(slot)
        if source is to:
            raise ValueError(f"slot {slot} is there already: {to}")
        self._wait_for_owner(slot, source)
        to.client.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.client.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", to.id)
        half = source.client.execute_command("CLUSTER", "COUNTKEYSINSLOT", slot) // 2
        self._migrate(slot, source, to, at_most=half)
        try:
            yield
        finally:
            self._migrate(slot, source, to)
            others = [node for node in self.masters() if node not in (source, to)]
            for node in (to, source, *others):
                node.client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", to.id)
            self._wait_for_owner(slot, to)

    @staticmethod
    def _migrate(slot: int, source: ClusterNode, to: ClusterNode, at_most: int | None = None) -> None:
        left = at_most
        while left is None or left > 0:
            count = _KEYS_A_MIGRATE if left is None else min(left, _KEYS_A_MIGRATE)
            keys = source.client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, count)
            if not keys:
                return
            source.client.migrate("127.0.0.1", to.port, keys, 0, _MIGRATE_TIMEOUT_MS, replace=True)
            left = None if left is None else left - len(keys)

    def failover(self, node: ClusterNode) -> ClusterNode:
        """Make a replica of this master the master, without loss; return it when all nodes know."""
        slots = self._claims()[node].slots
        replica = self.replicas_of(node)[0]
        wait_until(lambda: _follows(replica), f"{replica} follows")
        replica.client.execute_command("CLUSTER", "FAILOVER")
        wait_until(lambda: replica in self.masters(), f"{replica} is a master")
        for slot in sorted(slots)[:1]:
            self._wait_for_owner(slot, replica)
        wait_until(lambda: node in self.replicas_of(replica) and _follows(node), f"{node} follows {replica}")
        return replica

    def _wait_for_owner(self, slot: int, owner: ClusterNode) -> None:
        wait_until(lambda: self._views_of(slot, owner) == {(owner.id, owner._epoch_of(owner))}, f"slot {slot}: {owner}")

    def _views_of(self, slot: int, owner: ClusterNode) -> set[tuple[str | None, int | None]]:
        """Return what the nodes take for the slot's master, and for the epoch of `owner`.

        If the slot moved on before all nodes know the epoch, its next master might not take a later one, and the slot
        would be lost.
        """
        return {(node.owners().get(slot), node._epoch_of(owner)) for node in self.nodes if node.answers}

    # -- state

    def wait_until_ok(self) -> None:
        """Wait until all nodes are there, know each other and who has which slot, and all replicas follow."""
        for node in self.nodes:
            wait_until(lambda: _is_ok(node, len(self.nodes)), f"{node} sees a cluster that is ok")  # noqa: B023
        wait_until(lambda: len({frozenset(node.owners().items()) for node in self.nodes}) == 1, "all nodes agree")
        for node, claim in self._claims().items():
            if not claim.is_master:
                wait_until(lambda: _follows(node), f"{node} follows")  # noqa: B023

    def counts(self) -> dict[str, int]:
        """Return how often each command was called, on all nodes together, see `ClusterNode.counts`."""
        total: Counter[str] = Counter()
        for node in self.nodes:
            if node.answers:
                total.update(node.counts())
        return dict(total)

    def reset_counts(self) -> None:
        """Let `counts` begin anew."""
        for node in self.nodes:
            if node.answers:
                node.client.config_resetstat()


def _follows(replica: ClusterNode) -> bool:
    with suppress(redis.ConnectionError):
        return bool(replica.client.info("replication").get("master_link_status") == "up")
    return False


def _is_ok(node: ClusterNode, nodes: int) -> bool:
    with suppress(redis.ConnectionError):
        info = node.info()
        return (
            (info["cluster_state"], info["cluster_known_nodes"]) == ("ok", str(nodes))
            and info["cluster_slots_ok"] == str(SLOTS)
            and all(fields[7] == "connected" and "handshake" not in fields[2] for fields in node._nodes())
        )
    return False


@contextmanager
def cluster(
    masters: int = 3, replicas: int = 0, *, server: str | Path | None = None, settings: Sequence[str] = ()
) -> Iterator[Cluster]:
    """Run a cluster, which takes 2 to 3 s to start: no master serves any sooner.

    Args:
        masters: number of masters; three or more, if others are to agree that one is dead.
        replicas: number of replicas of each master.
        server: the binary to start instead of what `find_server` finds.
        settings: further command line options of each server; they win over ours.

    Raises:
        ServerNotFound: there is no server.
    """
    binary = Path(server) if server else find_server()
    with ExitStack() as stack:
        nodes = []
        for _ in range(masters * (1 + replicas)):
            private = _started(binary, settings)
            stack.callback(private.close)
            # Nobody needs their data: not even a master that would wait for its replicas may take its time.
            stack.callback(private.kill)
            nodes.append(ClusterNode(private))
            stack.callback(nodes[-1].client.close)
        started = Cluster(nodes, masters)
        _join(started, masters)
        yield started


def _join(started: Cluster, masters: int) -> None:
    """Give the slots to the masters, and make the nodes known to each other."""
    nodes = started.nodes
    for number, node in enumerate(nodes[:masters]):
        slots = [slot for slot, owner in started._layout.items() if owner is node]
        for start in range(0, len(slots), 2000):
            node.client.execute_command("CLUSTER", "ADDSLOTS", *slots[start : start + 2000])
        node.client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
    for number, node in enumerate(nodes):  # each with each: gossip would take longer
        for other in nodes[:number]:
            node.client.execute_command("CLUSTER", "MEET", "127.0.0.1", other.port)
    for number, node in enumerate(nodes[masters:]):
        master = nodes[number % masters]
        wait_until(lambda: _knows_master(node, master), f"{node} knows {master}")  # noqa: B023
        node.client.execute_command("CLUSTER", "REPLICATE", master.id)
    started.wait_until_ok()
    replicas = len(nodes) // masters - 1
    for node in nodes[:masters]:
        wait_until(lambda: len(started.replicas_of(node)) == replicas, f"{node} has its replicas")  # noqa: B023


def _knows_master(node: ClusterNode, master: ClusterNode) -> bool:
    return any(fields[0] == master.id and "master" in fields[2] for fields in node._nodes())


def _started(binary: Path, settings: Sequence[str]) -> PrivateRedis:
    """Start a server on a port that is free together with that of its bus."""
    for attempt in range(_PORT_ATTEMPTS):
        private = PrivateRedis(*_SETTINGS, *settings, server=binary, port=_free_port())
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


def _free_port() -> int:
    # Not the shared generator: Hypothesis seeds it, in each process with the same number.
    ports = random.Random()
    for _ in range(1000):
        port = ports.randrange(*_PORTS)
        with suppress(OSError), socket.socket() as one, socket.socket() as bus:
            one.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + _BUS_OFFSET))
            return port
    raise RuntimeError(f"no free port between {_PORTS[0]} and {_PORTS[1]}")
