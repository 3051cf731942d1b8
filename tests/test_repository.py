"""What a visitor of the repository meets: its versions, forms for issues, and CI."""

from __future__ import annotations

import re
from configparser import ConfigParser
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

import celery_delayq

REPOSITORY = Path(__file__).parents[1]
GITHUB = REPOSITORY / ".github"
FORMS = sorted(GITHUB.glob("ISSUE_TEMPLATE/*.yml"))


def load(file: Path) -> Any:
    return yaml.safe_load(file.read_text("utf-8"))


def supported_pythons() -> list[str]:
    setup_cfg = ConfigParser(interpolation=None)
    setup_cfg.read(REPOSITORY / "setup.cfg", "utf-8")
    return re.findall(r"Python :: (3\.\d+)$", setup_cfg["metadata"]["classifiers"], re.MULTILINE)


def test_the_changelog_has_the_last_version_with_its_date_below_what_is_unreleased() -> None:
    headings = re.findall(r"^## (.+)$", (REPOSITORY / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert headings[0] == "Unreleased"
    released = [re.fullmatch(r"(\d+\.\d+\.\d+) - (\d{4}-\d\d-\d\d)", heading) for heading in headings[1:]]
    versions = [found[1] for found in released if found]
    dates = [date.fromisoformat(found[2]) for found in released if found]
    assert len(versions) == len(headings) - 1
    number, dev, _ = celery_delayq.__version__.partition(".dev")
    if dev:  # the next version, of which the heading is still missing
        assert tuple(map(int, number.split("."))) > tuple(map(int, versions[0].split(".")))
    else:
        assert number == versions[0]
    assert dates == sorted(dates, reverse=True)


def test_each_form_for_issues_has_what_github_needs() -> None:
    assert {"bug.yml", "feature.yml"} <= {form.name for form in FORMS}
    for form in FORMS:
        if form.name == "config.yml":
            continue
        content = load(form)
        assert content["name"]
        assert content["description"]
        fields = [field for field in content["body"] if field["type"] != "markdown"]
        assert all(field["type"] in ("input", "textarea", "dropdown", "checkboxes") for field in fields)
        assert all(field["attributes"]["label"] for field in fields)
        ids = [field["id"] for field in fields]
        assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("command", ["celery -A shop report", "celery -A shop delayq check --json"])
def test_who_reports_a_bug_is_asked_for_what_we_need_to_know(command: str) -> None:
    assert f"`{command}`" in (GITHUB / "ISSUE_TEMPLATE" / "bug.yml").read_text("utf-8")


def test_ci_runs_everything_and_each_supported_python() -> None:
    jobs = load(GITHUB / "workflows" / "ci.yml")["jobs"]
    assert ".ci/run" in [step.get("run") for step in jobs["everything"]["steps"]]
    matrix = jobs["versions"]["strategy"]["matrix"]
    assert matrix["python"] == supported_pythons()
    assert f"py{{{','.join(version.replace('.', '') for version in matrix['python'])}}}" in (
        REPOSITORY / "tox.ini"
    ).read_text("utf-8")


def test_the_page_of_versions_has_the_bounds_of_setup_cfg() -> None:
    setup_cfg = ConfigParser(interpolation=None)
    setup_cfg.read(REPOSITORY / "setup.cfg", "utf-8")
    page = (REPOSITORY / "docs" / "versions.md").read_text("utf-8")
    required = setup_cfg["options"]["install_requires"].splitlines()
    for package in ("celery", "kombu[redis]", "redis"):
        (bounds,) = (line.removeprefix(package) for line in required if re.match(rf"{re.escape(package)}[<>]", line))
        assert f"`{bounds}`" in page, package
    assert f"{supported_pythons()[0]} to {supported_pythons()[-1]}" in page
