"""The ground of the browser tests: each kind of trouble in a page is seen."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.web.axe import axe
from tests.web.hostile import TEXTS
from tests.web.sites import Site
from tests.web.visit import PHONE, Scheme, Visits


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site(command=["-m", "tests.web.sample"], broker="delayq://", ledger="redis://") as site:
        yield site


@pytest.fixture(scope="module")
def sample(site: Site) -> str:
    return site.url


def test_a_form_is_filled_in_and_sent(visit: Visits, sample: str) -> None:
    page = visit(sample)
    page.get_by_label("Your name").fill('<b>"Ann"</b>')
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#said")).to_have_text('Hello <b>"Ann"</b>!')
    page.get_by_role("link", name="Back").click()
    expect(page.get_by_label("Your name")).to_be_empty()


def test_scripts_run_unless_they_are_off(visit: Visits, sample: str) -> None:
    expect(visit(f"{sample}script").locator("#answer")).to_have_text("ran")
    expect(visit(f"{sample}script", scripts=False).locator("#answer")).to_have_text("no script ran")


def test_size_and_scheme_are_as_asked(visit: Visits, sample: str, size: tuple[int, int], scheme: Scheme) -> None:
    page = visit(f"{sample}clean", size=size, scheme=scheme)
    assert page.evaluate("innerWidth") == size[0]
    assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") == (scheme == "dark")


def test_axe_finds_too_little_contrast(visit: Visits, sample: str) -> None:
    found = axe(visit(f"{sample}contrast"))
    assert found.rules == {"color-contrast"}
    assert "Can you read this?" in repr(found)
    assert "contrast of 1.91" in repr(found)


def test_axe_says_that_it_needs_scripts(visit: Visits, sample: str) -> None:
    with pytest.raises(AssertionError, match="axe needs scripts"):
        axe(visit(f"{sample}contrast", scripts=False))


def test_axe_finds_nothing_where_nothing_is_wrong(visit: Visits, sample: str, scheme: Scheme) -> None:
    assert axe(visit(f"{sample}clean", scheme=scheme)) == []


def test_a_page_that_is_wider_than_a_phone_shows(visit: Visits, sample: str) -> None:
    wide = "document.documentElement.scrollWidth > innerWidth"
    assert visit(f"{sample}wide", size=PHONE).evaluate(wide)
    assert not visit(f"{sample}clean", size=PHONE).evaluate(wide)


@pytest.mark.parametrize(
    ("path", "troubles"),
    [
        ("clean", ()),
        ("inline", ("securitypolicyviolation: script-src-elem blocked inline",)),
        ("error", ("script error: broken",)),
        ("dialog", ("dialog: alert: hello",)),
        ("elsewhere", ("foreign request: GET http://127.0.0.2:1/pixel.png",)),
        ("nowhere", ("status of 404",)),
    ],
)
def test_trouble_in_a_page_is_noticed(browser: Browser, sample: str, path: str, troubles: tuple[str, ...]) -> None:
    visits = Visits(browser)
    page = visits(sample + path)
    page.wait_for_load_state("networkidle")
    found = visits.end()
    assert all(any(trouble in line for line in found) for trouble in troubles), found
    assert bool(found) == bool(troubles), found


@pytest.mark.parametrize(
    ("what", "shown"),
    [
        ("script", "{}"),
        ("closing script", "<textarea>{}"),
        ("image", "{}"),
        ("double quotes", '<input value="{}">'),
        ("single quotes", "<input value='{}'>"),
    ],
)
@pytest.mark.parametrize("policy", ["default-src 'self'", "default-src * 'unsafe-inline'"])
def test_hostile_texts_do_harm_where_they_are_not_escaped(
    browser: Browser, sample: str, what: str, shown: str, policy: str
) -> None:
    visits = Visits(browser)
    page = visits(f"{sample}clean")
    page.route(
        sample,
        lambda route: route.fulfill(
            content_type="text/html", headers={"Content-Security-Policy": policy}, body=shown.format(TEXTS[what])
        ),
    )
    page.goto(sample)
    assert any("dialog" in trouble or "securitypolicyviolation" in trouble for trouble in visits.end())


def test_what_is_expected_must_happen(browser: Browser, sample: str) -> None:
    visits = Visits(browser)
    for path in ("error", "clean"):
        page = visits(sample + path)
        visits.watch(page).expect("broken")
        page.wait_for_load_state("networkidle")
    assert visits.end() == ["expected, but it did not happen: broken"]


def test_trouble_fails_the_test_at_its_end(tmp_path: Path, sample: str) -> None:
    """In a pytest of its own, with the fixtures of this folder."""
    tmp_path.joinpath("conftest.py").write_text("from tests.web.pages.conftest import browser, visit")
    tmp_path.joinpath("test_it.py").write_text(f"def test_it(visit):\n    visit({sample + 'dialog'!r})\n")
    done = subprocess.run(
        [sys.executable, *("-m", "pytest", "-p", "no:cacheprovider", "-p", "no:valkey"), str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed, 1 error" in done.stdout, done.stdout
    assert "dialog: alert: hello" in done.stdout, done.stdout
