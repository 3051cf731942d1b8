"""Counters: what one process has counted, and what of it is already in Redis."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from celery_delayq.fetching.native import native_ident


class Counters:
    """Numbers that only grow, by list and by what was counted.

    Any thread may count, without a lock: each thread of the system has numbers of its own, which nobody else changes.
    Greenlets of one thread share them, and none is interrupted while it counts.
    """

    def __init__(self) -> None:
        #: Thread -> list and what -> number. A thread that ends leaves its numbers to the next one with its identifier.
        self._of_threads: dict[int, dict[tuple[str, str], int]] = {}
        #: List -> what -> what was settled.
        self._settled: dict[str, Counter[str]] = {}

    def add(self, name: str, what: str, number: int = 1) -> None:
        """Count something that happened to a list."""
        thread = native_ident()
        numbers = self._of_threads.get(thread)
        if numbers is None:
            numbers = self._of_threads[thread] = {}
        key = name, what
        numbers[key] = numbers.get(key, 0) + number

    def pending(self) -> dict[str, dict[str, int]]:
        """Return what was counted and not settled yet: list -> what -> number."""
        sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for numbers in list(self._of_threads.values()):
            for (name, what), number in numbers.copy().items():
                sums[name][what] += number
        # Copies: other threads may be settling what they have added to other lists.
        rest = {name: numbers - Counter(dict(self._settled.get(name, ()))) for name, numbers in sums.items()}
        return {name: dict(numbers) for name, numbers in rest.items() if numbers}

    def settle(self, name: str, numbers: Mapping[str, int]) -> None:
        """Record that numbers of a list need no longer be added anywhere. For one thread at a time for each list."""
        self._settled.setdefault(name, Counter()).update(numbers)
