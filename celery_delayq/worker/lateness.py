"""Lateness: an attribute of a task's span says how late the task began, if the app is traced with OpenTelemetry.

Without OpenTelemetry, nothing is connected. This package makes no spans of its own, and does not import OpenTelemetry:
if nobody has done that, there is no span.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from typing import Any

from celery import signals

from celery_delayq.basics.errors import InvalidEta
from celery_delayq.transport.eta import parse_eta

_TRACE = "opentelemetry.trace"

#: The attribute; its value is a float, in seconds.
ATTRIBUTE = "delayq.lateness"

#: What the worker adds to the `delivery_info` of a delayed task: by how much the server's clock is ahead of its own, in
#: seconds. Elsewhere in a request, Celery would take it for a header, and send it on with a retry.
_CLOCK = "delayq_clock"

#: What is kept in the request until its span is there.
_KEPT = "delayq_lateness"


def trace_lateness() -> None:
    """Let the processes that run tasks add the attribute. A second call does nothing."""
    if importlib.util.find_spec("opentelemetry") is not None:
        signals.task_prerun.connect(on_begin, dispatch_uid="celery_delayq.lateness.on_begin")
        signals.task_postrun.connect(on_end, dispatch_uid="celery_delayq.lateness.on_end")


def note_clock(request: Any, due_ms: float, early_s: float) -> None:
    """Tell the process that runs a task by which clock it is due; called when its worker receives it.

    Args:
        request: a `Request` of Celery's worker.
        due_ms: when it is due, unix time in ms.
        early_s: seconds until then by the server's clock; negative if it is past.
    """
    if _TRACE in sys.modules:
        request.delivery_info[_CLOCK] = due_ms / 1000 - early_s - time.time()


def on_begin(sender: Any, **kwargs: Any) -> None:
    """Add the attribute to the span, if the instrumentation has begun it already."""
    request = sender.request
    if not request.eta or _TRACE not in sys.modules:
        return
    try:
        due_ms = parse_eta(request.eta, sender.name)
    except InvalidEta:
        return
    lateness_s = time.time() + (request.delivery_info or {}).get(_CLOCK, 0.0) - due_ms / 1000
    if not _add(lateness_s):
        setattr(request, _KEPT, lateness_s)


def on_end(sender: Any, **kwargs: Any) -> None:
    """Add the attribute if the instrumentation began the span after `on_begin`: then it ends it after this, too.

    Receivers of a signal are called in the order in which they were connected.
    """
    lateness_s = sender.request.get(_KEPT)
    if lateness_s is not None:
        _add(lateness_s)


def _add(lateness_s: float) -> bool:
    """Add the attribute to the current span; returns whether there is a span that records."""
    trace: Any = sys.modules[_TRACE]
    span = trace.get_current_span()
    if not span.is_recording():
        return False
    span.set_attribute(ATTRIBUTE, lateness_s)
    return True
