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

from examples.orders.story import options_of
from examples.private_redis import PrivateRedis, dying_with_us, name_and_version

ROOT = Path(__file__).parents[2]
WORKER = ("-m", "celery", "-A", "examples.orders.shop", "worker", "--concurrency=2", "--loglevel=INFO")
STORY = ("-m", "examples.orders.story")
STOP_DEADLINE_S = 10.0
LOG_LINES_SHOWN = 20


class WorkerDied(RuntimeError):
    """The worker ended before the story did."""


@contextmanager
def running(
    arguments: tuple[str, ...], env: dict[str, str], log: IO[bytes] | None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run Python with these arguments during the `with` block."""
    process = subprocess.Popen(
        dying_with_us([sys.executable, *arguments]),
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
            process.terminate()
        try:
            process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def play(story_arguments: list[str], log: IO[bytes]) -> int:
    """Start everything, play the story, stop everything. Returns the story's exit status."""
    with PrivateRedis() as server, server.client() as client:
        print(
            f"Starting {name_and_version(client.info('server'))} (on port {server.port}) and a celery worker.",
            flush=True,
        )
        env = {**os.environ, "SHOP_REDIS": f"127.0.0.1:{server.port}/0"}
        with (
            running(WORKER, env, log) as worker,
            running((*STORY, *story_arguments), env, None) as story,
        ):
            while story.poll() is None and worker.poll() is None:
                time.sleep(0.05)
            if worker.poll() is None:
                return story.wait()
    raise WorkerDied(f"The worker died (exit status {worker.returncode}). The end of its log:")


def main() -> int:
    """Run the demo with the story's options. Returns 0 only if all was right."""
    options_of(sys.argv[1:])
    for stop_signal in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(stop_signal, lambda number, _: sys.exit(128 + number))
    log = tempfile.NamedTemporaryFile(prefix="orders-worker-", suffix=".log", delete=False)  # noqa: SIM115
    log_path = Path(log.name)
    keep_log = False
    try:
        status = play(sys.argv[1:], log)
        keep_log = status == 1
    except WorkerDied as error:
        print(error, file=sys.stderr)
        print(*log_path.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:], sep="\n", file=sys.stderr)
        keep_log, status = True, 1
    except RuntimeError as error:  # no Redis
        print(error, file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    finally:
        log.close()
        if keep_log:
            print(f"The worker's log: {log_path}", file=sys.stderr)
        else:
            log_path.unlink()
    return status


if __name__ == "__main__":
    sys.exit(main())
