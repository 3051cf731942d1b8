"""A cluster for tests: what `examples.private_cluster` starts, and what tests do to it."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import redis
from redis.crc import key_slot

from examples.private_cluster import (
    SLOTS,
    PrivateNode,
    cluster_servers,
    follows,
    free_port,
    join,
    share,
    slots_of,
    wait_until_ok,
)
from examples.private_redis import PrivateRedis
from tests.support import wait_until

__all__ = ["SLOTS", "Cluster", "ClusterNode", "cluster", "cut_from_master", "free_port", "slot_of"]

#: How many keys one MIGRATE moves, as redis-cli could.
_KEYS_A_MIGRATE = 100

_MIGRATE_TIMEOUT_MS = 60_000

#: How often and how long a failover is tried, in seconds.
_FAILOVERS, _FAILOVER_S = 5, 10


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


class ClusterNode(PrivateNode):
    """A server of the cluster; its port and its id stay the same over `restart`.

    Attributes:
        is_suspended: whether it is suspended.
    """

    is_suspended = False

    def __repr__(self) -> str:
        state = "suspended" if self.is_suspended else "running" if self.is_running else "dead"
        return f"<{state} node {self.port} {self.id[:8]}>"

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
        super().kill()
        self.is_suspended = False

    def stop(self) -> None:
        """Stop the server as an administrator would."""
        self.resume()
        self._server.stop()
        self.is_running = False

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

    def claim(self) -> _Claim | None:
        """Return what it says of itself; None if it does not answer."""
        if not self.answers:
            return None
        with suppress(redis.ConnectionError):
            for fields in self.rows():
                flags = fields[2].split(",")
                if "myself" in flags:
                    return _Claim("master" in flags, fields[3], int(fields[6]), frozenset(slots_of(fields)))
        return None

    def epoch_of(self, node: ClusterNode) -> int | None:
        """Return the epoch of another node, or its own, as this node knows it."""
        return next((int(fields[6]) for fields in self.rows() if fields[0] == node.id), None)


class Cluster:
    """A running cluster. Its methods leave out the nodes that are killed or suspended.

    Attributes:
        nodes: all servers, first those that are the masters at first.
    """

    def __init__(self, nodes: Sequence[ClusterNode], masters: int) -> None:
        self.nodes = list(nodes)
        self._layout = {
            slot: node for number, node in enumerate(self.nodes[:masters]) for slot in share(number, masters)
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
        claims = {node: node.claim() for node in self.nodes}
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

    @property
    def moves_at_once(self) -> bool:
        """Whether the servers can move a slot in one step: Valkey 9 can."""
        lines: list[bytes] = self.nodes[0].client.execute_command("CLUSTER", "HELP")
        return any(line.startswith(b"MIGRATESLOTS") for line in lines)

    def move_at_once(self, slot: int, to: ClusterNode) -> None:
        """Move a slot and its keys to another master in one step; return when all nodes know."""
        source = self.owner(slot)
        source.client.execute_command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", to.id)
        self._wait_for_owner(slot, to)

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
        wait_until(lambda: follows(replica), f"{replica} follows")
        # Redis gives itself 5 s. A busy machine may miss them: then the replica stays one.
        for _ in range(_FAILOVERS):
            replica.client.execute_command("CLUSTER", "FAILOVER")
            with suppress(AssertionError):
                wait_until(lambda: replica in self.masters(), f"{replica} is a master", _FAILOVER_S)
                break
        else:
            raise AssertionError(f"{replica} did not become a master")
        for slot in sorted(slots)[:1]:
            self._wait_for_owner(slot, replica)
        wait_until(lambda: node in self.replicas_of(replica) and follows(node), f"{node} follows {replica}")
        return replica

    def _wait_for_owner(self, slot: int, owner: ClusterNode) -> None:
        wait_until(lambda: self._views_of(slot, owner) == {(owner.id, owner.epoch_of(owner))}, f"slot {slot}: {owner}")

    def _views_of(self, slot: int, owner: ClusterNode) -> set[tuple[str | None, int | None]]:
        """Return what the nodes take for the slot's master, and for the epoch of `owner`.

        If the slot moved on before all nodes know the epoch, its next master might not take a later one, and the slot
        would be lost.
        """
        return {(node.owners().get(slot), node.epoch_of(owner)) for node in self.nodes if node.answers}

    # -- state

    def wait_until_ok(self) -> None:
        """Wait until all nodes are there, know each other and who has which slot, and all replicas follow."""
        wait_until_ok(self.nodes)

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


@contextmanager
def cut_from_master(replica: ClusterNode, master: ClusterNode) -> Iterator[None]:
    """Let a replica not follow its master while the block lasts."""
    replica.client.config_set("masteruser", "nobody")
    replica.client.config_set("masterauth", "wrong")
    master.client.execute_command("CLIENT", "KILL", "TYPE", "replica")  # redis-py 5 knows no such type
    try:
        yield
    finally:
        replica.client.config_set("masteruser", "")
        replica.client.config_set("masterauth", "")


@contextmanager
def cluster(
    masters: int = 3,
    replicas: int = 0,
    *,
    server: str | Path | None = None,
    settings: Sequence[str] = (),
    make: Callable[..., PrivateRedis] = PrivateRedis,
) -> Iterator[Cluster]:
    """Run a cluster, which takes 2 to 3 s to start: no master serves any sooner.

    Args:
        masters: number of masters; three or more, if others are to agree that one is dead.
        replicas: number of replicas of each master.
        server: the binary to start instead of what `find_server` finds.
        settings: further command line options of each server; they win over ours.
        make: makes a server that is not started yet, from the arguments of `PrivateRedis`.

    Raises:
        ServerNotFound: there is no server.
    """
    count = masters * (1 + replicas)
    binary = Path(server) if server else None
    with cluster_servers(count, server=binary, settings=settings, make=make) as servers, ExitStack() as stack:
        nodes = [ClusterNode(private) for private in servers]
        for node in nodes:
            stack.callback(node.client.close)
        join(nodes, masters)
        yield Cluster(nodes, masters)
