"""Cursors of pages: a few values as one word that fits into a URL."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def encode(parts: Sequence[Any]) -> str:
    """Return the cursor with these values: whatever JSON can have."""
    return base64.urlsafe_b64encode(json.dumps(parts, separators=(",", ":")).encode()).decode().rstrip("=")


def decode(cursor: str, read: Callable[..., T]) -> T:
    """Return what `read` makes of the values of a cursor. It raises a ValueError or TypeError for wrong ones.

    Raises:
        TypeError: the cursor is not a string.
        ValueError: it is not a cursor, or not one with such values.
    """
    if not isinstance(cursor, str):
        raise TypeError(f"cursor must be the cursor of a page, not {cursor!r}")
    try:
        # base64 ignores all other characters, and Python 3.15 warns of some of them.
        if not re.fullmatch("[A-Za-z0-9_-]*", cursor):
            raise ValueError("it has other characters than base64")
        return read(*json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))))
    except (ValueError, TypeError, RecursionError) as exc:
        raise ValueError(f"cursor must be the cursor of a page, not {cursor!r}") from exc
