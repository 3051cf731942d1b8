"""Processes whose clock is wrong, with libfaketime."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from examples.private_redis import find_server


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
    """Return a command, written to a folder, that is redis-server with more environment."""
    command = folder / "redis-server"
    exports = "".join(f"export {name}='{value}'\n" for name, value in env.items())
    command.write_text(f'#!/bin/sh\n{exports}exec "{find_server()}" "$@"\n')
    command.chmod(0o755)
    return command
