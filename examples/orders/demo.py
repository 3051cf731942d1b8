"""The story on a Redis and a worker of its own, started for it and stopped after it.

python -m examples.orders.demo
python -m examples.orders.demo cluster
python -m examples.orders.demo --web

Its three processes are the three commands that README.md tells to run by hand. With `cluster`, it starts a Redis
Cluster besides, and kills one of its nodes when the story says so. With `--web`, customers order without end, and the
web page shows what waits, until you press Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import redis

from examples.orders import cluster_shop, cluster_story, story
from examples.private_cluster import PrivateNode, private_cluster
from examples.private_redis import PrivateRedis, dying_with_us, name_and_version

ROOT = Path(__file__).parents[2]
WORKER = ("-m", "celery", "-A", "examples.orders.shop", "worker", "--concurrency=2", "--loglevel=INFO")
STORY = ("-m", "examples.orders.story")
SCENE = ("-m", "celery", "-A", "examples.orders.scene")
SCENE_WORKER = (
    *(*SCENE, "worker", "--concurrency=2", "--loglevel=INFO", "--queues=example-orders,mail"),
    *("--beat", "--scheduler=delayq"),
)
WEB = (*SCENE, "delayq", "web", "--port", "0")
CUSTOMERS = ("-m", "examples.orders.customers")
CLUSTER_WORKER = (
    *("-m", "celery", "-A", "examples.orders.cluster_shop", "worker", "--concurrency=2", "--loglevel=INFO"),
    *("-Q", ",".join(cluster_shop.QUEUES)),
)
CLUSTER_STORY = ("-m", "examples.orders.cluster_story", "--kill")
#: How long the nodes hear nothing of one of them until they agree that it is dead.
NODE_TIMEOUT_MS = 2000
STOP_DEADLINE_S = 10.0
LOG_LINES_SHOWN = 20


class WorkerDied(RuntimeError):
    """The worker ended before the story did."""


@contextmanager
def running(
    arguments: tuple[str, ...], env: dict[str, str], log: int | IO[bytes] | None = None
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


@contextmanager
def busy_shop(env: dict[str, str], log: int | IO[bytes]) -> Iterator[None]:
    """The scene of the web page and its worker, for pictures. The worker has a name that says nothing of the machine.

    Args:
        env: with `SHOP_REDIS`.
        log: takes what the worker says.
    """

    def do(what: str) -> None:
        # In a process of its own: this one has imported the shop with another environment.
        code = f"from examples.orders import scene; scene.{what}()"
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, check=True)

    do("fill")
    with running((*SCENE_WORKER, "--hostname=web-1@shop"), env, log):
        do("wait_for_worker")
        yield


def play(story_arguments: list[str], log: IO[bytes]) -> int:
    """Start everything, play the story, stop everything. Returns the story's exit status."""
    with PrivateRedis() as server, server.client() as client:
        print(
            f"Starting {name_and_version(client.info('server'))} (on port {server.port}) and a celery worker.",
            flush=True,
        )
        env = {**os.environ, "SHOP_REDIS": f"127.0.0.1:{server.port}/0"}
        return run(WORKER, (*STORY, *story_arguments), env, log)


def show_web(log: IO[bytes]) -> int:
    """Start everything but the story, and the web page; end when one of the processes does, or at Ctrl-C.

    Raises:
        WorkerDied: a process ended.
    """
    with PrivateRedis() as server, server.client() as client:
        server_name = name_and_version(client.info("server"))
        print(f"Starting {server_name}, a celery worker, customers and the page.", flush=True)
        print("The eight hours of history, and what is on the page at first, are made up.", flush=True)
        env = {**os.environ, "SHOP_REDIS": f"127.0.0.1:{server.port}/0"}
        with (
            running(SCENE_WORKER, env, log) as worker,
            running(CUSTOMERS, env, log) as people,
            running(WEB, env) as page,
        ):
            while all(process.poll() is None for process in (worker, people, page)):
                time.sleep(0.05)
            if page.poll() is not None:
                return page.wait()
    raise WorkerDied("The worker or the customers ended. The end of their log:")


def play_on_cluster(story_arguments: list[str], log: IO[bytes]) -> int:
    """The same on a cluster; the single Redis stands for the shop's database."""
    timeout = ("--cluster-node-timeout", str(NODE_TIMEOUT_MS))
    with PrivateRedis() as server, server.client() as client:
        print(
            f"Starting a cluster of three masters and three replicas, {name_and_version(client.info('server'))}, "
            "and a celery worker.",
            flush=True,
        )
        with private_cluster(masters=3, replicas=1, settings=timeout) as nodes:
            env = {
                **os.environ,
                "SHOP_REDIS": f"127.0.0.1:{server.port}/0",
                "SHOP_CLUSTER": ";".join(node.address for node in nodes[:3]),
            }
            story_command = (*CLUSTER_STORY, *story_arguments)
            return run(CLUSTER_WORKER, story_command, env, log, lambda: kill_named(nodes, client))


def kill_named(nodes: list[PrivateNode], client: redis.Redis) -> None:
    """Kill the node that the story has named, if it has."""
    named: Any = client.lpop(cluster_story.KILL)
    for node in nodes:
        if named and node.address == named.decode():
            node.kill()


def run(
    worker_command: tuple[str, ...],
    story_command: tuple[str, ...],
    env: dict[str, str],
    log: IO[bytes],
    do_besides: Callable[[], None] = lambda: None,
) -> int:
    """Run a worker and a story until the story ends; returns its exit status.

    Raises:
        WorkerDied: the worker ended first.
    """
    with running(worker_command, env, log) as worker, running(story_command, env, None) as playing:
        while playing.poll() is None and worker.poll() is None:
            do_besides()
            time.sleep(0.05)
        if worker.poll() is None:
            return playing.wait()
    raise WorkerDied(f"The worker died (exit status {worker.returncode}). The end of its log:")


def main() -> int:
    """Run the demo with the story's options. Returns 0 only if all was right."""
    is_cluster, is_web = sys.argv[1:2] == ["cluster"], sys.argv[1:] == ["--web"]
    arguments = sys.argv[2:] if is_cluster or is_web else sys.argv[1:]
    (cluster_story if is_cluster else story).options_of(arguments)
    for stop_signal in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(stop_signal, lambda number, _: sys.exit(128 + number))
    log = tempfile.NamedTemporaryFile(prefix="orders-worker-", suffix=".log", delete=False)  # noqa: SIM115
    log_path = Path(log.name)
    keep_log = False
    try:
        status = show_web(log) if is_web else (play_on_cluster if is_cluster else play)(arguments, log)
        keep_log = status == 1
    except WorkerDied as error:
        print(error, file=sys.stderr)
        print(*log_path.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:], sep="\n", file=sys.stderr)
        keep_log, status = True, 1
    except RuntimeError as error:  # no Redis
        print(error, file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        status = 0 if is_web else 128 + signal.SIGINT  # the page says to press Ctrl-C
    finally:
        log.close()
        if keep_log:
            print(f"The worker's log: {log_path}", file=sys.stderr)
        else:
            log_path.unlink()
    return status


if __name__ == "__main__":
    sys.exit(main())
