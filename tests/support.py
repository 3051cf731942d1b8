"""What tests of every kind share: finding servers, waiting for facts, looking for leftovers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, TypeVar

import pytest
import redis

from examples.private_redis import ServerNotFound, available_servers

T = TypeVar("T")


def servers() -> dict[str, Path]:
    """All Redis servers of this machine, by origin, the preferred one first; none is no error."""
    try:
        return available_servers()
    except ServerNotFound:
        return {}


def missing(reason: str) -> NoReturn:
    """Skip the test for want of a server or a tool, except in CI, where that is a failure."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def wait_until(predicate: Callable[[], T], description: str, timeout: float = 30) -> T:
    """Return the first true value of the predicate, or fail after `timeout` seconds.

    The default is for a machine with much else to do. A shorter time has to be the promise itself.
    """
    deadline = time.monotonic() + timeout
    while True:
        if value := predicate():
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {description}")
        time.sleep(0.01)


def run_with_app(folder: Path, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments in a folder where a module `shop` is, in a process of its own."""
    Path(folder, "shop.py").write_text(module, "utf-8")
    return subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def lasting_keys(client: redis.Redis) -> set[str]:
    """The names of all keys that do not expire by themselves."""
    return {key.decode() for key in client.scan_iter() if client.ttl(key) == -1}


def in_a_child(check: Callable[[], bool]) -> bool:
    """Return whether a check holds in a forked child, within 30 seconds.

    Python 3.12 and newer warn of it: this process has threads, as prefork workers and web servers have when they fork.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        code = 1
        try:
            signal.alarm(30)
            code = 0 if check() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@contextmanager
def beside(run: Callable[[threading.Event], None]) -> Iterator[None]:
    """Call a function in a thread for as long as the block lasts; it gets the event that ends it."""
    ended = threading.Event()
    thread = threading.Thread(target=run, args=(ended,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def is_raised(error: type[Exception], match: str) -> Iterator[None]:
    """Expect an error of this very class: a `ConfigurationError` is a ValueError, too."""
    with pytest.raises(error, match=match) as caught:
        yield
    assert type(caught.value) is error
