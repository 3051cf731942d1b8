"""Transfer loops without Celery around them: many in this process, or one in a process that can be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import redis

from celery_delayq.queue.keeper import Keeper
from celery_delayq.queue.scripts import Transferred
from celery_delayq.transfer.loop import TransferLoop
from examples.private_redis import dying_with_us
from tests.support import wait_until

_SCRIPT = ("EVALSHA", "EVAL")

_REPOSITORY = Path(__file__).parents[2]


class Commands:
    """Counts the commands that all loops send; safe in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_kind: Counter[str] = Counter()

    def count(self, kind: str) -> None:
        with self._lock:
            self._by_kind[kind] += 1

    def total(self, kind: str) -> int:
        """Return how many there were: of periodic looks (`look`), or caused by messages (`message`)."""
        return self._by_kind[kind]


class Fleet:
    """Transfer loops in threads of this process, all of which have had a first look."""

    def __init__(self, port: int, size: int) -> None:
        self.commands = Commands()
        self.moved = 0
        self._lock = threading.Lock()
        self._started: set[int] = set()
        self._loops = [
            _CountedLoop(
                Keeper(lambda: _CountingRedis(self, port)),
                on_pass=lambda queue, seen, number=number: self._on_pass(number, seen),  # type: ignore[misc]
                id=f"loop-{number}",
            )
            for number in range(size)
        ]

    def __enter__(self) -> Fleet:
        for loop in self._loops:
            loop.start()
        try:
            wait_until(lambda: len(self._started) == len(self._loops), "all loops had a first look", 60)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        for loop in self._loops:
            loop.stop()

    def forget(self) -> None:
        """Forget what was counted."""
        self.commands, self.moved = Commands(), 0

    def _on_pass(self, number: int, seen: Transferred) -> None:
        with self._lock:
            self._started.add(number)
            self.moved += seen.moved


class _CountedLoop(TransferLoop):
    """Tells its client when it looks at its queues without being told; the script calls that follow belong to that."""

    def _look(self) -> None:
        client: Any = self._client
        client.looking = True
        super()._look()
        client.looking = any(served.is_to_be_looked_at for served in self._served)


class _CountingRedis(redis.Redis):
    """The client of one loop with one queue; it tells commands of a periodic look from those that messages cause."""

    def __init__(self, fleet: Fleet, port: int) -> None:
        super().__init__(host="127.0.0.1", port=port)
        self.looking = False
        self._fleet = fleet

    def execute_command(self, *args: Any, **options: Any) -> Any:
        self._fleet.commands.count("look" if self.looking else "message")
        if args[0] in _SCRIPT:
            self.looking = False
        return super().execute_command(*args, **options)


class LoneLoop:
    """A transfer loop in a process of its own, to be killed."""

    id = "lone"

    def __init__(self, port: int) -> None:
        command = [sys.executable, "-m", "tests.loop.lone_loop", str(port), self.id]
        self._process = subprocess.Popen(dying_with_us(command), cwd=_REPOSITORY, stdin=subprocess.DEVNULL)

    def __enter__(self) -> LoneLoop:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill it as a lost machine would; nothing if it is gone."""
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
