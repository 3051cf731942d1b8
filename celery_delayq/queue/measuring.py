"""The numbers of a broker list: what waits and is ready now, when it is due, and what was counted so far.

One typed function per Lua script, as in `scripts`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from celery_delayq.queue.call import Call, load
from celery_delayq.queue.connections import as_text
from celery_delayq.queue.keys import QueueKeys
from celery_delayq.queue.scripts import score_to_ms

#: How long sums stay, in seconds: over each step of seconds, in blocks of time of so many. One block is one key, small
#: enough for Redis to store it compactly.
HISTORY = {60: (8 * 3600, 600), 600: (72 * 3600, 7200)}

#: How long totals stay that do not change, in seconds.
TOTALS_S = 30 * 86400


def count(keys: QueueKeys, *, now_s: int, numbers: Mapping[str, int]) -> Call[int]:
    """Add numbers to the totals and the history of a queue; see `count.lua`. Returns how many.

    `now_s` is the server's time, unix time in s.
    """
    history = [(step_s, *HISTORY[step_s]) for step_s in HISTORY]
    return Call(
        load("count"),
        (keys.metrics, *(keys.history(step_s, now_s - now_s % block_s) for step_s, _, block_s in history)),
        (
            TOTALS_S,
            *(part for step_s, kept_s, block_s in history for part in (now_s - now_s % step_s, kept_s + block_s)),
            *(part for number in numbers.items() for part in number),
        ),
        int,
    )


@dataclass(frozen=True)
class Measured:
    """Numbers of one broker list.

    Attributes:
        now_ms: the time, unix time in ms.
        ready: messages on the list.
        delayed: waiting messages, overdue ones included.
        overdue: those that are due.
        head_due_ms: when the first one is due, unix time in ms; None if none waits.
        dead: dead letters.
        punctual: id of the loop that moved messages last; empty if there is none.
        leases: consumer -> when its lease ends, or has ended, unix time in ms; negated when it was given up.
        in_flight: consumer -> how many messages it holds; empty unless somebody has asked for that, too.
        due: how many messages are due within each span.
        totals: what was counted so far.
        failed: failed tasks that are kept.
    """

    now_ms: int
    ready: int = 0
    delayed: int = 0
    overdue: int = 0
    head_due_ms: int | None = None
    dead: int = 0
    punctual: str = ""
    leases: Mapping[str, float] = field(default_factory=dict)
    in_flight: dict[str, int] = field(default_factory=dict)
    due: tuple[int, ...] = ()
    totals: Mapping[str, int] = field(default_factory=dict)
    failed: int = 0

    @classmethod
    def of(cls, reply: Any) -> Measured:
        """Return what a reply says."""
        if len(reply) == 1:
            return cls(int(reply[0]))
        now, ready, delayed, overdue, head, dead, punctual, leases, due, totals, failed = reply
        return cls(
            int(now),
            ready,
            delayed,
            overdue,
            score_to_ms(head),
            dead,
            as_text(punctual).partition(":")[2],
            {as_text(name): float(score) for name, score in zip(leases[::2], leases[1::2], strict=True) if name},
            due=tuple(due),
            totals={as_text(what): int(n) for what, n in zip(totals[::2], totals[1::2], strict=True) if n.isdigit()},
            failed=failed,
        )


def measure(keys: QueueKeys, *, now_ms: int | None = None, spans_ms: Sequence[int] = ()) -> Call[Measured]:
    """Return the numbers of a list now, by default by the server's clock; see `measure.lua`."""
    names = (keys.queue, keys.timeout_set, keys.dead, keys.transferrer, keys.consumers, keys.metrics, keys.failed)
    return Call(load("measure"), names, ("" if now_ms is None else now_ms, *spans_ms), Measured.of)


def spread(keys: QueueKeys, *, edges_ms: Sequence[int]) -> Call[list[int]]:
    """Count entries by their due times; see `spread.lua`. Returns an empty list if none waits."""
    return Call(load("spread"), (keys.timeout_set,), edges_ms, list)
