"""Tasks that are published without a pause while something happens to the cluster, and what became of them."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.ledger import Ledger
from tests.support import wait_until


class Publishing:
    """Publishes to queues in turn, in a thread, for as long as the `with` block lasts; half of the tasks with a delay.

    Nothing is published twice. An error ends it, and is raised at the end of the block.

    Args:
        app: an app with the tasks of `tests.worker_app`.
        ledger: where they write that they ran.
        queues: the queues.
        pause_s: how long to pause between two tasks.
    """

    def __init__(self, app: Any, ledger: Ledger, queues: Sequence[str], pause_s: float = 0.005) -> None:
        self.ids: list[str] = []
        #: The longest that publishing one task took, in seconds.
        self.longest_s = 0.0
        self._app, self._ledger, self._queues, self._pause_s = app, ledger, queues, pause_s
        self._is_over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Publishing:
        self._thread.start()
        self.go_on()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_over.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "the publisher hangs"
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            for number, queue in enumerate(itertools.cycle(self._queues)):
                if self._is_over.wait(self._pause_s):
                    return
                countdown = 0.3 if number // len(self._queues) % 2 else None
                task_id, asked_at = str(uuid.uuid4()), time.monotonic()
                self._app.tasks["note"].apply_async(queue=queue, countdown=countdown, task_id=task_id, retry=False)
                self.longest_s = max(self.longest_s, time.monotonic() - asked_at)
                self.ids.append(task_id)
        except BaseException as exc:
            self._error = exc

    def go_on(self, count: int = 24) -> None:
        """Wait until so many more are published."""
        before = len(self.ids)
        wait_until(lambda: len(self.ids) >= before + count or self._error, "more is published", 60)

    def all_ran_once(self, *others: str) -> None:
        """Wait until all ran, and further tasks with these ids; fail if any ran twice, or others ran."""
        ids = {*self.ids, *others}
        wait_until(lambda: self._ledger.has(ids), "all ran", 60)
        runs = Counter(run.task_id for run in self._ledger.runs())
        assert {task_id: count for task_id, count in runs.items() if count > 1} == {}, "none ran twice"
        assert set(runs) == ids
