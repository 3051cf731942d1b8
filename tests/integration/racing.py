"""Take tasks back at the very moment at which they are due."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from datetime import datetime, timezone

from celery import Celery

#: So many tasks, 12 ms apart.
TASKS = 300


def take_back_when_due(app: Celery, take_back: Callable[[str], object], latest_s: float = 0.03) -> dict[str, float]:
    """Call `take_back` for many tasks, some ms before or after they are due; return all due times, by task id, in ms.

    On a busy machine it would come too late for some of them. Those are left alone, else it would be so for all.
    """
    start = time.time() + 6  # until all are published
    times = {str(uuid.uuid4()): start + number * 0.012 for number in range(TASKS)}
    app.delayq.apply_async_many(
        app.tasks["note"].s().set(eta=datetime.fromtimestamp(due, timezone.utc), task_id=task_id)
        for task_id, due in times.items()
    )
    when = {task_id: due + random.uniform(-latest_s, latest_s) for task_id, due in times.items()}
    for task_id in sorted(when, key=when.__getitem__):
        time.sleep(max(0, when[task_id] - time.time()))  # what the test is about
        if time.time() < when[task_id] + 0.01:
            take_back(task_id)
    return {task_id: due * 1000 for task_id, due in times.items()}
