"""Each command goes to the node of its keys, and is sent again only if that node has not executed it."""

from __future__ import annotations

import os
import selectors
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest
import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.client import NEVER_DECODE
from redis.retry import Retry

from celery_delayq.cluster import client as client_module
from celery_delayq.cluster import topology as topology_module
from celery_delayq.cluster.client import Routed, keys_of, own_connections, understood
from celery_delayq.cluster.topology import Address, Topology
from celery_delayq.errors import ConfigurationError
from examples.private_redis import PrivateRedis
from tests.redis_cluster import servers
from tests.redis_cluster.servers import Cluster, ClusterNode, slot_of
from tests.support import wait_until

#: Adds 1 to the first key, and reads the second one.
ADD = "redis.call('GET', KEYS[2]); return redis.call('INCR', KEYS[1])"


def pool_for(address: Address) -> redis.ConnectionPool:
    """A pool that would send again, if redis-py was asked to send."""
    again = Retry(NoBackoff(), 3)
    return redis.ConnectionPool(
        host=address.host, port=address.port, socket_timeout=30, retry=again, retry_on_error=[redis.ConnectionError]
    )


def addresses_of(cluster: Cluster) -> list[Address]:
    return [Address("127.0.0.1", node.port) for node in cluster.nodes]


def other_than(cluster: Cluster, node: ClusterNode) -> ClusterNode:
    return next(other for other in cluster.nodes if other is not node)


def errors_at(node: ClusterNode, code: str) -> int:
    """Return how many errors of a kind a node has sent since CONFIG RESETSTAT."""
    return int(node.client.info("errorstats").get(f"errorstat_{code}", {"count": 0})["count"])


def calls(cluster: Cluster, name: str) -> list[int]:
    """Return how often each node got a command."""
    return [node.counts().get(name, 0) for node in cluster.nodes]


@pytest.fixture
def topology(cluster: Cluster) -> Iterator[Topology]:
    with closing(Topology(addresses_of(cluster)[:1], pool_for)) as topology:
        yield topology


@pytest.fixture
def routed(topology: Topology) -> Routed:
    return Routed(topology)


@pytest.fixture
def keys(cluster: Cluster) -> list[str]:
    """A key for each node."""
    return [cluster.key_of(node) for node in cluster.nodes]


class TestKeys:
    @pytest.mark.parametrize(
        ("command", "expected"),
        [
            (("GET", "a"), "a"),
            (("lpush", "a", "b"), "a"),
            (("EVALSHA", "sha", 2, "a", "b", "c"), "ab"),
            (("EVAL", "text", "1", "a", "b"), "a"),
            (("EVAL", "text", 0, "a"), ""),
            (("DEL", "a", "b"), "ab"),
            (("BRPOP", "a", "b", 10), "ab"),
            (("BLMOVE", "a", "b", "LEFT", "RIGHT", 1), "ab"),
            (("BLMPOP", 1, 2, "a", "b", "LEFT"), "ab"),
            (("LMPOP", 2, "a", "b", "LEFT"), "ab"),
            (("ZUNIONSTORE", "a", 2, "b", "c"), "abc"),
            (("MSET", "a", 1, "b", 2), "ab"),
            (("OBJECT", "ENCODING", "a"), "a"),
            (("MEMORY USAGE", "a"), "a"),
            (("XREAD", "COUNT", 2, "STREAMS", "a", "b", 0, 0), "ab"),
            (("BITOP", "AND", "a", "b"), "ab"),
            (("PING",), ""),
            (("PUBLISH", "a", "b"), ""),
            (("CLIENT KILL", "ID", 1), ""),
            (("CLIENT", "KILL", "ID", 1), ""),
            (("SCRIPT LOAD", "return 1"), ""),
            (("WAIT", 1, 100), ""),
        ],
    )
    def test_are_found(self, command: tuple[Any, ...], expected: str) -> None:
        assert "".join(keys_of(*command)) == expected


class TestUnderstood:
    @pytest.mark.parametrize(
        ("text", "kind"),
        [
            ("MOVED 5 127.0.0.1:7000", exceptions.MovedError),
            ("ASK 5 127.0.0.1:7000", exceptions.AskError),
            ("TRYAGAIN Multiple keys", exceptions.TryAgainError),
            ("CLUSTERDOWN Hash slot not served", exceptions.ClusterDownError),
            ("CROSSSLOT Keys", exceptions.ClusterCrossSlotError),
            ("Command # 1 (GET a) of pipeline caused error: MOVED 5 ::1:7000", exceptions.MovedError),
            ("WRONGTYPE Operation", exceptions.ResponseError),
            ("MOVED away", exceptions.ResponseError),
        ],
    )
    def test_plain_errors_of_redis_py_5_get_their_class(self, text: str, kind: type[Exception]) -> None:
        assert type(understood(exceptions.ResponseError(text))) is kind

    def test_it_keeps_what_a_redirection_says(self) -> None:
        error: Any = understood(exceptions.ResponseError("MOVED 5 ::1:7000"))
        assert (error.slot_id, error.host, error.port) == (5, "::1", 7000)

    def test_other_errors_stay_as_they_are(self) -> None:
        for error in (exceptions.ConnectionError("MOVED"), exceptions.MovedError("5 127.0.0.1:7000"), OSError()):
            assert understood(error) is error


class TestTopology:
    def test_asks_nobody_before_it_is_used(self) -> None:
        topology = Topology([Address("nowhere.invalid", 1)], pool_for)
        client = Routed(topology)
        assert topology.version == 0
        assert client.connection_pool.connection_kwargs["host"] == "nowhere.invalid"
        assert not topology.serves(Address("nowhere.invalid", 1), "key")

    def test_knows_who_serves_what(self, topology: Topology, cluster: Cluster, keys: list[str]) -> None:
        assert [node.address for node in topology.masters()] == sorted(addresses_of(cluster))
        assert topology.version == 1
        for key, address, server in zip(keys, addresses_of(cluster), cluster.nodes, strict=True):
            node = topology.node_of(slot_of(key))
            assert (node.address, node.id) == (address, server.id)
            assert topology.address_of(key) == address
            assert [topology.serves(other, key) for other in addresses_of(cluster)].count(True) == 1

    def test_a_change_makes_a_new_version_and_keeps_connections(self, topology: Topology, cluster: Cluster) -> None:
        source = cluster.owner("shop")
        nodes = topology.masters()
        cluster.move(slot_of("shop"), other_than(cluster, source))
        wait_until(lambda: topology.refresh() or topology.version == 2, "the move is seen")
        topology.refresh_if_older(0)
        assert topology.version == 2
        assert topology.masters() == nodes
        assert topology.address_of("shop") != Address("127.0.0.1", source.port)

    def test_many_threads_share_one_question(
        self, topology: Topology, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(topology_module, "REFRESH_PAUSE_S", 60)
        cluster.reset_counts()
        with ThreadPoolExecutor(10) as threads:
            list(threads.map(lambda _: topology.refresh(), range(10)))
        assert cluster.counts().get("cluster|slots", cluster.counts().get("cluster")) == 1

    def test_learns_from_another_one(self, topology: Topology, cluster: Cluster) -> None:
        topology.refresh()
        with closing(Topology([Address("nowhere.invalid", 1)], pool_for)) as other:
            other.learn(topology)
            assert [node.address for node in other.masters()] == sorted(addresses_of(cluster))
            assert other.masters() != topology.masters()  # its own connections
            other.learn(topology)
            assert other.version == 1

    def test_the_home_node_stays_until_it_fails(self, topology: Topology) -> None:
        home = topology.home()
        topology.failed(None)
        topology.failed(next(node for node in topology.masters() if node is not home))
        assert topology.home() is home
        topology.failed(home)
        second = topology.home()
        assert second is not home
        topology.refresh()
        assert topology.home() is second
        for node in topology.masters():
            topology.failed(node.address)
        assert topology.home() in topology.masters()

    @pytest.mark.parametrize("host", ["", None, b"asked"])
    def test_an_unnamed_host_is_the_one_that_was_asked(self, host: Any) -> None:
        found = [[0, 5, [host, 7000, b"id"]], [6, 9, [b"?", 7001, b"other"], [b"replica", 1, b"x"]]]
        ranges = list(topology_module._ranges(found, Address("asked", 1)))
        assert ranges == [(0, 5, Address("asked", 7000), "id")]

    def test_a_slot_without_a_node(self, topology: Topology) -> None:
        topology.refresh()
        topology._take([topology.masters()[0], *[None] * (servers.SLOTS - 1)])
        assert topology.node_of(0)
        with pytest.raises(exceptions.ClusterDownError, match="no node serves slot 7"):
            topology.node_of(7)
        with pytest.raises(exceptions.ClusterDownError, match="no node serves slot"):
            Routed(topology, deadline_s=0).at("shop")

    def test_a_server_that_is_not_in_a_cluster(self, redis_server: PrivateRedis) -> None:
        with (
            closing(Topology([Address("127.0.0.1", redis_server.port)], pool_for)) as topology,
            pytest.raises(ConfigurationError, match="delayq://"),
        ):
            Routed(topology).ping()

    def test_all_seeds_are_away(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
            seeds = [Address("127.0.0.1", server.getsockname()[1]) for server in (one, two)]
        with closing(Topology(seeds, pool_for)) as topology:
            for _ in range(2):  # the second time nobody is asked
                with pytest.raises(redis.ConnectionError, match=f"{seeds[0]}, {seeds[1]} answers: .*refused"):
                    Routed(topology).get("key")

    def test_one_seed_is_enough(self, cluster: Cluster) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            away = Address("127.0.0.1", server.getsockname()[1])
        with closing(Topology([away, *addresses_of(cluster)[2:]], pool_for)) as topology:
            assert len(topology.masters()) == 3


class TestRouting:
    def test_a_command_goes_to_the_node_of_its_key(self, routed: Routed, cluster: Cluster, keys: list[str]) -> None:
        routed.ping()
        cluster.reset_counts()
        for number, key in enumerate(keys):
            routed.set(key, number)
            assert routed.get(key) == str(number).encode()
            assert routed.node_client(key).get(key) == str(number).encode()
        assert calls(cluster, "get") == [2, 2, 2]
        assert [errors_at(node, "MOVED") for node in cluster.nodes] == [0, 0, 0]

    def test_replies_are_those_of_a_plain_client(self, routed: Routed) -> None:
        routed.zadd("z", {"a": 1, "b": 2})
        routed.hset("h", "field", "value")
        routed.sadd("s", "a")
        assert routed.zrange("z", 0, -1, withscores=True) == routed.node_client("z").zrange("z", 0, -1, withscores=True)
        assert routed.hgetall("h") == {b"field": b"value"}
        assert routed.smembers("s") == {b"a"}
        assert routed.set("a", 1, nx=True) is True
        assert routed.object("ENCODING", "a") == b"int"
        assert routed.brpop(["l", "{l}2"], timeout=0.01) is None  # type: ignore[arg-type]
        assert routed.execute_command("HGET", "h", "field", **{NEVER_DECODE: True}) == b"value"
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            routed.get("z")

    def test_scripts(self, routed: Routed, cluster: Cluster, keys: list[str]) -> None:
        sha = routed.script_load(ADD)
        assert routed.script_exists(sha, "no") == [True, False]
        for key in keys:
            assert routed.evalsha(sha, 2, key, f"{{{key}}}2") == 1
            assert routed.eval(ADD, 2, key, f"{{{key}}}2") == 2
        assert calls(cluster, "script|load") == [1, 1, 1] or calls(cluster, "script") == [2, 2, 2]
        assert routed.eval("return 5", 0) == 5
        routed.script_flush()
        with pytest.raises(exceptions.NoScriptError):
            routed.evalsha(sha, 2, keys[0], keys[0])
        assert routed.register_script(ADD)(keys=[keys[0], keys[0]]) == 3
        with routed.pipeline() as pipe:
            routed.register_script("return 7")(keys=[keys[0]], client=pipe)
            assert pipe.execute() == [7]

    def test_commands_without_a_key_go_to_the_home_node(self, routed: Routed, topology: Topology) -> None:
        port = topology.home().address.port
        assert routed.info("server")["tcp_port"] == port
        assert routed.ping() is True
        assert len(routed.time()) == 2
        assert routed.config_get("port") == {"port": str(port)}
        assert routed.connection_pool is topology.home().client.connection_pool
        with closing(routed.pubsub(ignore_subscribe_messages=True)) as pubsub:
            pubsub.subscribe("news")
            wait_until(lambda: routed.pubsub_numsub("news") == [(b"news", 1)], "it is subscribed")
            assert routed.publish("news", "x") == 1
            message = wait_until(lambda: pubsub.get_message(timeout=1), "it is received")
            assert message["data"] == b"x"

    def test_another_home(self, routed: Routed, topology: Topology, keys: list[str]) -> None:
        for key, node in ((key, routed.node_of(key)) for key in keys):
            for client in (routed.at(key), routed.with_home(node), Routed(topology, home=node.address)):
                assert client.info("server")["tcp_port"] == node.address.port
                assert client.connection_pool is node.client.connection_pool
                assert client.set(keys[0], 1)  # others still have their keys

    def test_keys_of_several_nodes(self, routed: Routed, cluster: Cluster, keys: list[str]) -> None:
        several = [*keys, *(f"{{{key}}}2" for key in keys)]
        for number, key in enumerate(several):
            routed.set(key, number)
        cluster.reset_counts()
        assert routed.mget([*several, "none"]) == [*(str(number).encode() for number in range(6)), None]
        assert routed.exists(*several, "none", keys[0]) == 7
        assert routed.touch(*several) == 6
        assert routed.dbsize() == 6
        assert set(routed.keys()) == set(routed.scan_iter(count=1)) == {key.encode() for key in several}
        assert list(routed.scan_iter(match=keys[0])) == [keys[0].encode()]
        assert routed.unlink(*several[:2]) == 2
        assert routed.delete(*several) == 4
        with pytest.raises(redis.ResponseError, match="scan_iter"):
            routed.scan()
        routed.set(keys[2], 1)
        assert routed.flushall() is True
        assert routed.dbsize() == 0

    def test_an_error_of_one_node_is_the_error(self, routed: Routed, keys: list[str]) -> None:
        with pytest.raises(redis.ResponseError, match="syntax error"):
            routed.execute_command("FLUSHALL", "NOW")

    @pytest.mark.parametrize(
        "command", [("EVAL", ADD, 2, "a", "b"), ("MSET", "a", 1, "b", 2), ("BLMOVE", "a", "b", "LEFT", "LEFT", 0)]
    )
    def test_keys_of_several_slots_are_refused_here(
        self, command: tuple[Any, ...], routed: Routed, cluster: Cluster
    ) -> None:
        routed.ping()
        cluster.reset_counts()
        with pytest.raises(exceptions.ClusterCrossSlotError, match=f"{command[0]}: the keys 'a', 'b' are in several"):
            routed.execute_command(*command)
        assert not cluster.counts().keys() & {"eval", "mset", "blmove"}

    def test_own_connections(self, routed: Routed, topology: Topology, keys: list[str]) -> None:
        node = routed.node_of(keys[1])
        with own_connections(topology, node.address) as own:
            assert own.connection_pool is not node.client.connection_pool
            assert own.info("server")["tcp_port"] == node.address.port
            for key in keys:
                assert own.set(key, 1)

    def test_closing_a_client_leaves_the_topology(self, topology: Topology, keys: list[str]) -> None:
        with Routed(topology) as client:
            number = client.at(keys[0]).client_id()
        del client
        assert Routed(topology).at(keys[0]).client_id() == number
        with Routed(topology, owns_topology=True) as owner:
            owner.ping()
        assert Routed(topology).at(keys[0]).client_id() != number

    def test_a_forked_child_has_its_own_connections(self, routed: Routed, topology: Topology, keys: list[str]) -> None:
        routed.set(keys[0], 1)
        with topology._lock, topology._asking, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # there are other threads
            locked = threading.Event()
            child = os.fork()
            if not child:
                worker = threading.Thread(target=lambda: (topology.refresh(), routed.incr(keys[0]), locked.set()))
                worker.start()
                os._exit(0 if locked.wait(20) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert routed.get(keys[0]) == b"2"

    def test_a_connection_that_ended_while_idle_is_replaced(self, routed: Routed, cluster: Cluster) -> None:
        routed.set("shop", 1)
        server = cluster.owner("shop").client
        server.client_kill_filter(_id=routed.at("shop").client_id())
        assert routed.incr("shop") == 2


class TestMoved:
    def test_a_command_follows_its_slot(self, routed: Routed, topology: Topology, cluster: Cluster) -> None:
        routed.set("shop", 1)
        cluster.move(slot_of("shop"), target := other_than(cluster, cluster.owner("shop")))
        cluster.reset_counts()
        assert [routed.incr("shop"), routed.incr("shop")] == [2, 3]
        assert sum(errors_at(node, "MOVED") for node in cluster.nodes) == 1
        assert topology.version == 2
        assert topology.address_of("shop") == Address("127.0.0.1", target.port)

    def test_blocking_commands_scripts_pipelines_and_transactions_do(
        self, topology: Topology, cluster: Cluster
    ) -> None:
        stale = [Routed(topology.clone()) for _ in range(4)]
        for client in stale:
            client.ping()
        cluster.move(slot_of("shop"), other_than(cluster, cluster.owner("shop")))
        stale[0].lpush("{shop}l", 1)
        assert stale[1].brpop("{shop}l", timeout=1) == (b"{shop}l", b"1")  # type: ignore[arg-type]
        with stale[2].pipeline(transaction=False) as pipe:
            assert pipe.rpush("{shop}l", 1).rpush("{shop}l", 2).eval(ADD, 2, "{shop}a", "{shop}b").execute() == [
                1,
                2,
                1,
            ]
        with stale[3].pipeline() as pipe:
            assert pipe.llen("{shop}l").incr("{shop}a").execute() == [2, 2]
        for client in stale:
            client.topology.close()

    def test_a_blocked_command_is_sent_to_the_next_node(self, routed: Routed, cluster: Cluster) -> None:
        source = cluster.owner("shop")
        target = other_than(cluster, source)
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(routed.brpop, ["shop"], 20)
            wait_until(lambda: source.client.info("clients")["blocked_clients"], "it waits")
            cluster.move(slot_of("shop"), target)
            wait_until(lambda: target.client.info("clients")["blocked_clients"], "it waits there")
            target.client.lpush("shop", "x")
            assert waiting.result(20) == (b"shop", b"x")


@contextmanager
def half_moved(cluster: Cluster, tag: str) -> Iterator[tuple[ClusterNode, ClusterNode]]:
    """Give source and target of a slot; of ten keys, `{tag}0` to `{tag}9`, each has five."""
    source = cluster.owner(tag)
    target = other_than(cluster, source)
    for number in range(10):
        source.client.set(f"{{{tag}}}{number}", number)
    with cluster.moving(slot_of(tag), target):
        cluster.reset_counts()
        yield source, target


class TestMoving:
    def test_single_keys_are_served(self, routed: Routed, cluster: Cluster) -> None:
        with half_moved(cluster, "shop") as (source, target):
            assert [routed.get(f"{{shop}}{number}") for number in range(10)] == [b"%d" % n for n in range(10)]
            assert errors_at(source, "ASK") == 5
            assert routed.hset("{shop}new", "a", "b") == 1
            assert routed.hgetall("{shop}new") == {b"a": b"b"}
            assert target.counts()["asking"] == 7
        assert routed.hgetall("{shop}new") == {b"a": b"b"}

    @pytest.mark.parametrize("kind", ["single", "pipeline", "transaction", "mget"])
    def test_several_keys_wait(self, kind: str, routed: Routed, cluster: Cluster) -> None:
        def pipeline(transaction: bool) -> Any:
            with routed.pipeline(transaction=transaction) as pipe:
                for number in range(9):
                    pipe.eval(ADD, 2, f"{{shop}}{number}", f"{{shop}}{number + 1}")
                return pipe.execute()[-1]

        commands: dict[str, Callable[[], Any]] = {
            "single": lambda: [
                routed.eval(ADD, 2, f"{{shop}}{number}", f"{{shop}}{number + 1}") for number in range(9)
            ][-1],
            "pipeline": lambda: pipeline(False),
            "transaction": lambda: pipeline(True),
            "mget": lambda: int(routed.mget([f"{{shop}}{number}" for number in range(10)])[-2]) + 1,
        }
        with ThreadPoolExecutor(1) as threads:
            with half_moved(cluster, "shop") as nodes:
                waiting = threads.submit(commands[kind])
                wait_until(lambda: sum(errors_at(node, "TRYAGAIN") for node in nodes) > 2, "it is refused")
                assert not waiting.done()
            assert waiting.result(20) == 9

    def test_a_pipeline_keeps_order_and_replies(self, routed: Routed, cluster: Cluster, keys: list[str]) -> None:
        with half_moved(cluster, "shop"), routed.pipeline(transaction=False) as pipe:
            for number in range(10):
                pipe.append(f"{{shop}}{number}", "!").get(f"{{shop}}{number}").rpush("{shop}list", number)
                pipe.rpush(f"{keys[number % 3]}list", number)
            replies = pipe.execute()
            assert replies[1::4] == [b"%d!" % number for number in range(10)]
            assert replies[2::4] == list(range(1, 11))
            assert routed.lrange("{shop}list", 0, -1) == [b"%d" % number for number in range(10)]

    def test_a_transaction_of_one_missing_key(self, routed: Routed, cluster: Cluster) -> None:
        with half_moved(cluster, "shop") as (_, target), routed.pipeline() as pipe:
            assert pipe.rpush("{shop}new", 1).rpush("{shop}new", 2).execute() == [1, 2]
            assert target.counts()["exec"] == 1

    def test_the_deadline(self, topology: Topology, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(client_module, "DEADLINE_S", 0.3)
        slot = slot_of("shop")
        command = ("EVAL", ADD, 2, "{shop}0", "{shop}new")
        with half_moved(cluster, "shop") as (source, target):
            text = f"the cluster did not serve slot {slot} for 0.3 s: .*[Mm]ultiple keys"
            with pytest.raises(exceptions.TryAgainError, match=text):
                Routed(topology).execute_command(*command)
            tries = errors_at(source, "TRYAGAIN") + errors_at(target, "TRYAGAIN")
            assert 2 <= tries <= 10
            impatient = Routed(topology, deadline_s=0)
            with pytest.raises(exceptions.TryAgainError, match=r"^Multiple keys"):
                impatient.execute_command(*command)
            assert impatient.get("{shop}new") is None
            with Routed(topology).pipeline(transaction=False) as pipe:
                pipe.execute_command(*command).execute_command(*command).set("{shop}new2", 1)
                *refused, stored = pipe.execute(raise_on_error=False)
            assert [type(reply) for reply in refused] == [exceptions.TryAgainError] * 2
            assert stored is True

    def test_nobody_serves_the_slot(self, topology: Topology, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(topology_module, "REFRESH_PAUSE_S", 60)
        topology.refresh()
        topology._take([topology.masters()[0], *[None] * (servers.SLOTS - 1)])
        with pytest.raises(exceptions.ClusterDownError, match=r"for 0\.05 s: no node serves slot"):
            Routed(topology, deadline_s=0.05).get("shop")


class TestPipeline:
    def test_one_round_trip_to_each_node(self, routed: Routed, cluster: Cluster, keys: list[str]) -> None:
        with routed.pipeline(transaction=False) as pipe:
            for number in range(30):
                pipe.rpush(keys[number % 3], number)
            pipe.mget(keys[0], "none").exists(*keys, "none").hgetall("hash").publish("news", "x")
            pipe.eval("return 1", 2, "a", "b")
            *pushed, mget, exists, hgetall, published, refused = pipe.execute(raise_on_error=False)
        assert pushed == [number // 3 + 1 for number in range(30)]
        assert (exists, hgetall, published) == (3, {}, 0)
        assert mget == [None, None]  # no string
        assert isinstance(refused, exceptions.ClusterCrossSlotError)
        assert routed.lrange(keys[1], 0, -1) == [b"%d" % number for number in range(1, 30, 3)]

    def test_the_first_error_is_raised_after_all(self, routed: Routed, keys: list[str]) -> None:
        with routed.pipeline(transaction=False) as pipe:
            pipe.set(keys[0], "x").incr(keys[0]).set(keys[1], "y")
            with pytest.raises(redis.ResponseError, match=r"Command # 2 .*not an integer"):
                pipe.execute()
            assert len(pipe) == 0
        assert routed.get(keys[1]) == b"y"

    def test_wait_goes_where_the_writes_went(self, routed: Routed, cluster: Cluster, keys: list[str]) -> None:
        routed.ping()
        cluster.reset_counts()
        with routed.pipeline(transaction=False) as pipe:
            pipe.set(keys[0], 1).set(keys[1], 1).execute_command("WAIT", 0, 100).set(keys[2], 1)
            assert pipe.execute() == [True, True, 0, True]
            assert calls(cluster, "wait") == [1, 1, 0]
            assert pipe.execute_command("WAIT", 0, 100).execute() == [0]
        assert sum(calls(cluster, "wait")) == 3

    def test_wait_follows_a_write_to_another_node(self, routed: Routed, cluster: Cluster) -> None:
        routed.ping()
        cluster.move(slot_of("shop"), target := other_than(cluster, cluster.owner("shop")))
        cluster.reset_counts()
        with routed.pipeline(transaction=False) as pipe:
            assert pipe.set("shop", 1).execute_command("WAIT", 0, 100).execute() == [True, 0]
        assert target.counts()["wait"] == 1

    def test_scripts_are_loaded_first(self, routed: Routed, cluster: Cluster, keys: list[str]) -> None:
        sha = routed.script_load(ADD)
        for _ in range(2):  # the second time, a slot has moved
            routed.script_flush()
            with routed.pipeline(transaction=False) as pipe:
                for key in keys[:2]:
                    pipe.evalsha(sha, 2, key, key)
                pipe.script_load(ADD)
                assert pipe.execute()[2] in (sha, sha.encode())
                assert pipe.script_load(ADD).execute() in ([sha], [sha.encode()])
            cluster.move(slot_of(keys[0]), cluster.nodes[2])
            routed.script_flush()
            with routed.pipeline(transaction=False) as pipe:
                pipe.script_load(ADD).evalsha(sha, 2, keys[0], keys[0])
                assert pipe.execute()[1] > 1
            cluster.put_slots_back()


class TestTransaction:
    def test_loads_its_scripts_at_its_own_node(self, routed: Routed, cluster: Cluster) -> None:
        add = routed.register_script(ADD)
        cluster.reset_counts()
        with routed.pipeline() as pipe:
            add(keys=["shop", "shop"], client=pipe)
            assert pipe.execute() == [1]
        assert cluster.owner("shop").counts()["script|load"] == 1
        assert cluster.counts()["script|load"] == 1

    def test_of_one_slot(self, routed: Routed) -> None:
        with routed.pipeline() as pipe:
            pipe.zadd("{shop}z", {"a": 1}).zrange("{shop}z", 0, -1, withscores=True).publish("news", "x")
            _, found, _ = pipe.execute()
        assert found == routed.zrange("{shop}z", 0, -1, withscores=True)

    def test_of_several_slots_is_refused_here(self, routed: Routed, cluster: Cluster, keys: list[str]) -> None:
        with routed.pipeline() as pipe:
            pipe.llen(keys[0]).rpush(keys[1], 1)
            with pytest.raises(exceptions.ClusterCrossSlotError, match="LLEN, RPUSH: the keys"):
                pipe.execute()
        assert routed.dbsize() == 0

    def test_an_error_when_queueing(self, routed: Routed) -> None:
        with routed.pipeline() as pipe:
            pipe.set("shop", 1).execute_command("GET", "shop", "too much")
            with pytest.raises(redis.ResponseError, match="wrong number"):
                pipe.execute()
        assert routed.get("shop") is None

    def test_an_error_when_executing(self, routed: Routed) -> None:
        with routed.pipeline() as pipe:
            replies = pipe.set("shop", "x").incr("shop").set("{shop}2", 1).execute(raise_on_error=False)
        assert replies[::2] == [True, True]
        assert isinstance(replies[1], redis.ResponseError)

    def test_watching(self, routed: Routed) -> None:
        with routed.pipeline() as pipe:
            pipe.watch("shop")
            assert pipe.get("shop") is None
            pipe.multi()
            assert pipe.set("shop", 1).execute() == [True]
            pipe.watch("shop")
            routed.set("shop", 2)
            pipe.multi()
            pipe.set("shop", 3)
            with pytest.raises(redis.WatchError):
                pipe.execute()
            pipe.watch("shop")
            with pytest.raises(exceptions.ClusterCrossSlotError):
                pipe.get("other")
            pipe.unwatch()
        assert routed.get("shop") == b"2"

    def test_a_watched_slot_that_moves(self, routed: Routed, cluster: Cluster) -> None:
        turns = iter([1, 2])

        def change(pipe: Any) -> None:
            if next(turns) == 1:
                cluster.move(slot_of("shop"), other_than(cluster, cluster.owner("shop")))
            pipe.multi()
            pipe.incr("shop")

        routed.ping()
        assert routed.transaction(change, "shop") == [1]

    def test_a_watched_slot_that_moved(self, routed: Routed, cluster: Cluster) -> None:
        routed.ping()
        cluster.move(slot_of("shop"), other_than(cluster, cluster.owner("shop")))
        with routed.pipeline() as pipe:
            pipe.watch("shop")
            pipe.multi()
            assert pipe.incr("shop").execute() == [1]


class Proxy:
    """Passes on what clients and a server send, until it is told not to.

    Attributes:
        port: where it listens.
        drops: end a connection instead of passing on a reply.
    """

    def __init__(self, to: int) -> None:
        self.drops = False
        self._to = to
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._peers: dict[socket.socket, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run)
        self._ending = False
        self._thread.start()

    def _run(self) -> None:
        while not self._ending:
            for key, _ in self._selector.select(0.05):
                if key.fileobj is self._server:
                    self._accept()
                elif key.fileobj in self._peers:
                    self._pass_on(key.fileobj, is_reply=key.data)  # type: ignore[arg-type]
        for sock in list(self._peers):
            self._end(sock)
        self._server.close()
        self._selector.close()

    def _accept(self) -> None:
        client = self._server.accept()[0]
        server = socket.create_connection(("127.0.0.1", self._to))
        for one, other, is_reply in ((client, server, False), (server, client, True)):
            self._peers[one] = other
            self._selector.register(one, selectors.EVENT_READ, is_reply)

    def _pass_on(self, sock: socket.socket, *, is_reply: bool) -> None:
        with suppress(OSError):
            data = sock.recv(65536)
            if data and not (is_reply and self.drops):
                self._peers[sock].sendall(data)
                return
        self._end(sock)

    def _end(self, sock: socket.socket) -> None:
        for one in (sock, self._peers.get(sock)):
            if one is not None and self._peers.pop(one, None) is not None:
                self._selector.unregister(one)
                one.close()

    def close(self) -> None:
        """Refuse connections from now on."""
        self._ending = True
        self._thread.join()


@pytest.fixture
def proxies(cluster: Cluster) -> Iterator[list[Proxy]]:
    """A proxy for each node."""
    proxies = [Proxy(node.port) for node in cluster.nodes]
    yield proxies
    for proxy in proxies:
        proxy.close()


@pytest.fixture
def through(cluster: Cluster, proxies: list[Proxy]) -> Iterator[Routed]:
    """A client whose connections go through the proxies. It knows the nodes."""
    ports = {node.port: proxy.port for node, proxy in zip(cluster.nodes, proxies, strict=True)}
    connect: Callable[[Address], Any] = lambda address: pool_for(Address(address.host, ports[address.port]))  # noqa: E731
    with closing(Topology(addresses_of(cluster), connect)) as topology:
        topology.refresh()
        yield Routed(topology)


class TestLostConnections:
    def test_a_command_is_not_sent_again(
        self, through: Routed, proxies: list[Proxy], cluster: Cluster, keys: list[str]
    ) -> None:
        through.set(keys[0], 0)
        cluster.reset_counts()
        proxies[0].drops = True
        with pytest.raises(redis.ConnectionError):
            through.incr(keys[0])
        with pytest.raises(redis.ConnectionError):  # there is not even a connection
            through.incr(keys[0])
        assert through.incr(keys[1]) == 1
        assert through.ping()
        proxies[0].drops = False
        assert through.get(keys[0]) == b"1"
        assert calls(cluster, "incrby") == [1, 1, 0]

    @pytest.mark.parametrize("transaction", [False, True])
    def test_nor_is_a_pipeline(self, transaction: bool, through: Routed, proxies: list[Proxy], keys: list[str]) -> None:
        through.set(keys[0], 0)
        with through.pipeline(transaction=transaction) as pipe:
            pipe.incr(keys[0]).incr(keys[0])
            proxies[0].drops = True
            with pytest.raises(redis.ConnectionError):
                pipe.execute()
        proxies[0].drops = False
        assert through.get(keys[0]) == b"2"

    def test_other_nodes_of_a_pipeline_answer(self, through: Routed, proxies: list[Proxy], keys: list[str]) -> None:
        through.mget(*keys)
        proxies[0].drops = True
        with through.pipeline(transaction=False) as pipe:
            pipe.incr(keys[0]).incr(keys[1]).incr(keys[0]).incr(keys[2]).execute_command("WAIT", 0, 100)
            lost, one, also_lost, two, waited = pipe.execute(raise_on_error=False)
        assert (one, two, waited) == (1, 1, 0)
        assert isinstance(lost, redis.ConnectionError)
        assert isinstance(also_lost, redis.ConnectionError)

    def test_nor_is_a_watched_transaction(self, through: Routed, proxies: list[Proxy], keys: list[str]) -> None:
        with through.pipeline() as pipe:
            pipe.watch(keys[0])
            pipe.multi()
            pipe.incr(keys[0])
            proxies[0].drops = True
            with pytest.raises(redis.ConnectionError):  # not a WatchError, after which callers begin again
                pipe.execute()
        proxies[0].drops = False
        assert through.get(keys[0]) == b"1"

    @pytest.mark.parametrize("kind", ["single", "pipeline", "transaction"])
    def test_a_refused_connection_leads_to_the_next_owner(
        self,
        kind: str,
        through: Routed,
        proxies: list[Proxy],
        cluster: Cluster,
        keys: list[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(topology_module, "REFRESH_PAUSE_S", 0)
        cluster.move(slot_of(keys[0]), cluster.nodes[1])
        proxies[0].close()
        if kind == "single":
            assert through.incr(keys[0]) == 1
            return
        with through.pipeline(transaction=kind == "transaction") as pipe:
            assert pipe.incr(keys[0]).incr(keys[0]).execute() == [1, 2]

    def test_a_refused_connection_without_another_owner(
        self, through: Routed, proxies: list[Proxy], keys: list[str]
    ) -> None:
        through.ping()
        proxies[0].close()
        with pytest.raises(redis.ConnectionError, match="refused"):
            through.incr(keys[0])
        with through.pipeline(transaction=False) as pipe:
            lost, done = pipe.incr(keys[0]).incr(keys[1]).execute(raise_on_error=False)
        assert isinstance(lost, redis.ConnectionError)
        assert done == 1
        with through.pipeline(transaction=False) as pipe:
            replies = pipe.incr(keys[0]).execute_command("WAIT", 0, 100).execute(raise_on_error=False)
        assert [type(reply) for reply in replies] == [redis.ConnectionError] * 2
        assert through.ping()  # at another home
        with pytest.raises(redis.ConnectionError):
            through.dbsize()
        assert through.script_load("return 1")

    def test_a_refused_home_is_replaced_before_anything_is_sent(self, through: Routed, proxies: list[Proxy]) -> None:
        by_port = {proxy.port: proxy for proxy in proxies}
        by_port[through.connection_pool.connection_kwargs["port"]].close()
        assert through.ping()

    def test_a_full_pool_says_nothing_about_the_node(self, cluster: Cluster) -> None:
        def connect(address: Address) -> redis.ConnectionPool:
            return redis.ConnectionPool(host=address.host, port=address.port, max_connections=1)

        with closing(Topology(addresses_of(cluster), connect)) as topology:
            home = topology.home()
            with closing(Routed(topology).pubsub()) as pubsub:
                pubsub.subscribe("news")
                with pytest.raises(redis.ConnectionError, match=r"Too many|Max"):
                    Routed(topology).ping()
            assert topology.home() is home
            assert Routed(topology).ping()


def test_a_node_dies_and_its_replica_takes_over() -> None:
    with (
        servers.cluster(replicas=1) as cluster,
        closing(Topology(addresses_of(cluster)[:3], pool_for)) as topology,
    ):
        routed = Routed(topology)
        keys = [cluster.key_of(node) for node in cluster.nodes[:3]]
        with routed.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.set(key, 1)
            pipe.execute_command("WAIT", 1, 5000)
            assert pipe.execute() == [True, True, True, 1]
        cluster.nodes[0].kill()
        with pytest.raises(redis.ConnectionError):
            routed.incr(keys[0])
        assert [routed.incr(key) for key in keys[1:]] == [2, 2]
        assert routed.ping()

        def works() -> bool:
            with suppress(redis.ConnectionError, exceptions.ClusterDownError):
                return bool(routed.get(keys[0]))
            return False

        wait_until(works, "the replica serves the key")
        assert routed.incr(keys[0]) == 2
        assert Address("127.0.0.1", cluster.nodes[0].port) not in [node.address for node in topology.masters()]
