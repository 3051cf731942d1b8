"""`celery -A app delayq pause` and `resume`: stop workers from fetching from a queue, and let them again."""

from __future__ import annotations

from collections.abc import Mapping

import click

from celery_delayq.cli.broker import complete_queue, inspecting
from celery_delayq.cli.command import command, json_option
from celery_delayq.cli.output import print_json
from celery_delayq.cli.plain import say

_queues = click.argument("queues", nargs=-1, required=True, metavar="QUEUE...", shell_complete=complete_queue)


@command("pause")
@_queues
@json_option
def pause(ctx: click.Context, queues: tuple[str, ...], as_json: bool) -> None:
    """Stop workers from fetching tasks from queues, until `resume`.

    This also holds for workers that start later. Tasks that a worker has already received still run. Delayed tasks
    still move to their queues when they are due. `status` shows which queues are paused.
    """
    with inspecting(ctx.obj.app) as inspector:
        answers = {queue: inspector.pause(queue) for queue in dict.fromkeys(queues)}
    _say(answers, "paused", "is already paused", as_json)


@command("resume")
@_queues
@json_option
def resume(ctx: click.Context, queues: tuple[str, ...], as_json: bool) -> None:
    """Let workers fetch from paused queues again."""
    with inspecting(ctx.obj.app) as inspector:
        answers = {queue: inspector.resume(queue) for queue in dict.fromkeys(queues)}
    _say(answers, "resumed", "is not paused", as_json)


def _say(answers: Mapping[str, bool], done: str, otherwise: str, as_json: bool) -> None:
    for queue, changed in answers.items():
        if as_json:
            print_json({"queue": queue, "done": changed})
        else:
            say(f"{queue}: {done if changed else otherwise}.")
