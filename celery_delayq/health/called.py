"""Whether `DelayQ(app)` was called."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery_delayq.basics.finding import Finding, Level, sentence
from celery_delayq.schemes.uncalled import NOT_CALLED, WHERE, NotCalled


def check_called(app: Any) -> Iterator[Finding]:
    """Yield that kombu refuses the broker URL of an app, because nothing has called `DelayQ(app)` or `register`.

    Commands know the URLs without it, so only before the first connection. It is never so for the app that Celery makes
    if nobody has made one: there is no module that could call it.
    """
    if is_fallback(app):
        return
    try:
        app.connection_for_write().get_transport_cls()
    except NotCalled:
        yield Finding(
            "settings",
            Level.ERROR,
            sentence(f"{NOT_CALLED}: workers and producers of this app fail"),
            f"{WHERE}: `delayq = DelayQ(app)`, after `from celery_delayq import DelayQ`.",
        )
    except (KeyError, ValueError):  # another wrong URL
        pass


def was_called(app: Any) -> bool:
    """Return whether `DelayQ(app)` was called, whatever the broker URL of the app is."""
    return any(str(step).startswith("celery_delayq.") for step in app.steps["consumer"])


def is_fallback(app: Any) -> bool:
    """Return whether an app is the one that `current_app` makes if nobody has made any.

    Source: Celery 5.7 `celery._state._get_current_app`.
    """
    return bool(app.main == "default" and not app.set_as_current)
