"""Dead letters: a page of those of a queue, and what can be done with some, or with all."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from celery_delayq.basics.times import to_datetime
from celery_delayq.inspector.counts import count
from celery_delayq.queue.dead_letters import NOT_AN_ENTRY, DeadLetter, DeadLetters, DeadPage
from celery_delayq.transport import messages
from celery_delayq.transport.redelivery import revived
from celery_delayq.web.access import Refusal
from celery_delayq.web.pages.steps import CHUNK, Progress, Question, ask, is_confirmed, show_progress, so_far
from celery_delayq.web.rendering import cut
from celery_delayq.web.request import Response, encoded
from celery_delayq.web.view import Page, View

#: Letters on a page.
_LIMIT = 50

#: The most queues to choose from.
_OFFERED = 500

#: The most ids that an answer names.
_NAMED = 100


def row_of(letter: DeadLetter) -> dict[str, Any]:
    """Return what a page shows of a dead letter, by its headers alone."""
    headers = messages.headers_of(messages.decode(letter.message) or {})
    return {
        "letter": letter,
        "task": headers.get("task"),
        "task_id": headers.get("id"),
        "args": headers.get("argsrepr"),
        "kwargs": headers.get("kwargsrepr"),
        "headers": dict(sorted(headers.items(), key=lambda header: str(header[0]))),
        "at": to_datetime(letter.at_ms),
        "can_requeue": letter.reason != NOT_AN_ENTRY,
    }


def _show(view: View, message: Any = None, results: Sequence[tuple[str, bool]] = ()) -> Response:
    query = view.request.query
    with view.broker.inspector() as inspector:
        counts = count(inspector.lists, span=1, buckets=1, partial=True)
        dead = {queue.queue: queue.dead for queue in counts.queues}
        queue = query.get("queue") or next((name for name, number in dead.items() if number), "")
        page, total = DeadPage((), None), 0
        is_away = queue in {lost.queue for lost in counts.lost.queues}
        if queue and not is_away:
            letters = inspector.dead_letters(queue)
            try:
                page, total = letters.page(query.get("cursor") or None, _LIMIT), len(letters)
            except ValueError as exc:
                raise Refusal(400, str(exc)) from exc
    return view.page(
        "dead.html",
        queue=queue,
        is_away=is_away,
        dead=_offered(dead),
        rows=[row_of(letter) for letter in page],
        total=total,
        cursor=page.cursor,
        lost=counts.lost,
        message=message,
        results=results,
        is_live=not message,
    )


def _offered(dead: dict[str, int]) -> dict[str, int]:
    """Return the queues to choose from: those with dead letters first, if there are too many."""
    if len(dead) <= _OFFERED:
        return dead
    chosen = sorted(dead, key=lambda name: not dead[name])[:_OFFERED]
    return {name: dead[name] for name in sorted(chosen)}


def _requeue(view: View) -> Response:
    return _act(view, "dead.requeue")


def _purge(view: View) -> Response:
    return _act(view, "dead.purge")


PAGE = Page("/dead", _show, {"dead.requeue": _requeue, "dead.purge": _purge})


def _act(view: View, action: str) -> Response:
    queue = view.request.query.get("queue")
    if not queue:
        raise Refusal(400, "The URL names no queue.")
    is_all = view.request.form.get("scope") == "matching"
    return _act_on_all(view, action, queue) if is_all else _act_on_some(view, action, queue)


def _act_on_some(view: View, action: str, queue: str) -> Response:
    form = view.request.form
    ids = list(dict.fromkeys(form.all("letter")))
    if not ids:
        raise Refusal(400, "Nothing is selected. Go back, and select something.")
    if len(ids) > CHUNK:
        raise Refusal(400, "At most 1,000 dead letters can be selected at once.")
    with view.broker.inspector() as inspector:
        letters = inspector.dead_letters(queue)
        found = letters.find_many(ids)
        if not is_confirmed(form):
            return _ask(view, action, queue, found, len(ids))
        answers = {one: one in found and _change(action, letters, found[one]) for one in ids}
    changed = sum(answers.values())
    view.audit.record(action, f"{queue}: {', '.join(ids)}", changed, len(answers) - changed)
    return _show(view, _done(view, action, changed, len(answers) - changed), list(answers.items()))


def _change(action: str, letters: DeadLetters, letter: DeadLetter) -> bool:
    if action == "dead.purge":
        return bool(letters.purge(letter))
    return letter.reason != NOT_AN_ENTRY and letters.requeue(letter, revived(letter.message))


def _ask(view: View, action: str, queue: str, found: dict[str, DeadLetter], number: int) -> Response:
    rows = [row_of(letter) for letter in found.values()]
    notes = []
    if len(found) < number:
        notes.append(
            view.language.ngettext(
                "%(number)s is no longer there.", "%(number)s are no longer there.", number - len(found)
            )
        )
    if action == "dead.requeue" and (stuck := sum(not row["can_requeue"] for row in rows)):
        notes.append(_stuck(view, stuck))
    names = [cut(f"{row['letter'].id}  {row['letter'].reason}  {row['task'] or ''}", 200) for row in rows[:_NAMED]]
    return ask(
        view,
        Question(
            action,
            _title(view, action, len(found)),
            _button(view, action),
            _back(queue),
            names,
            notes,
            [("letter", letter_id) for letter_id in found],
            is_final=action == "dead.purge",
            is_void=not found,
        ),
    )


def _act_on_all(view: View, action: str, queue: str) -> Response:
    form = view.request.form
    with view.broker.inspector() as inspector:
        letters = inspector.dead_letters(queue)
        if not is_confirmed(form):
            total = len(letters)
            names = [view._("All dead letters of queue %(queue)s", queue=queue)]
            return ask(
                view,
                Question(
                    action,
                    _title(view, action, total),
                    _button(view, action),
                    _back(queue),
                    names,
                    [view._("Those that arrive in the meantime are among them.")],
                    [("scope", "matching")],
                    is_final=action == "dead.purge",
                ),
            )
        total = so_far(form, "total") or len(letters)
        change = letters.purge_some if action == "dead.purge" else partial(letters.requeue_some, revive=revived)
        try:
            chunk = change(CHUNK, form.get("cursor") or None)
        except ValueError as exc:
            raise Refusal(400, str(exc)) from exc
    view.audit.record(action, f"all of {queue}", chunk.changed, chunk.refused)
    changed, missed = so_far(form, "changed") + chunk.changed, so_far(form, "missed") + chunk.refused
    rest = None
    if chunk.cursor is not None:
        rest = {
            "action": action,
            "scope": "matching",
            "confirmed": "yes",
            "cursor": chunk.cursor,
            "total": total,
            "changed": changed,
            "missed": missed,
        }
    title, examined = _done(view, action, changed, missed), changed + missed
    return show_progress(view, Progress(title, _back(queue), examined, max(total, examined), rest))


# -- words


def _back(queue: str) -> str:
    return f"dead?{encoded({'queue': queue})}"


def _title(view: View, action: str, number: int) -> Any:
    ngettext = view.language.ngettext
    if action == "dead.purge":
        return ngettext("Delete %(number)s dead letter", "Delete %(number)s dead letters", number)
    return ngettext("Requeue %(number)s dead letter", "Requeue %(number)s dead letters", number)


def _button(view: View, action: str) -> Any:
    return view._("Delete for good") if action == "dead.purge" else view._("Requeue")


def _stuck(view: View, number: int) -> Any:
    return view.language.ngettext(
        "%(number)s is not a message and cannot be requeued.",
        "%(number)s are not messages and cannot be requeued.",
        number,
    )


def _done(view: View, action: str, changed: int, missed: int) -> Any:
    ngettext = view.language.ngettext
    if action == "dead.purge":
        done = ngettext("%(number)s dead letter deleted.", "%(number)s dead letters deleted.", changed)
    else:
        done = ngettext("%(number)s message requeued.", "%(number)s messages requeued.", changed)
    if not missed:
        return done
    left = ngettext("%(number)s was gone, or is not a message.", "%(number)s were gone, or are not messages.", missed)
    return view._("%(done)s %(late)s", done=done, late=left)
