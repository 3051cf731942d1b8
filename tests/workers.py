"""Real `celery worker` processes, and other commands of an app, for as long as a `with` block lasts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests import forking
from tests.support import wait_until

_REPOSITORY = Path(__file__).parents[1]
#: A child of billiard's pool that ends waits up to 30 s for its parent to count its last result, which it sometimes
#: does not; so does stock Celery.
_STOP_DEADLINE_S = 40.0


class CeleryCommand:
    """A `celery -A <app> ...` process in a session of its own, with its output in a file.

    Args:
        *arguments: what comes after the app.
        broker: the broker URL.
        ledger: the URL of the ledger.
        app: the module of the app.
        conf: further configuration of the app, see `tests.worker_app`.
        env: further environment.
        paths: further folders to import from.
        stops: whether the end of the block stops it as a deploy does. By default it kills all of it, which is quicker:
            for whoever does not look at what is left.
    """

    #: Whether it may be forked from a process that has imported everything, see `tests.forking`. Tests may, benchmarks
    #: measure what a real one takes.
    is_forked = False

    def __init__(
        self,
        *arguments: str,
        broker: str,
        ledger: str,
        app: str = "tests.worker_app",
        conf: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        paths: Sequence[Path] = (),
        stops: bool = False,
    ) -> None:
        self._stops = stops
        self._command = [sys.executable, "-W", "ignore", "-m", "celery", "-A", app, *arguments]
        self._env = {
            **os.environ,
            "BROKER": broker,
            "LEDGER": ledger,
            "CONF": json.dumps(dict(conf or {})),
            "PYTHONPATH": os.pathsep.join(map(str, (_REPOSITORY, *paths))),
            "PYTHONUNBUFFERED": "1",
            **(env or {}),
        }
        self._folder = tempfile.TemporaryDirectory(prefix="delayq-worker-")
        self.log_path = Path(self._folder.name, "log")
        self._process: subprocess.Popen[bytes] | forking.Forked | None = None

    def __enter__(self) -> CeleryCommand:
        self.start()
        try:
            self.wait_until_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        if any(exc_info):
            print(self.log)  # pytest shows it with the failure
        if self._process is not None:
            if self._stops and self._process.poll() is None:
                self.send_signal(signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(_STOP_DEADLINE_S)
            self.kill()
        self._folder.cleanup()

    def start(self, env: Mapping[str, str] | None = None) -> None:
        """Start the process, this time with some more environment."""
        env = {**self._env, **(env or {})}
        with self.log_path.open("ab") as log:
            if self.is_forked and forking.can_fork(self._command, env):
                self._process = forking.start(self._command, cwd=self._folder.name, env=env, output=log.fileno())
                return
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder.name,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        """Wait until the process does its work; a subclass says how that shows."""

    @property
    def pid(self) -> int:
        """The id of the main process."""
        assert self._process is not None
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the main process has ended."""
        assert self._process is not None
        return self._process.poll() is not None

    @property
    def log(self) -> str:
        """Everything the processes wrote so far."""
        return self.log_path.read_text(errors="replace")

    def wait_for_log(self, text: str, times: int = 1, timeout: float = 30) -> None:
        """Wait until the log contains `text`; show the log if it does not."""
        assert self._process is not None
        process = self._process
        try:
            wait_until(
                lambda: self.log.count(text) >= times or process.poll() is not None,
                f"{text!r} in the log",
                timeout,
            )
            assert self.log.count(text) >= times, f"the process ended without {text!r} in its log"
        except AssertionError as error:
            raise AssertionError(f"{error}; the log:\n{self.log}") from None

    def send_signal(self, number: int) -> None:
        """Send a signal to the main process."""
        os.kill(self.pid, number)

    def wait(self, timeout: float = _STOP_DEADLINE_S) -> int:
        """Wait until the main process has ended; return its exit status, negative if a signal ended it."""
        assert self._process is not None
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout} s; the log:\n{self.log}") from None

    def kill(self) -> None:
        """Kill all processes of the session, as a lost machine would end them."""
        assert self._process is not None
        for pid in (self.pid, *self.session()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def suspend(self) -> None:
        """Suspend all processes of the session; returns when none of them runs on.

        A signal is heard by one thread, whenever it gets its turn, and the others run until then.
        """
        for pid in self.session():
            os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: set(self._states().values()) == {"T"}, "all processes are suspended")

    def resume(self) -> None:
        """Let all processes go on, a child before its parent, so that its result is there."""
        for pid in sorted(self.session(), reverse=True):
            os.kill(pid, signal.SIGCONT)

    def session(self) -> set[int]:
        """Return the ids of all living processes that the main process started, itself included."""
        return set(self._states())

    def _states(self) -> dict[int, str]:
        """Return the state of each living process of the session, as one letter of `ps`."""
        return {pid: state for pid, sid, state in _processes() if sid == self.pid and state != "Z"}


def _processes() -> Iterator[tuple[int, int, str]]:
    """Yield id, session and state of each process; on Linux without a command, which tests would start thousands of."""
    if not Path("/proc/self/stat").exists():
        found = subprocess.run(["ps", "-e", "-o", "pid=,sid=,stat="], capture_output=True, text=True, check=True).stdout
        for pid, session, state in map(str.split, found.splitlines()):
            yield int(pid), int(session), state[0]
        return
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                state, _, _, session = (folder / "stat").read_text().rpartition(") ")[2].split()[:4]
                yield int(folder.name), int(session), state


class Worker(CeleryCommand):
    """A `celery worker`; see `CeleryCommand` for the arguments, options are those of the worker.

    The default is one solo process, which starts fastest, and asks no neighbours for a second.
    """

    def __init__(
        self, *options: str, pool: str = "solo", concurrency: int = 2, gossip: bool = False, **kwargs: Any
    ) -> None:
        name = f"w{id(self):x}@%h"
        alone = () if gossip else ("--without-gossip", "--without-mingle")
        common = ("--loglevel=INFO", *alone, f"--pool={pool}", f"-n{name}")
        size = () if pool == "solo" else (f"--concurrency={concurrency}",)
        super().__init__("worker", *common, *size, *options, **kwargs)

    def __enter__(self) -> Worker:
        super().__enter__()
        return self

    def wait_until_ready(self) -> None:
        """Wait until the worker consumes."""
        self.wait_for_log(" ready.")
