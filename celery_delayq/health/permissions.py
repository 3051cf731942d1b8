"""What the user of the broker URL may not do, and which ACL rules would allow it.

Each command is sent within MULTI, which ends with DISCARD: the server says whether it is allowed, and executes none of
them. So the user needs no right to read ACLs, and it works on all versions. (`ACL DRYRUN` came with Redis 7, and is for
administrators only.) What is refused appears in `ACL LOG`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

import redis

from celery_delayq.basics.finding import Finding, error, not_checked, ok
from celery_delayq.health.servers import Server
from celery_delayq.queue.connections import connection_of
from celery_delayq.queue.keys import QueueKeys, ScheduleKeys, alive_channel, paused_key, registry

#: A script that no server has. To run it is to read and write its keys.
_NO_SCRIPT = "0" * 40

#: What servers say if a command, a key or a channel is not allowed; Redis 7.0 and older speak of one of several.
_NO_COMMAND = re.compile("permissions to run")
_NO_KEY = re.compile("permissions to access (a|one of the) key")
_NO_CHANNEL = re.compile("permissions to access (a|one of the) chan")

#: What Redis says of a command that it does not have; 6.2 has other quotation marks.
UNKNOWN = re.compile(r"unknown command [`'](\w+)")

#: What to do about that.
RENAMED = (
    "If its configuration renames or removes the command (rename-command), ask an administrator to remove that line "
    "and restart Redis."
)

#: How many queues are named.
_MOST_NAMED = 3

#: Every command that a worker, a producer or `celery delayq` sends, also in scripts, by the arguments of an example.
#: KEY stands for a key, and CHANNEL for a channel.
_BY_ARGUMENTS = {
    "": "CLIENT INFO, INFO, PING, PUBSUB CHANNELS, TIME",
    "0": "CLIENT UNBLOCK, SCAN",
    "0 0": "WAIT",
    "id 0": "CLIENT KILL",
    "off": "CLIENT TRACKING",
    "save": "CONFIG GET",
    "yes": "CLIENT CACHING",
    "script": "SCRIPT EXISTS, SCRIPT LOAD",
    "script 1 KEY": "EVAL, EVALSHA",
    "CHANNEL": "PSUBSCRIBE, PUBSUB NUMSUB, PUNSUBSCRIBE, SUBSCRIBE, UNSUBSCRIBE",
    "CHANNEL message": "PUBLISH",
    "KEY": "DEL, EXISTS, GET, HGETALL, HLEN, LLEN, RPOP, SMEMBERS, STRLEN, UNLINK, ZCARD",
    "KEY 0": "HSCAN",
    "KEY 0 0": "LRANGE, ZCOUNT, ZRANGE, ZRANGEBYSCORE, ZREMRANGEBYRANK, ZREMRANGEBYSCORE, ZREVRANGEBYSCORE",
    "KEY 1": "BRPOP, EXPIRE, HRANDFIELD, PEXPIRE, ZRANDMEMBER",
    "KEY 1 value": "LREM, LSET, SETEX, ZADD",
    "KEY + -": "ZREVRANGEBYLEX",
    "KEY - +": "ZLEXCOUNT, ZRANGEBYLEX",
    "KEY field": "HDEL, HEXISTS, HGET, HMGET",
    "KEY field 1": "HINCRBY",
    "KEY field value": "HSET",
    "KEY value": "LPOS, LPUSH, RPUSH, SADD, SET, SISMEMBER, SREM, ZMSCORE, ZREM, ZSCORE",
    "KEY KEY RIGHT LEFT 1": "BLMOVE",
}

#: The same in words, in alphabetical order. The words in capitals are the name.
COMMANDS = sorted(
    [*name.split(), *arguments.split()] for arguments, names in _BY_ARGUMENTS.items() for name in names.split(", ")
)

#: The same, on a cluster only.
CLUSTER_COMMANDS = (["CLUSTER", "SLOTS"],)


class Need(NamedTuple):
    """Something that has to be allowed.

    Attributes:
        command: a command that is refused otherwise, as it is sent.
        refusal: what the server says then.
        rule: the ACL rule that allows it.
    """

    command: tuple[str, ...]
    refusal: re.Pattern[str]
    rule: str


def needs(channel: Any, queues: Iterable[str], db: int, server: Server) -> list[Need]:
    """Return all that has to be allowed at a server.

    Args:
        channel: a channel of our transport.
        queues: names of the app's queues.
        db: number of the database.
        server: on a cluster, keys of other nodes are left out: it would refuse them anyway.
    """
    some_key = next(key for number in count() if server.serves(key := f"delayq:{{{number}}}"))
    lines = (*COMMANDS, *(CLUSTER_COMMANDS if server.in_cluster else ()))
    commands = [_command(line, some_key) for line in lines]
    keys = {key: rule for key, rule in _keys(channel, queues, db, server.in_cluster) if server.serves(key)}
    queue = QueueKeys.of("celery", db)
    channels = (
        ("PSUBSCRIBE", f"/{db}.celery.pidbox"),
        ("SUBSCRIBE", queue.channel),
        ("PUBLISH", queue.channel, ""),
        ("SUBSCRIBE", queue.transferrer_channel),
        ("SUBSCRIBE", alive_channel("", db)),
        ("SUBSCRIBE", "__redis__:invalidate"),
        ("SUBSCRIBE", registry(channel.global_keyprefix)),
    )
    return [
        *commands,
        *(Need(("EVALSHA", _NO_SCRIPT, "1", key), _NO_KEY, rule) for key, rule in keys.items()),
        # kombu subscribes to patterns, which Redis allows only to users who may use exactly these: hence all channels.
        *(Need(command, _NO_CHANNEL, "&*") for command in channels),
    ]


def _command(line: Sequence[str], key: str) -> Need:
    """Return the need for a command of the list above."""
    stands_for = {"KEY": key, "CHANNEL": "delayq:queues", "script": _NO_SCRIPT}
    name = [word for word in line[:2] if word.isupper() and word not in stands_for]
    return Need(tuple(stands_for.get(word, word) for word in line), _NO_COMMAND, f"+{'|'.join(name).lower()}")


def _keys(channel: Any, queues: Iterable[str], db: int, in_cluster: bool) -> Iterator[tuple[str, str]]:
    """Yield keys, one of each kind, and the rule that allows those like it."""
    prefix, sep = channel.global_keyprefix, channel.sep

    def rule_for(key: str, otherwise: str) -> tuple[str, str]:
        if key.startswith("redisson_delay_queue"):
            return key, "~redisson_delay_queue*"
        if prefix and key.startswith(prefix):
            return key, f"~{prefix}*"
        return key, "~delayq:*" if key.startswith("delayq:") else otherwise

    for name in (name for queue in queues for name in channel.broker_lists(queue)):
        yield rule_for(name, f"~{name.partition(sep)[0]}*")
        keys = QueueKeys.of(name, db)
        of_ours = (keys.index, keys.in_flight("consumer"), keys.published("publisher"), keys.taken)
        for key in (keys.timeout_set, keys.delay_list, *of_ours):
            yield rule_for(key, "")
    bindings = channel.keyprefix_queue.removesuffix(".%s")
    yield rule_for(f"{prefix}{bindings}.celery", f"~{bindings}*")
    yield rule_for(f"{prefix}host.reply.celery.pidbox", "~*.celery.pidbox*")
    if not in_cluster:
        for key in (channel.unacked_key, channel.unacked_index_key, channel.unacked_mutex_key):
            yield rule_for(f"{prefix}{key}", f"~{channel.unacked_key}*")
    schedule = ScheduleKeys.of(prefix, db, together=in_cluster)
    for key in (registry(prefix), paused_key(prefix), schedule.definitions, schedule.configurations, schedule.errors):
        yield rule_for(key, "")


def check_permissions(
    server: Server, *, needed: Callable[[Server], Sequence[Need]], queues: Sequence[str] = ()
) -> Iterator[Finding]:
    """Yield what the user may not do.

    Args:
        server: the server.
        needed: returns what has to be allowed there, see `needs`.
        queues: the queues with which it was asked, if others may need further rights.
    """
    connection = connection_of(server.client.connection_pool)
    name, again = _user_of(connection), ""
    missing: list[str] = []
    unknown: list[str] = []
    try:
        connection.connect()  # redis-py itself would forget Sentinel
        error_of_multi = _error(connection, "MULTI")
        if not error_of_multi:
            missing, unknown = _refused(connection, needed(server))
        elif UNKNOWN.search(error_of_multi):
            unknown = ["MULTI"]
        elif _NO_COMMAND.search(error_of_multi):
            missing, again = ["+@transaction"], " Then check again: without it, nothing else can be checked."
        else:
            yield not_checked(error_of_multi)
            return
    finally:
        connection.disconnect()
    if missing:
        where = ", at each node" if server.in_cluster else ""
        rules = " ".join(missing)
        yield error(
            f"The user {name} lacks permissions that workers and producers need.",
            f"Ask an administrator to run the command below{where}.{again}",
            f"ACL SETUSER {name} {rules}",
        )
    for command in unknown:
        message = f"{server.software} does not know the command {command}, which workers and producers need."
        yield error(message, RENAMED)
    if not missing and not unknown:
        examined = _examined(queues)
        yield ok(f"The user {name} has all permissions that workers and producers need{examined}.")


def _examined(queues: Sequence[str]) -> str:
    """Return for which queues the rights were examined. Nobody can ask for those of all queues."""
    if not queues:
        return ""
    names, more = ", ".join(map(repr, queues[:_MOST_NAMED])), len(queues) - _MOST_NAMED
    if more > 0:
        names += f" and {more} more"
    return f" with the {'queue' if len(queues) == 1 else 'queues'} {names}"


def with_same_command(findings: Iterable[Finding]) -> list[Finding]:
    """Let each command allow what is missing at any node of a cluster: slots move, and it is one line to copy."""
    found = list(findings)
    rules = dict.fromkeys(rule for finding in found for rule in finding.command.split()[3:])
    return [
        replace(finding, command=" ".join([*finding.command.split()[:3], *rules])) if finding.command else finding
        for finding in found
    ]


def _refused(connection: Any, needed: Sequence[Need]) -> tuple[list[str], list[str]]:
    """Return the rules that are missing, and the commands that the server does not have, within MULTI."""
    connection.send_packed_command(connection.pack_commands([need.command for need in needed]))
    errors = [_error(connection) for _ in needed]
    _error(connection, "DISCARD")
    refused = (need.rule for need, text in zip(needed, errors, strict=True) if need.refusal.search(text))
    found = filter(None, map(UNKNOWN.search, errors))
    unknown = {it[1].upper(): None for it in found if it[1].upper() != "CONFIG"}  # only checks ask CONFIG
    return list(dict.fromkeys(refused)), list(unknown)


def _error(connection: Any, *command: str) -> str:
    """Return the error of a command, or of the next one that was sent already; empty if there is none."""
    if command:
        connection.send_command(*command)
    try:
        connection.read_response()
    except redis.ResponseError as exc:
        return str(exc)
    return ""


def _user_of(connection: Any) -> str:
    """Return the name of a connection's user. In Redis 6.2, only administrators may ask for their own."""
    provider = connection.credential_provider
    username, *password = provider.get_credentials() if provider is not None else (connection.username, None)
    return str(username) if username and password else "default"  # a password alone is that of `default`
