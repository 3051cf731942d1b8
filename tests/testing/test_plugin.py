"""The fixtures of pytest, in runs of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

#: Celery's Redis result backend calls what redis-py 8 deprecates.
WARNINGS = ("-W", "error", "-W", "ignore:Call to deprecated setex:DeprecationWarning")

APP = """
from celery import Celery
from celery_delayq import DelayQ

app = Celery("shop", broker="delayq://nowhere.invalid:1/0", backend="redis://nowhere.invalid:1/0")
delayq = DelayQ(app)

@app.task
def note(value):
    return value
"""

#: Two tests, of which each wants to be alone.
TESTS = """
import pytest
from shop import delayq as own, note

@pytest.mark.parametrize("number", range(2))
def test_alone(delayq, number):
    assert not list(delayq.scheduled())
    result = note.apply_async((number,), countdown=60)
    assert own.get(result).id == delayq.assert_scheduled(note).id
    delayq.advance(minutes=1)
    assert result.get(timeout=10) == number
    note.apply_async((number,), countdown=60)
"""


def run(folder: Path, *args: str, app: str = APP, tests: str = TESTS, conftest: str = "") -> str:
    """Run pytest in a folder, with the plugin and no other, and return what it says."""
    for name, text in (("shop", app), ("test_shop", tests), ("conftest", conftest)):
        (folder / f"{name}.py").write_text(text)
    return pytest_in(folder, *args)


def pytest_in(folder: Path, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "celery_delayq.testing.plugin", *WARNINGS, "-v", *args],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": f"{REPOSITORY}:{folder}"},
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    return done.stdout + done.stderr


def test_the_option_of_the_configuration_names_the_app(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\ndelayq_app = shop:app\n")
    assert "2 passed" in run(tmp_path, "--strict-config")


@pytest.mark.parametrize("name", ["shop:app", "shop"])
def test_the_option_of_the_command_line_names_the_app(tmp_path: Path, name: str) -> None:
    assert "2 passed" in run(tmp_path, f"--delayq-app={name}")


def test_a_fixture_of_users_returns_the_app(tmp_path: Path) -> None:
    conftest = """
import pytest

@pytest.fixture
def delayq_app():
    from shop import app
    return app
"""
    assert "2 passed" in run(tmp_path, conftest=conftest)


def test_without_a_name_the_error_says_what_to_do(tmp_path: Path) -> None:
    said = run(tmp_path)
    assert "2 errors" in said
    assert "which Celery app? Write delayq_app = shop:app in the configuration of pytest" in said


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nowhere:app", "ModuleNotFoundError: No module named 'nowhere'"),
        ("nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
        ("shop:application", "AttributeError: module 'shop' has no attribute 'application'"),
    ],
)
@pytest.mark.parametrize("place", ["command line", pytest.param("configuration", marks=pytest.mark.thorough)])
def test_a_wrong_name_is_told_with_where_it_stands(tmp_path: Path, name: str, reason: str, place: str) -> None:
    if place == "configuration":
        (tmp_path / "pytest.ini").write_text(f"[pytest]\ndelayq_app = {name}\n")
        said = run(tmp_path)
        expected = f"delayq_app = {name} in the configuration of pytest names no Celery app: {reason}"
    else:
        said = run(tmp_path, f"--delayq-app={name}")
        expected = f"--delayq-app={name} names no Celery app: {reason}"
    assert "2 errors" in said
    assert expected in said


def test_without_a_server_the_error_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_SERVER", "no-such-server")
    said = run(tmp_path, "--delayq-app=shop")
    assert "2 errors" in said
    assert "pip install '.[server]'" in said


def test_the_app_is_private_without_the_helpers_too(tmp_path: Path) -> None:
    tests = """
def test_app(delayq_app, delayq_redis):
    assert delayq_app.conf.broker_url == f"delayq://127.0.0.1:{delayq_redis.port}/0"

def test_both(delayq_app, delayq):
    assert delayq.app is delayq_app
"""
    assert "2 passed" in run(tmp_path, "--delayq-app=shop", tests=tests)


def test_other_runs_import_nothing(tmp_path: Path) -> None:
    tests = """
import sys

def test_nothing():
    assert not {"celery", "kombu", "redis"} & sys.modules.keys()
"""
    assert "1 passed" in run(tmp_path, tests=tests)


def test_the_example() -> None:
    folder = REPOSITORY / "examples" / "testing"
    assert "6 passed" in pytest_in(folder, "-p", "no:cacheprovider")
