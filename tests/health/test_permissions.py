"""What a user may not do is found, with the ACL rules that allow it, and nothing is executed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from kombu import Connection
from redis.credentials import UsernamePasswordCredentialProvider

import celery_delayq
from celery_delayq.basics.finding import Finding, Level
from celery_delayq.health.permissions import COMMANDS, check_permissions, needs
from celery_delayq.health.servers import Server
from celery_delayq.transport import register
from examples.private_redis import PrivateRedis
from tests.redis_cluster.test_acl import PASSWORD, rules_for

_LUA = Path(celery_delayq.__file__).parent / "queue" / "lua"

#: A check for a user with some ACL rules.
Check = Callable[..., Finding]


@pytest.fixture
def admin(any_redis_server: PrivateRedis) -> Iterator[redis.Redis]:
    with any_redis_server.client() as client:
        yield client
        client.execute_command("ACL", "DELUSER", "shop")


@pytest.fixture
def check(admin: redis.Redis, any_redis_server: PrivateRedis) -> Check:
    """Return the finding about a user."""
    register()

    def check_it(*rules: str, reset: bool = True, **options: object) -> Finding:
        admin.execute_command("ACL", "SETUSER", "shop", *(["reset"] if reset else []), *rules)
        with (
            Connection(f"delayq://127.0.0.1:{any_redis_server.port}/0", transport_options=options) as connection,
            any_redis_server.client(username="shop", password=PASSWORD) as client,
        ):
            needed = partial(needs, connection.default_channel, ["celery", "q0", "q1", "q2"], 0)
            (finding,) = check_permissions(Server("here", client), needed=needed)
        return finding

    return check_it


def rules_in(finding: Finding) -> list[str]:
    """Return the rules of the line for administrators."""
    return finding.command.removeprefix("ACL SETUSER shop ").split()


def test_the_rights_in_the_manual_are_enough(check: Check) -> None:
    assert check(*rules_for("server")).level is Level.OK


@pytest.mark.parametrize(
    ("without", "missing"),
    [
        (["-blmove"], ["+blmove"]),
        (["-client"], ["+client|caching", "+client|info", "+client|kill", "+client|tracking", "+client|unblock"]),
        (["-@scripting"], ["+eval", "+evalsha", "+script|exists", "+script|load"]),
        (["resetchannels"], ["&*"]),
        (["resetkeys", "~celery*"], ["~q0*", "~redisson_delay_queue*", "~delayq:*", "~_kombu.binding*"]),
        (["-multi"], ["+@transaction"]),
    ],
)
def test_what_is_missing_is_named_as_a_rule(check: Check, without: list[str], missing: list[str]) -> None:
    finding = check(*rules_for("server"), *without)
    assert finding.level is Level.ERROR
    assert set(missing) <= set(rules_in(finding))


def test_the_line_for_administrators_is_enough(check: Check) -> None:
    """Also for a user who may do nothing at first. Then it takes three: MULTI and EVALSHA tell the rest."""
    finding = check("on", f">{PASSWORD}")
    for _ in range(3):
        assert finding.level is Level.ERROR
        finding = check(*rules_in(finding), reset=False)
    assert finding.level is Level.OK


@pytest.mark.parametrize(
    ("login", "name"),
    [
        ({"username": "shop", "password": PASSWORD}, "shop"),
        ({"credential_provider": UsernamePasswordCredentialProvider("shop", PASSWORD)}, "shop"),
        ({}, "default"),
    ],
)
def test_the_user_is_named(
    admin: redis.Redis, any_redis_server: PrivateRedis, login: dict[str, Any], name: str
) -> None:
    admin.execute_command("ACL", "SETUSER", "shop", "reset", *rules_for("server"))
    with any_redis_server.client(**login) as client:
        (finding,) = check_permissions(Server("here", client), needed=lambda server: [])
    assert f"The user {name} has all permissions" in finding.message


@pytest.mark.parametrize(
    ("renamed", "unknown"), [(["EVALSHA", "LPUSH"], ["EVALSHA", "LPUSH"]), (["MULTI"], ["MULTI"]), (["CONFIG"], [])]
)
def test_commands_that_the_server_does_not_have(renamed: list[str], unknown: list[str]) -> None:
    """Only checks ask CONFIG, which many administrators take away."""
    register()
    with (
        PrivateRedis(*(word for name in renamed for word in ("--rename-command", name, ""))) as server,
        Connection(server.url.replace("redis:", "delayq:")) as connection,
        server.client() as client,
    ):
        needed = partial(needs, connection.default_channel, ["celery"], 0)
        findings = list(check_permissions(Server("here", client), needed=needed))
    assert [finding.level for finding in findings] == ([Level.ERROR] * len(unknown) or [Level.OK])
    for finding, name in zip(findings, unknown, strict=False):
        assert f"does not know the command {name}, which workers and producers need." in finding.message
        assert "rename-command" in finding.advice


def test_a_global_keyprefix_takes_the_place_of_the_queues(check: Check) -> None:
    rules = ["on", f">{PASSWORD}", "+@all", "&*", "~redisson_delay_queue*", "~delayq:*"]
    assert rules_in(check(*rules, global_keyprefix="shop:")) == ["~shop:*"]
    assert check(*rules, "~shop:*", global_keyprefix="shop:").level is Level.OK


def test_the_check_executes_none_of_the_commands(admin: redis.Redis, check: Check) -> None:
    admin.flushall()
    check(*rules_for("server"))
    left = {key for key in admin.scan_iter() if not key.startswith(b"_kombu")}
    assert not left
    assert not admin.pubsub_channels()


def test_every_command_of_the_scripts_is_checked() -> None:
    called = {
        found
        for file in _LUA.rglob("*.lua")
        for found in re.findall(r"redis\.p?call\(\s*'([A-Z]+)'", file.read_text(encoding="utf-8"))
    }
    assert called
    assert called <= {line[0] for line in COMMANDS}


def test_a_connection_that_is_lost_is_not_taken_for_a_refusal() -> None:
    with closing(redis.Redis(host="127.0.0.1", port=1)) as nowhere, pytest.raises(redis.ConnectionError):
        list(check_permissions(Server("nowhere", nowhere), needed=lambda server: []))
