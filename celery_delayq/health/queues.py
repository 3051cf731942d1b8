"""Whether somebody moves what becomes due, in time, and consumes what is ready; and whether messages were set aside."""

from __future__ import annotations

from collections.abc import Iterator

from celery_delayq.basics.text import plural
from celery_delayq.basics.times import AFTER_9999_MS
from celery_delayq.health.finding import Finding, error, not_checked, ok, warning
from celery_delayq.health.waiting import Waiting

_START = "Start a worker: `celery -A ... worker`; or only the transfer: `celery -A ... delayq transfer`."

#: They are what runs while nobody has moved in yet.
_STOCK = "Stock workers, with redis://, do not transfer."

#: In seconds. Above `LATE_S` a message is late: a loop that lost a notification is late by `delayq_transfer_interval`,
#: which is 5 s, at most. Above `BROKEN_S` no transfer loop works.
LATE_S, BROKEN_S = 10.0, 60.0


def check_transfer(waiting: Waiting) -> Iterator[Finding]:
    """Yield whether a transfer loop is there, and serves all queues in which messages wait.

    Subscriptions tell: a loop has them even if it has nothing to do.
    """
    if waiting.loops is None:
        yield not_checked("the user may not call PUBSUB NUMSUB")
    elif not waiting.loops:
        message = "Nobody transfers due messages: no transfer loop is subscribed."
        yield (error if waiting.has_messages else warning)(message, f"{_START} {_STOCK}")
    elif waiting.untransferred:
        names = ", ".join(map(repr, sorted(waiting.untransferred)))
        yield error(
            f"Nobody transfers the due messages of {names}: the transfer loops that are subscribed here are those of "
            "other databases.",
            _START,
        )
    else:
        yield ok(f"{plural(waiting.loops, 'transfer loop is', 'transfer loops are')} subscribed.")


def check_overdue(waiting: Waiting, *, most_s: float | None = None) -> Iterator[Finding]:
    """Yield how old overdue messages are.

    Args:
        waiting: what waits.
        most_s: the age in seconds from which on it is an error; by default `BROKEN_S`. If it is given, nothing is a
            warning.
    """
    late_s, broken_s = (LATE_S, BROKEN_S) if most_s is None else (most_s, most_s)
    late = {queue: found for queue, found in sorted(waiting.overdue.items()) if found[1] > late_s}
    for queue, (count, age_s) in late.items():
        yield (error if age_s > broken_s else warning)(
            f"{plural(count, 'message is', 'messages are')} overdue in queue {queue!r}, the oldest for {age_s:,.0f} s.",
            "See whether a transfer loop runs, and its log.",
        )
    for queue, why in sorted(waiting.refused.items()):
        if most_s is None:
            yield not_checked(f"queue {queue!r}: {why}")
        else:
            yield error(f"Cannot check queue {queue!r}: {why.rstrip('.')}.")
    if not (late or waiting.refused):
        yield ok(f"No message is overdue by more than {late_s:g} s.")


def check_queues(waiting: Waiting) -> Iterator[Finding]:
    """Yield the queues with ready messages that nobody consumes, dead letters, and entries that are never due."""
    unconsumed = {queue: count for queue, count in waiting.ready.items() if queue not in waiting.consumed}
    for queue, count in sorted(unconsumed.items()):
        yield warning(
            f"{plural(count, 'message is', 'messages are')} ready in queue {queue!r}, and nobody consumes it.",
            f"Start a worker for it: `celery -A ... worker -Q {queue}`. Stock workers, with redis://, do not count.",
        )
    for queue, count in sorted(waiting.dead.items()):
        yield warning(
            f"There {'is' if count == 1 else 'are'} {plural(count, 'dead letter')} in queue {queue!r}.",
            "`celery -A ... delayq dead list` shows why; `dead requeue` and `dead purge` remove them from there.",
        )
    for key, count in sorted(waiting.never.items()):
        entries = plural(count, "entry is", "entries are")
        yield warning(
            f"{entries} due after the year 9999, or never: another program wrote them to {key!r}.",
            f"To remove them: `ZREMRANGEBYSCORE {key} {AFTER_9999_MS} +inf`.",
        )
    for queue, why in sorted(waiting.uncounted.items()):
        yield not_checked(f"queue {queue!r}: {why}")
    if not (unconsumed or waiting.dead or waiting.never or waiting.uncounted):
        yield ok("Each queue with ready messages has a consumer, and there are no dead letters.")
