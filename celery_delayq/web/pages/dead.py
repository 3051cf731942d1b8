"""Dead letters: a page of those of a queue, and what can be done with some, or with all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from celery_delayq.inspector.bulk import Chunk
from celery_delayq.inspector.counts import count
from celery_delayq.inspector.letters import LetterCriteria, change_of, requeue
from celery_delayq.inspector.letters import count as count_letters
from celery_delayq.queue.dead_letter import FAILED, NOT_AN_ENTRY, REASONS, DeadLetter
from celery_delayq.queue.dead_letters import DeadLetters, DeadPage
from celery_delayq.web.access import Refusal
from celery_delayq.web.pages.filters import ids_of
from celery_delayq.web.pages.steps import (
    CHUNK,
    ask,
    done_with,
    is_about_all,
    is_confirmed,
    show_progress,
    so_far,
    values_of_request,
)
from celery_delayq.web.rendering import cut
from celery_delayq.web.request import Params, Response, encoded
from celery_delayq.web.view import Page, View

#: Letters on a page.
_LIMIT = 50

#: The most queues to choose from.
_OFFERED = 500


def row_of(letter: DeadLetter) -> dict[str, Any]:
    """Return what a page shows of a dead letter, by its headers alone."""
    headers = letter.headers
    return {
        "letter": letter,
        "task": headers.get("task"),
        "task_id": headers.get("id"),
        "args": headers.get("argsrepr"),
        "kwargs": headers.get("kwargsrepr"),
        "headers": headers,
        "can_requeue": letter.reason != NOT_AN_ENTRY,
    }


def _show(view: View, done: Mapping[str, object] | None = None) -> Response:
    """Show dead letters of the queue in the URL.

    Args:
        view: the request.
        done: what was done, see `steps.done_with`.
    """
    query = view.request.query
    with view.broker.inspector() as inspector:
        counts = count(inspector.lists, span=1, buckets=1, partial=True)
        dead = {queue.queue: queue.dead + queue.failed for queue in counts.queues}
        wanted = {one.queue: one.failed for one in counts.queues} if query.get("reason") == FAILED else dead
        queue = query.get("queue") or next((name for name, number in wanted.items() if number), next(iter(dead), ""))
        page, total, filters = DeadPage((), None), 0, _filters(query)
        is_away = queue in {lost.queue for lost in counts.lost.queues}
        if queue and not is_away:
            letters = inspector.dead_letters(queue)
            with values_of_request():
                criteria = _criteria_of(filters)
                page, total = letters.page(query.get("cursor") or None, _LIMIT, criteria.matches), len(letters)
    return view.page(
        "dead.html",
        queue=queue,
        filters=filters,
        reasons=REASONS,
        task_names=view.broker.task_names(),
        is_away=is_away,
        dead=_offered(dead),
        rows=[row_of(letter) for letter in page],
        total=total,
        cursor=page.cursor,
        lost=counts.lost,
        message=done,
        is_live=not done,
    )


def _filters(query: Params) -> dict[str, Any]:
    """Return which letters are selected, by the fields of the URL that are not empty."""
    return {name: value for name in ("reason", "task", "text") if (value := query.get(name))}


def _criteria_of(filters: Mapping[str, str]) -> LetterCriteria:
    """Return what the fields mean. The field of the task has a part of its name."""
    given: dict[str, Any] = dict(filters)
    part = given.pop("task", None)
    return replace(LetterCriteria.of(**given), task_part=part)


def _offered(dead: dict[str, int]) -> dict[str, int]:
    """Return the queues to choose from: those with dead letters first, if there are too many."""
    if len(dead) <= _OFFERED:
        return dead
    chosen = sorted(dead, key=lambda name: not dead[name])[:_OFFERED]
    return {name: dead[name] for name in sorted(chosen)}


def _act(view: View) -> Response:
    queue = view.request.query.get("queue")
    if not queue:
        raise Refusal(400, "The URL names no queue.")
    act = _act_on_all if is_about_all(view.request.form) else _act_on_some
    return act(view, view.request.form.get("action"), queue)


PAGE = Page("/dead", _show, dict.fromkeys(("dead.requeue", "dead.purge"), _act))


def _act_on_some(view: View, action: str, queue: str) -> Response:
    form = view.request.form
    ids = ids_of(form.all("letter"))
    if len(ids) > CHUNK:
        raise Refusal(400, "At most 1,000 dead letters can be selected at once.")
    with view.broker.inspector() as inspector:
        letters = inspector.dead_letters(queue)
        found = letters.find_many(ids)
        if not is_confirmed(form):
            return _ask(view, action, queue, found, len(ids))
        answers = {one: one in found and _change(action, letters, found[one]) for one in ids}
    return _show(view, done_with(view, f"{queue}: {', '.join(ids)}", answers))


def _change(action: str, letters: DeadLetters, letter: DeadLetter) -> bool:
    if action == "dead.purge":
        return bool(letters.purge(letter))
    return requeue(letters, letter)


def _ask(view: View, action: str, queue: str, found: dict[str, DeadLetter], number: int) -> Response:
    rows = [row_of(letter) for letter in found.values()]
    ngettext = view.language.ngettext
    notes = []
    if gone := number - len(found):
        notes.append(ngettext("%(number)s is no longer there.", "%(number)s are no longer there.", gone))
    if action == "dead.requeue" and (stuck := sum(not row["can_requeue"] for row in rows)):
        notes.append(
            ngettext(
                "%(number)s is not a message and cannot be requeued.",
                "%(number)s are not messages and cannot be requeued.",
                stuck,
            )
        )
    return ask(
        view,
        _back(queue),
        number=len(found),
        names=[cut(f"{row['letter'].id}  {row['letter'].reason}  {row['task'] or ''}", 200) for row in rows],
        notes=notes,
        fields=[("letter", letter_id) for letter_id in found],
        is_void=not found,
    )


def _act_on_all(view: View, action: str, queue: str) -> Response:
    form, filters = view.request.form, _filters(view.request.query)
    which = {name: cut(value, 200) for name, value in filters.items()}
    with view.broker.inspector() as inspector:
        letters = inspector.dead_letters(queue)
        if not is_confirmed(form):
            with values_of_request():
                criteria = _criteria_of(filters)
            found = count_letters(action.removeprefix("dead."), letters, criteria).changed if criteria else len(letters)
            return ask(
                view,
                _back(queue, filters),
                number=found,
                names=[
                    view._("All dead letters of queue %(queue)s", queue=queue),
                    *(f"{name}: {value}" for name, value in which.items()),
                ],
                notes=[view._("Those that arrive in the meantime are among them.")],
                fields=[("scope", "matching")],
            )
        total = so_far(form, "total") or len(letters)
        with values_of_request():
            change = change_of(action.removeprefix("dead."), letters, _criteria_of(filters))
            chunk = change(CHUNK, form.get("cursor") or None)
    done = Chunk(chunk.changed, chunk.refused, chunk.changed + chunk.refused, chunk.cursor)
    return show_progress(view, f"all of {queue} {which or ''}".strip(), done, total, _back(queue, filters))


def _back(queue: str, filters: Mapping[str, str] | None = None) -> str:
    return f"dead?{encoded({'queue': queue, **(filters or {})})}"
