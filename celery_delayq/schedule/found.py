"""Found: an entry of another scheduler, for migration."""

from __future__ import annotations

from dataclasses import dataclass

from celery_delayq.basics.errors import InvalidSchedule
from celery_delayq.schedule.configured import CLEANUP, Configured
from celery_delayq.schedule.definition import Definition


@dataclass(frozen=True)
class Found:
    """An entry of another scheduler.

    Attributes:
        name: name of the entry.
        definition: its definition; None if it cannot be moved.
        problem: why it cannot be moved.
    """

    name: str
    definition: Definition | None
    problem: str = ""


def why_not(name: str, own: Configured, *, is_configured: bool = False) -> str:
    """Return why an entry need not be moved; empty if it must.

    Args:
        name: name of the entry.
        own: the entries in the configuration of the app.
        is_configured: whether the other scheduler has it from the configuration.
    """
    if name == CLEANUP:
        return "planners add it themselves if the result backend needs it"
    if is_configured or name in own.entries or name in own.errors:
        return "it is in the configuration"
    return ""


def require_json(definition: Definition) -> None:
    """Check that an entry can be stored.

    Raises:
        InvalidSchedule: its arguments or options are not JSON types.
    """
    if definition.data() is None:
        raise InvalidSchedule("its arguments or options are not JSON types")
