"""Writes the reference from docstrings and from the options of commands: `make reference`.

The pages are in the repository, so that GitHub shows all of them, too. A test tells if they are not up to date.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

FOLDER = Path(__file__).parent / "reference"

sys.path.insert(0, str(FOLDER.parents[1]))  # the package beside it, not one that is installed

import celery_delayq  # noqa: E402
from celery_delayq.cli import delayq  # noqa: E402
from celery_delayq.inspector import away, consumers, counts, histogram, history  # noqa: E402

#: Heading -> the public names below it. A test tells if one is missing.
GROUPS = {
    "The object that you call": ("DelayQ", "register"),
    "Options of tasks": ("Task", "Unique", "Throttle"),
    "Waiting tasks": (
        *("ScheduledTask", "Page", "Counts", "Histogram", "History", "Finding"),
        *("Chunk", "Consumers", "Imported", "Released"),
    ),
    "Periodic tasks": ("Schedule", "PeriodicTask"),
    "Without Celery": ("DelayedQueue", "Entry"),
    "Dead letters": ("DeadLetters", "DeadLetter", "DeadPage", "DeadChunk"),
    "Errors": (
        *("DelayqError", "ConfigurationError", "DeliveryLimitReached", "EntryExists", "InvalidEntry", "InvalidEta"),
        *("InvalidExport", "InvalidSchedule", "KeyHeld", "LeaseLost", "NaiveEtaWarning", "NotAllSent"),
        *("NotReplicated", "UnknownEntry", "UnknownQueue", "UnknownTask", "UnsupportedServer"),
    ),
}

#: Classes that you make yourself. You get the others from calls.
MADE = {"DelayQ", "Unique", "Throttle", "DelayedQueue", "DeadLetters"}

#: Classes of the items in a result: they have no public name, and are described below the class that has them.
ITEMS = {
    "Counts": (counts.QueueCounts, histogram.Bucket, away.Lost, away.LostQueue),
    "History": (history.Point,),
    "Consumers": (consumers.Consumer, consumers.Lease),
}

_API = """\
# Python API

The public names of `celery_delayq`, from their docstrings. `make reference` writes this page.
"""

_WITHOUT_CELERY = """\
`DelayedQueue` delays any bytes without Celery. A Java application can use the same queue as an `RDelayedQueue` with
[`ByteArrayCodec`](../redisson.md#celery-offers-java-takes).

```python
import redis
from celery_delayq import DelayedQueue

queue = DelayedQueue(redis.Redis(), "jobs")
job_id = queue.offer(b"any bytes", countdown=1.5)
queue.cancel(job_id)  # how many entries were removed
queue.offer(b"more bytes", countdown=0.2)
queue.take(timeout=5)  # b"more bytes", when it is due
```
"""

_COMMANDS = """\
# All commands and their options

`make reference` writes this page from the commands. [The command line](../cli.md) shows how to use them, and describes
exit codes and JSON. Each command has `--help`.
"""

_SECTION = re.compile(r"(Args|Attributes|Returns|Yields|Raises):")
_ARGS = re.compile(r"\n\nArgs:\n.*?(?=\n\n\S|\Z)", re.DOTALL)
_ITEM = re.compile(r"([\w.*, ]+): (.*)", re.DOTALL)


def api() -> str:
    """Return the page of the public classes, functions and errors."""
    parts = [_API, "\n".join(f"- {heading}: {', '.join(map(_link, names))}" for heading, names in GROUPS.items())]
    for heading, names in GROUPS.items():
        parts.append(f"## {heading}")
        if heading == "Without Celery":
            parts.append(_WITHOUT_CELERY)
        for name in names:
            parts += _entry(name, getattr(celery_delayq, name))
            for item in ITEMS.get(name, ()):
                parts += _entry(item.__name__, item)
    return _page(parts)


def commands() -> str:
    """Return the page of all commands."""
    return _page([_COMMANDS, *_command(delayq, "celery -A shop delayq")])


def _page(parts: list[str]) -> str:
    return "\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n"


def _link(name: str) -> str:
    return f"[`{name}`](#{name.lower()})"


def _entry(name: str, what: Any) -> Iterator[str]:
    """Yield the parts about a public name, or about an item of a result."""
    yield f"### {name}"
    doc = inspect.getdoc(what) or ""
    if name in MADE or inspect.isfunction(what):
        yield _signature(name, what)
    else:
        doc = _ARGS.sub("", doc)
    yield _markdown(doc)
    for member, value in _members(what):
        yield f"#### {name}.{member}"
        function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        if inspect.isfunction(function):
            yield _signature(member, getattr(what, member))
        yield _markdown(inspect.getdoc(function) or "")


def _members(kind: Any) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of a class of ours, without the coroutines of other methods."""
    found: dict[str, Any] = {}
    for base in getattr(kind, "__mro__", ()):
        if base.__module__.startswith("celery_delayq."):
            for name, value in vars(base).items():
                found.setdefault(name, value)
    for name, value in found.items():
        if name.startswith("_") or (name[0] == "a" and name[1:] in found):
            continue
        if inspect.isroutine(value) or isinstance(value, property):
            yield name, value


def _signature(name: str, function: Any) -> str:
    """Return how something is called, as a block of code: on one line, if that fits."""
    signature = inspect.signature(function)
    parameters = [one for one in signature.parameters.values() if one.name not in ("self", "cls")]
    texts = []
    for before, one in zip([None, *parameters], parameters, strict=False):
        if one.kind is one.KEYWORD_ONLY and (before is None or before.kind is one.POSITIONAL_OR_KEYWORD):
            texts.append("*")
        texts.append(_parameter(one))
    returns = "" if inspect.isclass(function) else f" -> {signature.return_annotation}"
    line = f"{name}({', '.join(texts)}){returns}"
    if len(line) > 100:
        line = f"{name}(\n" + "".join(f"    {text},\n" for text in texts) + f"){returns}"
    return f"```py\n{line}\n```"


def _parameter(one: inspect.Parameter) -> str:
    stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
    text = f"{stars}{one.name}: {one.annotation}"
    if one.default is one.empty:
        return text
    default = repr(one.default)
    return f"{text} = {'...' if default.startswith('<') else default}"


def _markdown(doc: str) -> str:
    """Return a docstring as Markdown: its sections as lists, and what follows `::` as code."""
    parts: list[str] = []
    section = ""
    for block in re.split(r"\n{2,}(?=\S)", doc):
        match = _SECTION.match(block)
        if match:
            section, body = match[1], inspect.cleandoc(block[match.end() :])
            parts.append(
                f"**{section}**" if section in ("Args", "Attributes", "Raises") else f"**{section}:** {_flow(body)}"
            )
            if section in ("Args", "Attributes", "Raises"):
                parts.append("\n".join(_item(item) for item in re.split(r"\n(?=\S)", body)))
        elif "::\n\n" in block:
            text, _, code = block.partition("::\n\n")
            parts += [f"{_flow(text)}:", "```py\n" + inspect.cleandoc(code) + "\n```"]
        else:
            parts.append(_flow(block))
    return "\n\n".join(parts)


def _item(text: str) -> str:
    match = _ITEM.match(text)
    return f"- `{match[1]}`: {_flow(match[2])}" if match else f"- {_flow(text)}"


def _flow(text: str) -> str:
    """Return text on one line, but lists item by item."""
    items = re.split(r"\n(?=[-*] )", text)
    return "\n".join(" ".join(item.split()) for item in items)


def _command(command: click.Command, path: str) -> Iterator[str]:
    """Yield the parts about a command, and about those below it."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        names = command.list_commands(context)
        if path.endswith("delayq"):
            yield "\n".join(f"- [`{name}`](#{name})" for name in names)
        else:
            yield f"## {path.rpartition(' delayq ')[2]}"
            yield _flow(command.help or "")
        for name in names:
            below = command.get_command(context, name)
            assert below is not None
            yield from _command(below, f"{path} {name}")
        return
    words = path.rpartition(" delayq ")[2]
    yield f"{'###' if ' ' in words else '##'} {words}"
    arguments = [one for one in command.params if isinstance(one, click.Argument)]
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    yield f"    {path} [OPTIONS] {' '.join(map(_argument, arguments))}".rstrip()
    yield "\n\n".join(map(_flow, re.split(r"\n\s*\n", inspect.cleandoc(command.help or ""))))
    if options:
        yield "| option | meaning |\n|---|---|\n" + "\n".join(map(_option, options))


def _argument(one: click.Argument) -> str:
    if one.metavar:
        return one.metavar
    name = str(one.name).upper()
    return (name if one.required else f"[{name}]") + ("..." if one.nargs == -1 else "")


def _option(one: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts))
    wants = "" if one.is_flag else f" {one.metavar or _type(one.type)}"
    default = f" Default: {one.default}." if one.show_default and not one.is_flag else ""
    text = _flow(one.help or "").replace("|", r"\|")
    return f"| {names}{wants} | {text}{default}{' Required.' if one.required else ''} |"


def _type(kind: Any) -> str:
    if isinstance(kind, click.Choice):
        return r"\|".join(map(str, kind.choices))
    return str(kind.name).upper().removesuffix(" RANGE")


PAGES = {"api.md": api, "commands.md": commands}

if __name__ == "__main__":
    for name, write in PAGES.items():
        FOLDER.joinpath(name).write_text(write(), encoding="utf-8")
    sys.stdout.write("docs/reference is up to date.\n")
