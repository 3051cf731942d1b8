"""Finding: what a check found, how bad it is, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial


class Level(str, Enum):
    """How bad a finding is. A level equals its word: `finding.level == "error"`."""

    OK = "ok"
    #: Nothing to do, or nothing that could be checked.
    NOTE = "note"
    #: Something may be lost, late or refused.
    WARNING = "warning"
    #: Something does not work.
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """What a check found.

    Attributes:
        check: name of the check.
        level: how bad it is.
        message: what is so, in whole sentences.
        advice: what to do, in whole sentences; empty if there is nothing to do. A command in it starts with
            `celery -A ...`.
        command: a command of Redis that the advice is about, in one line; empty if there is none.
        servers: names of the servers that this is about; empty if it is about none of them.
        was_checked: whether the check could be made.
    """

    check: str
    level: Level
    message: str
    advice: str = ""
    command: str = ""
    servers: tuple[str, ...] = ()
    was_checked: bool = True

    def told(self, of: int) -> str:
        """Return the message, with the names of the servers, unless it is about all of them or names them itself.

        Args:
            of: how many servers there are.
        """
        if len(self.servers) in (0, of) or all(name in self.message for name in self.servers):
            return self.message
        return f"{self.message} ({', '.join(self.servers)})"


#: Findings of a check of a server, by message, advice and command. `servers.examine` adds what they are about.
ok = partial(Finding, "", Level.OK)
note = partial(Finding, "", Level.NOTE)
warning = partial(Finding, "", Level.WARNING)
error = partial(Finding, "", Level.ERROR)


def not_checked(why: object, check: str = "") -> Finding:
    """Return the finding that a check could not be made."""
    return Finding(check, Level.NOTE, sentence(f"Not checked: {why}"), was_checked=False)


def sentence(text: str) -> str:
    """Return a text as a sentence: with a capital letter, unless it begins with a URL or the like, and with an end."""
    start = f"{text[:1].upper()}{text[1:]}" if text.partition(" ")[0].isalpha() else text
    return start if start.endswith((".", "?")) else f"{start}."


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Make one finding of those that differ only in their servers. All findings of a check stand together.

    So the output for a cluster is hardly longer than that for one server.
    """
    servers: dict[Finding, list[str]] = {}
    for finding in findings:
        servers.setdefault(replace(finding, servers=()), []).extend(finding.servers)
    places = {check: place for place, check in enumerate(dict.fromkeys(finding.check for finding in servers))}
    ordered = sorted(servers, key=lambda finding: places[finding.check])
    return [replace(finding, servers=tuple(servers[finding])) for finding in ordered]
