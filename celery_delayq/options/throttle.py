"""Throttle: tasks with a key take turns, for the whole fleet of workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from celery.utils.time import rate

from celery_delayq.options.keyed import Keyed

_LONGEST_INTERVAL_S = 366 * 86400.0


@dataclass(frozen=True)
class Throttle(Keyed):
    """How often tasks with one key begin: for `@app.task(throttle=...)` or `apply_async(throttle=...)`.

    A task gets its turn when it is sent: it waits in the delayed queue until then.

    Attributes:
        rate: how many turns a key has, as in Celery's `rate_limit`: "10/m" are ten a minute, evenly spaced, so one each
            six seconds; "/s", "/m" and "/h" are known, and a number is for each second.
        by: the names of the arguments that make the key, together with the name of the task. By default, all tasks of
            that name share one key.
        key: the key itself, instead of `by`.

    Raises:
        TypeError: an argument has the wrong type, or both `by` and `key` were given.
        ValueError: an argument is wrong.
    """

    rate: str | float
    by: Sequence[str] = ()
    key: str | None = None

    def __post_init__(self) -> None:
        self._check_key(None if self.by == () else self.by)
        if not isinstance(self.rate, (str, int, float)):
            raise self._wrong(f"rate must be a number or a text, not {self.rate!r}", TypeError)
        if not 0 < self.interval_s <= _LONGEST_INTERVAL_S:
            raise self._wrong(
                "rate must be a number of turns a second, or a text such as '10/s', '10/m' or '10/h', "
                f"and more than one turn a year; not {self.rate!r}"
            )

    @property
    def interval_s(self) -> float:
        """How far apart the turns of a key are at least, in seconds.

        Source: Celery 5.7 `celery.utils.time.rate`.
        """
        try:
            a_second = float(rate(self.rate))
        except (TypeError, ValueError, KeyError, OverflowError):
            a_second = 0.0
        return 1 / a_second if 0 < a_second <= 1_000_000 else 0.0
