"""The ground of the browser tests: a page is served in each way, and a form works there."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

from tests.web.sites import KINDS, Site, mounted, served
from tests.web.visit import Visits

AWAY: dict[str, Any] = {"broker": "delayq://127.0.0.1:1/0", "ledger": "redis://127.0.0.1:1/0"}


def sample(**kwargs: Any) -> Site:
    return Site(command=["-m", "tests.web.sample"], **kwargs)


@pytest.mark.parametrize("kind", KINDS)
def test_a_form_works_wherever_the_page_is(visit: Visits, kind: str) -> None:
    with served(kind, sample, "sample", **AWAY) as url:
        assert url.endswith("/" if kind == "standalone" else "/ops/delayq/")
        page = visit(url)
        page.get_by_label("Your name").fill("Ann")
        page.get_by_role("button", name="Send").click()
        expect(page.locator("#said")).to_have_text("Hello Ann!")
        page.get_by_role("link", name="Back").click()
        expect(page).to_have_url(url)


def test_access_changes_while_the_site_runs(visit: Visits) -> None:
    with mounted("flask", "sample", **AWAY) as site:
        page = visit(site.url)
        expect(page.locator("#access")).to_have_text("'all'")
        site.access.set(["cancel"])
        page.reload()
        expect(page.locator("#access")).to_have_text("['cancel']")
        site.access.set(None)
        visit.watch(page).expect("status of 403")
        response = page.reload()
        assert response is not None
        assert response.status == 403


def test_a_site_that_does_not_come_up_shows_its_output() -> None:
    with pytest.raises(AssertionError, match="KeyError: 'nowhere'"), mounted("nowhere", "sample", **AWAY):
        pass
