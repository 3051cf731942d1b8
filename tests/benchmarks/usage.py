"""What servers and processes of this machine use: memory and CPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import redis


def server_bytes(client: redis.Redis) -> int:
    """Return the memory that a Redis server uses for its data."""
    known: Any = client.info("memory")
    return int(known["used_memory"])


def server_cpu_s(client: redis.Redis) -> float:
    """Return how many seconds of CPU a Redis server has used."""
    known: Any = client.info("cpu")
    return float(known["used_cpu_user"]) + float(known["used_cpu_sys"])


def process_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def process_cpu_s(pid: int) -> float:
    """Return how many seconds of CPU a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
