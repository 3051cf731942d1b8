"""Rounds: what an answer brings about."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from redis import exceptions

from celery_delayq.transport.rounds import Rounds


def test_a_connection_that_waited_and_is_lost_when_it_has_to_end_is_no_fault_of_the_one_that_answers() -> None:
    """Whoever reads the answer would give up that one, and go on without the lost one's list."""
    answer: list[Callable[[list[bytes]], None]] = []
    woken: list[bool] = []
    taken: list[bytes] = []

    def take(queue: str, name: str, messages: list[bytes]) -> None:
        taken.extend(messages)
        raise exceptions.ConnectionError("that of another list was reset")

    consumer: Any = SimpleNamespace(names={"q"}, lists={"q"}, ask=lambda name, limit, on_found: answer.append(on_found))
    rounds = Rounds(
        cycle=SimpleNamespace(wake=lambda: woken.append(True)),  # type: ignore[arg-type]
        lists=SimpleNamespace(  # type: ignore[arg-type]
            in_order=lambda: [("q", "q")], attempt=lambda name, action, *args: action(*args), share=int, accepted=bool
        ),
        waits=SimpleNamespace(has=lambda name: False, is_armed=lambda name: False),  # type: ignore[arg-type]
        taker=SimpleNamespace(credit=lambda: 1, is_consumed=lambda queue: True, take=take),  # type: ignore[arg-type]
    )
    rare_lists = SimpleNamespace(are_allowed=False, is_not_empty=bool)
    rounds.go_on(SimpleNamespace(consumer=consumer, rare_lists=rare_lists))  # type: ignore[arg-type]
    answer[0]([b"message"])
    assert (taken, woken) == ([b"message"], [True])
    with pytest.raises(exceptions.ConnectionError, match="reset"):
        rounds.check(None)
