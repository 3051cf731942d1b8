"""A broker for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from examples.private_redis import PrivateRedis
from tests.fetching.reading import DB
from tests.integration.publishing import Broker, broker


@pytest.fixture
def ours(redis_server: PrivateRedis) -> Iterator[Broker]:
    with broker(redis_server, "delayq", DB) as ours:
        yield ours
