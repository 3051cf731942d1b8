"""Which process made a consumer, and whether it still runs, if this process can know.

Redis cannot distinguish a killed process from one that lost all its connections. A process on the same machine can: it
asks the system. So the id of a consumer also says where its process runs and when it started. The start time is needed
because the system reuses process ids.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import NamedTuple

from celery_delayq.queue.connections import new_id, process_of

#: A process id and a start time are valid within one boot and one namespace. Containers share a kernel, and therefore
#: its boot id.
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACES = (Path("/proc/self/ns/pid"), Path("/proc/self/ns/time"))

_ID = re.compile(r".*:(?P<pid>\d{1,9}):(?P<place>[0-9a-f]{10})-(?P<start>[0-9a-f]+)-[0-9a-f]+", re.DOTALL)


class _Stat(NamedTuple):
    """A process according to Linux: its state, and its start time, in ticks since the boot, in hexadecimal."""

    state: str
    start: str


def consumer_id() -> str:
    """Return a readable, unique id for a consumer of this process.

    `node:pid:random`, and on Linux `node:pid:place-start-random`; of a program that is no worker, its host.
    """
    id, place, stat = new_id(), _place(), _stat("self")
    if not place or stat is None:
        return id
    process, _, unique = id.rpartition(":")
    return f"{process}:{place}-{stat.start}-{unique}"


def is_consumer(text: str) -> bool:
    """Return whether a text looks like the id of a consumer."""
    return text.count(":") == 2 and process_of(text)[1] is not None


def is_running(id: str) -> bool | None:
    """Return whether the process that made a consumer still runs; None if this process cannot know.

    It can know if both run in the same place: one boot of one machine, and one namespace of process ids. A suspended
    process runs; a zombie does not.
    """
    state = _state(id)
    return None if state is None else bool(state)


def is_at_work(id: str) -> bool | None:
    """Return whether the process that made a consumer runs and is not suspended; None if this process cannot know."""
    state = _state(id)
    return None if state is None else state not in ("", "T", "t")


def _state(id: str) -> str | None:
    """Return the state of the process that made a consumer, as Linux writes it; empty if it has ended."""
    found = _ID.fullmatch(id)
    if found is None or found["place"] != _place():
        return None
    try:
        os.kill(int(found["pid"]), 0)
    except ProcessLookupError:
        return ""
    except OSError:  # it belongs to another user
        pass
    stat = _stat(found["pid"])
    if stat is None:  # it belongs to another user, and /proc shows only one's own processes
        return None
    return stat.state if stat.start == found["start"] and stat.state not in "ZX" else ""


def _place() -> str:
    """Return a short name for the place in which this process runs; empty if there is no /proc."""
    try:
        parts = [_BOOT.read_bytes(), *(_namespace(path) for path in _NAMESPACES)]
    except OSError:
        return ""
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:10]


def _namespace(path: Path) -> bytes:
    try:
        return bytes(path.readlink())
    except FileNotFoundError:  # Linux before 5.6 has no time namespace
        return b""


def _stat(pid: str) -> _Stat | None:
    try:
        # Skip the name of the program, which may contain anything.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return _Stat(fields[0].decode(), f"{int(fields[19]):x}")
    except (OSError, IndexError, ValueError):
        return None
