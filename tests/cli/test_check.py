"""`celery delayq check`: what it finds, what it says, and its exit codes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis
from celery import Celery
from kombu import Queue

from celery_delayq import DelayedQueue, DelayQ
from celery_delayq.basics.finding import Level
from celery_delayq.queue.keeper import Keeper
from celery_delayq.queue.keys import ScheduleKeys
from celery_delayq.transfer.loop import TransferLoop
from examples.private_redis import PrivateRedis
from tests.cli.running import Command, Done, is_wrong_use, run
from tests.integration.conftest import ledger
from tests.ledger import Ledger
from tests.redis_cluster.test_acl import PASSWORD, rules_for
from tests.state import now_ms, offer
from tests.support import run_with_app, wait_until
from tests.worker_app import publisher
from tests.workers import CeleryCommand, Worker

__all__ = ["ledger"]

pytestmark = pytest.mark.on_cluster


def found(done: Done, check: str) -> list[dict[str, Any]]:
    """The findings of a check, from JSON."""
    return [line for line in done.lines() if line["check"] == check]


def only(done: Done, check: str) -> dict[str, Any]:
    """The only finding of a check."""
    (finding,) = found(done, check)
    return finding


def overdue(queue: DelayedQueue, seconds: float) -> None:
    """Let a message wait that has been due for so long."""
    offer(queue, f"late by {seconds}", now_ms(queue.client) - round(seconds * 1000), b"{}")


@pytest.fixture
def unused(broker_client: redis.Redis) -> None:
    """Nobody is connected from tests before."""
    wait_until(lambda: not broker_client.execute_command("PUBSUB", "CHANNELS", "delayq:*"), "nobody is subscribed")


class TestNobodyRuns:
    def test_nothing_waits(self, unused: None, waiting: DelayedQueue, command: Command) -> None:
        done = command("check", "--json")
        assert done.code == 0
        assert {line["level"] for line in done.lines()} == {"ok", "warning"}
        assert all(
            line.keys() == {"check", "level", "message", "advice", "command", "servers"} for line in done.lines()
        )
        assert only(done, "transfer")["level"] == "warning"
        assert only(done, "transfer")["advice"] == (
            "Start a worker: `celery -A ... worker`; or only the transfer: `celery -A ... delayq transfer`. Stock "
            "workers (redis://) do not move delayed messages."
        )
        assert only(done, "persistence")["level"] == "warning"
        for check in ("settings", "permissions", "overdue", "planner", "memory", "replicas"):
            assert {line["level"] for line in found(done, check)} == {"ok"}

    def test_warnings_are_errors_if_they_should_be(self, unused: None, command: Command) -> None:
        assert command("check").code == 0
        assert command("check", "--strict").code == 1

    def test_messages_wait(self, unused: None, waiting: DelayedQueue, command: Command) -> None:
        offer(waiting, "id")
        done = command("check", "--json")
        assert done.code == 1
        finding = next(line for line in found(done, "transfer") if line["level"] == "error")
        assert len(finding["servers"]) == 1
        assert "no transfer loop is subscribed" in finding["message"]

    def test_nothing_is_changed(self, unused: None, broker_client: redis.Redis, command: Command) -> None:
        command("check")  # kombu binds nothing, but loads its scripts
        keys = set(broker_client.scan_iter())
        command("check")
        assert set(broker_client.scan_iter()) == keys
        assert not broker_client.execute_command("PUBSUB", "CHANNELS", "delayq:*")

    def test_python_gets_the_same(self, unused: None, app: Celery, command: Command) -> None:
        findings = app.delayq.check()
        assert [(it.check, it.level, it.servers) for it in findings] == [
            (line["check"], line["level"], tuple(line["servers"])) for line in command("check", "--json").lines()
        ]

    def test_a_table(self, unused: None, command: Command) -> None:
        lines = command("check").stdout.splitlines()
        start = next(number for number, line in enumerate(lines) if line.startswith("warning  persistence  "))
        assert "Set `appendonly yes` to keep them." in lines[start + 1]
        assert lines[-1] == "0 errors, 2 warnings."


@pytest.mark.one_server
@pytest.mark.parametrize("db", [0, 3])
def test_a_transfer_loop_that_is_idle(
    unused: None, broker_server: PrivateRedis, waiting: DelayedQueue, command: Command, db: int
) -> None:
    """It is seen, and one that serves another database is no help."""
    loop = TransferLoop(Keeper(lambda: broker_server.client(db=db)), lambda: ["celery"])
    loop.start()
    client = waiting.client
    try:
        wait_until(lambda: client.pubsub_numsub("delayq:queues")[0][1], "it is subscribed")
        assert only(command("check", "--json"), "transfer")["message"] == "1 transfer loop is subscribed."
        offer(waiting, "id")
        wait_until(lambda: client.pubsub_channels(f"delayq:transfer_channel:{db}:*"), "it serves the queue")
        finding = only(command("check", "--json"), "transfer")
        assert finding["level"] == ("ok" if db == 0 else "error")
    finally:
        loop.stop()


def test_a_worker_that_plans(
    unused: None, app: Celery, broker_url: str, waiting: DelayedQueue, ledger: Ledger, command: Command
) -> None:
    app.delayq.schedule.add("tick", "note", 3600)
    finding = only(command("check", "--json"), "planner")
    assert finding["level"] == "error"
    assert "1 periodic task does not run" in finding["message"]
    assert "beat_scheduler" in finding["advice"]
    conf = {"beat_scheduler": "celery_delayq.beat:Scheduler"}
    with Worker(broker=broker_url, ledger=ledger.url, conf=conf) as worker:
        worker.wait_for_log("Planning of periodic tasks: connected")
        worker.wait_for_log("Transfer of delayed messages: connected")
        wait_until(lambda: command("check").code == 0, "all is well")
        done = command("check", "--json")
        assert {line["level"] for line in done.lines() if line["check"] != "persistence"} == {"ok"}
        assert only(done, "planner")["message"] == "1 periodic task; 1 planner is subscribed."


def test_entries_that_cannot_be_planned(
    unused: None, broker_kind: str, app: Celery, waiting: DelayedQueue, command: Command
) -> None:
    app.delayq.schedule.add("tick", "note", 3600)
    waiting.client.hset(ScheduleKeys.of(together=broker_kind == "cluster").errors, "tick", "refused")
    findings = {line["level"]: line for line in found(command("check", "--json"), "planner")}
    assert findings.keys() == {"error", "warning"}
    assert findings["warning"]["message"] == "1 of 1 periodic task could not be planned."
    assert "schedule list" in findings["warning"]["advice"]


def test_an_invalid_entry_is_reported_once(
    unused: None, broker_kind: str, broker_url: str, ledger_url: str, waiting: DelayedQueue
) -> None:
    """A planner has noted its error."""
    waiting.client.hset(ScheduleKeys.of(together=broker_kind == "cluster").errors, "bad", "not valid")
    entries = {"bad": {"task": "note", "schedule": "soon"}, "good": {"task": "note", "schedule": 60}}
    with publisher(broker_url, ledger_url, beat_scheduler="celery_delayq.beat:Scheduler", beat_schedule=entries) as app:
        lines = found(run(app, "check", "--json"), "planner")
    assert [line["level"] for line in lines] == ["error", "error"]
    assert "'bad' is invalid" in lines[0]["message"]
    assert "1 periodic task does not run" in lines[1]["message"]


@pytest.mark.one_server
@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ({"beat_schedule": {"bad": {"task": "note", "schedule": "soon"}}}, "The periodic task 'bad' is invalid: "),
        (
            {"beat_schedule": {"bad": {"task": "note", "schedule": 5, "timing": {"mised": "skip"}}}},
            "is invalid: unknown option 'mised': did you mean 'missed'?",
        ),
        ({"beat_schedule": ["bad"]}, "beat_schedule must be a dict"),
        ({"beat_scheduler": "celery_delayq.beat:Shceduler"}, "beat_scheduler must be celery_delayq.beat:Scheduler"),
    ],
)
def test_a_schedule_that_is_wrong(broker_url: str, ledger_url: str, conf: dict[str, Any], words: str) -> None:
    with publisher(broker_url, ledger_url, **{"beat_scheduler": "celery_delayq.beat:Scheduler", **conf}) as app:
        done = run(app, "check", "--json")
    assert done.code == 1
    errors = [line for line in found(done, "planner") if line["level"] == "error"]
    assert words in errors[0]["message"]
    assert "?." not in errors[0]["message"]


def test_an_invalid_entry_is_said_once(
    unused: None, broker_kind: str, broker_url: str, ledger_url: str, waiting: DelayedQueue
) -> None:
    waiting.client.hset(ScheduleKeys.of(together=broker_kind == "cluster").errors, "bad", "it is invalid")
    beat = {"good": {"task": "note", "schedule": 60}, "bad": {"task": "note", "schedule": "soon"}}
    conf = {"beat_scheduler": "celery_delayq.beat:Scheduler", "beat_schedule": beat}
    with publisher(broker_url, ledger_url, **conf) as app:
        messages = [line["message"] for line in found(run(app, "check", "--json"), "planner")]
    assert len(messages) == 2
    assert messages[0].startswith("The periodic task 'bad' is invalid")
    assert messages[1].startswith("1 periodic task does not run:")


class TestOverdue:
    def test_is_a_warning_and_then_an_error(self, unused: None, waiting: DelayedQueue, command: Command) -> None:
        overdue(waiting, 30)
        finding = next(line for line in found(command("check", "--json"), "overdue") if line["level"] != "ok")
        assert finding["level"] == "warning"
        assert finding["message"].startswith("1 message is overdue in queue 'celery', the oldest for 3")
        overdue(waiting, 300)
        finding = next(line for line in found(command("check", "--json"), "overdue") if line["level"] != "ok")
        assert finding["level"] == "error"
        assert finding["message"].startswith("2 messages are overdue in queue 'celery', the oldest for 30")

    def test_a_probe_looks_at_nothing_else(self, unused: None, waiting: DelayedQueue, command: Command) -> None:
        overdue(waiting, 100)
        for span, code in [("60", 1), ("1m", 1), ("0", 1), ("10m", 0), ("3600", 0)]:
            done = command("check", "--json", "--max-overdue", span)
            assert done.code == code, done
            assert {line["check"] for line in done.lines()} == {"overdue"}

    def test_queues_that_are_not_the_apps(self, unused: None, broker_client: redis.Redis, command: Command) -> None:
        other = DelayedQueue(broker_client, "other")
        other.register(again=True)
        overdue(other, 100)
        done = command("check", "--max-overdue", "60")
        assert done.code == 1
        assert "1 message is overdue in queue 'other', the oldest for 1" in done.stdout

    def test_messages_that_are_due_later(self, unused: None, waiting: DelayedQueue, command: Command) -> None:
        offer(waiting, "id")
        assert command("check", "--max-overdue", "0").code == 0

    def test_a_queue_that_cannot_be_read(self, waiting: DelayedQueue, command: Command) -> None:
        waiting.client.set(waiting.keys.timeout_set, "text")
        assert any("Not checked" in line["message"] for line in found(command("check", "--json"), "overdue"))
        done = command("check", "--max-overdue", "60")
        assert done.code == 1
        assert "Cannot check queue 'celery': WRONGTYPE" in done.stdout

    def test_a_probe_is_not_content_with_what_it_may_not_ask(
        self, broker_client: redis.Redis, broker_url: str, ledger_url: str
    ) -> None:
        broker_client.execute_command("ACL", "SETUSER", "blind", "on", ">secret", "~*", "&*", "+@all", "-time")
        try:
            url = broker_url.replace("://", "://blind:secret@")
            with publisher(url, ledger_url) as app:
                done = run(app, "check", "--max-overdue", "60")
        finally:
            broker_client.execute_command("ACL", "DELUSER", "blind")
        assert done.code == 1
        assert "Not checked" in done.stdout

    def test_spans_that_are_none(self, command: Command) -> None:
        is_wrong_use(command("check", "--max-overdue", "soon"), "cannot parse 'soon' as a span of time")
        is_wrong_use(command("check", "--max-overdue", "-1"), "must not be negative")


@pytest.mark.one_server
@pytest.mark.parametrize(
    ("without", "line"),
    [("-blmove", "ACL SETUSER shop +blmove"), ("-ping", "ACL SETUSER shop +ping")],
)
def test_what_a_user_lacks_is_a_line_to_copy(
    broker_server: PrivateRedis, broker_client: redis.Redis, ledger_url: str, without: str, line: str
) -> None:
    broker_client.execute_command("ACL", "SETUSER", "shop", "on", ">secret", "~*", "&*", "+@all", without)
    try:
        with publisher(f"delayq://shop:secret@127.0.0.1:{broker_server.port}/0", ledger_url) as app:
            done = run(app, "check")
            as_json = run(app, "check", "--json")
    finally:
        broker_client.execute_command("ACL", "DELUSER", "shop")
    assert done.code == as_json.code == 1
    assert line in done.stdout.splitlines()
    assert [finding["command"] for finding in as_json.lines() if finding["command"]] == [line]


def test_settings_without_a_connection(ledger_url: str) -> None:
    """A misspelt option keeps the app from connecting; the check says so once."""
    options = {"broker_transport_options": {"leese": 1}, "delayq_grace": 1}
    with publisher("delayq://127.0.0.1:1/0", ledger_url, **options) as app:
        done = run(app, "check", "--json")
    assert done.code == 1
    assert [line["level"] for line in done.lines()] == ["error", "error", "note"]


def test_an_option_of_a_wrong_type(broker_url: str, ledger_url: str) -> None:
    with publisher(broker_url, ledger_url, broker_transport_options={"replicas": "2"}) as app:
        done = run(app, "check", "--json")
    (finding,) = [line for line in found(done, "settings") if line["level"] == "error"]
    assert "replicas" in finding["message"]


@pytest.mark.parametrize("arguments", [[], ["--max-overdue", "60"]])
@pytest.mark.parametrize("url", ["delayq://127.0.0.1:1/0", "delayq+cluster://127.0.0.1:1", "redis://127.0.0.1:1/0"])
def test_a_broker_that_cannot_be_used_is_a_line(ledger_url: str, url: str, arguments: list[str]) -> None:
    with publisher(url, ledger_url) as app:
        done = run(app, "check", "--json", *arguments)
    assert done.code == 1
    assert only(done, "server")["level"] == "error"
    assert not done.stderr


@pytest.mark.parametrize(
    ("url", "general"),
    [("delayq://127.0.0.1:1/0", True), ("delayq+sentinel://127.0.0.1:1/0", False), ("rediss://127.0.0.1:1/0", False)],
)
def test_general_advice_is_only_for_a_server_that_does_not_answer(ledger_url: str, url: str, general: bool) -> None:
    with publisher(url, ledger_url) as app:
        done = run(app, "check", "--json")
    advice = only(done, "server")["advice"]
    assert advice == ("Check the broker URL, and that the server runs: nothing works without it." if general else "")


@pytest.mark.one_server
def test_the_next_url_is_used_if_the_first_server_is_away(broker_url: str, ledger_url: str) -> None:
    with publisher(f"delayq://127.0.0.1:1/0;{broker_url}", ledger_url) as app:
        done = run(app, "check", "--json")
    assert done.code == 0
    assert only(done, "server")["servers"] == [broker_url.removeprefix("delayq://").removesuffix("/0")]


@pytest.mark.one_server
def test_a_server_that_hangs_is_a_line_within_seconds(ledger_url: str) -> None:
    """Options may say that commands wait for ever."""
    options = {"broker_transport_options": {"socket_timeout": 300}}
    with PrivateRedis() as server, publisher(f"delayq://127.0.0.1:{server.port}/0", ledger_url, **options) as app:
        os.kill(server.pid, signal.SIGSTOP)
        try:
            start = time.monotonic()
            done = run(app, "check", "--json")
            took_s = time.monotonic() - start
        finally:
            os.kill(server.pid, signal.SIGCONT)
    assert done.code == 1
    assert "Timeout" in only(done, "server")["message"]
    assert took_s < 60


@pytest.mark.one_server
def test_a_server_that_cannot_save_is_a_line(ledger_url: str) -> None:
    """It refuses even PING."""
    with (
        PrivateRedis() as server,
        server.client() as client,
        publisher(f"delayq://127.0.0.1:{server.port}/0", ledger_url) as app,
    ):
        client.config_set("save", "900 1")
        shutil.rmtree(server.dir)
        client.bgsave()
        wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", "it has failed")
        done = run(app, "check", "--json")
        server.kill()  # it would not stop without saving
    assert done.code == 1
    assert "MISCONF" in only(done, "server")["message"]
    assert only(done, "server")["advice"].startswith("The disk of Redis is full or not writable")


@pytest.mark.one_server
class TestWhatTheServerAnswers:
    """The advice is about what the server says, and not whether it runs."""

    PASSWORD = "Check the user and the password in the broker URL"

    @pytest.mark.parametrize("login", ["nobody:wrong@", ":wrong@", ""])
    @pytest.mark.parametrize("arguments", [[], ["--max-overdue", "60"]])
    def test_a_wrong_password(self, ledger_url: str, login: str, arguments: list[str]) -> None:
        with PrivateRedis() as server, server.client() as client:
            client.config_set("requirepass", "secret")
            with publisher(f"delayq://{login}127.0.0.1:{server.port}/0", ledger_url) as app:
                done = run(app, "check", "--json", *arguments)
            client.config_set("requirepass", "")
        assert done.code == 1
        assert only(done, "server")["level"] == "error"
        assert only(done, "server")["advice"].startswith(self.PASSWORD)

    def test_a_password_that_the_server_does_not_have(self, broker_server: PrivateRedis, ledger_url: str) -> None:
        with publisher(f"delayq://:secret@127.0.0.1:{broker_server.port}/0", ledger_url) as app:
            done = run(app, "check", "--json")
        assert done.code == 1
        finding = next(line for line in found(done, "server") if line["level"] == "error")
        assert finding["advice"].startswith(self.PASSWORD)
        assert not finding["message"].endswith("?.")

    def test_no_sentinel_knows_the_master(self, ledger_url: str) -> None:
        options = {"broker_transport_options": {"master_name": "shop"}}
        with publisher("delayq+sentinel://127.0.0.1:1/0", ledger_url, **options) as app:
            done = run(app, "check", "--json")
        assert done.code == 1
        assert only(done, "server")["level"] == "error"
        assert "No master found for 'shop'" in only(done, "server")["message"]
        assert only(done, "server")["advice"].startswith("Check the host names of the sentinels")
        assert "master_name" in only(done, "server")["advice"]


@pytest.mark.one_server
class TestDelayqWasNotCalled:
    """The command line knows the URL schemes. Workers and producers of the app do not."""

    NOT_CALLED = "The broker URL starts with delayq, but DelayQ(app) was not called"

    def errors(self, folder: Path, module: str, *options: str) -> list[dict[str, Any]]:
        """The errors of the command in a process of its own, where a module `shop` may be."""
        done = run_with_app(folder, module, "-m", "celery", *options, "delayq", "check", "--json")
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        found = [line for line in lines if line["level"] == "error"]
        assert any(line["check"] == "transfer" for line in lines), done
        assert done.returncode == bool(found)
        return found

    def test_it_is_an_error(self, unused: None, waiting: DelayedQueue, broker_url: str, tmp_path: Path) -> None:
        module = f"from celery import Celery\napp = Celery('shop', broker={broker_url!r})\n"
        (finding,) = self.errors(tmp_path, module, "-A", "shop")
        assert finding["message"].startswith(self.NOT_CALLED)
        assert "delayq = DelayQ(app)" in finding["advice"]

    @pytest.mark.parametrize("call", ["DelayQ(app)", "register()"])
    def test_one_that_was_called(
        self, unused: None, waiting: DelayedQueue, broker_url: str, tmp_path: Path, call: str
    ) -> None:
        module = (
            "from celery import Celery\nfrom celery_delayq import DelayQ, register\n"
            f"app = Celery('shop', broker={broker_url!r})\n{call}\n"
        )
        assert self.errors(tmp_path, module, "-A", "shop") == []

    def test_no_module_could_call_it(
        self, unused: None, waiting: DelayedQueue, broker_url: str, tmp_path: Path
    ) -> None:
        assert self.errors(tmp_path, "", "-b", broker_url) == []


@pytest.mark.one_server
def test_commands_in_the_advice_can_be_pasted(
    unused: None, waiting: DelayedQueue, broker_url: str, ledger_url: str
) -> None:
    with CeleryCommand("delayq", "check", "--json", broker=broker_url, ledger=ledger_url) as done:
        assert done.wait() == 0
        finding = next(line for line in map(json.loads, done.log.splitlines()) if line["check"] == "transfer")
    assert "`celery -A tests.worker_app worker`" in finding["advice"]
    assert "`celery -A tests.worker_app delayq transfer`" in finding["advice"]


@pytest.mark.one_server
class TestQueuesOfTheRights:
    """A user who may use some queues only may do so with those of the settings. It says which ones these are."""

    def permissions(self, server: PrivateRedis, ledger_url: str, *rules: str, **conf: Any) -> dict[str, Any]:
        with server.client() as client:
            client.execute_command("ACL", "SETUSER", "shop", "reset", *rules_for("server"), *rules)
        url = server.url.replace("redis://", f"delayq://shop:{quote(PASSWORD, safe='')}@")
        try:
            with publisher(url, ledger_url, **conf) as app:
                return only(run(app, "check", "--json"), "permissions")
        finally:
            with server.client() as client:
                client.execute_command("ACL", "DELUSER", "shop")

    def test_are_named(self, broker_server: PrivateRedis, ledger_url: str) -> None:
        finding = self.permissions(broker_server, ledger_url)
        assert finding["level"] == "ok"
        assert finding["message"].endswith("workers and producers need with the queue 'celery'.")

    def test_are_named_in_short(self, broker_server: PrivateRedis, ledger_url: str) -> None:
        queues = [f"q{number}" for number in range(5)]
        finding = self.permissions(
            broker_server,
            ledger_url,
            *(f"~{queue}*" for queue in queues),
            task_queues=[Queue(queue) for queue in queues],
        )
        assert "with the queues 'q0', 'q1', 'q2' and 2 more." in finding["message"]

    def test_are_not_named_with_a_prefix(self, broker_server: PrivateRedis, ledger_url: str) -> None:
        """One right is for the keys of all queues then."""
        options = {"broker_transport_options": {"global_keyprefix": "shop:"}}
        finding = self.permissions(broker_server, ledger_url, "~shop:*", **options)
        assert finding["message"] == "The user shop has all permissions that workers and producers need."


@pytest.mark.one_server
def test_python_gets_a_finding_if_the_server_is_away() -> None:
    app = Celery("shop", broker="delayq://127.0.0.1:1/0", set_as_current=False)
    findings = DelayQ(app).check()
    (finding,) = (it for it in findings if it.level is Level.ERROR)
    assert finding.check == "server"
    assert "Connection refused" in finding.message
    assert finding.advice == "Check the broker URL, and that the server runs: nothing works without it."


@pytest.mark.one_server
def test_tasks_that_cannot_be_imported_are_told(broker_url: str) -> None:
    app = Celery("shop", broker=broker_url, set_as_current=False, include=["no_such_module"])
    findings = DelayQ(app).check()
    assert (
        "Not checked: cannot import all tasks of the app: ModuleNotFoundError: No module named 'no_such_module'."
        in {it.message for it in findings}
    )
