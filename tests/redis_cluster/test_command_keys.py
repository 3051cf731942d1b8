"""Which arguments of a command are keys."""

from __future__ import annotations

from typing import Any

import pytest

from celery_delayq.cluster.command_keys import keys_of


class TestKeys:
    @pytest.mark.parametrize(
        ("command", "expected"),
        [
            (("GET", "a"), "a"),
            (("lpush", "a", "b"), "a"),
            (("EVALSHA", "sha", 2, "a", "b", "c"), "ab"),
            (("EVAL", "text", "1", "a", "b"), "a"),
            (("EVAL", "text", 0, "a"), ""),
            (("DEL", "a", "b"), "ab"),
            (("BRPOP", "a", "b", 10), "ab"),
            (("BLMOVE", "a", "b", "LEFT", "RIGHT", 1), "ab"),
            (("BLMPOP", 1, 2, "a", "b", "LEFT"), "ab"),
            (("LMPOP", 2, "a", "b", "LEFT"), "ab"),
            (("ZUNIONSTORE", "a", 2, "b", "c"), "abc"),
            (("MSET", "a", 1, "b", 2), "ab"),
            (("OBJECT", "ENCODING", "a"), "a"),
            (("MEMORY USAGE", "a"), "a"),
            (("XREAD", "COUNT", 2, "STREAMS", "a", "b", 0, 0), "ab"),
            (("BITOP", "AND", "a", "b"), "ab"),
            (("PING",), ""),
            (("PUBLISH", "a", "b"), ""),
            (("CLIENT KILL", "ID", 1), ""),
            (("CLIENT", "KILL", "ID", 1), ""),
            (("SCRIPT LOAD", "return 1"), ""),
            (("WAIT", 1, 100), ""),
        ],
    )
    def test_are_found(self, command: tuple[Any, ...], expected: str) -> None:
        assert "".join(keys_of(*command)) == expected
