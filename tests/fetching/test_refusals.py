"""What the server refuses costs that list, and nothing else."""

from __future__ import annotations

import pytest

from tests.fetching.reading import publish, reader
from tests.integration.publishing import Broker


def test_what_kombus_own_workers_left_may_be_refused(ours: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """To restore it is a courtesy."""
    ours.client.set("unacked_index", "of another type")
    with reader(ours, "q") as it:
        it.wait(0.1)
        it.channel.qos._kombus._vrestore_count = 0  # kombu looks now and then
        it.wait(0.1)
        publish(ours, "q", "body")
        assert it.drain(1) == ["body"]
    assert caplog.text.count("Redis refuses to restore what workers with kombu's own transport left") == 1
