"""`celery -A app delayq export`, `import` and `release`: ways of what waits out of a server and back."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from celery_delayq.cli.broker import check_queue, inspecting, queue_option
from celery_delayq.cli.command import command, confirm, json_option, plural, yes_option
from celery_delayq.cli.output import print_json, progress
from celery_delayq.cli.plain import say
from celery_delayq.errors import InvalidExport
from celery_delayq.inspector import backup
from celery_delayq.inspector.backup import File

#: Stands for standard input and output.
_STANDARD = "-"


@command("export")
@click.argument("file")
@yes_option
@json_option
def export(ctx: click.Context, file: str, yes: bool, as_json: bool) -> None:
    """Write all that waits to a FILE of JSON lines, `-` for standard output.

    The file is there when it is whole. It holds arguments of tasks: only its owner may read it.
    """
    target: File = file
    if file == _STANDARD:
        if as_json:
            raise click.UsageError("--json tells how many were written, which has no place beside the tasks")
        target = sys.stdout.buffer
    elif Path(file).is_file():
        confirm(f"{file} exists. Replace it?", yes)
    with inspecting(ctx.obj.app) as inspector, progress("exporting") as on_progress:
        try:
            number = backup.export(inspector.lists, target, on_progress)
        except OSError as exc:
            raise click.ClickException(f"cannot write {file}: {exc.strerror or exc}") from exc
    if as_json:
        print_json({"exported": number})
    else:
        say(f"{plural(number)} exported to {file}.", err=file == _STANDARD)


@command("import")
@click.argument("file")
@json_option
def import_(ctx: click.Context, file: str, as_json: bool) -> None:
    """Let what was exported to a FILE wait again, `-` for standard input.

    What waits already is not stored a second time, so this may be repeated.
    """
    source: File = sys.stdin.buffer if file == _STANDARD else file
    with inspecting(ctx.obj.app) as inspector, progress("importing") as on_progress:
        try:
            done = backup.import_(inspector.lists, source, on_progress)
        except InvalidExport as exc:
            raise click.ClickException(f"{exc}; what comes before is imported, and may be imported again") from exc
        except OSError as exc:
            raise click.ClickException(f"cannot read {file}: {exc.strerror or exc}") from exc
    if as_json:
        print_json({"stored": done.stored, "waiting": done.waiting})
    else:
        say(f"{plural(done.stored)} stored, {done.waiting:,} waited already.")


@command("release")
@queue_option("Only what waits for this queue.")
@yes_option
@json_option
def release(ctx: click.Context, queue: str | None, yes: bool, as_json: bool) -> None:
    """Move all that waits to the queues, each task with its eta: the way back to stock Celery.

    Stop all workers first: those with this package let what is released wait again, stock workers hold it in memory
    until it is due. Then run this, change the broker URL to redis://, and start the workers.
    """
    with inspecting(ctx.obj.app) as inspector:
        check_queue(inspector, queue)
        say("Stop all workers first: they let what they fetch of it wait again.", err=True)
        confirm("Release what waits?", yes)
        with progress("releasing") as on_progress:
            done = backup.release(inspector.lists, queue, on_progress)
    if as_json:
        print_json({"released": done.released, "left": done.left})
    else:
        say(f"{plural(done.released)} released.")
    if done.left:
        say(
            f"{plural(done.left, 'message')} still wait: they are no tasks and have no eta, or a worker that runs has "
            "taken them back.",
            err=True,
        )
