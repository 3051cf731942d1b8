"""`celery -A app delayq export`, `import` and `release`: move waiting tasks out of a server and back."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from celery_delayq.basics.errors import InvalidExport
from celery_delayq.basics.text import plural
from celery_delayq.cli.broker import inspecting, queue_option
from celery_delayq.cli.command import command, confirm, json_option, yes_option
from celery_delayq.cli.output import print_json, progress
from celery_delayq.cli.plain import say
from celery_delayq.inspector import Inspector, backup
from celery_delayq.inspector.away import Lost, NodesAway
from celery_delayq.inspector.backup import File

#: File name that means standard input or output.
_STANDARD = "-"


@command("export")
@click.argument("file")
@click.option("-Q", "--queues", default="", metavar="QUEUE[,QUEUE]...", help="Export only tasks of these queues.")
@yes_option
@json_option
def export(ctx: click.Context, file: str, queues: str, yes: bool, as_json: bool) -> None:
    """Write all waiting tasks to FILE as JSON lines. `-` means standard output.

    The file appears only when it is complete. It contains task arguments, so only its owner can read it.
    """
    wanted = [queue for queue in map(str.strip, queues.split(",")) if queue]
    if queues and not wanted:
        raise click.UsageError("give -Q at least one queue")
    target: File = file
    if file == _STANDARD:
        if as_json:
            raise click.UsageError("cannot print a summary between the tasks: give a FILE, or leave out --json")
        target = sys.stdout.buffer
    elif Path(file).is_file():
        confirm(f"{file} exists. Replace it?", yes)
    with inspecting(ctx.obj.app) as inspector, progress("exporting") as on_progress:
        for queue in wanted:
            inspector.check_queue(queue)
        try:
            number = backup.export(inspector.lists, target, on_progress, queues=wanted)
        except NodesAway as exc:
            raise click.ClickException(f"{exc}. {_advice(inspector, exc.lost, wanted)}") from exc
        except OSError as exc:
            raise click.ClickException(f"cannot write {file}: {exc.strerror or exc}") from exc
    if as_json:
        print_json({"exported": number})
    else:
        say(f"{plural(number)} exported to {file}.", err=file == _STANDARD)


def _advice(inspector: Inspector, lost: Lost, wanted: Sequence[str]) -> str:
    """Return what to do about an export that would not be complete."""
    away = {queue.queue for queue in lost.queues}
    others = [queue for queue in wanted or inspector.queues() if queue not in away]
    advice = f", or export the queues that can be read: -Q {shlex.quote(','.join(others))}" if others else ""
    return f"The export would not be complete: run it again when the node or its replica answers{advice}"


@command("import")
@click.argument("file")
@json_option
def import_(ctx: click.Context, file: str, as_json: bool) -> None:
    """Store the tasks of an export FILE, so that they wait again. `-` means standard input.

    Tasks that wait already are not stored twice, so you can repeat this command.
    """
    source: File = sys.stdin.buffer if file == _STANDARD else file
    with inspecting(ctx.obj.app) as inspector, progress("importing") as on_progress:
        try:
            done = backup.import_(inspector.lists, source, on_progress)
        except InvalidExport as exc:
            rest = ". The lines before it were imported; importing them again does no harm" if exc.imported else ""
            raise click.ClickException(f"{exc}{rest}") from exc
        except OSError as exc:
            raise click.ClickException(f"cannot read {file}: {exc.strerror or exc}") from exc
    if as_json:
        print_json({"stored": done.stored, "waiting": done.waiting})
    else:
        say(f"{plural(done.stored)} stored, {done.waiting:,} already waiting.")


@command("release")
@queue_option("Release only tasks of this queue.")
@yes_option
@json_option
def release(ctx: click.Context, queue: str | None, yes: bool, as_json: bool) -> None:
    """Move all waiting tasks to their queues.

    This is the way back to stock Celery. The tasks keep their etas.

    First switch producers to redis://, because tasks that they still delay would not be moved. Then stop all workers:
    those with this package would delay the released tasks again, and stock workers would hold them in memory until they
    are due. Then run this command, and start the workers with the redis:// URL.
    """
    with inspecting(ctx.obj.app) as inspector:
        inspector.check_queue(queue)
        confirm("Stop all workers first: running workers delay released tasks again. Release the waiting tasks?", yes)
        with progress("releasing") as on_progress:
            done = backup.release(inspector.lists, queue, on_progress)
    if as_json:
        print_json({"released": done.released, "left": done.left})
    else:
        say(f"{plural(done.released)} released.")
    if done.left:
        say(
            f"{plural(done.left, 'message')} left waiting: not a Celery task, or delayed again by a running worker.",
            err=True,
        )
