"""Other task queues: each has an app, and the same measurement works for those that need no network."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.benchmarks import others
from tests.benchmarks.figures import OURS, STOCK
from tests.benchmarks.scale import QUICK

_SCALE = replace(QUICK, others_tasks=20, others_longest_s=1.0, others_backlog=20)


def test_each_library_has_an_app_and_pinned_versions() -> None:
    apps = {path.stem: path.read_text("utf-8") for path in others.APPS.glob("*_app.py")}
    assert apps.keys() == {library.app for library in others.LIBRARIES.values()}
    for name, source in apps.items():
        compile(source, name, "exec")
    for library in others.LIBRARIES.values():
        assert all(re.fullmatch(r"[\w-]+==[\d.]+", one) for one in library.requirements.split())


def test_each_task_of_stock_celery_and_ours_starts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(others, "LIBRARIES", {name: others.LIBRARIES[name] for name in (STOCK, OURS)})
    figures = {figure.name: figure.samples for figure in others.run(_SCALE).figures}
    for name in ("early", "lost", "twice"):
        assert figures[name] == {STOCK: [0], OURS: [0]}
    assert figures["from a backlog"].keys() == {STOCK, OURS}


def test_a_library_that_cannot_be_installed_is_named_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(others, "LIBRARIES", {"nothing": others.Library("no_app", "false", "./nowhere")})
    report = others.run(_SCALE)
    assert [note for note in report.notes if note.startswith("nothing is left out")]
    assert not any(figure.samples for figure in report.figures)
