"""A RabbitMQ server of one's own, for as long as a `with` block lasts; Debian's package `rabbitmq-server` brings it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from examples.private_redis import dying_with_us
from tests.support import wait_until

#: Where the package puts the scripts that start a server as whoever calls them.
_SCRIPTS = Path("/usr/lib/rabbitmq/bin")
_SERVER = _SCRIPTS / "rabbitmq-server"

_START_DEADLINE_S, _STOP_DEADLINE_S = 60, 20


def is_installed() -> bool:
    """Return whether there is a RabbitMQ server on this machine."""
    return os.access(_SERVER, os.X_OK)


def version() -> str:
    """Return the version of the RabbitMQ server on this machine."""
    command = [str(_SCRIPTS / "rabbitmqctl"), "version"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


class PrivateRabbitMQ:
    """A RabbitMQ server on free ports of 127.0.0.1, with all its files in a temporary folder."""

    def __init__(self) -> None:
        self.port, distribution, self._epmd = _free_ports(3)
        self._folder = tempfile.TemporaryDirectory(prefix="delayq-rabbitmq-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        self._log = folder / "log"
        self._env = {
            **os.environ,
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(self._epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "logs"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PrivateRabbitMQ:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                dying_with_us([str(_SERVER)]), env=self._env, stdout=log, stderr=log, start_new_session=True
            )
        try:
            wait_until(lambda: b"completed with" in self._log.read_bytes(), "RabbitMQ is up", _START_DEADLINE_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._process is not None
        # It has left our session; so has the daemon that knows its port.
        subprocess.run([str(_SCRIPTS / "rabbitmqctl"), "stop"], env=self._env, capture_output=True, check=False)
        try:
            self._process.wait(_STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        with suppress(FileNotFoundError):
            subprocess.run(["epmd", "-kill"], env=self._env, capture_output=True, check=False)
        self._folder.cleanup()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
