"""Keyed: what makes the key of a task, which `Unique` and `Throttle` need."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kombu.utils.json import dumps


class Keyed:
    """The part of `Unique` and `Throttle` that makes the key.

    Attributes:
        by: the names of the arguments that make the key, together with the name of the task; None for all.
        key: the key itself, instead of `by`.
    """

    by: Sequence[str] | None
    key: str | None

    def _wrong(self, text: str, kind: type[Exception] = ValueError) -> Exception:
        return kind(f"{type(self).__name__}: {text}")

    def _check_key(self, by: Any) -> None:
        """Refuse what cannot make a key.

        Args:
            by: None if the user gave none.

        Raises:
            TypeError: it has the wrong type, or both were given.
            ValueError: the key is empty.
        """
        if by is not None and not (isinstance(by, (list, tuple)) and all(isinstance(name, str) for name in by)):
            raise self._wrong(f"by must be the names of arguments, such as ('user_id',), not {by!r}", TypeError)
        if by is not None and self.key is not None:
            raise self._wrong("give it either by or key", TypeError)
        if self.key is not None and (not isinstance(self.key, str) or not self.key):
            raise self._wrong(f"key must be a text, not {self.key!r}", ValueError if self.key == "" else TypeError)

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
            ValueError: it has no argument of a name in `by`.
            TypeError: what makes the key cannot become JSON.
        """
        if self.key is not None:
            return self.key
        given = _bound(run, args or (), kwargs or {})
        missing = [one for one in self.by or () if one not in given]
        if missing:
            raise self._wrong(f"task {name} has no argument {missing[0]!r}, but {', '.join(given) or 'none'}")
        values = given if self.by is None else {one: given[one] for one in self.by}
        try:
            return f"{name}:{dumps(values, sort_keys=True)}"
        except (TypeError, ValueError) as exc:
            raise self._wrong(
                f"the arguments of task {name} that make its key cannot become JSON: {exc}. Name others in `by`, or "
                "give a key.",
                TypeError,
            ) from exc


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
