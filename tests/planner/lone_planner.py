"""A planner in a process of its own: `python -m tests.planner.lone_planner <broker> <JSON of beat_schedule> <ms>`.

The last argument is how far its clock is off. It plans until it is killed, as a worker of `tests.worker_app` would.
"""

from __future__ import annotations

import json
import sys
import threading
import time

from celery_delayq.schedule.service import planner_loop
from tests.worker_app import make_app


def main(broker: str, schedule: str, clock_offset_ms: str) -> None:
    """Plan until the end."""
    real_time, offset_s = time.time, float(clock_offset_ms) / 1000
    time.time = lambda: real_time() + offset_s
    app = make_app(broker, broker.replace("delayq", "redis", 1), beat_schedule=json.loads(schedule))
    loop = planner_loop(app)
    loop.start()
    print("planning", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
