"""`celery -A app delayq dead ...`: dead letters."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

import click
from rich.table import Table

from celery_delayq.basics.text import plural
from celery_delayq.cli.broker import complete_queue, inspecting
from celery_delayq.cli.command import (
    Decorator,
    body_option,
    command,
    confirm,
    json_option,
    page_options,
    several,
    usage_errors,
    yes_option,
)
from celery_delayq.cli.listing import check_task
from celery_delayq.cli.output import (
    NARROW,
    add_columns,
    fitting,
    least_width,
    new_table,
    print_details,
    print_json,
    print_rows,
    progress,
    say_changed,
    say_rest,
    short_name,
    text,
    tracked,
)
from celery_delayq.cli.plain import say, visible
from celery_delayq.cli.times import WHEN, at, shown
from celery_delayq.inspector import Inspector
from celery_delayq.inspector.letters import LetterCriteria, change_of, count
from celery_delayq.inspector.letters import requeue as requeue_letter
from celery_delayq.queue.dead_letter import FAILED, NOT_AN_ENTRY, REASONS, DeadLetter
from celery_delayq.queue.dead_letters import MAX_LETTERS, DeadChunk, DeadLetters
from celery_delayq.transport import messages

_queue_argument: Decorator = click.argument("queue", shell_complete=complete_queue)


#: The options that select messages; see `_criteria_of`.
_filters: Decorator = several(
    click.option("--reason", type=click.Choice(REASONS), help="Only those with this reason."),
    click.option("--task", help="Only tasks of this name."),
    click.option("--after", metavar="TIME", type=WHEN, help="Only dead letters of this time or later."),
    click.option("--before", metavar="TIME", type=WHEN, help="Only dead letters from before this time."),
    click.option("--text", help="Only those whose arguments or error contain this text."),
)

#: The arguments that select messages; see `_chosen`.
_choosing = several(
    _queue_argument,
    click.argument("ids", nargs=-1, metavar="[ID]..."),
    click.option("--all", "everything", is_flag=True, help="All dead letters of the queue."),
    _filters,
    click.option("--dry-run", is_flag=True, help="Only count the matching ones. Needs filters or --all."),
    json_option,
)


@click.group()
def dead() -> None:
    """Inspect, requeue and purge dead letters, and failed tasks that are kept.

    A dead letter is a message that was delivered too often, or that no worker can process.
    """


@command("list", dead)
@click.argument("queue", required=False, shell_complete=complete_queue)
@_filters
@page_options("dead letters")
@json_option
def list_(
    ctx: click.Context,
    queue: str | None,
    limit: int,
    cursor: str | None,
    everything: bool,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Show the dead letters of QUEUE: failed tasks last, the oldest first. Without QUEUE, show all, queue by queue."""
    left = math.inf if everything else limit
    is_empty = True
    with inspecting(ctx.obj.app) as inspector, usage_errors():
        letters, criteria = inspector.dead_letters(queue), _criteria_of(inspector, chosen)
        while left:
            page = letters.page(cursor, int(min(left, MAX_LETTERS)), criteria.matches)
            cursor = page.cursor
            left -= len(page)
            if len(page):
                is_empty = False
                for of_queue, rows in groupby(map(partial(_row, inspector), page), key=itemgetter("queue")):
                    some = list(rows)
                    print_rows(some, as_json, partial(table_of, some, title=None if queue else f"queue {of_queue}"))
            if cursor is None:
                break
        if is_empty:
            inspector.check_queue(queue)
        if is_empty and cursor is None:
            check_task(ctx.obj.app, criteria.task)
    if is_empty and not as_json:
        say(f"No {'matching ' if criteria else ''}dead letters{f' in queue {queue}' if queue else ''}.", err=True)
    say_rest(cursor, "dead letters", as_json)


def table_of(rows: Sequence[dict[str, Any]], width: int, title: str | None = None) -> Table:
    """Return a table for a console that is `width` columns wide. Ids are never folded, so they are easy to copy.

    From 100 columns on, no name and no word is cut: what does not fit is left out, and `show` has it.
    """
    if width < NARROW:
        return _table(rows, title, 5)
    table = fitting((_table(rows, title, left_out) for left_out in range(5)), width)
    table.min_width = least_width(table)
    return table


def _table(rows: Iterable[dict[str, Any]], title: str | None, left_out: int) -> Table:
    """Return a table that leaves out so much, one after the other: space; deliveries; times; modules; errors."""
    narrow = left_out >= 5
    table = new_table(title and visible(title), dense=left_out >= 1)
    add_columns(table, "id", "task id", firm=True)
    add_columns(table, "task", firm=not narrow)
    add_columns(table, "reason", firm=True)
    add_columns(table, *["error"][: not narrow])
    add_columns(table, *["deliveries"][: left_out < 2], right=True, firm=True)
    add_columns(table, *["dead since (UTC)"][: left_out < 3], firm=True)
    for row in rows:
        task = text(short_name(row["task"]) if left_out >= 4 else row["task"], one_line=narrow)
        since = shown(datetime.fromisoformat(row["at"]))[:-3]
        cells = [text(row["id"]), text(row["task_id"]), task, text(row["reason"])]
        cells += [text(row["error"] or "")][: not narrow]
        cells += [text(row["deliveries"])][: left_out < 2]
        cells += [text(since)][: left_out < 3]
        table.add_row(*cells)
    return table


@command("show", dead)
@_queue_argument
@click.argument("letter_id", metavar="ID")
@body_option
@json_option
def show(ctx: click.Context, queue: str, letter_id: str, with_body: bool, as_json: bool) -> None:
    """Show a dead letter of QUEUE in full. Nothing is unpickled."""
    with inspecting(ctx.obj.app) as inspector:
        (letter,) = _chosen(_letters(inspector, queue), queue, [letter_id])
        fields = {**_row(inspector, letter), "size": len(letter.message)}
    if letter.reason == FAILED:
        fields |= {"runs": letter.runs, "worker": letter.worker, "traceback": letter.traceback}
    if (message := messages.decode(letter.message)) is None:
        fields["message_base64"] = base64.b64encode(letter.message).decode()
    else:
        fields["headers"] = messages.headers_of(message)
        if with_body:
            fields["body"] = messages.json_body(message)
    print_details(fields, as_json)


def _row(inspector: Inspector, letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "queue": inspector.lists.parse(letter.list_name).queue,
        "list": letter.list_name,
        "task": letter.task,
        "task_id": letter.task_id,
        "reason": letter.reason,
        "error": letter.error,
        "deliveries": letter.deliveries,
        "at": letter.at.isoformat(timespec="seconds"),
    }


@command("requeue", dead)
@_choosing
def requeue(ctx: click.Context, queue: str, ids: tuple[str, ...], as_json: bool, **chosen: Any) -> None:
    """Move dead letters to the back of QUEUE, by IDs or filters. Deliveries and retries count from zero again."""
    with inspecting(ctx.obj.app) as inspector:
        criteria, dry_run = _checked(inspector, ids, **chosen)
        letters = _letters(inspector, queue)

        def put_back(letter: DeadLetter) -> bool:
            if letter.reason == NOT_AN_ENTRY:
                say(f"cannot requeue {letter.id}: it is not a message. To delete it, use `dead purge`", err=True)
            return requeue_letter(letters, letter)

        if ids:
            _change(ctx, "requeued", _chosen(letters, queue, ids), put_back, as_json)
        else:
            change = (_counting if dry_run else change_of)("requeue", letters, criteria)
            _change_all(ctx, "requeued", len(letters), change, as_json, task=criteria.task, dry_run=dry_run)


@command("purge", dead)
@_choosing
@yes_option
def purge(ctx: click.Context, queue: str, ids: tuple[str, ...], as_json: bool, yes: bool, **chosen: Any) -> None:
    """Delete dead letters of QUEUE for good, by IDs or filters."""
    with inspecting(ctx.obj.app) as inspector:
        criteria, dry_run = _checked(inspector, ids, **chosen)
        letters = _letters(inspector, queue)
        if ids:
            _change(ctx, "purged", _chosen(letters, queue, ids), lambda letter: bool(letters.purge(letter)), as_json)
            return
        counting = _counting("purge", letters, criteria)
        if not (dry_run or yes) and (number := counting().changed if criteria else len(letters)):
            confirm(f"Delete {plural(number, 'dead letter')} of {queue!r} for good?", yes)
        change = counting if dry_run else change_of("purge", letters, criteria)
        _change_all(ctx, "purged", len(letters), change, as_json, task=criteria.task, dry_run=dry_run)


def _criteria_of(inspector: Inspector, chosen: Mapping[str, Any]) -> LetterCriteria:
    """Return the criteria that the options of `_filters` stand for."""
    now_ms = inspector.lists.now_ms()
    with usage_errors():
        return LetterCriteria.of(**{**chosen, **{name: at(chosen[name], now_ms) for name in ("after", "before")}})


def _checked(
    inspector: Inspector, ids: tuple[str, ...], everything: bool, dry_run: bool, **chosen: Any
) -> tuple[LetterCriteria, bool]:
    """Return the criteria, and whether to count only; checks that just one of ids, `--all` and criteria was given."""
    criteria = _criteria_of(inspector, chosen)
    if bool(ids) + everything + bool(criteria) != 1:
        raise click.UsageError("give either ids from `dead list`, or options such as --task, or --all")
    if ids and dry_run:
        raise click.UsageError("--dry-run works only with filters or --all: to look at one, use `dead show QUEUE ID`")
    return criteria, dry_run


def _counting(action: str, letters: DeadLetters, criteria: LetterCriteria) -> Callable[..., DeadChunk]:
    def run(cursor: None = None) -> DeadChunk:
        with progress("counting") as on_progress:
            return count(action, letters, criteria, on_progress)

    return run


def _letters(inspector: Inspector, queue: str) -> DeadLetters:
    """Return the dead letters of a queue. A queue without any has to be known."""
    letters = inspector.dead_letters(queue)
    if not letters:
        inspector.check_queue(queue)
    return letters


def _chosen(letters: DeadLetters, queue: str, ids: Sequence[str]) -> list[DeadLetter]:
    """Return the dead letters with these ids."""
    found = letters.find_many(ids)
    if missing := sorted(set(ids) - set(found)):
        raise click.ClickException(
            f"no dead letter of {queue!r} has the id {', '.join(missing)}: `dead list` shows the ids, and "
            "`dead list --text` finds a task by its own id"
        )
    return list(found.values())


def _change(
    ctx: click.Context, done: str, found: list[DeadLetter], change: Callable[[DeadLetter], bool], as_json: bool
) -> None:
    """Change messages and say how many were changed."""
    answers = {letter.id: change(letter) for letter in tracked(found, done)}
    say_changed(ctx, answers, done, "message", as_json)


def _change_all(
    ctx: click.Context,
    done: str,
    total: int,
    change: Callable[..., DeadChunk],
    as_json: bool,
    *,
    task: str | None,
    dry_run: bool,
) -> None:
    """Change all dead letters that match, chunk by chunk. Exits with 1 if one was refused, or if there were none."""
    chunk, changed, refused = None, 0, 0
    with progress(done) as on_progress:
        while chunk is None or chunk.cursor is not None:
            chunk = change(cursor=chunk and chunk.cursor)
            changed += chunk.changed
            refused += chunk.refused
            on_progress(changed + refused, max(total, changed + refused))
    if refused:
        say(f"cannot requeue {plural(refused, 'dead letter')}: not a message. To delete it, use `dead purge`", err=True)
    if as_json:
        counts = {done: 0 if dry_run else changed, "refused": refused}
        print_json({**counts, "matched": changed + refused, "dry_run": dry_run})
    else:
        say(f"{plural(changed, 'message')} {'would be ' if dry_run else ''}{done}.")
    if not changed and not refused:
        check_task(ctx.obj.app, task)
    if refused or not changed:
        ctx.exit(1)
