"""Commands in a terminal, as real processes: the live view, questions, progress."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

import pytest
from celery import Celery

from celery_delayq import DelayedQueue
from celery_delayq.queue import dead_letter
from examples.private_redis import PrivateRedis
from tests.cli.running import TerminalCommand
from tests.integration.publishing import publish
from tests.processes import wait_until_idle
from tests.state import bury, fill
from tests.support import wait_until
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster

Terminal = Callable[..., TerminalCommand]


@pytest.fixture
def terminal(broker_url: str, ledger_url: str) -> Terminal:
    """Start `celery delayq ...` in a terminal."""

    def start(*args: str) -> TerminalCommand:
        return TerminalCommand(*args, broker=broker_url, ledger=ledger_url)

    return start


def test_dead_messages_are_in_color(app: Celery, waiting: DelayedQueue, terminal: Terminal) -> None:
    bury(waiting.client, waiting.name, b"dead")
    with terminal("status") as status:
        assert status.wait() == 0
        assert re.search(r"\x1b\[31m *1\x1b\[0m", status.log)
        assert re.search(r"\x1b\[2m *0\x1b\[0m", status.log)


class TestTop:
    @pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
    def test_shows_what_comes_until_it_is_ended(
        self, app: Celery, waiting: DelayedQueue, terminal: Terminal, end: signal.Signals
    ) -> None:
        first = publish(app)
        with terminal("top", "--interval", "0.1") as top:
            top.wait_for_log(first)
            top.wait_for_log("punctual worker")
            second = publish(app, seconds=1)
            top.wait_for_log(second)
            top.send_signal(end)
            assert top.wait() == 0
            assert "Traceback" not in top.log

    def test_waits_for_a_server_that_is_away(self, ledger_url: str) -> None:
        with PrivateRedis("--appendonly", "yes") as server:
            url = f"delayq://127.0.0.1:{server.port}/0"
            with TerminalCommand("top", "--interval", "0.1", broker=url, ledger=ledger_url) as top:
                top.wait_for_log("punctual worker")
                server.stop()
                top.wait_for_log("Retrying every 0.1 s.")
                server.start()
                seen = top.log.count("punctual worker")
                wait_until(lambda: top.log.count("punctual worker") > seen, "the table is shown again", 30)


class TestQuestions:
    @pytest.mark.parametrize(("answer", "code", "left"), [("y", 0, 0), ("n", 1, 1), ("", 1, 1)])
    def test_cancel_asks(
        self, app: Celery, waiting: DelayedQueue, terminal: Terminal, answer: str, code: int, left: int
    ) -> None:
        publish(app)
        with terminal("cancel", "--task", "note") as cancel:
            cancel.wait_for_log("Cancel 1 task for good? [y/N]")
            cancel.type(f"{answer}\n")
            assert cancel.wait() == code
        assert waiting.size() == left

    def test_ctrl_c_is_no(self, app: Celery, waiting: DelayedQueue, terminal: Terminal) -> None:
        publish(app)
        with terminal("cancel", "--all") as cancel:
            cancel.wait_for_log("Cancel 1 task for good? [y/N]")
            wait_until_idle(cancel.pid)  # Python's input() misses a signal that comes just before it reads
            cancel.send_signal(signal.SIGINT)
            assert cancel.wait() == 1
            assert "Traceback" not in cancel.log
        assert waiting.size() == 1


def test_progress_is_shown_in_a_terminal(waiting: DelayedQueue, terminal: Terminal) -> None:
    fill(waiting, 3000)
    with terminal("cancel", "--all", "--yes") as cancel:
        cancel.wait_for_log("3,000 tasks cancelled.")
        assert cancel.wait() == 0
        assert "cancelling" in cancel.log
        assert "/3000" in cancel.log


def test_a_search_by_name_shows_its_progress(waiting: DelayedQueue, terminal: Terminal) -> None:
    fill(waiting, 3000)
    with terminal("list", "--task", "nobody") as search:
        search.wait_for_log("No waiting tasks match.")
        assert search.wait() == 0
        assert "searching" in search.log
        assert "/3000" in search.log


@pytest.mark.parametrize(("verb", "done"), [("requeue", "requeued"), ("purge", "purged")])
def test_dead_letters_show_their_progress(waiting: DelayedQueue, terminal: Terminal, verb: str, done: str) -> None:
    letters = [dead_letter.pack(b"%d" % number, reason=dead_letter.NOT_A_MESSAGE) for number in range(3000)]
    bury(waiting.client, waiting.name, *letters)
    yes = ["--yes"] if verb == "purge" else []
    with terminal("dead", verb, "celery", "--all", *yes) as command:
        command.wait_for_log(f"3,000 messages {done}.")
        assert command.wait() == 0
        assert "/3000" in command.log
    assert not waiting.client.exists(waiting.keys.dead)


def test_status_tells_which_worker_is_punctual(
    app: Celery, waiting: DelayedQueue, terminal: Terminal, broker_url: str, ledger_url: str
) -> None:
    with Worker(broker=broker_url, ledger=ledger_url) as worker:
        assert app.tasks["note"].apply_async(("x",), countdown=0.1).get(timeout=20) == "x"
        with terminal("status") as status:
            assert status.wait() == 0
            assert re.search(rf"@\S+:{worker.pid}\s", status.log)
