"""Task: one waiting or ready task in full. Nothing of it is unpickled."""

from __future__ import annotations

from typing import Any

from celery_delayq.transport import messages
from celery_delayq.web.access import Refusal
from celery_delayq.web.pages.filters import LONGEST_ID, id_key
from celery_delayq.web.request import Response
from celery_delayq.web.view import Page, View

#: The most bytes of a body that are read and shown.
_MOST_BODY = 20_000


def _show(view: View) -> Response:
    task_id = view.request.query.get("id")
    if not task_id:
        raise Refusal(400, "The URL names no task.")
    ready = view.request.query.get("ready") == "yes"
    with view.broker.inspector() as inspector:
        task = inspector.get([task_id], ready=ready)[task_id]
        node = None if task is None else inspector.lists.node_of(inspector.lists.parse(task.broker_list))
    if task is None:
        return view.page("task_gone.html", 404, task_id=task_id, ready=ready)
    return view.page(
        "task.html",
        task=task,
        node=node,
        body=body_of(task.entry.payload),
        headers=task.headers,
        id_key=id_key(task_id),
        can_act=len(task_id) <= LONGEST_ID,
        is_live=not ready,  # it takes a search of the queues
    )


def body_of(payload: bytes) -> tuple[str, Any]:
    """Return what a message's body is, and the body.

    Returns:
        "json" with its data; "long", "other" with its text as it is stored (base64 or whatever its producer wrote);
        or "raw" with the bytes of a payload that is no message, as text.
    """
    if len(payload) > _MOST_BODY:
        return "long", len(payload)
    message = messages.decode(payload)
    if message is None:
        return "raw", payload.decode("utf-8", "backslashreplace")
    found = messages.json_body(message)
    return ("other", str(message.get("body"))) if found is None else ("json", found)


PAGE = Page("/task", _show)
