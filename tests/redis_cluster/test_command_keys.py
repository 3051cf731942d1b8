"""Which argument of a command is its key."""

from __future__ import annotations

from typing import Any

import pytest

from celery_delayq.cluster.command_keys import key_of


class TestKey:
    @pytest.mark.parametrize(
        ("command", "expected"),
        [
            (("GET", "a"), "a"),
            (("lpush", "a", "b"), "a"),
            (("EVALSHA", "sha", 2, "a", "b", "c"), "a"),
            (("EVAL", "text", "1", "a", "b"), "a"),
            (("EVAL", "text", 0, "a"), None),
            (("BRPOP", "a", "b", 10), "a"),
            (("PING",), None),
            (("TIME",), None),
            (("PUBLISH", "a", "b"), None),
            (("CLIENT KILL", "ID", 1), None),
            (("CLIENT", "KILL", "ID", 1), None),
            (("SCRIPT LOAD", "return 1"), None),
            (("WAIT", 1, 100), None),
        ],
    )
    def test_is_found(self, command: tuple[Any, ...], expected: str | None) -> None:
        assert key_of(command) == expected
