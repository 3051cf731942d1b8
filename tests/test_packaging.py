"""What is installed, and what a wheel and a source distribution contain."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from configparser import ConfigParser
from email.message import Message
from email.parser import Parser
from importlib.resources import files
from pathlib import Path

import pytest

import celery_delayq
from tests.support import missing

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "celery_delayq"

#: Not a real address: `.invalid` is reserved for such.
ADDRESS = "https://repository.invalid/somebody/celery_delayq"


def files_of_repository() -> set[str]:
    """Every file that is in the repository, or will be: what Git does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=True, timeout=60).stdout.decode()
    except (OSError, subprocess.CalledProcessError) as error:
        missing(f"this is not a Git repository, or there is no Git: {error}")
    return {name for name in listed.split("\0") if (REPOSITORY / name).is_file()}


def copy_of_repository(folder: Path, address: str | None = None) -> Path:
    """Copy the repository to a new folder, perhaps with its public address filled in."""
    for name in files_of_repository():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, folder / name)
    if address is not None:
        setup_cfg = folder / "setup.cfg"
        text, filled = re.subn(r"(?m)^address =.*$", f"address = {address}", setup_cfg.read_text("utf-8"))
        assert filled == 1
        setup_cfg.write_text(text, "utf-8")
    return folder


def need(*tools: str) -> None:
    """Skip the test, or fail in CI, if a package that builds or checks is not installed."""
    for tool in tools:
        try:
            importlib.metadata.version(tool)
        except importlib.metadata.PackageNotFoundError:
            missing(f"no {tool}: `make setup` installs it (dependency group `dist`)")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel and a source distribution: what `make dist` has built, or built here without a network."""
    if built := os.environ.get("DELAYQ_DIST"):
        return Path(built)
    need("build", "setuptools")
    folder = tmp_path_factory.mktemp("packaging")
    source = copy_of_repository(folder / "source")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(source)]
    done = subprocess.run(build, cwd=folder, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "dist"


def metadata(folder: Path, address: str) -> Message:
    """Return the metadata of a copy of the repository with this public address."""
    need("setuptools")
    source = copy_of_repository(folder / "source", address)
    code = "import sys; from setuptools.build_meta import *; prepare_metadata_for_build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(folder)], cwd=source, capture_output=True, check=True, timeout=100)
    (found,) = folder.glob("*.dist-info/METADATA")
    return Parser().parsestr(found.read_text("utf-8"))


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


def test_the_plugin_of_pytest_is_named_where_it_is() -> None:
    settings = ConfigParser()
    settings.read(REPOSITORY / "setup.cfg")
    (plugin,) = settings["options.entry_points"]["pytest11"].strip().splitlines()
    name, _, module = plugin.partition(" = ")
    assert name == "delayq"
    assert importlib.import_module(module).delayq_redis


def test_a_wheel_has_the_files_of_the_package_and_nothing_else(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    names = {
        name for name in zipfile.ZipFile(wheel).namelist() if not re.match(r"celery_delayq-[^/]+\.dist-info/", name)
    }
    assert names == {name for name in files_of_repository() if name.startswith("celery_delayq/")}


def test_a_source_distribution_has_the_files_of_the_repository_and_nothing_else(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    added = {name for name in names if name == "PKG-INFO" or name.startswith("celery_delayq.egg-info/")}
    assert names - added == files_of_repository()


def test_both_have_the_version_of_the_package(dist: Path) -> None:
    built = {re.sub(r"(-py3-none-any\.whl|\.tar\.gz)$", "", file.name) for file in dist.iterdir()}
    assert built == {f"celery_delayq-{celery_delayq.__version__}"}


def test_an_index_accepts_both(dist: Path) -> None:
    need("twine")
    check = [sys.executable, "-m", "twine", "check", "--strict", *map(str, dist.iterdir())]
    done = subprocess.run(check, cwd=dist, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2


def test_the_address_of_the_repository_is_one_line_to_fill_in() -> None:
    setup_cfg = ConfigParser(interpolation=None)
    setup_cfg.read(REPOSITORY / "setup.cfg", "utf-8")
    assert re.fullmatch(r"(https://\S+[^/\s])?", setup_cfg["repository"]["address"])


def test_with_an_address_the_readme_on_pypi_has_absolute_links(tmp_path: Path) -> None:
    described = metadata(tmp_path, ADDRESS)
    description = described.get_payload()
    assert isinstance(description, str)
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    tag = f"v{celery_delayq.__version__}"
    links = re.findall(r"(!?)\[[^\]]*\]\(([^()\s]+)\)", description)
    assert len(links) > 20
    for picture, link in links:
        if link.startswith("https://img.shields.io/"):  # a badge
            continue
        start = f"{ADDRESS}/{'raw' if picture else 'blob'}/{tag}/"
        assert link.startswith(start), link
        assert (REPOSITORY / link.removeprefix(start).partition("#")[0]).exists()
    # Only links have changed.
    assert re.sub(rf"{ADDRESS}/(raw|blob)/{tag}/", "", description).strip() == readme.strip()


def test_with_an_address_pypi_links_to_the_repository(tmp_path: Path) -> None:
    links = dict(line.split(", ") for line in metadata(tmp_path, ADDRESS).get_all("Project-URL", []))
    tag = f"v{celery_delayq.__version__}"
    assert links == {
        "Source": ADDRESS,
        "Documentation": f"{ADDRESS}/blob/{tag}/docs/README.md",
        "Changelog": f"{ADDRESS}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{ADDRESS}/issues",
    }


def test_without_an_address_there_are_no_links_to_it(tmp_path: Path) -> None:
    described = metadata(tmp_path, "")
    assert described["Project-URL"] is None
    assert described["Home-page"] is None
    assert described["Description-Content-Type"] == "text/markdown"
    assert str(described.get_payload()).strip() == (REPOSITORY / "README.md").read_text("utf-8").strip()


@pytest.mark.parametrize(
    ("markdown", "absolute"),
    [
        ("[a](docs/a.md#b)", "[a](https://r.invalid/blob/v1/docs/a.md#b)"),
        ("![a](docs/a.svg)", "![a](https://r.invalid/raw/v1/docs/a.svg)"),
        ("[a](https://example.com/a), [b](mailto:a@example.com), [c](#c)",) * 2,
        ("```python\nqueues[name](order)\n```",) * 2,
        ("`queues[name](order)`",) * 2,
    ],
)
def test_only_relative_links_become_absolute(markdown: str, absolute: str) -> None:
    need("setuptools")
    code = "import sys, setup; print(setup.absolute(sys.argv[1], 'https://r.invalid', 'v1'), end='')"
    command = [sys.executable, "-c", code, markdown]
    assert subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=True, text=True).stdout == absolute
