"""A broker for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.brokers import Server
from tests.fetching.reading import DB
from tests.integration.publishing import Broker, broker


@pytest.fixture
def ours(any_broker: Server) -> Iterator[Broker]:
    with broker(any_broker, "delayq", DB) as ours:
        yield ours
