"""Refusals: Redis answers, but refuses some or all commands for a while, as workers run, start or reconnect."""

from __future__ import annotations

import itertools
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.soak.scene import Scene
from tests.state import out_of_memory
from tests.support import wait_until

#: How long, in seconds, and meanwhile what, in turns: after twelve strikes, there was each of them with each other.
_SECONDS = (1.0, 15.0, 5.0, 60.0)
_MEANWHILE = ("run", "reconnect", "start")

#: So many keys does a server read in a second that starts slowly.
_KEYS_A_SECOND = 1000

_FILLER = "delayq:soak:filler:"

_BUSY = "while true do redis.call('TIME') end"


def _waiting(scene: Scene) -> redis.Redis:
    """A client for a command that takes as long as a refusal: it waits, and does not send the command again."""
    return scene.broker.client(socket_timeout=None, retry=Retry(NoBackoff(), 0))


def refusing(refusal: Callable[[Scene, float], AbstractContextManager[None]]) -> Callable[[Scene, int], None]:
    """Return a strike: a refusal, and what workers do meanwhile. The first one, behind a proxy, reconnects."""

    def strike(scene: Scene, number: int) -> None:
        seconds = _SECONDS[number % len(_SECONDS)]
        meanwhile = _MEANWHILE[number % len(_MEANWHILE)]
        victim = scene.workers[number % 2]
        scene.say(f"refused for {seconds:g} s, workers {meanwhile}")
        if meanwhile == "start":
            scene.kill([victim])
        count = victim.log.count(" ready.")
        with scene.refused(), refusal(scene, seconds):
            if meanwhile == "start":
                victim.start()
            elif meanwhile == "reconnect":
                scene.proxy.cut()  # a server that refuses everything closes no connection, either
            time.sleep(seconds)
        if meanwhile == "start":
            with scene.noting():
                victim.wait_for_log(" ready.", times=count + 1, timeout=60)

    return strike


@contextmanager
def no_replicas(scene: Scene, seconds: float) -> Iterator[None]:
    """NOREPLICAS: all writes, since there is no replica."""
    with scene.client() as client:
        client.config_set("min-replicas-to-write", 1)
        yield
        client.config_set("min-replicas-to-write", 0)


@contextmanager
def full(scene: Scene, seconds: float) -> Iterator[None]:
    """OOM: writes that need memory."""
    with scene.client() as client, out_of_memory(client):
        yield


@contextmanager
def unsaved(scene: Scene, seconds: float) -> Iterator[None]:
    """MISCONF: all writes, since the last snapshot could not be written: a folder has its name."""
    with scene.client() as client:
        dump = Path(client.config_get("dir")["dir"], client.config_get("dbfilename")["dbfilename"])
        dump.unlink(missing_ok=True)
        (dump / "in the way").mkdir(parents=True)
        client.config_set("save", "86400 1")
        _save(client, "err")
        yield
        shutil.rmtree(dump)
        _save(client, "ok")
        client.config_set("save", "")


def _save(client: redis.Redis, status: str) -> None:
    def is_saved() -> bool:
        with suppress(exceptions.ResponseError):  # one is under way
            client.bgsave()
        return bool(client.info("persistence")["rdb_last_bgsave_status"] == status)

    wait_until(is_saved, f"the last snapshot was {status}")


@contextmanager
def busy(scene: Scene, seconds: float) -> Iterator[None]:
    """BUSY: all commands, since a script runs."""
    with scene.client() as client, _waiting(scene) as other:
        client.config_set("lua-time-limit", 20)
        with _beside(lambda: other.eval(_BUSY, 0)):  # type: ignore[no-untyped-call]
            yield
            client.script_kill()


@contextmanager
def read_only(scene: Scene, seconds: float) -> Iterator[None]:
    """READONLY: all writes, since the server is a replica."""
    with scene.client() as client:
        client.replicaof("127.0.0.1", "1")
        yield
        client.replicaof("NO", "ONE")


@contextmanager
def loading(scene: Scene, seconds: float) -> Iterator[None]:
    """LOADING: all commands, since the server reads its file, slowly. Connections stay. It needs `MAY_RELOAD`."""
    with scene.client() as client, _waiting(scene) as other:
        with client.pipeline(transaction=False) as pipe:
            for number in range(round(seconds * _KEYS_A_SECOND)):
                pipe.set(f"{_FILLER}{number}", 1)
            pipe.execute()
        client.config_set("loading-process-events-interval-bytes", 1024)
        client.config_set("key-load-delay", 1_000_000 // _KEYS_A_SECOND)
        with _beside(lambda: other.execute_command("DEBUG", "RELOAD")):
            yield
            wait_until(lambda: _is_loaded(client), "all is read", 120)
        client.config_set("key-load-delay", 0)
        while names := [*itertools.islice(client.scan_iter(f"{_FILLER}*", count=10_000), 10_000)]:
            client.delete(*names)


def _is_loaded(client: redis.Redis) -> bool:
    return not client.info("persistence")["loading"]


#: How a server starts that can be told to read its file again.
MAY_RELOAD = ("--enable-debug-command", "yes")


@contextmanager
def _beside(call: Callable[[], object]) -> Iterator[None]:
    """Call something that takes as long as the block, in a thread."""

    def run() -> None:
        with suppress(exceptions.RedisError):
            call()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    thread.join(10)
