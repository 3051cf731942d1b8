"""A short form of the nights of the soak test: the clock changes, and no occurrence is left out, or sent twice."""

from __future__ import annotations

import pytest

from tests.soak.night import NIGHTS, run_night

pytestmark = pytest.mark.on_cluster

one_is_enough = pytest.mark.one_server("it takes long, and which night it is does not concern the nodes")


@pytest.mark.usefixtures("faketime")
@pytest.mark.parametrize("name", ["night-autumn", pytest.param("night-spring", marks=one_is_enough)])
def test_night(name: str, broker_kind: str) -> None:
    """Tasks of every minute that are due as the clock changes, and one of every second."""
    result = run_night(NIGHTS[name], minutes=0, entries=100, on_cluster=broker_kind == "cluster")
    assert len(result.verdict.sure) > 100
    assert result.verdict.lost == set()
    assert result.verdict.unexplained == set()
    assert result.verdict.early == set()
    assert result.complaints == []
