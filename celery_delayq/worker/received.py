"""The event `task-received` tells the eta of a delayed task, as a stock worker's does, although no worker waits for it.

Without an eta, monitors take the whole countdown for time in which all workers were busy.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

_EVENT = "task-received"


class TellsEta:
    """The part of an `EventDispatcher` that knows the eta of a task after its worker was told not to wait for it.

    Hook of Celery (5.6 and 5.7): `EventDispatcher.send`. A worker's strategies call it for each task that they receive.
    """

    #: Id and eta of the delayed task that is received just now.
    delayed: tuple[str, datetime] | None = None

    def send(self, type: str, *args: Any, **fields: Any) -> Any:
        """Send an event, see `EventDispatcher.send`."""
        if type == _EVENT and self.delayed is not None:
            task_id, eta = self.delayed
            self.delayed = None
            if fields.get("uuid") == task_id:
                fields["eta"] = eta.isoformat()
        return super().send(type, *args, **fields)  # type: ignore[misc]


def tell_eta(app: Any) -> None:
    """Let the dispatchers that an app makes from now on tell etas. A second call does nothing."""
    events = app.events
    made = events.Dispatcher
    if not issubclass(made, TellsEta):
        events.Dispatcher = type(made.__name__, (TellsEta, made), {"__module__": made.__module__})


def remember_eta(consumer: Any, request: Any, eta: datetime) -> None:
    """Remember the eta of a task until its event is sent: the signal `task_received` comes just before that."""
    dispatcher = getattr(consumer, "event_dispatcher", None)
    if isinstance(dispatcher, TellsEta):
        dispatcher.delayed = request.id, eta
