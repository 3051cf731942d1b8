"""Looks for tracebacks in the logs of workers: only those of a lost connection are to be expected."""

from __future__ import annotations

import re
from collections.abc import Iterator

#: The last words of a traceback: a class, perhaps with its module, and a message. Log lines begin with a bracket.
_ERROR = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)(?::|$)")

#: Errors of which Celery logs the traceback when a connection is lost.
_CONNECTION_ERRORS = {
    "BrokenPipeError",
    "ConnectionError",
    "ConnectionRefusedError",
    "ConnectionResetError",
    "BusyLoadingError",
    "LeaseLost",
    "MasterNotFoundError",
    "OperationalError",
    "ReadOnlyError",
    "SlaveNotFoundError",
    "TimeoutError",
}


def strange_tracebacks(log: str) -> list[str]:
    """Return all tracebacks that do not end with a connection error."""
    return [text for name, text in _tracebacks(log) if name.rpartition(".")[2] not in _CONNECTION_ERRORS]


def _tracebacks(log: str) -> Iterator[tuple[str, str]]:
    """Yield the class of the error, and the text, of each traceback."""
    lines: list[str] | None = None
    for line in log.splitlines():
        if line.startswith("Traceback (most recent call last)"):
            lines = [line]
        elif lines is not None and (error := _ERROR.match(line)):
            yield error["name"], "\n".join([*lines, line])
            lines = None
        elif lines is not None:
            lines.append(line)
