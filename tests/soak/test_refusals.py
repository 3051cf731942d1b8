"""What Redis refuses: what it says then, and that it is well again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from examples.private_redis import PrivateRedis
from tests.soak.refusals import MAY_RELOAD, busy, full, loading, no_replicas, read_only, unsaved
from tests.support import wait_until


class OneServer:
    """As much of a scene as a refusal needs."""

    def __init__(self, server: PrivateRedis) -> None:
        self.broker = server

    @contextmanager
    def client(self) -> Iterator[redis.Redis]:
        with self.broker.client() as client:
            yield client


@pytest.mark.parametrize(
    ("refusal", "says"),
    [
        (no_replicas, "NOREPLICAS|not enough good replicas"),
        (full, "OOM|command not allowed"),
        (unsaved, "MISCONF"),
        (busy, "BUSY|busy running a script"),
        (read_only, "READONLY|read only replica"),
        (loading, "LOADING|loading the dataset"),
    ],
    ids=lambda it: getattr(it, "__name__", ""),
)
def test_it_refuses_for_a_while(refusal: Callable[[Any, float], AbstractContextManager[None]], says: str) -> None:
    once = Retry(NoBackoff(), 0)
    with PrivateRedis("--appendonly", "yes", *MAY_RELOAD) as server, server.client(retry=once) as client:

        def refused() -> str:
            try:
                client.lpush("list", "x")
            except exceptions.RedisError as exc:
                return str(exc)
            return ""

        with refusal(OneServer(server), 1.0):
            answer = wait_until(refused, "it refuses")
            assert any(text.lower() in answer.lower() for text in says.split("|"))
        wait_until(lambda: not refused(), "it is well again")
        assert client.keys("delayq:soak:*") == []
