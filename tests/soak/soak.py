"""One run: a fault strikes a scene again and again; then everything is brought to an end, and judged."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tests.soak.faults import Fault
from tests.soak.scene import Scene
from tests.soak.verdict import Verdict

#: What is not there after so long, in seconds, is lost. Stock restores every 10 s what is older than its timeout.
_DRAIN_S, _STOCK_DRAIN_S = 60.0, 90.0

#: It runs so long before the first strike, and after the last one.
_CALM_S = 1.0


@dataclass(frozen=True)
class Result:
    """What came of a run.

    Attributes:
        name: of what was done.
        strikes: how often.
        verdict: what became of the tasks.
        complaints: what else is wrong, in words.
        errors: what publishers were told: each error once.
        traces: of tasks that were lost, or ran twice without need: what is known of them, and what was done when.
        may_lose: whether tasks may be lost.
    """

    name: str
    strikes: int
    verdict: Verdict
    complaints: list[str]
    errors: list[str] = field(default_factory=list)
    traces: list[str] = field(default_factory=list)
    may_lose: bool = False

    @property
    def is_well(self) -> bool:
        """Whether nothing is wrong."""
        lost = not self.may_lose and self.verdict.lost
        return not (lost or self.verdict.unexplained or self.verdict.early or self.complaints)


def run(
    fault: Fault,
    seconds: float | None = None,
    *,
    is_stock: bool = False,
    pool: str | None = None,
    on_strike: Callable[[int], None] = lambda number: None,
) -> Result:
    """Let a fault strike for some seconds, at least once.

    Args:
        fault: which.
        seconds: how long to publish, as the fault says by default.
        is_stock: with stock Celery.
        pool: another pool than the fault's.
        on_strike: called with the number of the strike, from 0 on.
    """
    setting = replace(fault.setting, is_stock=is_stock, pool=pool or fault.setting.pool)
    with fault.scene(setting) as scene:
        end = time.monotonic() + (fault.seconds if seconds is None else seconds)
        strikes = 0
        time.sleep(_CALM_S)
        next_s = time.monotonic()
        while not strikes or next_s + _CALM_S < end:
            time.sleep(max(0.0, next_s - time.monotonic()))
            on_strike(strikes)
            fault.strike(scene, strikes)
            strikes += 1
            next_s = max(next_s + fault.every_s, time.monotonic())
        time.sleep(max(_CALM_S, end - time.monotonic()))
        scene.drain(_STOCK_DRAIN_S if is_stock else _DRAIN_S, may_lose=fault.may_lose and not is_stock)
        bad = scene.verdict()
        traces = scene.traces((set() if fault.may_lose else bad.lost) | bad.unexplained)
        complaints = [*scene.complaints(), *_too_late(fault, scene, bad)]
        tracebacks = scene.stop_workers()
        if not fault.logs_errors:
            complaints += tracebacks
        complaints += [f"a key is left: {key}" for key in scene.leftovers()]
        errors = sorted({booking.error for booking in scene.publisher.bookings} - {""})
        if traces or complaints:
            traces += scene.history
        return Result(fault.name, strikes, scene.verdict(), complaints, errors, traces, fault.may_lose)


def _too_late(fault: Fault, scene: Scene, verdict: Verdict) -> list[str]:
    if fault.latest_s is None or verdict.most_late_s <= fault.latest_s + scene.absent_s:
        return []
    return [f"a task began {verdict.most_late_s:.1f} s late, though there was a worker after {scene.absent_s:.1f} s"]
