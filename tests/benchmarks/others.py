"""Others: other task queues on Redis, each in an environment of its own, with its own workers and its own defaults."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from examples.private_redis import PrivateRedis, dying_with_us
from tests.benchmarks.figures import OURS, STOCK, Target, in_turns, percentile
from tests.benchmarks.report import Report
from tests.benchmarks.scale import SEED, Scale
from tests.benchmarks.shop import broker_url
from tests.support import wait_until

_REPOSITORY = Path(__file__).parents[2]

#: An app for each library, see its `ledger.py`.
APPS = Path(__file__).with_name("apps")

#: An environment for each. Git ignores them, and `make clean` removes them.
_ENVIRONMENTS = _REPOSITORY / ".venv" / "others"

_SHORTEST_COUNTDOWN_S = 0.5

#: Countdowns of tasks that run before lateness is measured, in seconds.
_WARM_UP = (0.0, _SHORTEST_COUNTDOWN_S) * 10

#: So long after the last one was due or started, what did not start counts as lost, in seconds.
_LOST_AFTER_S = 10.0

#: A backlog is watched for so long from its first start, in seconds: some need minutes for it.
_BACKLOG_S = 12.0

_START_DEADLINE_S = 60.0

#: With as many tasks as the others, RQ would fall far behind: it forks a process for each.
_FEWER_FOR_RQ = 20

#: A start is early if it comes more than this before the due time: some libraries keep whole milliseconds.
_EARLY_MS = 1.0


@dataclass(frozen=True)
class Library:
    """A library that is measured.

    Attributes:
        app: its module in `APPS`.
        worker: the command that runs workers in two processes; `{broker}` stands for the URL of the server.
        requirements: what is installed for it; nothing for what is installed anyway.
        commands: how many times the command runs.
        fewer: it gets so many times fewer tasks.
    """

    app: str
    worker: str
    requirements: str = ""
    commands: int = 1
    fewer: int = 1


_CELERY = Library("celery_app", "celery -A celery_app worker -c 2")

#: All of them, with the newest versions that were there.
LIBRARIES = {
    STOCK: _CELERY,
    OURS: _CELERY,
    "Huey": Library("huey_app", "huey_consumer huey_app.huey -w 2 -k process", "huey==3.5.4 redis==8.1.0"),
    "Dramatiq": Library("dramatiq_app", "dramatiq dramatiq_app -p 2", "dramatiq==2.2.1 redis==8.1.0"),
    "streaq": Library("streaq_app", "streaq run streaq_app:worker -w 2", "streaq==7.2.0 coredis==6.9.0"),
    # It imports typing_extensions, and does not ask for it.
    "SAQ": Library("saq_app", "saq saq_app.settings --workers 2", "saq==0.26.4 redis==7.4.1 typing-extensions==4.16.0"),
    "arq": Library("arq_app", "arq arq_app.WorkerSettings", "arq==0.28.0 redis==5.3.1", commands=2),
    "RQ": Library("rq_app", "rq worker-pool -n 2 --url {broker}", "rq==3.0.0 redis==8.1.0", fewer=_FEWER_FOR_RQ),
}


def run(scale: Scale) -> Report:
    report = Report(
        f"others: {scale.others_tasks:,} tasks with a countdown of {_SHORTEST_COUNTDOWN_S} to "
        f"{scale.others_longest_s:g} s, and a backlog of {scale.others_backlog:,} empty tasks"
    )
    programs = {name: found for name in LIBRARIES if (found := _programs(name, report))}
    figures = {name: report.figure(name, "ms") for name in ("p50", "p99", "earliest")}
    figures["earliest"].baseline = ""  # the ratio of two of them means nothing
    figures |= {name: report.figure(name, "tasks", target=Target(0)) for name in ("early", "lost", "twice")}
    lateness = {name: partial(_lateness, name, found, scale) for name, found in programs.items()}
    for name, turns in in_turns(scale.others_rounds, lateness).items():
        for turn in turns:
            for figure, value in turn.items():
                figures[figure].add(name, value)
    backlogs = {name: partial(_backlog, name, found, scale) for name, found in programs.items()}
    report.figure("from a backlog", "tasks/s").samples = in_turns(scale.others_rounds, backlogs)
    versions = (f"{name}: {LIBRARIES[name].requirements}" for name in programs if name not in (STOCK, OURS))
    report.notes += [
        "Each library has two worker processes and its defaults. A process of stock, delayq, Huey and RQ runs one task "
        "at a time, one of Dramatiq 8, one of SAQ and arq 10, one of streaq 16.",
        "Tasks are sent one by one; the first ones start meanwhile. Early: over a millisecond before the due time.",
        f"The backlog is there when the workers start. Its rate is from the first start to the last, {_BACKLOG_S:g} s "
        "at most.",
        f"RQ gets {_FEWER_FOR_RQ} times fewer tasks, since it forks a process for each.",
        "; ".join(versions),
    ]
    return report


@dataclass(frozen=True)
class Start:
    """That a task started: its number, when it was due, and when it started; unix times in s."""

    number: int
    due: float
    at: float


@contextmanager
def _turn(name: str, programs: Path) -> Iterator[Turn]:
    """Give an empty server and an empty ledger to a library."""
    with PrivateRedis() as server, tempfile.TemporaryDirectory(prefix="delayq-others-") as folder:
        broker = broker_url(OURS if name == OURS else STOCK, server.port)
        turn = Turn(LIBRARIES[name], programs, broker, folder)
        try:
            yield turn
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}; the end of the log:\n{turn.log[-3000:]}") from None
        finally:
            turn.close()


class Turn:
    """Sends tasks of a library, runs its workers, and tells which tasks started.

    Args:
        library: which.
        programs: the folder with its commands.
        broker: the URL of the server.
        folder: for files.
    """

    def __init__(self, library: Library, programs: Path, broker: str, folder: str) -> None:
        self._library, self._programs, self._broker = library, programs, broker
        self._folder, self._ledger, self._log = folder, Path(folder, "ledger"), Path(folder, "log")
        self._ledger.touch()
        # Our package is that of this repository, whatever is installed. The others see nothing of it.
        paths = [APPS] if library.requirements else [APPS, _REPOSITORY]
        path = os.pathsep.join(map(str, paths))
        self._env = {**os.environ, "BROKER": broker, "LEDGER": str(self._ledger), "PYTHONPATH": path}
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def log(self) -> str:
        """What workers wrote."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def send(self, countdowns: Sequence[float]) -> None:
        """Call the task once for each of these countdowns in seconds, with a process of its own."""
        app = self._library.app
        code = f"import json, sys, {app}; {app}.send(json.load(sys.stdin))"
        command = [str(self._programs / "python"), "-W", "ignore", "-c", code]
        text = json.dumps(list(countdowns))
        subprocess.run(command, input=text, text=True, cwd=self._folder, env=self._env, check=True)

    def start_workers(self) -> None:
        """Start the workers, in sessions of their own."""
        program, *arguments = self._library.worker.format(broker=self._broker).split()
        with self._log.open("ab") as log:
            for _ in range(self._library.commands):
                process = subprocess.Popen(
                    dying_with_us([str(self._programs / program), *arguments]),
                    cwd=self._folder,
                    env=self._env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
                self._processes.append(process)

    def close(self) -> None:
        """Kill the workers: all is measured, and to end well may take them half a minute."""
        for process in self._processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def starts(self, due_from: float = 0.0) -> list[Start]:
        """Return all starts of tasks that are due from this time on."""
        lines = [line.split() for line in self._ledger.read_text().splitlines()]
        starts = [Start(int(number), float(due), float(at)) for number, due, at in lines]
        return [start for start in starts if start.due >= due_from]


def _different(starts: Sequence[Start]) -> int:
    return len({start.number for start in starts})


def _lateness(name: str, programs: Path, scale: Scale) -> dict[str, float]:
    """Return p50, p99 and the earliest start in ms after the due time; how many tasks began early, never, twice."""
    rng, count = random.Random(SEED), scale.others_tasks // LIBRARIES[name].fewer
    countdowns = [rng.uniform(_SHORTEST_COUNTDOWN_S, scale.others_longest_s) for _ in range(count)]
    with _turn(name, programs) as turn:
        turn.start_workers()
        turn.send(_WARM_UP)
        wait_until(lambda: _different(turn.starts()) == len(_WARM_UP), "the warm-up has run", _START_DEADLINE_S)
        first_due = time.time() + _SHORTEST_COUNTDOWN_S  # later than all of the warm-up, which may run once more
        turn.send(countdowns)
        started, deadline = 0, time.monotonic() + scale.others_longest_s + _LOST_AFTER_S
        while started < count and time.monotonic() < deadline:
            time.sleep(0.2)
            before, started = started, _different(turn.starts(first_due))
            if started > before:
                deadline = max(deadline, time.monotonic() + _LOST_AFTER_S)
        starts = turn.starts(first_due)
    late_ms = [(start.at - start.due) * 1000 for start in starts]
    return {
        "p50": percentile(late_ms, 50),
        "p99": percentile(late_ms, 99),
        "earliest": min(late_ms),
        "early": sum(value < -_EARLY_MS for value in late_ms),
        "lost": count - started,
        "twice": len(starts) - started,
    }


def _backlog(name: str, programs: Path, scale: Scale) -> float:
    """Return how many tasks a second start from a backlog."""
    count = scale.others_backlog // LIBRARIES[name].fewer
    with _turn(name, programs) as turn:
        turn.send([0.0] * count)
        turn.start_workers()
        wait_until(turn.starts, "a task has started", _START_DEADLINE_S)
        deadline = time.monotonic() + _BACKLOG_S
        while _different(turn.starts()) < count and time.monotonic() < deadline:
            time.sleep(0.1)
        starts = [start.at for start in turn.starts()]
    return (len(starts) - 1) / (max(starts) - min(starts))


def _programs(name: str, report: Report) -> Path | None:
    """Return the folder with the commands of a library. Install it when it is first needed; None if that fails."""
    requirements = LIBRARIES[name].requirements
    if not requirements:
        return Path(sys.executable).parent
    folder = _ENVIRONMENTS / name
    stamp = folder / "installed"
    if not stamp.exists() or stamp.read_text() != requirements:
        print(f"Installing {requirements} into {folder.relative_to(_REPOSITORY)}...", file=sys.stderr)
        python = [sys.executable, "-m"]
        pip = [*python, "pip", "--python", str(folder / "bin" / "python"), "-q", "install", *requirements.split()]
        for command in ([*python, "venv", "--clear", "--without-pip", str(folder)], pip):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                shutil.rmtree(folder, ignore_errors=True)
                why = done.stderr.strip().rpartition("\n")[2]
                report.notes.append(f"{name} is left out, since it cannot be installed: {why}")
                return None
        stamp.write_text(requirements)
    return folder / "bin"
