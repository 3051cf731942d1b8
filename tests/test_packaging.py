"""What is installed, and what a wheel contains."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from importlib.resources import files
from pathlib import Path

import pytest

import celery_delayq

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "celery_delayq"


def data_files() -> set[str]:
    """Every file of the package in the repository that is not Python's own."""
    found = (file for file in PACKAGE.rglob("*") if "__pycache__" not in file.parts and file.is_file())
    return {str(file.relative_to(REPOSITORY)) for file in found}


def test_the_installed_version_is_that_of_the_package() -> None:
    assert importlib.metadata.version("celery-delayq") == celery_delayq.__version__


def test_all_that_is_promised_can_be_imported() -> None:
    for name in celery_delayq.__all__:
        assert getattr(celery_delayq, name)


def test_the_scripts_and_the_type_marker_are_found() -> None:
    installed = files("celery_delayq")
    assert installed.joinpath("py.typed").is_file()
    assert {file.name for file in installed.joinpath("queue", "lua").iterdir()} == {
        file.name for file in (PACKAGE / "queue" / "lua").iterdir()
    }


def test_the_celery_command_loads() -> None:
    (command,) = importlib.metadata.entry_points(group="celery.commands", name="delayq")
    assert command.load().name == "delayq"


def can_build_a_wheel() -> bool:
    """Return whether setuptools is here and can do it, by itself (since 70.1) or with `wheel`."""
    if importlib.util.find_spec("setuptools") is None:
        return False
    return any(map(importlib.util.find_spec, ("setuptools.command.bdist_wheel", "wheel")))


@pytest.mark.skipif(not can_build_a_wheel(), reason="a wheel cannot be built offline")
def test_a_wheel_has_all_files_of_the_package(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(PACKAGE, source / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "LICENSE", "README.md"):
        if (REPOSITORY / name).exists():
            shutil.copy(REPOSITORY / name, source)
    build = [*("-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"), "--no-deps"]
    where = ["--no-build-isolation", "--no-index", "--wheel-dir", str(tmp_path), str(source)]
    subprocess.run([sys.executable, *build, *where], check=True, timeout=100)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert data_files() <= names
    others = {name for name in names if not name.startswith(("celery_delayq/", "celery_delayq-"))}
    assert not others
