"""Reports: the table, the JSON, the plot, and the command that makes them."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from rich.console import Console

from tests.benchmarks import __main__ as command
from tests.benchmarks.figures import OURS, STOCK, Target
from tests.benchmarks.report import Report
from tests.benchmarks.scale import QUICK, Scale
from tests.benchmarks.svg import plot

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def report() -> Report:
    made = Report("what <was> measured")
    rate = made.figure("rate & more", "calls/s", target=Target(0.9, at_most=False, ratio=True))
    rate.samples = {STOCK: [10.0, 20.0], OURS: [30.0, 20.0]}
    made.figure("alone", "ms", target=Target(2.0)).add(OURS, 5.0)
    return made


def table(report: Report) -> list[list[str]]:
    out = io.StringIO()
    report.show(Console(file=out, width=120), seconds=7.4)
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.getvalue().splitlines() if "│" in line]


def test_the_table_has_medians_spread_ratio_and_whether_a_target_is_reached(report: Report) -> None:
    assert table(report) == [
        ["rate & more (calls/s)", STOCK, "15", "10", "20", "", "", ""],
        ["", OURS, "25", "20", "30", "2", "≥ 0.9 times", "yes"],
        ["alone (ms)", OURS, "5", "5", "5", "", "≤ 2", "no"],
    ]


def test_the_json_has_all_samples(report: Report) -> None:
    first, second = json.loads(json.dumps(report.as_json()))["figures"]
    assert first["samples"] == {STOCK: [10.0, 20.0], OURS: [30.0, 20.0]}
    assert first["ratios"] == {STOCK: None, OURS: 2.0}
    assert (first["target"], first["reached"]) == ("≥ 0.9 times", True)
    assert (second["medians"], second["reached"]) == ({OURS: 5.0}, False)


def test_a_plot_has_bars_in_proportion_and_the_target(report: Report) -> None:
    picture = plot(report)
    assert picture is not None
    root = ElementTree.fromstring(picture)
    background, stock, ours = root.iter(f"{SVG}rect")
    assert background.get("fill") == "#fff"
    assert float(ours.get("width", 0)) / float(stock.get("width", 1)) == pytest.approx(25 / 15, rel=0.01)
    *spreads, target = root.iter(f"{SVG}line")
    assert len(spreads) == 2
    left = float(stock.get("x", 0))
    assert (float(target.get("x1", 0)) - left) / float(stock.get("width", 1)) == pytest.approx(0.9, rel=0.01)
    assert [text.text for text in root.iter(f"{SVG}text")] == [
        "what <was> measured",
        "rate & more (calls/s)",
        *(STOCK, "15", OURS, "25"),
    ]


def test_without_anything_to_compare_there_is_no_plot() -> None:
    made = Report("alone")
    made.figure("rate", "ms").add(OURS, 1.0)
    assert plot(made) is None


def test_figures_that_are_all_zero_can_be_plotted() -> None:
    made = Report("nothing")
    made.figure("lost", "tasks").samples = {STOCK: [0.0], OURS: [0.0]}
    assert 'width="0.0"' in (plot(made) or "")


def test_the_command_writes_json_and_plots(report: Report, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[Scale] = []
    module = SimpleNamespace(run=lambda scale: given.append(scale) or report)
    monkeypatch.setattr(command.importlib, "import_module", lambda name: module)
    options = ["publish", "--quick", "--json", str(tmp_path / "all.json"), "--svg", str(tmp_path / "plots")]
    options += ["--markdown", str(tmp_path / "figures.md")]
    result = CliRunner().invoke(command.main, options, catch_exceptions=False)
    assert re.search(r"celery\s+\d", result.output)  # the line is broken wherever the machine's name wants it
    assert given == [QUICK]
    found = json.loads((tmp_path / "all.json").read_text())
    assert found.keys() == {"environment", "publish"}
    assert found["environment"]["celery-delayq"]
    assert found["publish"]["seconds"] >= 0
    assert (tmp_path / "plots" / "publish.svg").read_text() == plot(report)
    lines = (tmp_path / "figures.md").read_text().splitlines()
    assert "![publish](plots/publish.svg)" in lines
    assert "| rate & more (calls/s) | stock | 15 | 10 | 20 |  |  |  |" in lines
    assert "|  | delayq | 25 | 20 | 30 | 2 | ≥ 0.9 times | yes |" in lines


def test_every_scenario_is_a_module_that_runs() -> None:
    for name in command.SCENARIOS:
        assert callable(command.importlib.import_module(f"tests.benchmarks.{name}").run)


def test_every_scenario_is_documented() -> None:
    [page] = Path(__file__).parents[2].glob("docs/**/benchmarks.md")
    assert sorted(re.findall(r"^\| `(\w+)` \|", page.read_text("utf-8"), re.MULTILINE)) == sorted(command.SCENARIOS)
