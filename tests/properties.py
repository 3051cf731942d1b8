"""Properties that hypothesis tries on a real server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hypothesis import HealthCheck, settings

Test = TypeVar("Test", bound=Callable[..., None])


def on_a_server(max_examples: int) -> Callable[[Test], Test]:
    """Decorate a property whose test has a fixture; it empties the server itself, and no example is too slow.

    With each kind of broker, pytest calls the method of another instance of the class; the instance has no state.
    """
    return settings(
        deadline=None,
        max_examples=max_examples,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    )
