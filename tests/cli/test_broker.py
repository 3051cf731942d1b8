"""What commands say when the broker is not there, not ours, or has no such queue; and completion of queues."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from celery import Celery

from celery_delayq import DelayedQueue
from examples.private_redis import PrivateRedis
from tests.brokers import Server
from tests.cli.running import Command, failed, is_wrong_use, run
from tests.integration.publishing import publish
from tests.integration.test_redis_is_away import hanging, processes
from tests.worker_app import make_app
from tests.workers import CeleryCommand

pytestmark = pytest.mark.on_cluster

APP = "tests.worker_app"

#: A call of every command that needs a broker.
COMMANDS = [
    ["status"],
    ["list"],
    ["show", "an-id"],
    ["cancel", "an-id"],
    ["cancel", "--all", "--yes"],
    ["reschedule", "an-id", "--countdown", "1"],
    ["run-now", "an-id"],
    ["dead", "list"],
    ["dead", "show", "celery", "0123"],
    ["dead", "requeue", "celery", "--all"],
    ["dead", "purge", "celery", "--all", "--yes"],
    ["export", "-"],
    ["import", "-"],
    ["release", "--yes"],
    ["top", "--once"],
    ["transfer"],
]

#: Calls that name a queue.
OF_A_QUEUE = [
    ["list", "--queue"],
    ["cancel", "--yes", "--queue"],
    ["release", "--yes", "--queue"],
    ["top", "--once", "--queue"],
    ["dead", "list"],
    ["dead", "requeue", "--all"],
    ["dead", "purge", "--all", "--yes"],
]


def calls(commands: list[list[str]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("call", commands, ids=lambda call: "-".join(word.strip("-") for word in call))


@calls(COMMANDS)
def test_another_transport(ledger_url: str, call: list[str]) -> None:
    done = run(make_app("redis://user:s3cret@localhost:1", ledger_url), *call)
    failed(done, "is redis://user:**@", "start the URL with delayq:// instead of redis://")


@pytest.mark.parametrize("scheme", ["nonsense", "delay"])
@pytest.mark.parametrize("more", ["", "+socket"])
def test_a_scheme_that_nobody_knows(ledger_url: str, scheme: str, more: str) -> None:
    done = run(make_app(f"{scheme}{more}://localhost", ledger_url), "status")
    failed(done, f"Error: the broker URL starts with {scheme}", "write delayq", "instead")


def test_a_broker_transport_that_nobody_knows(ledger_url: str) -> None:
    app = make_app("delayq://localhost", ledger_url)
    app.conf.broker_transport = "delay"
    failed(run(app, "status"), "broker_transport is 'delay': leave it out, and start the broker URL with delayq://")


@calls(COMMANDS)
@pytest.mark.parametrize(
    ("url", "words"),
    [("delayq://localhost:abc/0", "'abc'"), ("delayq+sentinel://localhost:1/0", "master_name")],
)
def test_a_wrong_url(ledger_url: str, call: list[str], url: str, words: str) -> None:
    failed(run(make_app(url, ledger_url), *call), "broker URL", words)


@calls(COMMANDS)
def test_no_server(ledger_url: str, call: list[str]) -> None:
    done = run(make_app("delayq://user:s3cret@127.0.0.1:1/0", ledger_url), *call)
    failed(done, "cannot connect to delayq://user:**@127.0.0.1:1/0: ", "refused")
    assert "s3cret" not in done.stderr


def test_a_wrong_password(redis_server: PrivateRedis, ledger_url: str) -> None:
    url = f"delayq://user:s3cret@127.0.0.1:{redis_server.port}/0"
    done = run(make_app(url, ledger_url), "status")
    failed(done, f"cannot connect to delayq://user:**@127.0.0.1:{redis_server.port}/0: ")
    assert "s3cret" not in done.stderr


def test_a_wrong_option(broker_url: str, ledger_url: str) -> None:
    done = run(make_app(broker_url, ledger_url, broker_transport_options={"leese": 5}), "status")
    failed(done, "leese", "lease")


def test_a_refusal_of_the_server(app: Celery, waiting: DelayedQueue, command: Command) -> None:
    publish(app)
    waiting.client.delete(waiting.keys.timeout_set)
    waiting.client.set(waiting.keys.timeout_set, "no ZSET")
    failed(command("status"), "refused a command: ", "WRONGTYPE")


@pytest.mark.one_server("rights on a cluster: redis_cluster/test_acl.py")
class TestAMissingRight:
    """The error leads to the check, which names it."""

    @pytest.fixture
    def without(self, broker_client: redis.Redis, broker_url: str) -> Iterator[str]:
        """The URL of a user without a right."""
        broker_client.execute_command(
            "ACL", "SETUSER", "shop", "reset", "on", ">secret", "~*", "&*", "+@all", "-zrange"
        )
        yield broker_url.replace("://", "://shop:secret@")
        broker_client.execute_command("ACL", "DELUSER", "shop")

    @calls([["status"], ["list"], ["workers"], ["cancel", "an-id"], ["dead", "list"]])
    def test_is_named_by_the_check(self, without: str, ledger_url: str, call: list[str]) -> None:
        done = run(make_app(without, ledger_url), *call)
        failed(done, "no permissions to run the 'zrange' command")  # Redis 6.2 says more after that
        failed(done, "; `celery -A ... delayq check` names the missing rights")

    def test_of_periodic_tasks_is_named_by_the_check(
        self, broker_client: redis.Redis, without: str, ledger_url: str
    ) -> None:
        broker_client.execute_command("ACL", "SETUSER", "shop", "-hgetall", "-hscan")
        done = run(make_app(without, ledger_url), "schedule", "list")
        failed(done, "no permissions to run the 'h")
        failed(done, "; `celery -A ... delayq check` names the missing rights")

    def test_can_be_pasted(self, without: str, ledger_url: str) -> None:
        with CeleryCommand("delayq", "list", broker=without, ledger=ledger_url) as done:
            assert done.wait() == 1
            assert f"`celery -A {APP} delayq check` names" in done.log

    def test_the_check_does_not_name_itself(self, broker_client: redis.Redis, without: str, ledger_url: str) -> None:
        broker_client.execute_command("ACL", "SETUSER", "shop", "-ping")
        assert "names the missing right" not in run(make_app(without, ledger_url), "check").stdout


def test_a_connection_that_is_lost(app: Celery, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(*args: object, **kwargs: object) -> None:
        raise redis.ConnectionError("gone")

    monkeypatch.setattr("celery_delayq.inspector.Inspector.cancel", lose)
    failed(
        command("cancel", "an-id"),
        "lost the connection to ",
        "delayq",
        "://",
        "gone; run the command again to make sure",
    )


@calls([["status"], ["list"], ["dead", "list"], ["schedule", "list"], ["cancel", "an-id"]])
def test_a_server_that_hangs(broker_server: Server, broker_url: str, ledger_url: str, call: list[str]) -> None:
    app = make_app(broker_url, ledger_url, broker_transport_options={"socket_timeout": 600.0})
    with hanging(*processes(broker_server)):
        failed(run(app, "--timeout", "0.2", *call), "onnect")


def test_a_timeout_that_is_none(command: Command) -> None:
    assert command("--timeout", "60", "status").code == 0
    for wrong in ("0", "inf", "nan"):
        is_wrong_use(command("--timeout", wrong, "status"), "timeout")
    for endless in (["transfer"], ["top", "--once"], ["metrics"], ["web"]):
        is_wrong_use(command("--timeout", "5", *endless), f"--timeout does not apply to {endless[0]}")


@calls(OF_A_QUEUE)
def test_an_unknown_queue(app: Celery, command: Command, call: list[str]) -> None:
    publish(app, queue="mailing")
    failed(command(*call, "mialing"), "unknown queue 'mialing': did you mean 'mailing'?")
    failed(command(*call, "xyz"), "unknown queue 'xyz': known queues are celery, mailing")


@calls(OF_A_QUEUE)
def test_a_queue_that_left_the_registry_is_known(
    app: Celery, waiting: DelayedQueue, command: Command, call: list[str]
) -> None:
    """A script may ask for it whether anything waits or not."""
    app.tasks["note"].apply_async(queue="mailing", countdown=60)
    waiting.client.delete("delayq:queues", *waiting.client.keys("*{mailing}*"))
    assert "unknown" not in command(*call, "mailing").stderr


@calls(OF_A_QUEUE)
def test_a_queue_without_delayed_tasks_is_known(command: Command, call: list[str]) -> None:
    assert "unknown" not in command(*call, "celery").stderr


def test_an_app_without_delayq(app: Celery, broker_url: str, waiting: DelayedQueue) -> None:
    """On its way back to stock Celery: `celery -b delayq://... delayq release`."""
    task_id = publish(app)
    done = run(Celery("stock", broker=broker_url, set_as_current=False), "list", "--json")
    assert [task["id"] for task in done.json()] == [task_id]


class TestCompletion:
    def complete(self, broker: str, ledger: str, *words: str, app: tuple[str, ...] = ("-A", APP)) -> list[str]:
        """What Bash would offer for the last word."""
        line = ["celery", *app, "delayq", *words]
        env = {
            **os.environ,
            "BROKER": broker,
            "LEDGER": ledger,
            "CONF": "{}",
            "_CELERY_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(line),
            "COMP_CWORD": str(len(line) - 1),
        }
        command = [str(Path(sys.executable).with_name("celery"))]
        done = subprocess.run(
            command, env=env, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stderr == ""
        return [line.removeprefix("plain,") for line in done.stdout.splitlines() if line]

    def test_queues(self, app: Celery, waiting: DelayedQueue, broker_url: str, ledger_url: str) -> None:
        publish(app, queue="celestial")
        publish(app, queue="other")
        assert self.complete(broker_url, ledger_url, "list", "--queue", "cel") == ["celery", "celestial"]
        assert self.complete(broker_url, ledger_url, "dead", "purge", "o") == ["other"]

    def test_without_a_server_those_of_the_app(self, ledger_url: str) -> None:
        assert self.complete("delayq://127.0.0.1:1/0", ledger_url, "cancel", "--queue", "") == ["celery"]

    @pytest.mark.parametrize("given", [(), ("-A", "no.such.app")])
    def test_without_an_app_there_are_none(self, broker_url: str, ledger_url: str, given: tuple[str, ...]) -> None:
        assert self.complete(broker_url, ledger_url, "list", "--queue", "", app=given) == []

    def test_commands(self, broker_url: str, ledger_url: str) -> None:
        assert self.complete(broker_url, ledger_url, "re") == ["release", "reschedule", "resume"]
