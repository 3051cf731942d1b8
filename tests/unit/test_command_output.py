"""What commands write, on terminals of any width."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from celery_delayq.basics.times import to_datetime
from celery_delayq.cli.listing import task_table
from celery_delayq.cli.output import console, text
from celery_delayq.cli.status import queue_table
from celery_delayq.inspector.away import Lost, LostQueue
from celery_delayq.inspector.counts import Counts, QueueCounts
from tests.unit.test_task import HEADERS, stored, task_of

TASK_ID = "725cd883-37f0-4d8a-9182-9c79ac5cca49"


def shown(width: int, **headers: object) -> list[str]:
    """The lines of a table of one task."""
    task = task_of(stored({**HEADERS, "id": TASK_ID, **headers}))
    out = Console(width=width, file=io.StringIO())
    with out.capture() as captured:
        out.print(task_table([task], width))
    return captured.get().splitlines()


@pytest.mark.parametrize("width", [70, 80, 99, 100, 120, 250])
def test_ids_are_whole_and_nothing_is_wider_than_the_terminal(width: int) -> None:
    lines = shown(width, task="a_module.of_some_package.a_task_of_some_name", argsrepr="('x', " * 50)
    assert all(len(line) <= width for line in lines)
    (row,) = (line for line in lines if TASK_ID in line)
    assert row.rstrip().endswith(" 5")  # the priority
    assert row.startswith("2030-01-01 00:00:00" if width >= 100 else "01-01 00:00 ")


def test_a_narrow_terminal_has_a_line_for_each_task_without_the_module() -> None:
    lines = shown(99, task="shop.cancel_unpaid", argsrepr="(1, 2, 3, 4, 5, 6, 7, 8, 9)")
    assert len(lines) == 3
    assert f"{TASK_ID} cancel_unpaid (1, 2, 3, " in lines[2]
    assert "…" in lines[2]


def test_a_wide_terminal_folds_names_and_cuts_arguments() -> None:
    lines = shown(100, task="shop.cancel_unpaid", argsrepr="(1, 2, 3, 4, 5, 6, 7)")
    assert "…" in "".join(lines)
    start = lines[0].index("task")
    end = lines[0].index("args")
    assert "".join(line[start:end].strip() for line in lines[2:]) == "shop.cancel_unpaid"


def test_keyword_arguments_are_shown_where_there_are_any() -> None:
    assert "(42,) {'why': 'unpaid'}" in shown(200)[2]
    assert "{}" not in shown(200, kwargsrepr="{}")[2]


@pytest.mark.parametrize("width", [80, 99, 100, 120])
def test_the_queues_of_a_cluster_fit_with_their_nodes(width: int) -> None:
    queue = QueueCounts("celery", 1, 12_345, 0, 2, 0, to_datetime(1_800_000_036_000), ("web1:4711:1",), "10.0.0.1:6379")
    lost = Lost((LostQueue("orders", "10.0.0.2:6379", "does not answer"),))
    out = Console(width=width, file=io.StringIO())
    with out.capture() as captured:
        out.print(queue_table(Counts(to_datetime(1_800_000_000_000), (queue,), (), lost), width))
    lines = captured.get().splitlines()
    assert all(len(line) <= width for line in lines)
    start, end = lines[1].index("node"), lines[1].index("ready")
    nodes = "".join(line[start:end].strip() for line in lines[3:])
    assert nodes.replace(" ", "") == "10.0.0.1:637910.0.0.2:6379doesnotanswer"
    assert all(name in captured.get() for name in ("celery", "orders", "12,345"))


def test_nothing_is_markup_or_control() -> None:
    assert text("[red]\x1b[31m\x07é\u202e").plain == r"[red]\x1b[31m\x07é\u202e"
    assert text(None).plain == "-"


def test_without_a_terminal_the_width_is_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    assert (console().width, console(width=140).width) == (120, 140)
