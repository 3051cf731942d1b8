"""What runs on one server runs on a cluster, too, or says why not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_TESTS = Path(__file__).parents[1]

#: Those with the marks, or with a cluster of their own.
_SAYS = re.compile(r"pytest\.mark\.(on_cluster|one_server\(\")|whole_cluster|\"cluster\"")

MODULES = sorted(
    str(path.relative_to(_TESTS))
    for folder in ("integration", "faults", "cli", "planner", "interop")
    for path in (_TESTS / folder).rglob("test_*.py")
)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_runs_on_a_cluster_or_says_why_not(module: str) -> None:
    assert _SAYS.search((_TESTS / module).read_text())
