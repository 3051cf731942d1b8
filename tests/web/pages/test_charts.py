"""Charts: each is seen as a whole, and so are its labels, also on a phone."""

from __future__ import annotations

import pytest
from celery import Celery
from playwright.sync_api import expect

from tests.web.filling import add_orders
from tests.web.visit import Visits

#: Ids of charts that are not seen as a whole, and texts that are cut or lie upon one another.
_HIDDEN = """() => {
    const found = [];
    const box = (each) => each.getBoundingClientRect();
    for (const plot of document.querySelectorAll(".plot")) {
        const outer = box(plot);
        if (plot.scrollWidth > plot.clientWidth) found.push("scrolls");
        const texts = [...plot.querySelectorAll(".scale span, .marks text")].filter((each) => box(each).width);
        for (const each of [...texts, ...plot.querySelectorAll(".bar")]) {
            const inner = box(each);
            const isCut = inner.left < outer.left || inner.right > outer.right || inner.top < outer.top;
            if (isCut) found.push(each.outerHTML);
        }
        const marks = texts.filter((each) => each.closest(".marks")).map(box);
        if (marks.some((mark, at) => at && mark.left < marks[at - 1].right + 2)) found.push("labels touch");
        if (marks.length < 3) found.push("few labels");
    }
    return found;
}"""


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
@pytest.mark.parametrize("query", ["", "?span=86400&hours=72", "?span=31536000"])
def test_charts_are_seen_as_a_whole(visit: Visits, url: str, app: Celery, width: int, query: str) -> None:
    add_orders(app, 60, first_due_s=60, apart_s=55)
    page = visit(f"{url}{query}", size=(width, 800))
    expect(page.locator(".plot")).to_have_count(3)
    expect(page.locator("#due-region .bar").first).to_be_attached()
    assert page.evaluate(_HIDDEN) == []
