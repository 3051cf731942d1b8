"""Text for people: numbers with their nouns, the name of a server, and text of unknown origin made safe to show.

Control characters, also those for bidirectional text, become visible.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_delayq.basics.errors import DelayqError


def plural(number: int, noun: str = "task", nouns: str = "") -> str:
    """Return a number with its noun, of which `nouns` is the plural if that has more than an s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {nouns or f'{noun}s'}"


def how_to_install(extra: str, packages: str) -> str:
    """Return how to install what an extra of this package needs. The package itself is not on an index."""
    return f"pip install {packages}; or in a clone of celery_delayq, pip install '.[{extra}]'"


def name_and_version(info: Mapping[str, Any]) -> str:
    """Return what a server is, such as `Redis 7.0.15` or `Valkey 9.1.2`.

    Args:
        info: its reply to INFO, or to INFO server. The `redis_version` of any Valkey is 7.2.4.
    """
    name = "Valkey" if info.get("server_name") == "valkey" else "Redis"
    return f"{name} {info.get('valkey_version') or info.get('redis_version') or 'of an unknown version'}"


def storable(text: str) -> str:
    """Return a text that can be encoded as UTF-8, with escapes for what cannot."""
    return text.encode("utf-8", "backslashreplace").decode()


def told(error: BaseException) -> str:
    """Return an error as a text that can be stored. It never fails, whatever the class or the text of the error is."""
    try:
        text = storable(str(error))
    except Exception:
        text = ""
    if isinstance(error, DelayqError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def visible(value: object, keep: str = "") -> str:
    r"""Return a value as text, with control characters escaped, such as `\x1b`.

    Args:
        value: the value.
        keep: control characters that are not escaped.
    """
    text = str(value)
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text
    )


def with_app(text: str) -> str:
    """Return a text with the `-A` of the running command in place of the dots of `celery -A ...`, to be pasted."""
    import shlex  # only commands need these

    import click

    context = click.get_current_context(silent=True)
    named = None if context is None else context.find_root().params.get("app")
    return text.replace("celery -A ...", f"celery -A {shlex.quote(named)}") if isinstance(named, str) else text
