"""Letter: one dead letter in full. Nothing of it is unpickled."""

from __future__ import annotations

from celery_delayq.web.access import Refusal
from celery_delayq.web.pages.dead import find, row_of
from celery_delayq.web.pages.task import body_of
from celery_delayq.web.request import Response
from celery_delayq.web.view import Page, View


def _show(view: View) -> Response:
    queue, key = view.request.query.get("queue"), view.request.query.get("letter")
    if not queue or not key:
        raise Refusal(400, "The URL names no dead letter.")
    with view.broker.inspector() as inspector:
        found = find(inspector, queue, key)
    if found is None:
        return view.page("letter_gone.html", 404, queue=queue)
    return view.page("letter.html", queue=queue, row=row_of(*found), body=body_of(found[1].message))


PAGE = Page("/letter", _show)
