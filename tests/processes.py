"""What a process holds, as Linux tells it: descriptors, connections, threads, and time of the processor."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from tests.support import wait_until

#: So much of a processor a process may use while it has nothing to do; one that loops uses all that it gets.
_IDLE = 0.25


def descriptors(pid: int) -> dict[int, str]:
    """What each open descriptor of a process is, for example `socket:[123]`."""
    found = {}
    with suppress(FileNotFoundError):  # it has ended
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                found[int(path.name)] = str(path.readlink())
    return found


def connections(pid: int) -> set[str]:
    """The TCP connections of a process; one that two processes share is the same in both."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    everywhere = {f"socket:[{row[9]}]" for row in rows}
    return {what for what in descriptors(pid).values() if what in everywhere}


def pipes(pid: int) -> set[str]:
    """The pipes of a process."""
    return {what for what in descriptors(pid).values() if what.startswith("pipe:")}


def threads(pid: int) -> int:
    """The number of threads of a process."""
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def _seconds_used(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def wait_until_idle(pid: int) -> None:
    """Wait until a process uses hardly any time of the processor."""
    seen = [(time.monotonic(), _seconds_used(pid))]

    def is_idle() -> bool:
        (then, used), now = seen[0], time.monotonic()
        if now < then + 1:
            return False
        seen[0] = now, _seconds_used(pid)
        return seen[0][1] - used < _IDLE * (now - then)

    wait_until(is_idle, f"process {pid} is idle")
