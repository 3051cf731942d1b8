"""A server that refuses for now what it would do at another time, as Redis itself does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import redis

from tests.state import out_of_memory
from tests.support import beside, wait_until

#: What the server says, and what it refuses: NOREPLICAS and MISCONF all writes, OOM those that need memory, BUSY all.
REFUSALS = ("NOREPLICAS", "MISCONF", "OOM", "BUSY")

_LONG_SCRIPT = "while true do end"


@contextmanager
def refusing(client: redis.Redis, word: str, seconds: float = 0) -> Iterator[None]:
    """Let one server refuse things with this word while the block lasts, and for some time at least."""
    how = {"NOREPLICAS": _without_replicas, "MISCONF": _without_disk, "OOM": out_of_memory, "BUSY": _busy}
    until = time.monotonic() + seconds
    with how[word](client):
        yield
        wait_until(lambda: time.monotonic() >= until, "it refused for so long", seconds + 1)


@contextmanager
def _without_replicas(client: redis.Redis) -> Iterator[None]:
    client.config_set("min-replicas-to-write", 1)
    try:
        yield
    finally:
        client.config_set("min-replicas-to-write", 0)


@contextmanager
def _without_disk(client: redis.Redis) -> Iterator[None]:
    """Where the snapshot should be, there is a folder."""
    place = Path(client.config_get("dir")["dir"], client.config_get("dbfilename")["dbfilename"])
    place.unlink(missing_ok=True)
    Path(place, "in the way").mkdir(parents=True)
    client.config_set("save", "3600 1000000")
    client.bgsave()
    wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", "it cannot save")
    try:
        yield
    finally:
        client.config_set("save", "")


@contextmanager
def _busy(client: redis.Redis) -> Iterator[None]:
    client.config_set("lua-time-limit", 10)

    def run(ended: object) -> None:
        with client.client() as own, suppress(redis.ResponseError):  # it is killed
            own.connection_pool.connection_kwargs["socket_timeout"] = None
            own.eval(_LONG_SCRIPT, 0)

    def is_busy() -> bool:
        try:
            client.ping()
        except redis.ResponseError as exc:
            return str(exc).startswith("BUSY")
        return False

    with beside(run):
        wait_until(is_busy, "a script runs")
        try:
            yield
        finally:
            client.script_kill()
