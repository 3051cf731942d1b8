"""Workers: the consumers, their leases, what they hold, and who moves due messages."""

from __future__ import annotations

from celery_delayq.inspector.consumers import consumers
from celery_delayq.web.request import Response
from celery_delayq.web.view import Page, View


def _show(view: View) -> Response:
    with view.broker.inspector() as inspector:
        found = consumers(inspector.lists, partial=True)
    return view.page(
        "workers.html",
        found=found,
        is_live=True,
    )


PAGE = Page("/workers", _show)
