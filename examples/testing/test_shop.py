"""Tests of the shop: no worker runs, nobody waits for half an hour, and no call of `delayq` is mocked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_delayq.testing import DelayQTester
from examples.testing import shop


@pytest.fixture(autouse=True)
def _empty_database() -> Iterator[None]:
    yield
    shop.orders.clear()
    shop.outbox.clear()


def test_an_order_waits_for_its_payment(delayq: DelayQTester) -> None:
    shop.place_order(7)
    delayq.assert_scheduled(shop.cancel_unpaid, args=(7,), countdown=30 * 60)
    delayq.assert_scheduled(shop.remind, args=(7,), countdown=20 * 60, queue="mail")


def test_an_unpaid_order_is_cancelled(delayq: DelayQTester) -> None:
    shop.place_order(7)
    delayq.advance(minutes=29)
    assert shop.orders == {7: "placed"}
    delayq.advance(minutes=1)
    assert shop.orders == {7: "cancelled"}
    assert shop.outbox == ["order 7 is not paid yet", "order 7 is cancelled"]


def test_a_paid_order_is_not_cancelled(delayq: DelayQTester) -> None:
    shop.place_order(7)
    assert shop.pay(7)
    delayq.assert_not_scheduled(shop.cancel_unpaid)
    delayq.advance(days=1)
    assert shop.orders == {7: "paid"}
    assert not shop.outbox


def test_a_payment_may_come_too_late(delayq: DelayQTester) -> None:
    shop.place_order(7)
    delayq.advance(minutes=30)
    assert not shop.pay(7)


def test_a_reminder_is_tried_again(delayq: DelayQTester, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(text: str) -> None:
        raise shop.MailServerDown

    shop.place_order(7)
    with monkeypatch.context() as patch:
        patch.setattr(shop, "send_mail", fail)
        (run,) = delayq.advance(minutes=20)
    assert run.state == "RETRY"
    delayq.assert_scheduled(shop.remind, args=(7,), countdown=60)
    delayq.advance(minutes=1)
    assert shop.outbox == ["order 7 is not paid yet"]


def test_a_reminder_that_fails_for_good_raises(delayq: DelayQTester, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(text: str) -> None:
        raise shop.MailServerDown

    shop.place_order(7)
    monkeypatch.setattr(shop, "send_mail", fail)
    with pytest.raises(shop.MailServerDown):
        delayq.advance(minutes=22)
