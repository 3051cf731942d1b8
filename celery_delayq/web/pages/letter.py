"""Letter: one dead letter in full. Nothing of it is unpickled."""

from __future__ import annotations

from celery_delayq.queue.dead_letter import DELIVERY_LIMIT, FAILED, INVALID_TASK, NOT_A_MESSAGE, NOT_AN_ENTRY
from celery_delayq.web.access import Refusal
from celery_delayq.web.pages.dead import row_of
from celery_delayq.web.pages.task import body_of
from celery_delayq.web.request import Response
from celery_delayq.web.view import Page, View
from celery_delayq.web.words import marked

#: What reasons mean.
_WHY = {
    DELIVERY_LIMIT: marked("It was delivered as often as the limit allows, and no worker acknowledged it."),
    NOT_A_MESSAGE: marked("It is not a message that a worker could read."),
    NOT_AN_ENTRY: marked("It is not an entry of a delayed queue: another program wrote it, or it was damaged."),
    INVALID_TASK: marked("No Celery worker can process it."),
    FAILED: marked("Its task failed. It runs again under its own id if it is requeued."),
}


def _show(view: View) -> Response:
    queue, letter_id = view.request.query.get("queue"), view.request.query.get("letter")
    if not queue or not letter_id:
        raise Refusal(400, "The URL names no dead letter.")
    with view.broker.inspector() as inspector:
        letter = inspector.dead_letters(queue).find(letter_id)
    if letter is None:
        return view.page("letter_gone.html", 404, queue=queue)
    why = _WHY.get(letter.reason)
    return view.page(
        "letter.html", queue=queue, row=row_of(letter), why=why and view._(why), body=body_of(letter.message)
    )


PAGE = Page("/letter", _show)
