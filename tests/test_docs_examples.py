"""The examples of the guides run: Python blocks that are marked as ```` ```python run ````, page by page."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from examples.private_redis import PrivateRedis
from tests.support import missing, wait_until
from tests.workers import CeleryCommand

REPOSITORY = Path(__file__).parents[1]
#: Packages that Celery's users know, where `make setup` and tox install them (dependency group `integrations`).
INTEGRATIONS = Path(sys.prefix, "integrations")

_BLOCK = re.compile(r"^```python run\n# (?P<file>\w+\.py)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
_MARK = re.compile(r"^\s*```python run\b", re.MULTILINE)
PAGES = sorted(page for page in (REPOSITORY / "docs").rglob("*.md") if _MARK.search(page.read_text(encoding="utf-8")))


class Example:
    """The marked blocks of a page, as files in a folder. Each begins with a comment: the name of its file."""

    def __init__(self, page: Path, folder: Path, server: PrivateRedis) -> None:
        text = page.read_text(encoding="utf-8")
        self.folder = folder
        self.files = [block["file"] for block in _BLOCK.finditer(text)]
        assert len(self.files) == len(_MARK.findall(text)), (
            "a marked block is indented, or does not begin with its name"
        )
        self._server = server
        for block in _BLOCK.finditer(text):
            self.add(block["file"], block["code"])
        paths = (folder, REPOSITORY, INTEGRATIONS, os.environ.get("PYTHONPATH", ""))
        self._env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}

    def add(self, file: str, text: str) -> None:
        """Write a file that connects to the server of the test."""
        text = text.replace("localhost:6379", f"127.0.0.1:{self._server.port}")
        self.folder.joinpath(file).write_text(text, encoding="utf-8")

    def run(self, *files: str) -> str:
        """Import files in turn, in one process, and return what they print."""
        modules = ", ".join(file.removesuffix(".py") for file in files)
        return self.python("-c", f"import {modules}")

    def python(self, *arguments: str) -> str:
        """Run Python beside the files, and return what it prints."""
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=self.folder, env=self._env, capture_output=True, text=True, timeout=120)
        if module := re.search(r"ModuleNotFoundError: No module named '(\w+)'", done.stderr):
            missing(f"no {module[1]}: `make setup` installs it (dependency group `integrations`)")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path, redis_server: PrivateRedis) -> None:
    with redis_server.client() as client:
        client.flushall()
    example = Example(page, tmp_path, redis_server)
    example.run(*example.files)


def test_the_readme_can_be_pasted_and_importing_its_shop_sends_nothing(
    tmp_path: Path, redis_server: PrivateRedis
) -> None:
    with redis_server.client() as client:
        client.flushall()
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    shop, customer = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    readme = Example(REPOSITORY / "README.md", tmp_path, redis_server)
    readme.add("shop.py", shop)
    readme.add("customer.py", customer)
    assert readme.run("shop.py") == ""
    with redis_server.client() as client:
        assert client.dbsize() == 0
    (line,) = readme.run("customer.py").splitlines()
    assert line.endswith(" shop.cancel_unpaid (42,)")
    assert readme.python("-c", "from shop import delayq; print(len(delayq.scheduled()))") == "0\n"


def test_the_tests_of_the_testing_guide_pass_with_the_shop_of_the_tutorial(
    tmp_path: Path, redis_server: PrivateRedis
) -> None:
    guide = (REPOSITORY / "docs" / "testing.md").read_text(encoding="utf-8")
    (configuration,) = re.findall(r"^```ini\n(.*?)^```$", guide, re.DOTALL | re.MULTILINE)
    (tests,) = re.findall(r"^```python\n# test_shop.py\n(.*?)^```$", guide, re.DOTALL | re.MULTILINE)
    shop = Example(REPOSITORY / "docs" / "tutorial.md", tmp_path, redis_server)
    shop.add("pytest.ini", configuration)
    tmp_path.joinpath("tests").mkdir()
    shop.add("tests/test_shop.py", tests)
    assert "2 passed" in shop.python("-m", "pytest", "-p", "no:cacheprovider")


def test_the_web_applications_publish_and_cancel(tmp_path: Path, redis_server: PrivateRedis) -> None:
    with redis_server.client() as client:
        client.flushall()
    page = Example(REPOSITORY / "docs" / "web-frameworks.md", tmp_path, redis_server)
    page.add("orders.py", _ORDERS)
    page.python("orders.py")


@pytest.mark.parametrize("results", ["none", "delayq", "redis"])
@pytest.mark.parametrize("mode", ["refuses", "hangs"])
def test_the_web_applications_answer_in_time_if_redis_is_down(tmp_path: Path, mode: str, results: str) -> None:
    with PrivateRedis() as server:
        page = Example(REPOSITORY / "docs" / "web-frameworks.md", tmp_path, server)
        shop = tmp_path / "shop.py"
        url = f"delayq://127.0.0.1:{server.port}/0"
        backend = {"none": None, "delayq": url, "redis": url.replace("delayq://", "redis://")}[results]
        made = f'Celery("shop", broker="{url}"'
        text = shop.read_text("utf-8")
        assert made in text
        shop.write_text(text.replace(made, f"{made}, backend={backend!r}"), "utf-8")
        page.add("away.py", _AWAY)
        if mode == "hangs":
            os.kill(server.pid, signal.SIGSTOP)
        else:
            server.kill()
        try:
            assert page.python("away.py") == "503\n" * 8
        finally:
            if mode == "hangs":
                os.kill(server.pid, signal.SIGCONT)


_ORDERS = """
import asyncio

import django.conf
import fastapi

import api
import async_api
import views
import web
from shop import delayq

api.place("7")
assert api.show("7")["pay_before"] is not None
assert api.pay("7") == {"paid": True}
assert delayq.get("cancel:7") is None

asyncio.run(async_api.place("8"))
assert asyncio.run(async_api.pay("8")) == {"paid": True}
try:
    asyncio.run(async_api.pay("8"))
except fastapi.HTTPException as error:
    assert error.status_code == 409
else:
    raise AssertionError("it is too late")

client = web.web.test_client()
assert client.post("/orders/9").status_code == 200
assert client.post("/orders/9/payment").json == {"paid": True}
assert client.post("/orders/9/payment").status_code == 409

django.conf.settings.configure()
assert asyncio.run(views.place(None, "10")).status_code == 200
assert asyncio.run(views.pay(None, "10")).status_code == 200
assert asyncio.run(views.pay(None, "10")).status_code == 409
"""

_AWAY = """
import asyncio

import django.conf
import kombu.utils.functional
from kombu.exceptions import OperationalError

import api
import async_api
import views
import web

django.conf.settings.configure()


def refuse_to_wait(seconds):
    raise AssertionError("it waits between two attempts to connect")


kombu.utils.functional.sleep = refuse_to_wait
for call in (api.place, api.pay):
    try:
        call("7")
    except OperationalError as error:
        print(api.api.exception_handlers[OperationalError](None, error).status_code)
for call in (async_api.place, async_api.pay):
    try:
        asyncio.run(call("7"))
    except OperationalError as error:
        print(async_api.api.exception_handlers[OperationalError](None, error).status_code)
for call in (views.place, views.pay):
    print(asyncio.run(call(None, "7")).status_code)
client = web.web.test_client()
print(client.post("/orders/7").status_code)
print(client.post("/orders/7/payment").status_code)
"""


@pytest.mark.thorough
def test_the_tutorial_ends_as_it_says(tmp_path: Path, redis_server: PrivateRedis) -> None:
    with redis_server.client() as client:
        client.flushall()
    tutorial = Example(REPOSITORY / "docs" / "tutorial.md", tmp_path, redis_server)
    assert tutorial.run("place.py").count("shop.cancel_unpaid") == 2
    assert tutorial.run("customer.py") == "['cancel:2']\n"
    arguments = ("worker", "--pool", "solo", "--loglevel", "INFO")
    broker = f"delayq://127.0.0.1:{redis_server.port}/0"
    with CeleryCommand(*arguments, broker=broker, ledger="", app="shop", paths=[tmp_path]) as worker:
        wait_until(lambda: "order 2 is cancelled" in worker.log, "the task of the order that was not paid")
        assert "order 1" not in worker.log
