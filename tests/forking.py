"""`celery` processes that are forked from one that has imported everything: so they start in a tenth of the time.

`start` runs the server, this module as a command, on its first call: one for each process of pytest-xdist. The server
forks a child for each request, says which one, and later how it ended. Such a child is like a process of its own: it
has a session, an environment, a folder and descriptors of its own, and makes its app itself.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

_REPOSITORY = Path(__file__).parents[1]
#: What the dynamic linker and Python read before any module is imported.
_READ_AT_START = ("LD_", "DYLD_", "PYTHON", "FAKETIME", "MALLOC_")
#: Beside these: what is started before the first import, for whatever it patches.
_OWN_POOLS = ("--pool=gevent", "--pool=eventlet")
_COMMAND = [sys.executable, "-W", "ignore", "-m"]
_NUMBER = 8
_one_at_a_time = threading.Lock()

#: What workers import. That something is missing here costs time, nothing else.
_IMPORTED = (
    *(f"celery.{name}" for name in ("__main__", "apps.beat", "apps.worker", "backends.redis", "bin.celery")),
    *(f"celery.app.{name}" for name in ("control", "events", "log")),
    *(f"celery.concurrency.{name}" for name in ("prefork", "solo", "thread")),
    *("celery.events.state", "celery.fixups.django", "celery.worker.autoscale", "celery.worker.components"),
    *(
        "celery.worker.consumer.delayed_delivery",
        "celery.worker.control",
        "celery.worker.strategy",
        "celery.worker.worker",
    ),
    *("billiard.heap", "billiard.pool", "billiard.popen_fork", "billiard.sharedctypes"),
    *("kombu.asynchronous.hub", "kombu.transport.redis", "redis.sentinel", "redis.asyncio"),
    *("multiprocessing.util", "concurrent.futures.thread", "encodings.idna", "importlib.readers", "zoneinfo"),
    *("celery_delayq.results.cluster", "celery_delayq.schedule.service", "celery_delayq.transport.cluster"),
    *(f"celery_delayq.{name}" for name in ("transfer.loop", "worker.commands", "worker.bootsteps")),
    "tests.worker_app",
)


class Forked:
    """A process that the server has forked, with the methods of `subprocess.Popen` that tests of workers use.

    Attributes:
        pid: its id.
        returncode: its exit status, negative if a signal ended it; None while it runs.
    """

    def __init__(self, status: int, pid: int) -> None:
        self._status = status  # a pipe, into which the server writes how it ended
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status if it has ended."""
        self._look(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; return its exit status.

        Raises:
            subprocess.TimeoutExpired: it has not ended in so many seconds.
        """
        self._look(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return self.returncode

    def _look(self, timeout: float | None) -> None:
        if self.returncode is not None or not select.select([self._status], [], [], timeout)[0]:
            return
        told = os.read(self._status, _NUMBER)
        os.close(self._status)
        assert told, "the server that forks processes has ended"
        self.returncode = int.from_bytes(told, "big", signed=True)


def can_fork(command: list[str], env: Mapping[str, str]) -> bool:
    """Return whether a command is one that can be forked, and does not need another interpreter to be right."""
    return (
        _tells_of_ends()
        and command[: len(_COMMAND) + 1] == [*_COMMAND, "celery"]
        and not any(one in _OWN_POOLS for one in command)
        and _read_at_start(env) == _read_at_start(_server_env())
    )


@cache
def _tells_of_ends() -> bool:
    """Return whether the system tells of the end of any process: Linux does, since 5.3."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def _server_env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(_REPOSITORY), "PYTHONUNBUFFERED": "1"}


def _read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(_READ_AT_START)}


def start(command: list[str], *, env: Mapping[str, str], cwd: str, output: int) -> Forked:
    """Start a command that `can_fork`.

    Args:
        command: as for `subprocess.Popen`.
        env: its whole environment.
        cwd: its folder.
        output: a descriptor, to which it writes stdout and stderr.
    """
    its_end, status = os.pipe()
    request = json.dumps({"arguments": command[len(_COMMAND) + 1 :], "env": dict(env), "cwd": cwd}).encode()
    with _one_at_a_time:
        server = _server()
        try:
            socket.send_fds(server, [len(request).to_bytes(_NUMBER, "big")], [output, status])
            server.sendall(request)
        finally:
            os.close(status)
        return Forked(its_end, int.from_bytes(_exactly(server, _NUMBER), "big"))


@cache
def _server() -> socket.socket:
    """Start the server. It ends when this process does, and so do all whom it forked."""
    ours, its = socket.socketpair()
    process = subprocess.Popen(
        [*_COMMAND, __name__, str(its.fileno())],
        cwd=_REPOSITORY,
        env=_server_env(),
        stdin=subprocess.DEVNULL,
        pass_fds=[its.fileno()],
        start_new_session=True,
    )
    its.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        some = connection.recv(size - len(found))
        if not some:
            raise EOFError("the other end is closed")
        found += some
    return found


class _Server:
    """The server: `run` returns in each child, and never in the server itself."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._children: dict[int, tuple[int, int]] = {}  # a descriptor of the process -> its id, and its pipe

    def run(self) -> list[str]:
        """Fork a child for each request; return the arguments in the child."""
        while True:
            for found, _ in self._poll.poll():
                if found != self._connection.fileno():
                    self._tell(found)
                elif (arguments := self._fork()) is not None:
                    return arguments

    def _tell(self, process: int) -> None:
        pid, pipe = self._children.pop(process)
        self._poll.unregister(process)
        _, status = os.waitpid(pid, 0)
        with suppress(BrokenPipeError):  # nobody wants to know
            os.write(pipe, os.waitstatus_to_exitcode(status).to_bytes(_NUMBER, "big", signed=True))
        os.close(pipe)
        os.close(process)

    def _fork(self) -> list[str] | None:
        size, descriptors, _, _ = socket.recv_fds(self._connection, _NUMBER, 2)
        if not size:
            self._end()
        request = json.loads(_exactly(self._connection, int.from_bytes(size, "big")))
        output, pipe = descriptors
        pid = os.fork()
        if not pid:
            self._become(output, pipe, request["env"], request["cwd"])
            return list(request["arguments"])
        os.close(output)
        process = os.pidfd_open(pid)
        self._children[process] = pid, pipe
        self._poll.register(process, select.POLLIN)
        self._connection.sendall(pid.to_bytes(_NUMBER, "big"))
        return None

    def _become(self, output: int, pipe: int, env: dict[str, str], cwd: str) -> None:
        """Be a child that has nothing of the server."""
        os.setsid()
        os.chdir(cwd)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        os.close(pipe)
        for process, (_, its_pipe) in self._children.items():
            os.close(process)
            os.close(its_pipe)
        self._connection.close()
        os.environ.clear()
        os.environ.update(env)
        time.tzset()
        sys.path[0] = cwd

    def _end(self) -> None:
        """End, and with it everything that was forked: nobody is left who would."""
        for pid, _ in self._children.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # it may not lead its group yet
                os.killpg(pid, signal.SIGKILL)
        os._exit(0)


def _serve() -> None:
    for name in _IMPORTED:
        with suppress(ImportError):  # another version has another layout
            importlib.import_module(name)
    # The app of a child is made from the environment of the child.
    del sys.modules["tests.worker_app"], sys.modules["tests"].worker_app  # type: ignore[attr-defined]
    import gc

    from celery import __main__ as command

    gc.collect()
    gc.freeze()  # a child that collects garbage would copy all pages otherwise
    arguments = _Server(socket.socket(fileno=int(sys.argv[1]))).run()
    sys.argv = [str(command.__file__), *arguments]
    command.main()


if __name__ == "__main__":
    _serve()
