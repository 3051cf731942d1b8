"""Workers: the consumers, their leases, what they hold, and who moves due messages."""

from __future__ import annotations

from celery_delayq.basics.times import to_datetime, to_timedelta
from celery_delayq.inspector.consumers import consumers
from celery_delayq.web.request import Response
from celery_delayq.web.view import Page, View


def _show(view: View) -> Response:
    with view.broker.inspector() as inspector:
        found = consumers(inspector.lists, partial=True)
    return view.page(
        "workers.html",
        found=found,
        to_datetime=to_datetime,
        left_of=lambda ends_ms: to_timedelta(ends_ms - found.at_ms),
        is_live=True,
    )


PAGE = Page("/workers", _show)
