"""Charts: the labels of the lines have room."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from celery_delayq.web.charts import bar_chart
from tests.web.visit import PHONE, Visits

_PAGE = """<style>text {{ font: 19px "DejaVu Sans", Verdana, sans-serif; text-anchor: end }}</style>
<svg viewBox="0 0 960 220">{texts}</svg>"""


@pytest.mark.parametrize("label", ["5", "500 ms", "1,000,000"])
def test_a_label_is_not_cut(visit: Visits, label: str) -> None:
    chart = bar_chart([400.0, 1.0], ["", ""], [], unit=lambda value: label)
    assert chart.bars[0].x >= chart.left
    assert chart.bars[-1].x + chart.bars[-1].width <= chart.right
    page = visit("about:blank", size=PHONE)
    page.set_content(
        _PAGE.format(texts="".join(f'<text x="{chart.left - 8}" y="{y}">{text}</text>' for y, text in chart.lines))
    )
    expect(page.locator("text")).to_have_count(2)
    assert page.locator("text").first.evaluate("text => text.getBBox().x") >= 0
