"""Routed: a `redis.Redis` for a Redis Cluster. It sends each command to the node that serves its keys.

Why not redis-py's `RedisCluster`: that one sends a command again after a lost connection, whose reply may be that of a
command that was executed. A message would be offered twice. Here, a command is sent again only if a node has refused it
(MOVED, ASK, TRYAGAIN, CLUSTERDOWN), or if the connection could not even be opened. It knows only Redis.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, TypeVar

import redis
from redis import exceptions
from redis.client import NEVER_DECODE, Pipeline
from redis.crc import key_slot

from celery_delayq.cluster import hanging
from celery_delayq.cluster.topology import Address, Node, Topology
from celery_delayq.errors import ConfigurationError

T = TypeVar("T")

#: See `redis.Redis.parse_response`.
Parse: TypeAlias = Callable[..., Any]

#: How long a command is tried while no node serves its slot, in seconds.
DEADLINE_S = 30.0

#: The pauses in between, in seconds.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5

#: So many times a command follows from node to node at once. After that, the nodes do not agree: there is a pause.
_HOPS = 4

#: Answers of a node that did not execute a command, because it does not serve the slot, or not all of it.
REDIRECTIONS = (
    exceptions.MovedError,
    exceptions.AskError,
    exceptions.TryAgainError,
    exceptions.ClusterDownError,
)

_LOST = (exceptions.ConnectionError, exceptions.TimeoutError, OSError)


# -- errors


#: redis-py makes these classes itself since version 6; before, only in its `RedisCluster`.
_CLASSES: dict[str, type[exceptions.ResponseError]] = {
    "MOVED": exceptions.MovedError,
    "ASK": exceptions.AskError,
    "TRYAGAIN": exceptions.TryAgainError,
    "CLUSTERDOWN": exceptions.ClusterDownError,
    "CROSSSLOT": exceptions.ClusterCrossSlotError,
}

_ANNOTATION = " of pipeline caused error: "


def understood(exc: Exception) -> Exception:
    """Return an error of a node in the class of redis-py that stands for it; any other error as it is.

    redis-py 5 has no class for answers of a cluster in a client of a single server.
    """
    if not isinstance(exc, exceptions.ResponseError) or isinstance(exc, tuple(_CLASSES.values())):
        return exc
    text = str(exc)
    if text.startswith("Command # "):  # redis-py's pipeline adds that
        text = text.rpartition(_ANNOTATION)[2]
    code, _, rest = text.partition(" ")
    kind = _CLASSES.get(code)
    if kind is None:
        return exc
    try:
        error = kind(rest)
    except ValueError:  # not "<slot> <host>:<port>"
        return exc
    error.args = (rest,)
    error.__cause__ = exc
    return error


def is_redirection(reply: Any) -> bool:
    """Return whether a node did not execute a command, because it does not serve the slot, or not all of it."""
    return isinstance(reply, REDIRECTIONS) and not isinstance(reply, exceptions.MasterDownError)


class _NotSent(Exception):
    """No connection could be opened, so nothing was sent."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


#: Errors of a pool that has no connection left. They say nothing about the node.
_EXHAUSTED = ("Too many connections", "No connection available.")


def _is_exhausted(exc: Exception) -> bool:
    return isinstance(exc, exceptions.MaxConnectionsError) or str(exc) in _EXHAUSTED


# -- the keys of commands


def _numbered(place: int, before: int = 0) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return the function for commands whose keys follow their number, which is at a place.

    Args:
        place: 0 for the first argument.
        before: how many keys there are at the beginning, too.
    """

    def keys(args: Sequence[Any]) -> Sequence[Any]:
        count = int(args[place]) if len(args) > place else 0
        return [*args[:before], *args[place + 1 : place + 1 + count]]

    return keys


def _none(args: Sequence[Any]) -> Sequence[Any]:
    return ()


def _all(args: Sequence[Any]) -> Sequence[Any]:
    return args


def _first(args: Sequence[Any]) -> Sequence[Any]:
    return args[:1]


def _two(args: Sequence[Any]) -> Sequence[Any]:
    return args[:2]


def _second(args: Sequence[Any]) -> Sequence[Any]:
    return args[1:2]


def _all_but_first(args: Sequence[Any]) -> Sequence[Any]:
    return args[1:]


def _all_but_last(args: Sequence[Any]) -> Sequence[Any]:
    return args[:-1]


def _every_other(args: Sequence[Any]) -> Sequence[Any]:
    return args[::2]


def _streams(args: Sequence[Any]) -> Sequence[Any]:
    names = [_text(arg).upper() for arg in args]
    rest = args[names.index("STREAMS") + 1 :] if "STREAMS" in names else ()
    return rest[: len(rest) // 2]


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


#: Name of a command -> returns the keys among its arguments. The key of any other command is its first argument.
_KEYS: dict[str, Callable[[Sequence[Any]], Sequence[Any]]] = {
    **dict.fromkeys(
        (
            *("ACL", "ASKING", "AUTH", "BGREWRITEAOF", "BGSAVE", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DBSIZE"),
            *("DEBUG", "DISCARD", "ECHO", "EXEC", "FAILOVER", "FLUSHALL", "FLUSHDB", "FUNCTION", "HELLO", "INFO"),
            *("KEYS", "LASTSAVE", "LATENCY", "LOLWUT", "MODULE", "MONITOR", "MULTI", "PING", "PSUBSCRIBE", "PUBLISH"),
            *("PUBSUB", "PUNSUBSCRIBE", "QUIT", "RANDOMKEY", "READONLY", "READWRITE", "REPLICAOF", "RESET", "ROLE"),
            *("SAVE", "SCAN", "SCRIPT", "SELECT", "SHUTDOWN", "SLAVEOF", "SLOWLOG", "SUBSCRIBE", "SWAPDB", "TIME"),
            *("UNSUBSCRIBE", "UNWATCH", "WAIT", "WAITAOF"),
        ),
        _none,
    ),
    **dict.fromkeys(
        (
            *("DEL", "EXISTS", "MGET", "PFCOUNT", "PFMERGE", "SDIFF", "SDIFFSTORE", "SINTER", "SINTERSTORE", "SUNION"),
            *("SUNIONSTORE", "TOUCH", "UNLINK", "WATCH"),
        ),
        _all,
    ),
    **dict.fromkeys(("BLPOP", "BRPOP", "BZPOPMAX", "BZPOPMIN"), _all_but_last),
    **dict.fromkeys(
        (
            *("BLMOVE", "BRPOPLPUSH", "COPY", "GEOSEARCHSTORE", "LCS", "LMOVE", "RENAME", "RENAMENX", "RPOPLPUSH"),
            *("SMOVE", "ZRANGESTORE"),
        ),
        _two,
    ),
    **dict.fromkeys(("EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "FCALL", "FCALL_RO"), _numbered(1)),
    **dict.fromkeys(("BLMPOP", "BZMPOP"), _numbered(1)),
    **dict.fromkeys(("LMPOP", "SINTERCARD", "ZDIFF", "ZINTER", "ZINTERCARD", "ZMPOP", "ZUNION"), _numbered(0)),
    **dict.fromkeys(("ZDIFFSTORE", "ZINTERSTORE", "ZUNIONSTORE"), _numbered(1, before=1)),
    **dict.fromkeys(("MSET", "MSETNX"), _every_other),
    **dict.fromkeys(("MEMORY", "OBJECT", "XGROUP", "XINFO"), _second),
    **dict.fromkeys(("XREAD", "XREADGROUP"), _streams),
    "BITOP": _all_but_first,
}


def _words(args: Sequence[Any]) -> list[Any]:
    """Return the words of a command. redis-py passes "SCRIPT LOAD" as one string, or as two."""
    return [*_text(args[0]).upper().split(), *args[1:]]


def keys_of(*args: Any) -> Sequence[Any]:
    """Return the keys of a command, as redis-py's `execute_command` gets it."""
    name, *rest = _words(args)
    return _KEYS.get(name, _first)(rest)


# -- commands that concern several nodes


Merge: TypeAlias = Callable[[list[Any]], Any]


def _error_in(replies: Iterable[Any]) -> Exception | None:
    return next((reply for reply in replies if isinstance(reply, Exception)), None)


def _merging(merge: Merge) -> Merge:
    """Return a function that merges replies unless one of them is an error; then that is the reply."""
    return lambda replies: _error_in(replies) or merge(replies)


def _any_sha(replies: list[Any]) -> Any:
    # A node that is down will not know the script. Whoever runs one has to expect NOSCRIPT anyway.
    return next((reply for reply in replies if not isinstance(reply, Exception)), _error_in(replies))


def _same(replies: list[Any]) -> Any:
    return replies[0]


def _union(replies: list[Any]) -> Any:
    return list(dict.fromkeys(key for keys in replies for key in keys))


#: Commands for all masters, and how to make one reply of theirs.
_EVERYWHERE: dict[tuple[str, ...], Merge] = {
    ("DBSIZE",): _merging(sum),
    ("FLUSHALL",): _merging(_same),
    ("FLUSHDB",): _merging(_same),
    ("KEYS",): _merging(_union),
    ("SCRIPT", "EXISTS"): _merging(lambda replies: [all(known) for known in zip(*replies, strict=True)]),
    ("SCRIPT", "FLUSH"): _merging(_same),
    ("SCRIPT", "LOAD"): _any_sha,
}

#: Commands that are sent to each node for its keys, with the sum of the replies.
_SUMMED = frozenset({"DEL", "EXISTS", "TOUCH", "UNLINK"})


def _everywhere(words: Sequence[Any]) -> Merge | None:
    return _EVERYWHERE.get((words[0],)) or _EVERYWHERE.get((words[0], _text(words[1]).upper() if words[1:] else ""))


def _in_order(places: Sequence[Sequence[int]], replies: list[Any]) -> Any:
    """Put the replies to parts of an MGET in order."""
    values: list[Any] = [None] * sum(map(len, places))
    for part, reply in zip(places, replies, strict=True):
        for place, value in zip(part, reply, strict=True):
            values[place] = value
    return values


# -- sending


class _Unsent:
    """Stands for the reply to a command that was not sent."""


_UNSENT: Any = _Unsent()


@dataclass(eq=False)
class _Wire:
    """A command that is sent once, and its reply or error.

    Attributes:
        where: a hash slot; the address of a node; None for the home node.
    """

    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    where: int | Address | None = None
    reply: Any = _UNSENT


@dataclass(eq=False)
class _Planned:
    """A command as the caller gave it, and what nodes get for it."""

    parts: list[_Wire]
    merge: Merge = _same

    @property
    def reply(self) -> Any:
        return self.merge([part.reply for part in self.parts])


@dataclass(eq=False)
class _Attached:
    """A command of a pipeline for each node to which the pipeline sends anything: SCRIPT LOAD before it, WAIT after it.

    Attributes:
        replies: those of the nodes.
        idle: those to a WAIT of nodes that had refused all that was sent there.
    """

    args: tuple[Any, ...]
    options: dict[str, Any]
    is_wait: bool
    replies: list[Any] = field(default_factory=list)
    idle: list[Any] = field(default_factory=list)

    @property
    def reply(self) -> Any:
        if not self.is_wait:
            return _any_sha(self.replies) if self.replies else None
        # Whoever waits for a lost node knows: the replies to its commands are errors, too.
        heard = [reply for reply in self.replies or self.idle if not isinstance(reply, _LOST)]
        return _error_in(heard) or min(heard, default=self.replies[0] if self.replies else 0)


_ASKING = ("ASKING",)

#: redis-py 5 wants to know the command for which it gets a connection; later versions warn of that.
_NAME_WANTED = inspect.signature(redis.ConnectionPool.get_connection).parameters["command_name"].default
_FOR_COMMAND: tuple[str, ...] = ("_",) if _NAME_WANTED is inspect.Parameter.empty else ()


def _connection_to(node: Node) -> Any:
    """Return a connection from a node's pool; it is connected.

    Raises:
        _NotSent: it cannot be connected.
        redis.ConnectionError: the pool has none left.
    """
    try:
        return node.client.connection_pool.get_connection(*_FOR_COMMAND)
    except _LOST as exc:
        if _is_exhausted(exc):
            raise
        raise _NotSent(exc) from exc


class _Exchange:
    """Commands that go to a node on one connection, in one round trip. None of them is sent twice."""

    def __init__(self, node: Node, parse: Parse, loads: Iterable[_Attached] = ()) -> None:
        self.node = node
        #: The error that ended the connection.
        self.lost: Exception | None = None
        #: The commands in order; those that are attached with whose they are.
        self._wires: list[tuple[_Wire, _Attached | None]] = []
        self._parse = parse
        self._connection: Any = None
        self._packed: Any = None
        self._is_unread = False
        for load in loads:
            if not load.is_wait:
                self.attach(load)

    @property
    def commands(self) -> list[_Wire]:
        """The commands, without those that are attached."""
        return [wire for wire, owner in self._wires if owner is None]

    def add(self, *wires: _Wire) -> None:
        """Add commands."""
        self._wires += [(wire, None) for wire in wires]

    def attach(self, attached: _Attached) -> None:
        """Add an attached command."""
        self._wires.append((_Wire(attached.args, attached.options), attached))

    def open(self) -> None:
        """Get a connection.

        Raises:
            _NotSent: none could be opened.
            redis.ConnectionError: the pool has none left.
            redis.DataError: an argument is neither text nor bytes nor a number.
        """
        self._connection = _connection_to(self.node)
        self._packed = self._connection.pack_commands([wire.args for wire, _ in self._wires])

    def send(self) -> None:
        """Send the commands. If that fails, the error is the reply to each."""
        self._is_unread = True
        try:
            self._connection.send_packed_command(self._packed)
        except _LOST as exc:
            self.fail(exc)

    def read(self) -> None:
        """Read the replies. An error is one, too."""
        for wire, _ in self._wires if self.lost is None else ():
            try:
                wire.reply = self._parse(self._connection, wire.args[0], **wire.options)
            except exceptions.ResponseError as exc:
                wire.reply = understood(exc)
            except _LOST as exc:
                self.fail(exc)
                break
        self._is_unread = self.lost is not None
        self._settle()

    def _settle(self) -> None:
        """Give the replies to attached commands to their owners."""
        has_served = False
        for wire, owner in self._wires:
            if owner is None:
                has_served |= wire.args != _ASKING and not is_redirection(wire.reply)
            elif owner.is_wait and not has_served:
                owner.idle.append(wire.reply)
            else:
                owner.replies.append(wire.reply)

    def fail(self, exc: Exception) -> None:
        """Make an error the reply to all commands without a reply."""
        self.lost = exc
        for wire, _ in self._wires:
            if wire.reply is _UNSENT:
                wire.reply = exc

    def close(self) -> None:
        """Give the connection back; if not all replies were read, disconnect it first."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._is_unread:
            connection.disconnect()
        self.node.client.connection_pool.release(connection)


class Routed(redis.Redis):
    """A client that sends each command to the node that serves its keys; without a key, to the home node.

    Safe to share between threads, and after a fork. The connections are those of the topology, which stay open when
    this client is closed.

    Several keys have to be in one hash slot, except those of DEL, EXISTS, MGET, TOUCH and UNLINK, which are not atomic
    then. DBSIZE, FLUSHALL, FLUSHDB, KEYS, and SCRIPT with LOAD, EXISTS and FLUSH go to all masters. SCAN goes over one
    node, so it needs a `home`; `scan_iter` goes over all.

    Every command raises, besides what a plain client raises:

    - `redis.exceptions.ClusterCrossSlotError`: its keys are in several slots. It was not sent.
    - `redis.exceptions.TryAgainError`, `ClusterDownError` and so on: no node served the slot in time.
    - `redis.ConnectionError`, `redis.TimeoutError`: the connection was lost. Nobody knows whether the command was
      executed. It is not sent again, whatever the pool's options say about retries.

    Args:
        topology: the nodes. Nothing is sent before the first command.
        home: the node for commands without a key; by default the home node of the topology, which is another one after
            it has failed.
        deadline_s: how long a command is tried while no node serves its slot, in seconds; by default `DEADLINE_S`. With
            0, it goes to another node if it has to, but does not wait.
        owns_topology: whether `close` closes the topology.
        is_hurried: wait for an answer of a node for `HURRY_S` at most, and not at all if it hangs as far as this
            process knows; for what can be done later, or without the node.
    """

    #: redis-py may close a client that was never made completely.
    _owns_topology = False

    def __init__(
        self,
        topology: Topology,
        *,
        home: Address | None = None,
        deadline_s: float | None = None,
        owns_topology: bool = False,
        is_hurried: bool = False,
    ) -> None:
        self.topology = topology
        self._is_hurried = is_hurried
        self._home_address = home
        self._deadline_s = deadline_s
        self._owns_topology = owns_topology
        super().__init__(connection_pool=self.connection_pool)
        encoder: Any = self.get_encoder()
        self._encode: Callable[[Any], bytes] = encoder.encode

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topology!r}>"

    # -- nodes

    @property
    def connection_pool(self) -> Any:
        """The pool of the home node; that of a seed while no master is known. Sends nothing."""
        if self._home_address is None:
            return self.topology.any_pool
        return self._connected(self.topology.node_at(self._home_address)).client.connection_pool

    @connection_pool.setter
    def connection_pool(self, pool: Any) -> None:
        """Do nothing: redis-py sets what it was given."""

    @property
    def patience_s(self) -> float:
        """How long a command is tried while no node serves its slot, in seconds."""
        return DEADLINE_S if self._deadline_s is None else self._deadline_s

    def home(self) -> Node:
        """Return the node for commands without a key.

        Raises:
            redis.RedisError, ConfigurationError: see `Topology.home`.
        """
        return self.topology.home() if self._home_address is None else self.topology.node_at(self._home_address)

    def slot_of(self, key: Any) -> int:
        """Return the hash slot of a key."""
        return key_slot(bytes(self._encode(key)))

    def node_of(self, key: str | bytes) -> Node:
        """Return the node that serves a key.

        Raises:
            redis.RedisError, ConfigurationError: see `Topology.node_of`.
        """
        return self.topology.node_of(self.slot_of(key))

    def node_client(self, key: str | bytes) -> redis.Redis:
        """Return a plain client of the node that serves a key, see `node_of`. It follows no redirection."""
        return self.node_of(key).client

    def masters(self) -> list[Node]:
        """Return the masters, sorted by address; see `Topology.masters`."""
        return self.topology.masters()

    def at(self, key: str | bytes) -> Routed:
        """Return a client whose commands without a key go to the node that serves a key now, see `node_of`."""
        return self.with_home(self.node_of(key))

    def with_home(self, node: Node) -> Routed:
        """Return a client whose commands without a key go to a node."""
        return Routed(self.topology, home=node.address, deadline_s=self._deadline_s, is_hurried=self._is_hurried)

    def hurried(self) -> Routed:
        """Return a client that does not wait for a node that hangs, see `is_hurried`."""
        return Routed(self.topology, home=self._home_address, deadline_s=self._deadline_s, is_hurried=True)

    def pubsub(self, **kwargs: Any) -> Any:
        """Return a subscription at the home node, see redis-py. After that node has failed, make another one."""
        return self.home().client.pubsub(**kwargs)

    def client(self) -> Any:
        """Return another client of this topology; it has no connection of its own, unlike redis-py's."""
        return Routed(self.topology, home=self._home_address, deadline_s=self._deadline_s, is_hurried=self._is_hurried)

    def close(self) -> None:
        """Close the topology if this client owns it. redis-py also calls this when the client is collected."""
        if self._owns_topology:
            self.topology.close()

    # -- commands

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command to the nodes that serve its keys, and return what a plain client returns.

        Raises:
            redis.RedisError: see the class.
        """
        planned = self.plan(args, options)
        if len(planned.parts) == 1 and not isinstance(planned.parts[0].where, Address):
            self._send(planned.parts[0], self.parse_response)
        else:
            self.send_all([planned], self.parse_response)
        reply = planned.reply
        if isinstance(reply, Exception):
            raise reply
        return reply

    def scan_iter(
        self, match: Any = None, count: int | None = None, _type: str | None = None, **kwargs: Any
    ) -> Iterator[Any]:
        """Yield the keys of all masters, see redis-py. A key whose slot moves meanwhile may be missing, or come twice.

        Raises:
            redis.RedisError: a node is away, or refuses the command.
        """
        for node in self.masters():
            yield from redis.Redis.scan_iter(self.with_home(node), match=match, count=count, _type=_type, **kwargs)

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> RoutedPipeline:
        """Return a pipeline, see `RoutedPipeline`."""
        return RoutedPipeline(self, transaction, shard_hint)

    def plan(self, args: tuple[Any, ...], options: dict[str, Any]) -> _Planned:
        """Return a command with what nodes get for it; for pipelines.

        Raises:
            redis.exceptions.ClusterCrossSlotError: its keys are in several slots.
            redis.ResponseError: it is about one node, and there is no telling which.
            redis.RedisError, ConfigurationError: it is for all masters, and they are not known yet.
        """
        words = _words(args)
        everywhere = _everywhere(words)
        if everywhere is not None:
            return _Planned([_Wire(args, options, node.address) for node in self.masters()], everywhere)
        keys = keys_of(*args)
        slots: dict[int, list[int]] = {}
        for place, key in enumerate(keys):
            slots.setdefault(self.slot_of(key), []).append(place)
        if len(slots) < 2:
            if words[0] == "SCAN" and self._home_address is None:
                raise exceptions.ResponseError("SCAN goes over the keys of one node of the cluster: use scan_iter")
            return _Planned([_Wire(args, options, next(iter(slots), None))])
        parts = [_Wire((args[0], *(keys[at] for at in places)), options, slot) for slot, places in slots.items()]
        if words[0] in _SUMMED:
            return _Planned(parts, _merging(sum))
        if words[0] == "MGET":
            return _Planned(parts, _merging(partial(_in_order, list(slots.values()))))
        raise cross_slot([args])

    # -- sending

    def _send(
        self,
        wire: _Wire,
        parse: Parse,
        *,
        attached: Sequence[_Attached] = (),
        lost: dict[Address, Exception] | None = None,
        until: float | None = None,
    ) -> None:
        """Send a command to the node of its slot, or the home node, and follow redirections.

        Args:
            wire: the command. Its reply is set, which is also the error of a node, or of a lost connection.
            parse: parses replies.
            attached: what its node gets with it.
            lost: nodes whose connections were lost, which get nothing more; it is extended.
            until: see `follow`.
        """
        lost = {} if lost is None else lost

        def send(node: Node, asking: bool) -> None:
            if node.address in lost:
                raise lost[node.address]
            exchange = _Exchange(node, parse, attached)
            wire.reply = _UNSENT
            exchange.add(*([_Wire(_ASKING)] if asking else []), wire)
            for wait in attached:
                if wait.is_wait:
                    exchange.attach(wait)
            try:
                exchange.open()
                exchange.send()
                exchange.read()
            finally:
                exchange.close()
            self._look_at(exchange, lost)
            if is_redirection(wire.reply):
                raise wire.reply

        assert not isinstance(wire.where, Address)
        try:
            self.follow(wire.where, send, until=until)
        except (exceptions.RedisError, OSError) as exc:
            wire.reply = exc

    def _look_at(self, exchange: _Exchange, lost: dict[Address, Exception]) -> None:
        if exchange.lost is not None:
            lost[exchange.node.address] = exchange.lost
            self.lost(exchange.node)
        elif any(isinstance(wire.reply, exceptions.ReadOnlyError) for wire in exchange.commands):
            self.refresh()

    def lost(self, node: Node) -> None:
        """Record that a node does not answer, and ask the others who serves its slots. Never raises."""
        self.topology.failed(node)
        if self._is_hurried:
            hanging.hangs(node.address)
        self.refresh()

    def refresh(self, first: Address | None = None) -> None:
        """Ask the nodes who serves which slot, see `Topology.refresh`. Never raises."""
        with suppress(exceptions.RedisError, ConfigurationError, OSError):
            self.topology.refresh(first)

    def _node_for(self, where: int | Address | None) -> Node:
        if where is None:
            node = self.home()
        else:
            node = self.topology.node_at(where) if isinstance(where, Address) else self.topology.node_of(where)
        if self._is_hurried and not hanging.may_ask(node.address):
            raise exceptions.ConnectionError(f"Redis node {node.address} does not answer")
        return self._connected(node)

    def _connected(self, node: Node) -> Node:
        """Return a node with the connections that this client uses."""
        return node.hurried() if self._is_hurried else node

    def follow(
        self,
        slot: int | None,
        send: Callable[[Node, bool], T],
        *,
        until: float | None = None,
        can_ask: bool = True,
    ) -> T:
        """Send something to the node that serves a slot, and follow redirections.

        Args:
            slot: the hash slot; None for the home node.
            send: called with the node, and with whether to send ASKING first. It raises a redirection only if the node
                has executed nothing.
            until: when to stop trying, monotonic time in seconds; by default `patience_s` from now.
            can_ask: whether `send` can send ASKING; otherwise this waits until the slot has moved.

        Raises:
            redis.ResponseError: one of `REDIRECTIONS` if no node served the slot in time; another one of `send`.
            redis.ConnectionError, redis.TimeoutError: a connection could not be opened, or was lost.
        """
        until = time.monotonic() + self.patience_s if until is None else until
        pause_s, hops = _FIRST_PAUSE_S, 0
        refused: set[Address] = set()
        target: tuple[Node, bool] | None = None
        while True:
            node: Node | None = None
            try:
                node, asking = target or (self._node_for(slot), False)
                target = None
                return send(node, asking)
            except _NotSent as exc:
                assert node is not None
                is_again = node.address in refused
                refused.add(node.address)
                self.lost(node)
                if is_again or not self._has_other(slot, refused):
                    raise exc.error from exc.error.__cause__
                continue
            except exceptions.ResponseError as exc:
                error: Any = understood(exc)
                if not is_redirection(error):
                    raise
            if isinstance(error, exceptions.AskError) and node is not None:  # MOVED is one, too
                has_moved = isinstance(error, exceptions.MovedError)
                address = _address(error, node)
                hops += 1
                if address is not None and has_moved:
                    self.topology.moved(error.slot_id, address)
                    self.refresh(address)
                if address is not None and hops <= _HOPS and (has_moved or can_ask):
                    target = self.topology.node_at(address), not has_moved
                    continue
            left_s = until - time.monotonic()
            if left_s <= 0:
                if self.patience_s:
                    error.args = (f"the cluster did not serve slot {slot} for {self.patience_s:g} s: {error}",)
                raise error
            time.sleep(min(pause_s, left_s))
            pause_s, hops = min(2 * pause_s, _LONGEST_PAUSE_S), 0
            self.refresh()

    def _has_other(self, where: int | Address | None, refused: Collection[Address]) -> bool:
        """Return whether there is a node now for a slot that has not refused a connection."""
        try:
            return self._node_for(where).address not in refused
        except exceptions.ClusterDownError:
            return False

    def send_all(self, commands: Sequence[_Planned | _Attached], parse: Parse) -> None:
        """Send commands in one round trip to each node, and again one by one what a node did not serve; for pipelines.

        Nothing is sent again to a node whose connection was lost.

        Args:
            commands: their replies are set. An error is a reply, too.
            parse: parses replies.

        Raises:
            redis.RedisError, ConfigurationError: nothing was sent: the slots are not known yet, or an argument is bad.
        """
        until = time.monotonic() + self.patience_s
        lost: dict[Address, Exception] = {}
        refused: set[Address] = set()
        while any(part.reply is _UNSENT for command in commands for part in _parts(command)):
            self._send_round(commands, parse, lost, refused)
        for number, command in enumerate(commands):
            for part in _parts(command):
                if is_redirection(part.reply) and not isinstance(part.where, Address):
                    before = [it for it in commands[:number] if isinstance(it, _Attached) and not it.is_wait]
                    attached = [it for it in commands[number:] if isinstance(it, _Attached)]
                    self._send(part, parse, attached=[*before, *attached], lost=lost, until=until)
        for command in commands:
            if isinstance(command, _Attached) and not command.replies + command.idle:  # no node could be reached
                replies = (part.reply for other in commands for part in _parts(other))
                command.replies = [reply for reply in replies if isinstance(reply, _LOST)][:1]

    def _send_round(
        self,
        commands: Sequence[_Planned | _Attached],
        parse: Parse,
        lost: dict[Address, Exception],
        refused: set[Address],
    ) -> None:
        """Send what was not sent yet. What a node did not get may remain, for another node."""
        exchanges: dict[Address, _Exchange] = {}
        opened: list[_Exchange] = []
        loads = [command for command in commands if isinstance(command, _Attached)]
        for command in commands:
            for part in _parts(command):
                if part.reply is not _UNSENT:
                    continue
                try:
                    node = self._node_for(part.where)
                except exceptions.ClusterDownError as exc:
                    part.reply = exc
                    continue
                except exceptions.ConnectionError as exc:
                    if not self._is_hurried:
                        raise
                    part.reply = exc
                    continue
                if node.address not in exchanges:
                    exchanges[node.address] = _Exchange(node, parse, loads)
                exchanges[node.address].add(part)
            if isinstance(command, _Attached) and command.is_wait:
                for exchange in exchanges.values():
                    exchange.attach(command)
        try:
            for exchange in exchanges.values():
                try:
                    exchange.open()
                    opened.append(exchange)
                except _NotSent as exc:
                    self._refuse(exchange, exc.error, refused)
                except _LOST as exc:  # the pool has no connection left
                    exchange.fail(exc)
            for exchange in opened:
                exchange.send()
            for exchange in opened:
                exchange.read()
        finally:
            for exchange in exchanges.values():
                exchange.close()
        for exchange in opened:
            self._look_at(exchange, lost)

    def _refuse(self, exchange: _Exchange, error: Exception, refused: set[Address]) -> None:
        """Make an error the reply to all commands for a node that refuses connections and has no successor."""
        refused.add(exchange.node.address)
        self.lost(exchange.node)
        for wire in exchange.commands:
            if not self._has_other(wire.where, refused):
                wire.reply = error


def _parts(command: _Planned | _Attached) -> Sequence[_Wire]:
    return command.parts if isinstance(command, _Planned) else ()


def _address(error: Any, node: Node) -> Address | None:
    """Return the address that a redirection names; None if the node did not know it."""
    return None if error.host == "?" else Address(error.host or node.address.host, int(error.port))


def cross_slot(commands: Iterable[tuple[Any, ...]]) -> exceptions.ClusterCrossSlotError:
    """Return the error that says that the keys of commands are in several hash slots."""
    commands = list(commands)
    names = ", ".join(dict.fromkeys(_words(args)[0] for args in commands))
    keys = list(dict.fromkeys(_text(key) for args in commands for key in keys_of(*args)))
    more = f" and {len(keys) - _KEYS_NAMED} more" if len(keys) > _KEYS_NAMED else ""
    named = ", ".join(map(repr, keys[:_KEYS_NAMED]))
    return exceptions.ClusterCrossSlotError(f"{names}: the keys {named}{more} are in several hash slots of the cluster")


#: How many keys an error names.
_KEYS_NAMED = 5


class RoutedPipeline(Pipeline):
    """A pipeline whose commands go to the nodes of their keys. For one thread.

    Without a transaction, each node gets its commands in one round trip, in order, at the same time as other nodes. A
    node's commands are executed in order, unless their slot moves meanwhile: what a node did not serve is sent again
    one by one, in order.

    - An error is the reply to its command, even one of a lost connection. With `raise_on_error`, the first one is
      raised, but only after everything was sent: rather one of a connection than one of a node.
    - `WAIT` goes to each node that the commands before it went to, after them, on the same connection. Its reply is the
      least of them. Nodes whose connections were lost do not count: the replies to their commands tell that.
    - `SCRIPT LOAD` goes first, to each node that any command goes to.

    With a transaction, or after `watch`, all keys have to be in one slot. If the slot moves before EXEC, a transaction
    is sent to the other node; one that watches raises WatchError instead.

    Args:
        routed: the client.
        transaction: whether to send MULTI and EXEC.
        shard_hint: see redis-py.
    """

    def __init__(self, routed: Routed, transaction: bool = True, shard_hint: Any = None) -> None:
        super().__init__(routed.connection_pool, routed.response_callbacks, transaction, shard_hint)
        self._routed = routed
        #: The slot of the watched keys; None if there are none.
        self._watched: int | None = None

    # -- without a transaction

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send all commands, and return their replies in order.

        Raises:
            redis.exceptions.ClusterCrossSlotError: a transaction has keys in several slots. Nothing was sent.
            redis.WatchError: a watched key has changed, or its slot has moved. Nothing was executed.
            redis.RedisError: see the class and `Routed`.
        """
        stack: list[Any] = self.command_stack
        if not stack and not self.watching:
            return []
        is_multi: Any = self.transaction  # here a bool, not the method of `redis.Redis`
        try:
            if is_multi or self.explicit_transaction:
                replies = self._execute_multi(stack)
            else:
                if self.scripts:
                    self.load_scripts()
                replies = self._execute_routed(stack)
            if raise_on_error:
                for reply in replies:
                    if isinstance(reply, _LOST):
                        raise reply
                raise_first: Any = self.raise_first_error
                raise_first(stack, replies)
            return replies
        finally:
            self.reset()

    def _execute_routed(self, stack: Sequence[Any]) -> list[Any]:
        is_attached = [_words(args)[0] == "WAIT" or _everywhere(_words(args)) is _any_sha for args, _ in stack]
        commands: list[_Planned | _Attached] = []
        for (args, options), attached in zip(stack, is_attached, strict=True):
            if attached and not all(is_attached):
                commands.append(_Attached(args, options, is_wait=_words(args)[0] == "WAIT"))
                continue
            try:
                commands.append(self._routed.plan(args, options))
            except exceptions.ResponseError as exc:
                commands.append(_Planned([_Wire(args, reply=exc)]))
        self._routed.send_all(commands, self.parse_response)
        return [command.reply for command in commands]

    def load_scripts(self) -> None:
        """Load the scripts that redis-py's `Script` has put into this pipeline, at all masters."""
        for script in self.scripts:
            script.sha = Routed.execute_command(self._routed, "SCRIPT LOAD", script.script)

    def reset(self) -> None:  # type: ignore[override]
        """Forget everything, see redis-py."""
        super().reset()
        self._watched = None

    # -- with a transaction

    def immediate_execute_command(self, *args: Any, **options: Any) -> Any:
        """Send WATCH, or a command after it, see redis-py.

        Raises:
            redis.exceptions.ClusterCrossSlotError: its keys are not all in the slot of the watched keys.
            redis.WatchError: the slot has moved while keys were watched, or the connection was lost.
            redis.RedisError: see `Routed`.
        """
        slot = self._slot_of([args])
        if self.connection is None:
            return self._routed.follow(slot, partial(self._watch, slot, args, options), can_ask=False)
        execute: Any = super().immediate_execute_command
        try:
            return execute(*args, **options)
        except exceptions.ResponseError as exc:
            self._check_moved(understood(exc))
            raise

    def _watch(self, slot: int | None, args: tuple[Any, ...], options: dict[str, Any], node: Node, asking: bool) -> Any:
        self.connection_pool = node.client.connection_pool
        self.connection = _connection_to(node)
        execute: Any = super().immediate_execute_command
        try:
            reply = execute(*args, **options)
        except BaseException as exc:
            self.connection_pool.release(self.connection)
            self.connection = None
            if isinstance(exc, _LOST):
                self._routed.lost(node)
            raise
        self._watched = slot
        return reply

    def _check_moved(self, exc: Exception) -> None:
        """Begin again with another node if a slot has moved while it was watched.

        Raises:
            redis.WatchError: it has.
        """
        if not is_redirection(exc):
            return
        self.reset()
        time.sleep(_FIRST_PAUSE_S)  # whoever begins again at once may meet the same
        self._routed.refresh()
        raise exceptions.WatchError(f"the hash slot moved while keys were watched: {exc}") from exc

    def _slot_of(self, commands: Sequence[tuple[Any, ...]]) -> int | None:
        """Return the slot of the keys of commands; None if there are none.

        Raises:
            redis.exceptions.ClusterCrossSlotError: they are in several slots, or not in that of the watched keys.
        """
        slots = {self._routed.slot_of(key) for args in commands for key in keys_of(*args)}
        if self._watched is not None:
            slots.add(self._watched)
        if len(slots) > 1:
            raise cross_slot(commands)
        return next(iter(slots), None)

    def _execute_multi(self, stack: Sequence[Any]) -> list[Any]:
        slot = self._slot_of([args for args, _ in stack])
        if self.connection is None:
            return self._routed.follow(slot, partial(self._execute_multi_at, stack))
        try:
            return self._transact(self.connection, stack)
        except exceptions.ResponseError as exc:
            self._check_moved(exc)
            raise
        except _LOST:  # not a WatchError, as redis-py has it: the transaction may have been executed
            self._routed.refresh()
            raise

    def _execute_multi_at(self, stack: Sequence[Any], node: Node, asking: bool) -> list[Any]:
        connection = _connection_to(node)
        try:
            return self._transact(connection, stack, asking=asking)
        except _LOST:
            self._routed.lost(node)
            raise
        finally:
            node.client.connection_pool.release(connection)

    def _transact(self, connection: Any, stack: Sequence[Any], *, asking: bool = False) -> list[Any]:
        """Send a transaction on a connection, and return the replies; nothing is sent twice.

        Raises:
            redis.ResponseError: a node has refused it; nothing was executed.
            redis.WatchError: a watched key has changed; nothing was executed.
            redis.ConnectionError, redis.TimeoutError: nobody knows whether it was executed.
        """
        loads = [("SCRIPT LOAD", script.script) for script in self.scripts]
        first = [*loads, *([_ASKING] if asking else []), ("MULTI",)]
        packed = connection.pack_commands([*first, *(args for args, _ in stack), ("EXEC",)])
        is_unread = True
        errors: list[Exception] = []
        parse: Parse = self.parse_response
        try:
            connection.send_packed_command(packed)
            for _ in range(len(first) + len(stack)):
                try:
                    parse(connection, "_")
                except exceptions.ResponseError as exc:
                    errors.append(understood(exc))
            try:
                replies = parse(connection, "_")
            except exceptions.ResponseError as exc:
                errors.append(understood(exc))
            is_unread = False
        finally:
            self.watching = False
            if is_unread:
                connection.disconnect()
        if errors:
            raise next(filter(is_redirection, errors), errors[0])
        if replies is None:
            raise exceptions.WatchError("Watched variable changed.")
        return [self._called_back(reply, *command) for reply, command in zip(replies, stack, strict=True)]

    def _called_back(self, reply: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        callback = self.response_callbacks.get(args[0])
        if isinstance(reply, Exception) or callback is None:
            return reply
        return callback(reply, **{name: value for name, value in options.items() if name not in _NO_OPTIONS})


#: What redis-py adds to the options of a command, and does not give to the callback.
_NO_OPTIONS = (NEVER_DECODE, "keys")


@contextmanager
def own_connections(topology: Topology, address: Address, *, must_be_master: bool = False) -> Iterator[Routed]:
    """Give a client with connections of its own, whose commands without a key go to a node; close them at the end.

    Args:
        topology: the nodes; it is not changed.
        address: the node; if it is no longer a master, they go to any other.
        must_be_master: raise an error instead.

    Raises:
        redis.ConnectionError: the node is no longer a master, but must be one.
    """
    own = topology.clone()
    try:
        is_master = any(node.address == address for node in own.masters())
        if must_be_master and not is_master:
            raise exceptions.ConnectionError(f"Redis node {address} is no longer a master")
        yield Routed(own, home=address if is_master else None)
    finally:
        own.close()
