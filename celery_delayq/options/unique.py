"""Unique: at most one task with a key waits, or waits and runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

from kombu.utils.json import dumps

from celery_delayq.basics.errors import ConfigurationError

#: How long a task holds its key.
For: TypeAlias = Literal["waiting", "until_start", "until_done"]

#: What happens to a task whose key another task holds.
OnConflict: TypeAlias = Literal["ignore", "replace", "extend", "raise"]

_FOR, _ON_CONFLICT = get_args(For), get_args(OnConflict)

_LONGEST_TTL_S = 366 * 86400.0


@dataclass(frozen=True)
class Unique:
    """What makes a task one of a kind: for `@app.task(unique=Unique(...))` or `apply_async(unique=Unique(...))`.

    Attributes:
        by: the names of the arguments that make the key, together with the name of the task. By default all of them.
        for_: how long a task holds its key: "waiting", until it is due; "until_start", until a worker begins it;
            "until_done", until it has succeeded or failed for good.
        ttl: how long the key outlives a task that has left its delayed queue, in seconds, if nobody gives it up: a
            worker of another program took the message, or the process that ran it was killed. A worker that has the
            task renews this time. It should be longer than tasks wait in a queue for a worker.
        on_conflict: what happens to a task whose key another task holds. "ignore": it is not sent, and its result is
            that of the other task. "replace": if the other task waits, it is removed, and this one takes its place. If
            that has begun already, both run. "extend": it is not sent, but the other one, if it waits, gets the later
            due time of the two. "raise": `KeyHeld` is raised.
        key: the key itself, instead of `by`.

    Raises:
        ConfigurationError: an argument is wrong.
    """

    by: Sequence[str] | None = None
    for_: For = "waiting"
    ttl: float = 3600.0
    on_conflict: OnConflict = "ignore"
    key: str | None = None

    def __post_init__(self) -> None:
        check_by_or_key("Unique", self.by, self.key)
        check("Unique", "for_", self.for_, _FOR)
        check_conflict(self.on_conflict)
        is_number = isinstance(self.ttl, (int, float)) and not isinstance(self.ttl, bool)
        if not is_number or not 0 < self.ttl <= _LONGEST_TTL_S:
            raise ConfigurationError(f"Unique: ttl must be seconds, more than 0 and at most a year, not {self.ttl!r}")

    def key_of(
        self, name: str, run: Callable[..., Any] | None, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
    ) -> str:
        """Return the key of a task.

        Args:
            name: of the task.
            run: its function; None if this process has only the name.
            args: positional arguments.
            kwargs: keyword arguments.

        Raises:
            ConfigurationError: it has no argument of a name in `by`, or what makes the key cannot become JSON.
        """
        if self.key is not None:
            return self.key
        return key_of("Unique", self.by, name, run, args, kwargs)


def key_of(
    what: str,
    by: Sequence[str] | None,
    name: str,
    run: Callable[..., Any] | None,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
) -> str:
    """Return a key that some arguments of a task make, together with its name.

    Args:
        what: what the key is for, in errors.
        by: the names of the arguments; None for all.
        name: of the task.
        run: its function; None if this process has only the name.
        args: positional arguments.
        kwargs: keyword arguments.

    Raises:
        ConfigurationError: it has no argument of a name in `by`, or what makes the key cannot become JSON.
    """
    given = _bound(run, args or (), kwargs or {})
    missing = [one for one in by or () if one not in given]
    if missing:
        raise ConfigurationError(
            f"{what}: task {name} has no argument {missing[0]!r}, but {', '.join(given) or 'none'}"
        )
    values = given if by is None else {one: given[one] for one in by}
    try:
        return f"{name}:{dumps(values, sort_keys=True)}"
    except (TypeError, ValueError) as exc:
        raise ConfigurationError(
            f"{what}: the arguments of task {name} that make its key cannot become JSON: {exc}. Name others in `by`, "
            "or give a key."
        ) from exc


def unique_for(given: Unique | str, default: Unique | None) -> Unique:
    """Return what makes a task one of a kind.

    Args:
        given: the option `unique`.
        default: that of the task, for what a key leaves open.

    Raises:
        ConfigurationError: the option is wrong.
    """
    if isinstance(given, str):
        return replace(default or Unique(), by=None, key=given)
    if not isinstance(given, Unique):
        raise ConfigurationError(f"unique must be a key or Unique(...), or None for no key, not {given!r}")
    return given


def _bound(run: Callable[..., Any] | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments by name. What is more, or has no name here, goes by its position."""
    if run is not None:
        try:
            bound = inspect.signature(run).bind_partial(*args, **kwargs)
        except (TypeError, ValueError):
            pass  # Celery says what is wrong with it
        else:
            bound.apply_defaults()
            return dict(bound.arguments)
    return {**{str(number): value for number, value in enumerate(args)}, **kwargs}


def check_by_or_key(what: str, by: object, key: object) -> None:
    """Refuse what cannot make a key, with a `ConfigurationError`."""
    if by is not None and not (isinstance(by, (list, tuple)) and all(isinstance(name, str) for name in by)):
        raise ConfigurationError(f"{what}: by must be the names of arguments, such as ('user_id',), not {by!r}")
    if by is not None and key is not None:
        raise ConfigurationError(f"{what}: give it either by or key")
    if key is not None:
        check_key(what, key)


def check_key(what: str, key: object) -> None:
    """Refuse what cannot be a key, with a `ConfigurationError`."""
    if not isinstance(key, str) or not key:
        raise ConfigurationError(f"{what}: key must be a text, not {key!r}")


def check(what: str, name: str, value: object, allowed: Sequence[str]) -> None:
    """Refuse a value that is not allowed, with a `ConfigurationError`."""
    if value not in allowed:
        raise ConfigurationError(f"{what}: {name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")


def check_conflict(on_conflict: object) -> None:
    """Refuse what is no `OnConflict`, with a `ConfigurationError`."""
    check("Unique", "on_conflict", on_conflict, _ON_CONFLICT)
