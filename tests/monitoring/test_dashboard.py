"""The Grafana dashboard of examples/monitoring: its shape, and that each query finds what the endpoint shows."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

from tests.monitoring.promtool import EXAMPLES, check_results, labels_of

BOARD: dict[str, Any] = json.loads((EXAMPLES / "monitoring" / "dashboard.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

#: What Grafana puts in the place of variables.
VALUES = {"$job": "delayq", "$queue_name": "celery|other", "$__rate_interval": "1m"}


def queries() -> list[str]:
    """Return the queries of all panels as Grafana sends them."""
    found = [target["expr"] for panel in PANELS for target in panel["targets"]]
    for name, value in VALUES.items():
        found = [query.replace(name, value) for query in found]
    return found


def test_each_query_finds_what_the_endpoint_shows(tmp_path: Path) -> None:
    check_results(queries(), tmp_path)


def test_no_variable_is_unknown() -> None:
    assert not [query for query in queries() if "$" in query]
    names = {variable["name"]: variable for variable in BOARD["templating"]["list"]}
    assert names.keys() == {"datasource", "job", "queue_name"}
    assert names["datasource"]["type"] == "datasource"
    assert names["queue_name"]["multi"]
    for name in ("job", "queue_name"):
        (metric, label) = re.findall(r"label_values\((\w+).*, (\w+)\)", names[name]["query"]["query"])[0]
        assert label == name
        assert label in labels_of()[metric]


def test_it_shows_all_metrics_that_the_endpoint_has() -> None:
    """Except what a histogram has besides its buckets."""
    used = {name for query in queries() for name in re.findall(r"\bdelayq_\w+", query)}
    left_out = {name for name in labels_of() if re.search(r"seconds_(sum|count)$", name)}
    assert used == labels_of().keys() - left_out - {"up"}


def test_panels_have_what_grafana_needs() -> None:
    assert BOARD["schemaVersion"] >= 36  # Grafana 9 and newer
    assert BOARD["uid"]
    assert BOARD["title"]
    identifiers = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(identifiers)) == len(identifiers)
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"]
        assert panel["datasource"] == DATASOURCE
        assert panel["type"] in ("timeseries", "stat", "heatmap", "table")
        assert all(target["datasource"] == DATASOURCE for target in panel["targets"])
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)


def test_panels_are_within_the_grid_and_do_not_overlap() -> None:
    places = [(panel["title"], *(panel["gridPos"][key] for key in "xywh")) for panel in BOARD["panels"]]
    assert all(x >= 0 and x + width <= 24 for _, x, _, width, _ in places)
    for (one, x, y, width, height), (two, x2, y2, width2, height2) in combinations(places, 2):
        apart = x + width <= x2 or x2 + width2 <= x or y + height <= y2 or y2 + height2 <= y
        assert apart, (one, two)


def test_the_queries_of_the_manual_find_what_the_endpoint_shows(tmp_path: Path) -> None:
    manual = (EXAMPLES.parent / "docs" / "monitor.md").read_text(encoding="utf-8")
    table = manual.partition("### Queries")[2].partition("\n### ")[0]
    found = re.findall(r"^\| .* \| `(.+)` \|$", table, re.MULTILINE)
    assert len(found) == 8
    check_results([query.partition(" > ")[0].partition(" == ")[0] for query in found], tmp_path)
