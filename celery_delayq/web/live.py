"""LiveCache: open pages ask for their newer state every few seconds. All tabs of a process share one answer."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")

#: How many answers are kept.
_MOST = 100


@dataclass
class _Answer:
    lock: threading.Lock = field(default_factory=threading.Lock)
    made_at: float = float("-inf")
    found: Any = None
    failure: Exception | None = None
    failed_at: float = float("-inf")


class LiveCache(Generic[T]):
    """Answers to open pages. Threads may share it: of several that want the same answer, one makes it.

    Args:
        fresh_s: how long an answer is given again, in seconds.
    """

    def __init__(self, fresh_s: float) -> None:
        self._fresh_s = fresh_s
        self._lock = threading.Lock()
        self._answers: OrderedDict[Hashable, _Answer] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return an answer that is fresh; make it if there is none.

        Args:
            key: what the answer depends on.
            make: returns the answer. What it raises is raised, also for those who waited for it, and nothing is kept.
        """
        asked = time.monotonic()
        with self._lock:
            answer = self._answers.setdefault(key, _Answer())
            self._answers.move_to_end(key)
            while len(self._answers) > _MOST:
                self._answers.popitem(last=False)
        with answer.lock:
            begun = time.monotonic()
            if begun - answer.made_at >= self._fresh_s:
                if answer.failure is not None and answer.failed_at >= asked:
                    # Tried while this one waited. Each would wait for a server that hangs, one after the other.
                    raise answer.failure.with_traceback(None)
                try:
                    answer.found, answer.made_at, answer.failure = make(), begun, None
                except Exception as exc:
                    answer.failure, answer.failed_at = exc, time.monotonic()
                    raise
            found: T = answer.found
            return found

    def clear(self) -> None:
        """Forget all answers: something was changed."""
        with self._lock:
            self._answers.clear()
