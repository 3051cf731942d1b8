"""The order story of `examples/orders`, played as a user would, and whether its summary can be trusted."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest

from celery_delayq import DelayedQueue
from examples.orders.ledger import Ledger, Order, histogram, quantile
from examples.private_redis import PrivateRedis
from tests.support import wait_until
from tests.workers import Worker

REPOSITORY = Path(__file__).parents[2]
DB = 7
SHORT = ("--orders=40", "--longest=2")
PLAYING = "40 orders, to be paid within"


class Script:
    """A module of the example as a process, with its output and its temporary files in a folder of its own."""

    def __init__(self, module: str, *arguments: str, env: dict[str, str] | None = None, terminal: bool = False) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="orders-")  # a short path, for Redis's socket
        self.temp = Path(self._folder.name, "tmp")
        self.temp.mkdir()
        self._output_path = Path(self._folder.name, "output")
        self._command = [sys.executable, "-m", f"examples.orders.{module}", *arguments]
        self._env = {**os.environ, "TMPDIR": str(self.temp), "TERM": "xterm", **(env or {})}
        self._terminal = terminal

    def __enter__(self) -> Script:
        with self._output_path.open("wb") as output:
            master, slave = pty.openpty() if self._terminal else (None, None)
            stdout = output if slave is None else slave
            self._process = subprocess.Popen(
                self._command, cwd=REPOSITORY, env=self._env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stdout
            )
            if master is not None and slave is not None:
                os.close(slave)
                with suppress(OSError):  # how Linux says that the other side has gone
                    while data := os.read(master, 4096):
                        output.write(data)
                os.close(master)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait()
        self._folder.cleanup()

    @property
    def output(self) -> str:
        """Everything that was printed so far."""
        return self._output_path.read_text()

    def wait_for(self, text: str) -> None:
        """Wait until `text` was printed."""
        wait_until(lambda: text in self.output or self._process.poll() is not None, f"{text!r} is printed", 40)
        assert text in self.output, self.output

    def wait(self) -> int:
        """Wait for the end; returns the exit status."""
        return self._process.wait(60)

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def descendants(self) -> dict[int, str]:
        """The process ids and commands of all processes under this one."""
        listed = subprocess.run(["ps", "-e", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True)
        rows = [line.split(maxsplit=2) for line in listed.stdout.splitlines()]
        found: dict[int, str] = {}
        parents = {self._process.pid}
        while parents:
            children = {int(pid): args for pid, parent, args in rows if int(parent) in parents}
            found |= children
            parents = set(children)
        return found

    def counts(self) -> dict[str, int]:
        """The numbers of the summary, by name."""
        return {name: int(count) for count, name in re.findall(r"^ *(\d+)  (\S.*?\S)   ", self.output, re.M)}


def alive(pids: set[int]) -> set[int]:
    """Which of these processes still run."""
    listed = subprocess.run(["ps", "-e", "-o", "pid=,stat="], capture_output=True, text=True, check=True)
    rows = [line.split() for line in listed.stdout.splitlines()]
    return pids & {int(pid) for pid, stat in rows if stat[0] != "Z"}


@pytest.fixture
def address(redis_server: PrivateRedis) -> Iterator[str]:
    """An empty database of the session's Redis, as `SHOP_REDIS` has it."""
    with redis_server.client(db=DB) as client:
        client.flushdb()
        yield f"127.0.0.1:{redis_server.port}/{DB}"
        client.flushdb()


#: Pages of the demo, and what they show.
SHOWN = {
    "": ("example-orders", "mail", " failed", "ms from"),
    "waiting": ("cancel_unpaid", "shop.remind"),
    "dead?queue=mail": ("3 in this queue", "delivery-limit"),
    "dead?reason=failed": ("shop.charge", "CardRefusedError"),
    "periodic": ("daily-report", "planned", "paused"),
    "workers": ("celery@", "example-orders, mail"),
}


def text_of(url: str) -> str:
    with urlopen(url, timeout=10) as response:
        return str(response.read().decode())


def shows(url: str, *texts: str) -> bool:
    """Return whether a page has all of these texts."""
    shown = text_of(url)
    return all(text in shown for text in texts)


@pytest.mark.usefixtures("redis_server")  # as a proof that this machine has one
class TestDemo:
    @pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
    def test_it_ends_well_and_leaves_nothing(self, terminal: bool) -> None:
        with Script("demo", *SHORT, terminal=terminal) as demo:
            assert demo.wait() == 0, demo.output
            assert list(demo.temp.iterdir()) == []
            counts = demo.counts()
            assert counts["orders placed"] == 40
            assert counts["paid in time"] + counts["not paid in time"] == 40
            for fault in ("lost", "ran twice", "ran though paid", "ran early", "held by workers"):
                assert counts[fault] == 0
            assert "All is right" in demo.output
            assert ("waiting in Redis" in demo.output) is not terminal
            shown, hidden = "\x1b[?25h", "\x1b[?25l"
            assert demo.output.rfind(shown) >= demo.output.rfind(hidden)
            assert (hidden in demo.output) is terminal

    @pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_a_signal_stops_everything(self, number: int, status: int) -> None:
        with Script("demo", *SHORT) as demo:
            demo.wait_for(PLAYING)
            processes = demo.descendants()
            assert len(processes) >= 5  # Redis, the worker with two children, the story
            demo.send_signal(number)
            assert demo.wait() == status
            wait_until(lambda: not alive(set(processes)), "all processes have ended")
            assert list(demo.temp.iterdir()) == []
            assert "Traceback" not in demo.output

    def test_each_web_page_shows_something_and_it_ends_well_at_ctrl_c(self) -> None:
        with Script("demo", "--web") as demo:
            demo.wait_for("Press Ctrl-C")
            url = re.findall(r"http://\S+/", demo.output)[-1]
            for path, texts in SHOWN.items():
                wait_until(partial(shows, f"{url}{path}", *texts), f"/{path} shows {texts}", 60)
            assert "no consumer" not in text_of(url)
            demo.send_signal(signal.SIGINT)
            assert demo.wait() == 0
            assert "Traceback" not in demo.output

    def test_a_dead_worker_is_reported_with_the_end_of_its_log(self) -> None:
        with Script("demo", *SHORT) as demo:
            demo.wait_for(PLAYING)
            workers = [pid for pid, command in demo.descendants().items() if "-m celery -A" in command]
            os.kill(min(workers), signal.SIGKILL)
            assert demo.wait() == 1
            assert "The worker died (exit status -9)" in demo.output
            assert " ready." in demo.output
            assert list(demo.temp.glob("delayq-redis-*")) == [], "the server stopped"
            assert len(list(demo.temp.glob("orders-worker-*.log"))) == 1
            assert "Traceback" not in demo.output

    def test_without_a_server_it_says_how_to_get_one(self) -> None:
        with Script("demo", env={"REDIS_SERVER": "/no/such/server"}) as demo:
            assert demo.wait() == 2
            assert "apt-get install redis-server" in demo.output
            assert "Traceback" not in demo.output


@pytest.mark.usefixtures("redis_server")
class TestClusterDemo:
    @pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
    def test_a_node_dies_and_no_order_is_lost(self, terminal: bool) -> None:
        with Script("demo", "cluster", "--orders=60", "--longest=8", terminal=terminal) as demo:
            assert demo.wait() == 0, demo.output
            assert list(demo.temp.iterdir()) == []
            counts = demo.counts()
            assert counts["orders placed"] == counts["paid in time"] + counts["not paid in time"] == 60
            assert "is killed" in demo.output
            assert re.search(r"Its replica \S+ took over", demo.output)
            assert "All is right" in demo.output
            assert ("by node" in demo.output) is not terminal
            assert ("in flight" in demo.output) is terminal

    def test_a_signal_stops_everything(self) -> None:
        with Script("demo", "cluster") as demo:
            demo.wait_for("is killed")
            processes = demo.descendants()
            assert len(processes) >= 10  # a Redis, a cluster of which one node is dead, the worker with two children...
            demo.send_signal(signal.SIGINT)
            assert demo.wait() == 130
            wait_until(lambda: not alive(set(processes)), "all processes have ended")
            assert list(demo.temp.iterdir()) == []
            assert "Traceback" not in demo.output


class TestStory:
    def test_the_summary_names_what_was_lost_or_ran_twice(self, redis_server: PrivateRedis, address: str) -> None:
        env = {"SHOP_REDIS": address}
        with (
            Worker(app="examples.orders.shop", broker="", ledger="", env=env),
            Script("story", *SHORT, env=env) as story,
            redis_server.client(db=DB) as client,
        ):
            queue = DelayedQueue(client, "example-orders")
            wait_until(lambda: queue.size() > 10, "orders wait", 40)
            client.zpopmax(queue.keys.timeout_set)  # its task is lost
            client.lpush(queue.name, queue.peek()[0].payload)  # its task runs at once, and once more when due

            assert story.wait() == 1
            counts = story.counts()
            assert counts["lost"] == 1
            assert counts["ran early"] == 1
            assert counts["ran twice"] + counts["ran though paid"] == 1
            assert "Something is wrong" in story.output

    def test_without_redis_it_says_so(self) -> None:
        with Script("story", env={"SHOP_REDIS": "127.0.0.1:1/0"}) as story:
            assert story.wait() == 1
            assert "SHOP_REDIS" in story.output
            assert "Traceback" not in story.output


class TestLedger:
    @pytest.fixture
    def ledger(self) -> Ledger:
        """One order of each kind, with no fault."""
        orders = [
            Order("unpaid", 1.0, None, due=100.0, cancelled_at=[100.002]),
            Order("paid", 1.0, 0.5, due=100.0, pay_answer=True),
            Order("too late", 1.0, 1.0, due=100.0, pay_answer=False, cancelled_at=[100.004]),
        ]
        ledger = Ledger(orders)
        ledger.held_by_workers = 0
        return ledger

    def test_all_right(self, ledger: Ledger) -> None:
        assert ledger.all_right()
        assert ledger.lateness_ms == pytest.approx([2, 4])

    @pytest.mark.parametrize("held", [1, None])
    def test_workers_hold_nothing_and_say_so(self, ledger: Ledger, held: int | None) -> None:
        ledger.held_by_workers = held
        assert not ledger.all_right()

    def test_each_order_is_placed(self, ledger: Ledger) -> None:
        ledger.orders.append(Order("never placed", 1.0, None))
        assert not ledger.all_right()

    def test_a_refused_payment_leads_to_a_cancellation(self, ledger: Ledger) -> None:
        ledger.orders[2].cancelled_at.clear()
        assert ledger.open == [ledger.orders[2]]
        assert not ledger.all_right()

    def test_an_accepted_payment_does_not(self, ledger: Ledger) -> None:
        ledger.orders[1].cancelled_at.append(100.0)
        assert ledger.paid_and_cancelled == [ledger.orders[1]]
        assert not ledger.all_right()

    def test_figures(self) -> None:
        hundred = [float(number) for number in range(1, 101)]
        assert (quantile(hundred, 0.5), quantile(hundred, 0.99), quantile([7.0], 0.5)) == (50, 99, 7)
        assert histogram([1.0, 1.5, 4.0, 2000.0])[:3] == [("1 to 2", 2), ("2 to 3", 0), ("3 to 5", 1)]
        assert histogram([2000.0]) == [("over 1000", 1)]
        assert histogram([]) == []
