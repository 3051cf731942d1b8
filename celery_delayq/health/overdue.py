"""Whether messages wait that should have been transferred long ago."""

from __future__ import annotations

from collections.abc import Iterator

from celery_delayq.health.finding import Finding, Level, not_checked
from celery_delayq.health.waiting import Waiting

_CHECK = "overdue"

#: In seconds. Above `LATE_S` a message is late: a loop that lost a notification is late by `delayq_transfer_interval`,
#: which is 5 s, at most. Above `BROKEN_S` no transfer loop works.
LATE_S, BROKEN_S = 10.0, 60.0


def check_overdue(waiting: Waiting, *, most_s: float | None = None) -> Iterator[Finding]:
    """Yield how old overdue messages are.

    Args:
        waiting: what waits.
        most_s: the age in seconds from which on it is an error; by default `BROKEN_S`. If it is given, nothing is a
            warning.
    """
    found = False
    late_s = LATE_S if most_s is None else most_s
    broken_s = BROKEN_S if most_s is None else most_s
    for queue, (count, age_s) in sorted(waiting.overdue.items()):
        if age_s <= late_s:
            continue
        found = True
        messages = "1 message is" if count == 1 else f"{count:,} messages are"
        yield Finding(
            _CHECK,
            Level.ERROR if age_s > broken_s else Level.WARNING,
            f"{messages} overdue in queue {queue!r}, the oldest for {age_s:,.0f} s.",
            "See whether a transfer loop runs, and its log.",
        )
    for queue, why in sorted(waiting.refused.items()):
        found = True
        if most_s is None:
            yield not_checked(_CHECK, f"queue {queue!r}: {why}")
        else:
            yield Finding(_CHECK, Level.ERROR, f"Cannot check queue {queue!r}: {why.rstrip('.')}.")
    if not found:
        yield Finding(_CHECK, Level.OK, f"No message is overdue by more than {late_s:g} s.")
