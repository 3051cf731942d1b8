"""Unique: at most one task with a key waits, or waits and runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal, TypeAlias, get_args

from celery_delayq.basics.times import seconds
from celery_delayq.options.keyed import Keyed

#: How long a task holds its key.
For: TypeAlias = Literal["waiting", "until_start", "until_done"]

#: What happens to a task whose key another task holds.
OnConflict: TypeAlias = Literal["ignore", "replace", "extend", "raise"]

_FOR, _ON_CONFLICT = get_args(For), get_args(OnConflict)

_LONGEST_S = 366 * 86400.0
_SPAN = "a number of seconds, or a timedelta"


@dataclass(frozen=True)
class Unique(Keyed):
    """What makes a task unique: for `@app.task(unique=Unique(...))` or `apply_async(unique=Unique(...))`.

    Attributes:
        by: the names of the arguments that make the key, together with the name of the task. By default all of them.
        for_: how long a task holds its key: "waiting", until it is due; "until_start", until a worker begins it;
            "until_done", until it has succeeded or failed for good.
        ttl: a timedelta, or seconds: how long the key outlives a task that has left its delayed queue, unless it is
            released: a worker of another program took the message, or the process that ran it was killed. A worker that
            has the task renews this time. It should be longer than tasks wait in a queue for a worker.
        period: a timedelta, or seconds: the task holds the key for so long since it was sent, whatever becomes of it,
            instead of `for_` and `ttl`. `on_conflict` is then "ignore" or "raise".
        on_conflict: what happens to a task whose key another task holds. "ignore": it is not sent, and its result is
            that of the other task. "replace": if the other task waits, it is removed, and this one takes its place. If
            that has begun already, both run. "extend": it is not sent, but the other one, if it waits, gets the later
            due time of the two. "raise": `KeyHeld` is raised.
        key: the key itself, instead of `by`.

    Raises:
        TypeError: an argument has the wrong type, or both of two that exclude each other were given.
        ValueError: an argument is wrong.
    """

    by: Sequence[str] | None = None
    for_: For = "waiting"
    ttl: float | timedelta = 3600.0
    on_conflict: OnConflict = "ignore"
    key: str | None = None
    period: float | timedelta | None = None

    def __post_init__(self) -> None:
        self._check_key(self.by)
        for name, value, allowed in (("for_", self.for_, _FOR), ("on_conflict", self.on_conflict, _ON_CONFLICT)):
            if value not in allowed:
                raise self._wrong(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")
        for name, span in (("ttl", self.ttl), ("period", self.period)):
            if (name, span) != ("period", None) and not 0 < seconds(_plain(span), name, _SPAN) <= _LONGEST_S:
                raise self._wrong(f"{name} must be more than 0 and at most a year, not {span!r}")
        if self.period is not None and (self.for_, self.ttl) != ("waiting", 3600.0):
            raise self._wrong("give it either a period, or for_ and ttl", TypeError)
        if self.period is not None and self.on_conflict not in ("ignore", "raise"):
            raise self._wrong(f'with a period, on_conflict must be "ignore" or "raise", not {self.on_conflict!r}')

    @property
    def lasts_s(self) -> float:
        """The period; without one, how long the key outlives its task; in seconds."""
        return float(_plain(self.ttl if self.period is None else self.period))


def _plain(span: Any) -> Any:
    return span.total_seconds() if isinstance(span, timedelta) else span


def unique_for(given: Unique | str, default: Unique | None) -> Unique:
    """Return what makes a task one of a kind.

    Args:
        given: the option `unique`.
        default: that of the task, for what a key leaves open.

    Raises:
        TypeError: the option is neither a key nor a `Unique`.
        ValueError: the key is empty.
    """
    if isinstance(given, str):
        return replace(default or Unique(), by=None, key=given)
    if not isinstance(given, Unique):
        raise TypeError(f"unique must be a key or Unique(...), or None for no key, not {given!r}")
    return given
