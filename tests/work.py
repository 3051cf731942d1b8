"""How much work something is: calls of functions, which are the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls_in(function: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    """Call a function; return how many calls that took, of functions of Python and of C."""
    count = 0

    def on_event(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        function(*args, **kwargs)
    finally:
        sys.setprofile(before)
    return count
