"""Found: an entry of another scheduler, for migration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from redis.exceptions import ResponseError

from celery_delayq.basics.errors import InvalidSchedule
from celery_delayq.schedule.configured import CLEANUP, Configured
from celery_delayq.schedule.definition import Definition


@dataclass(frozen=True)
class Found:
    """An entry of another scheduler.

    Attributes:
        name: name of the entry.
        definition: its definition; None if it cannot be moved, or need not be.
        problem: why not.
    """

    name: str
    definition: Definition | None
    problem: str = ""


def found(name: str, own: Configured, define: Callable[[], Definition], *, is_configured: bool = False) -> Found:
    """Return an entry of another scheduler, with its definition or with the reason why it has none.

    Args:
        name: name of the entry.
        own: the entries in the configuration of the app.
        define: makes its definition from what the other scheduler has stored, which may be anything.
        is_configured: whether the other scheduler has it from the configuration.
    """
    if name == CLEANUP:
        return Found(name, None, "planners add it themselves if the result backend needs it")
    if is_configured or name in own.entries or name in own.errors:
        return Found(name, None, "it is in the configuration")
    try:
        definition = define()
        if definition.data() is None:
            raise InvalidSchedule("its arguments or options are not JSON types")
    except InvalidSchedule as exc:
        return Found(name, None, str(exc.__cause__ or exc))
    except (ResponseError, ValueError, TypeError, AttributeError, LookupError, OverflowError) as exc:
        return Found(name, None, f"cannot read its definition: {type(exc).__name__}: {exc}")
    return Found(name, definition)
