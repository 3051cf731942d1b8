"""Publishing: how many `apply_async(countdown=...)` a process makes per second."""

from __future__ import annotations

import time
from collections.abc import Callable

from examples.private_redis import PrivateRedis
from tests.benchmarks.figures import OURS, STOCK, Target, in_turns
from tests.benchmarks.report import Report
from tests.benchmarks.scale import Scale
from tests.benchmarks.shop import broker_url, make_app

_COUNTDOWN_S = 3600


def run(scale: Scale) -> Report:
    report = Report(
        f"publishing: apply_async(countdown={_COUNTDOWN_S}) in one process, "
        f"{scale.publish_rounds} turns of {scale.publish_calls} calls"
    )
    rate = report.figure("rate", "calls/s", target=Target(0.95, at_most=False, ratio=True))
    with PrivateRedis() as server:
        variants = {
            name: _publisher(broker_url(name, server.port, db), scale.publish_calls)
            for db, name in enumerate((STOCK, OURS))
        }
        in_turns(2, variants)  # connections, scripts and caches
        rate.samples = in_turns(scale.publish_rounds, variants)
    return report


def _publisher(broker: str, calls: int) -> Callable[[], float]:
    note = make_app(broker).tasks["note"]

    def publish() -> float:
        start = time.perf_counter()
        for number in range(calls):
            note.apply_async((number,), countdown=_COUNTDOWN_S)
        return calls / (time.perf_counter() - start)

    return publish
