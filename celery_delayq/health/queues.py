"""Whether somebody consumes what is ready, and whether messages were set aside."""

from __future__ import annotations

from collections.abc import Iterator

from celery_delayq.health.finding import Finding, Level, not_checked
from celery_delayq.health.waiting import AFTER_9999_MS, Waiting

_CHECK = "queues"


def check_queues(waiting: Waiting) -> Iterator[Finding]:
    """Yield the queues with ready messages that nobody consumes, dead letters, and entries that are never due."""
    unconsumed = {queue: count for queue, count in waiting.ready.items() if queue not in waiting.consumed}
    for queue, count in sorted(unconsumed.items()):
        messages = "1 message is" if count == 1 else f"{count:,} messages are"
        yield Finding(
            _CHECK,
            Level.WARNING,
            f"{messages} ready in queue {queue!r}, and nobody consumes it.",
            f"Start a worker for it: `celery -A ... worker -Q {queue}`. Stock workers, with redis://, do not count.",
        )
    for queue, count in sorted(waiting.dead.items()):
        letters = "is 1 dead letter" if count == 1 else f"are {count:,} dead letters"
        yield Finding(
            _CHECK,
            Level.WARNING,
            f"There {letters} in queue {queue!r}.",
            "`celery -A ... delayq dead list` shows why; `dead requeue` and `dead purge` remove them from there.",
        )
    for key, count in sorted(waiting.never.items()):
        entries = "1 entry is" if count == 1 else f"{count:,} entries are"
        yield Finding(
            _CHECK,
            Level.WARNING,
            f"{entries} due after the year 9999, or never: another program wrote them to {key!r}.",
            f"To remove them: `ZREMRANGEBYSCORE {key} {AFTER_9999_MS} +inf`.",
        )
    for queue, why in sorted(waiting.uncounted.items()):
        yield not_checked(_CHECK, f"queue {queue!r}: {why}")
    if not (unconsumed or waiting.dead or waiting.never or waiting.uncounted):
        yield Finding(_CHECK, Level.OK, "Each queue with ready messages has a consumer, and there are no dead letters.")
