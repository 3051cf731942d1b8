"""Commands: in this process, where there are many of them; in a terminal of their own, where it matters."""

from __future__ import annotations

import fcntl
import inspect
import json
import logging
import os
import pty
import select
import struct
import subprocess
import termios
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_delayq import cli
from tests.workers import CeleryCommand

#: click before 8.2 mixes both streams unless it is told not to.
_APART: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    stdout: str
    stderr: str

    def json(self) -> list[dict[str, Any]]:
        """The lines, which must be JSON objects; the command must have succeeded."""
        assert self.code == 0, self
        return self.lines()

    def lines(self) -> list[dict[str, Any]]:
        """The lines, which must be JSON objects."""
        return [json.loads(line) for line in self.stdout.splitlines()]


Command = Callable[..., Done]


def run(app: Celery, *args: Any, input: bytes | None = None) -> Done:
    """Run `celery delayq ...` in this process, without a terminal."""
    context = CLIContext(app=app, no_color=True, workdir=None)
    logger = logging.getLogger("celery_delayq")
    level = logger.level
    try:
        result = CliRunner(**_APART).invoke(cli.delayq, [str(arg) for arg in args], obj=context, input=input)
    finally:
        logger.setLevel(level)  # `transfer` sets it
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Done(result.exit_code, result.stdout, result.stderr)


def is_wrong_use(done: Done, *words: str) -> None:
    """The command was used wrongly, and said so with these words."""
    assert done.code == 2, done
    message = " ".join(done.stderr.split())
    assert all(word in message for word in words), done.stderr


def failed(done: Done, *words: str) -> None:
    """The command failed, and said so in one line with these words."""
    assert done.code == 1, done
    (message,) = done.stderr.splitlines()
    assert message.startswith("Error: ")
    assert all(word in message for word in words), message


class TerminalCommand(CeleryCommand):
    """A `celery delayq ...` command in a terminal of its own, of 120 columns and 50 rows; see `CeleryCommand`."""

    def __init__(self, *arguments: str, **kwargs: Any) -> None:
        # The environment may say what the terminal of whoever runs the tests has.
        env = {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "50"}
        super().__init__("delayq", *arguments, env=env, **kwargs)
        self._seen = b""

    def __enter__(self) -> TerminalCommand:
        super().__enter__()
        return self

    def start(self) -> None:
        """Start the process."""
        self._terminal, its_end = pty.openpty()
        fcntl.ioctl(its_end, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 120, 0, 0))
        self._process = subprocess.Popen(
            self._command,
            cwd=self._folder.name,
            env=self._env,
            stdin=its_end,
            stdout=its_end,
            stderr=its_end,
            start_new_session=True,
        )
        os.close(its_end)

    def __exit__(self, *exc_info: object) -> None:
        super().__exit__(*exc_info)
        os.close(self._terminal)

    def type(self, text: str) -> None:
        """Send what somebody types."""
        os.write(self._terminal, text.encode())

    @property
    def log(self) -> str:
        """Everything the terminal showed so far."""
        try:
            while select.select([self._terminal], [], [], 0)[0]:
                if not (some := os.read(self._terminal, 65536)):
                    break
                self._seen += some
        except OSError:  # the process has ended
            pass
        return self._seen.decode(errors="replace")
