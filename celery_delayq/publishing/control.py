"""`app.control` of an app with DelayQ, which is made when it is first used: a producer does not need it."""

from __future__ import annotations

from functools import partial
from typing import Any

from kombu.utils.imports import symbol_by_name


def use_control(app: Any) -> None:
    """Give an app our `control`, even if it has already used its own. A second call does nothing."""
    if isinstance(app.control_cls, partial) and app.control_cls.func is make_control:
        return
    # A factory: it imports the app's own class only on demand, and the app can still be pickled.
    app.control_cls = partial(make_control, app.control_cls)
    app.__dict__.pop("control", None)


def make_control(base: Any, app: Any) -> Any:
    """Return the control of an app. Its own control class is `base`, given as a class or by name."""
    from celery.app.control import Control

    from celery_delayq.publishing.broadcast import DelayqControl

    base = symbol_by_name(base)
    if base is Control:
        return DelayqControl(app=app)
    return type(base.__name__, (DelayqControl, base), {"__module__": base.__module__})(app=app)
