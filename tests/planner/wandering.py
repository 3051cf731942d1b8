"""Routes that change by the time: tasks go from queue to queue, and from node to node of a cluster."""

from __future__ import annotations

import time
from typing import Any

#: On all nodes.
QUEUES = ("blue", "green", "red")

#: So long a task stays in a queue, in seconds.
_STAY_S = 1.5


def route(name: str, args: Any, kwargs: Any, options: Any, **rest: Any) -> dict[str, str]:
    """Return where a task goes now. For Celery's `task_routes`."""
    return {"queue": QUEUES[int(time.time() / _STAY_S) % len(QUEUES)]}
