"""A picture of the dashboard: its queries, asked of a real Prometheus about a real run, as SVG for the docs.

python -m examples.monitoring.picture

Starts a Redis, two workers, the endpoint and Prometheus, sends tasks, and kills the workers, one after the other. It
takes two minutes. `prometheus` has to be installed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from examples.monitoring.plot import Panel, Point, draw
from examples.private_redis import PrivateRedis, dying_with_us

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "pictures" / "dashboard.svg"
DASHBOARD = Path(__file__).with_name("dashboard.json")
SHOP = ROOT / "examples" / "deploy"

#: The panels that are drawn, in this order.
TITLES = (
    "Messages that wait",
    "Due within",
    "Overdue",
    "Messages that became due",
    "How late delayed tasks start",
    "Start: quantiles",
    "Consumers",
    "New dead letters",
)

#: Tasks that are sent each second, and the longest countdown.
RATE, LONGEST_S = 40, 60.0
SPAN_S, STEP_S = 120.0, 2

#: What Grafana puts in the place of variables. Workers write what they count every ten seconds.
VARIABLES = {"$job": "delayq", "$queue_name": ".*", "$__rate_interval": "20s"}

_CONFIGURATION = """
global: {{scrape_interval: 1s}}
scrape_configs: [{{job_name: delayq, static_configs: [{{targets: ["127.0.0.1:{port}"]}}]}}]
"""


class Story:
    """What happens during the run."""

    def __init__(self, processes: ExitStack, environment: dict[str, str]) -> None:
        self._processes = processes
        self._environment = environment
        self._workers: list[subprocess.Popen[bytes]] = []
        self._times = random.Random(1)
        #: What happened when, in seconds since the beginning.
        self.marks: dict[str, float] = {}

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a program that ends with the story."""
        process = subprocess.Popen(
            dying_with_us(list(command)),
            cwd=SHOP,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._processes.callback(_end, process)
        return process

    def start_worker(self) -> None:
        """Start a worker."""
        name = f"worker-{len(self._workers)}@%h"
        options = ("worker", "--concurrency", "2", "--loglevel", "ERROR", "--hostname", name)
        self._workers.append(self.start(sys.executable, "-m", "celery", "-A", "shop", *options))

    def play(self) -> float:
        """Play it, and return when it began, as Unix time."""
        from examples.deploy.shop import app, cancel_unpaid  # reads BROKER_URL

        steps = {
            40: ("a worker is killed", self._kill),
            60: ("the other one is killed, too", self._kill),
            80: ("a worker starts again", self.start_worker),
            95: ("something that is no message gets into the queue", lambda: _spoil(app)),
        }
        begin = time.time()
        for second in range(int(SPAN_S)):
            time.sleep(max(0.0, begin + second - time.time()))
            if second in steps:
                text, do = steps[second]
                do()
                self.marks[text] = time.time() - begin
            for number in range(RATE):
                countdown = self._times.uniform(1.0, LONGEST_S)
                cancel_unpaid.apply_async((f"order-{second}-{number}",), countdown=countdown)
        return begin

    def _kill(self) -> None:
        living = next(worker for worker in self._workers if worker.poll() is None)
        os.killpg(living.pid, signal.SIGKILL)
        living.wait()


def _spoil(app: Any) -> None:
    with app.connection_for_write() as connection:
        connection.default_channel.client.lpush("celery", b"no message")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _ask(port: int, path: str, **parameters: str | float) -> bytes:
    url = f"http://127.0.0.1:{port}{path}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        body: bytes = answer.read()
        return body


def _wait_for(port: int, path: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            _ask(port, path)
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def series_of(port: int, target: dict[str, Any], begin: float) -> dict[str, list[Point]]:
    """Ask Prometheus one query of a panel. Return the points of each series by its name in the legend."""
    query = target["expr"]
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    answer = _ask(port, "/api/v1/query_range", query=query, start=begin, end=begin + SPAN_S, step=STEP_S)
    found: dict[str, list[Point]] = {}
    for result in json.loads(answer)["data"]["result"]:
        name = target["legendFormat"]
        for label, value in result["metric"].items():
            name = name.replace(f"{{{{{label}}}}}", value)
        points = [(at - begin, float(value)) for at, value in result["values"] if value != "NaN"]
        if points:
            found[name] = points
    return found


def panels_of(port: int, begin: float) -> list[Panel]:
    """Return the panels to draw, with what Prometheus answers."""
    by_title = {panel["title"]: panel for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]}
    panels = []
    for title in TITLES:
        panel = by_title[title]
        series: dict[str, list[Point]] = {}
        for target in panel["targets"]:
            series.update(series_of(port, target, begin))
        if panel["type"] != "heatmap":  # what is 0 all the time says nothing here
            series = {name: points for name, points in series.items() if any(value for _, value in points)}
        is_time = panel["type"] == "heatmap" or panel["fieldConfig"]["defaults"]["unit"] == "s"
        unit = "s" if is_time else {"cps": "per second"}.get(panel["fieldConfig"]["defaults"]["unit"], "")
        panels.append(Panel(title, series, unit, is_heatmap=panel["type"] == "heatmap"))
    return panels


def main() -> None:
    """Play the story and write the picture to docs/pictures."""
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        sys.exit("There is no prometheus on the PATH (apt-get install prometheus).")
    with PrivateRedis() as server, ExitStack() as processes:
        folder = Path(processes.enter_context(tempfile.TemporaryDirectory()))
        os.environ["BROKER_URL"] = f"delayq://127.0.0.1:{server.port}/0"
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        story = Story(processes, environment)
        endpoint, port = _free_port(), _free_port()
        celery = (sys.executable, "-m", "celery", "-A", "shop")
        story.start(*celery, "delayq", "metrics", "--host", "127.0.0.1", "--port", str(endpoint))
        _wait_for(endpoint, "/metrics")
        configuration = folder / "prometheus.yml"
        configuration.write_text(_CONFIGURATION.format(port=endpoint), encoding="utf-8")
        files = (f"--config.file={configuration}", f"--storage.tsdb.path={folder / 'data'}")
        story.start(prometheus, *files, f"--web.listen-address=127.0.0.1:{port}")
        _wait_for(port, "/-/ready")
        for _ in range(2):
            story.start_worker()
        time.sleep(15)  # until they consume, and have written what they counted
        begin = story.play()
        panels = panels_of(port, begin)
    PICTURE.write_text(draw(panels, span_s=SPAN_S, marks=story.marks), encoding="utf-8")
    print(f"wrote {PICTURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
