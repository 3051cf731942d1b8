"""Task: Celery's, with the types of this package's options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import celery

if TYPE_CHECKING:
    from datetime import datetime

    from celery.result import AsyncResult

    from celery_delayq.options.throttle import Throttle
    from celery_delayq.options.unique import OnConflict, Unique

    class Result(AsyncResult):
        """Celery's result, with the attribute that `DelayQ(app)` gives it."""

        #: Whether the task was sent; False if the result is that of the task that holds its unique key.
        was_new: bool


class Task(celery.Task):
    """Celery's task class, for those who check types with celery-types: `Celery("shop", task_cls=Task)`.

    The stubs of celery-types refuse options that Celery does not know. This class is Celery's in all else.
    """

    if TYPE_CHECKING:

        def apply_async(
            self,
            args: tuple[Any, ...] | list[Any] | None = None,
            kwargs: Mapping[str, Any] | None = None,
            *positional: Any,
            countdown: float | None = None,
            eta: datetime | None = None,
            unique: Unique | str | None = None,
            on_conflict: OnConflict | None = None,
            throttle: Throttle | None = None,
            **options: Any,
        ) -> Result:
            """Send the task; see Celery, `Unique` and `Throttle`."""

        def delay(self, *args: Any, **kwargs: Any) -> Result:
            """Send the task; see Celery."""
