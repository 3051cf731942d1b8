"""Signals of this package, like those of Celery: `dead_letter.connect(function)`, or as a decorator."""

from __future__ import annotations

from celery.utils.dispatch import Signal

#: A message became a dead letter, or a failed task is kept, in this worker's sight. It is sent once for each, in the
#: main process of a worker, in a thread of its own: what is connected may take its time. If the worker is killed just
#: then, it is not sent.
#:
#: The sender is the app. Arguments: `queue`, the name of the queue; `reason`, see `DeadLetter`; `task` and `task_id`,
#: None if the message does not tell; `error` and `traceback`, text or None, see `DeadLetter`; `message`, its bytes,
#: empty for `not-an-entry`.
dead_letter = Signal(
    name="dead_letter", providing_args={"queue", "reason", "task", "task_id", "error", "traceback", "message"}
)
