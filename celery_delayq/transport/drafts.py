"""Drafts: what Celery would publish, as Redis commands for a transaction of the caller's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery_delayq.transport.batch import collecting


def drafts(channel: Any, publish: Callable[[], object]) -> list[tuple[Any, ...]]:
    """Return one command for each message that `publish` publishes on a channel, and send nothing.

    Events are left out: they would tell of what may not happen.

    Args:
        channel: one of our transport.
        publish: called once.
    """
    with collecting(channel) as batch:
        publish()
        return [_prefixed(command, channel.global_keyprefix) for command in batch.commands() if command[0] != "publish"]


def _prefixed(command: tuple[Any, ...], keyprefix: str) -> tuple[Any, ...]:
    name, first, *rest = command
    return (name, f"{keyprefix}{first}", *rest) if name == "lpush" else command
