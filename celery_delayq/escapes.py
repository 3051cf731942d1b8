"""Text of unknown origin, made safe to show: control characters, also those for bidirectional text, become visible."""

from __future__ import annotations


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
