"""The story on a Redis and a worker of its own, started for it and stopped after it.

python -m examples.orders.demo

Its three processes are the three commands that README.md tells to run by hand.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from examples.private_redis import PrivateRedis, ServerNotFound

ROOT = Path(__file__).parents[2]
WORKER = ("-m", "celery", "-A", "examples.orders.shop", "worker", "--concurrency=2", "--loglevel=INFO")
STORY = ("-m", "examples.orders.story")
STOP_DEADLINE_S = 10.0
LOG_LINES_SHOWN = 20


@contextmanager
def running(
    arguments: tuple[str, ...], stop_signal: signal.Signals, env: dict[str, str], log: IO[bytes] | None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run Python with these arguments during the `with` block."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,  # Ctrl-C reaches only this process, which stops the others in order
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(stop_signal)
        try:
            process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def play(story_arguments: list[str], log: IO[bytes]) -> int:
    """Start everything, play the story, stop everything. Returns the story's exit status."""
    with PrivateRedis() as server, server.client() as client:
        version = client.info("server")["redis_version"]
        print(f"Redis {version} on port {server.port} ({server.server})")
        print(f"celery -A examples.orders.shop worker (log: {log.name})", flush=True)
        env = {**os.environ, "SHOP_REDIS": f"127.0.0.1:{server.port}/0"}
        with (
            running(WORKER, signal.SIGTERM, env, log) as worker,
            running((*STORY, *story_arguments), signal.SIGINT, env, None) as story,
        ):
            while story.poll() is None and worker.poll() is None:
                time.sleep(0.05)
            if worker.poll() is None:
                return story.wait()
    print(f"\nThe worker died, with exit status {worker.returncode}.", file=sys.stderr)
    return 1
