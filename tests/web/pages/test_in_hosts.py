"""The page works wherever it is mounted: look, cancel one, choose a language."""

from __future__ import annotations

import pytest
from celery import Celery
from playwright.sync_api import expect

from examples.private_redis import PrivateRedis
from tests import brokers
from tests.web.filling import add_orders
from tests.web.pages.lists import expect_ids, press, said, select
from tests.web.sites import KINDS, served
from tests.web.visit import Visits


@pytest.mark.parametrize(
    "kind",
    [kind if kind == "proxied" else pytest.param(kind, marks=pytest.mark.thorough) for kind in KINDS],
)
def test_look_cancel_one_and_choose_a_language(
    visit: Visits, app: Celery, broker: PrivateRedis, ledger_url: str, kind: str
) -> None:
    ids = add_orders(app, 3)
    with served(kind, broker=brokers.url_of(broker), ledger=ledger_url) as url:
        page = visit(url)
        expect(page.locator(".tiles div").first).to_contain_text("3")
        page.locator("#queues").get_by_role("link", name="celery").click()
        expect(page).to_have_url(f"{url}waiting?queue=celery")
        expect_ids(page, ids)
        page.get_by_role("link", name=ids[0]).click()
        expect(page.locator("#task")).to_contain_text(ids[0])
        page.go_back()
        select(page, ids[0])
        press(page, "Cancel …", "Cancel for good")
        expect(said(page)).to_have_text("1 task cancelled.")
        assert app.delayq.get(ids[0]) is None
        page.goto(f"{url}waiting?queue=celery")
        app.delayq.cancel(ids[1])
        expect_ids(page, ids[2:])  # without being loaded again
        page.get_by_role("link", name="中文").click()
        expect(page.locator("html")).to_have_attribute("lang", "zh")
        expect(page).to_have_url(f"{url}waiting?queue=celery")
        page.goto(url)
        expect(page.locator("html")).to_have_attribute("lang", "zh")
        visit.watch(page).expect("status of 404")
        page.goto(f"{url}nowhere")
        expect(page.locator("header nav a")).to_have_count(5)
        page.get_by_role("link", name="celery_delayq").click()
        expect(page).to_have_url(url)
