"""A planner in a process of its own: `python -m tests.planner.lone_planner <broker> <ledger> <JSON of conf> <ms>`.

The third argument is further configuration of the app, such as its `beat_schedule`; the last one is how far the clock
is off. It plans until it is killed, as a worker of `tests.worker_app` would.
"""

from __future__ import annotations

import json
import sys
import threading
import time

from celery_delayq.schedule.service import planner_loop
from tests.worker_app import make_app


def main(broker: str, ledger: str, conf: str, clock_offset_ms: str) -> None:
    """Plan until the end."""
    real_time, offset_s = time.time, float(clock_offset_ms) / 1000
    time.time = lambda: real_time() + offset_s
    app = make_app(broker, ledger, **json.loads(conf))
    loop = planner_loop(app)
    loop.start()
    print("planning", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
