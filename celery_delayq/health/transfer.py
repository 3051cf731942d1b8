"""Whether somebody transfers due messages. Subscriptions tell: a loop has them even if it has nothing to do."""

from __future__ import annotations

from collections.abc import Iterator

from celery_delayq.health.finding import Finding, Level, not_checked
from celery_delayq.health.waiting import Waiting

_CHECK = "transfer"

_ADVICE = "Start a worker: `celery -A ... worker`; or only the transfer: `celery -A ... delayq transfer`."

#: They are what runs while nobody has moved in yet.
_STOCK = "Stock workers, with redis://, do not transfer."


def check_transfer(waiting: Waiting) -> Iterator[Finding]:
    """Yield whether a transfer loop is there, and serves all queues in which messages wait."""
    if waiting.loops is None:
        yield not_checked(_CHECK, "the user may not call PUBSUB NUMSUB")
    elif not waiting.loops:
        level = Level.ERROR if waiting.has_messages else Level.WARNING
        message = "Nobody transfers due messages: no transfer loop is subscribed."
        yield Finding(_CHECK, level, message, f"{_ADVICE} {_STOCK}")
    elif waiting.untransferred:
        names = ", ".join(map(repr, sorted(waiting.untransferred)))
        yield Finding(
            _CHECK,
            Level.ERROR,
            f"Nobody transfers the due messages of {names}: the transfer loops that are subscribed here are those of "
            "other databases.",
            _ADVICE,
        )
    else:
        loops = "1 transfer loop is" if waiting.loops == 1 else f"{waiting.loops} transfer loops are"
        yield Finding(_CHECK, Level.OK, f"{loops} subscribed.")
