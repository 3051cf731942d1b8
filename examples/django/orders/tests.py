"""Tests of the project. They need no worker, but a broker for them alone: they cancel what waits there."""

from __future__ import annotations

from django.db import transaction
from django.test import TestCase

from bookshop.celery import delayq
from orders.models import Order
from orders.tasks import cancel_unpaid


def waiting() -> list[str]:
    """Return the ids of the tasks that wait."""
    return [task.id for task in delayq.scheduled(task=cancel_unpaid.name)]


class CreateTest(TestCase):
    """Orders and their delayed tasks. A TestCase commits nothing, so tests run the callbacks themselves."""

    def tearDown(self) -> None:
        """Cancel what was sent: the broker outlives the test."""
        delayq.cancel_all(task=cancel_unpaid.name)

    def test_tasks_are_sent_after_the_commit(self) -> None:
        """Before it, a worker would find no order."""
        with self.captureOnCommitCallbacks() as callbacks:
            self.client.post("/orders", {"book": ["Emma", "Faust"]})
        orders = list(Order.objects.all())
        self.assertEqual(waiting(), [])
        (send,) = callbacks
        send()
        self.assertEqual(waiting(), [order.task_id for order in orders])

    def test_nothing_is_sent_for_an_order_that_is_rolled_back(self) -> None:
        """Django forgets the callback with the transaction."""
        with (
            self.captureOnCommitCallbacks(execute=True) as callbacks,
            self.assertRaises(KeyError),
            transaction.atomic(),
        ):
            self.client.post("/orders", {"book": "Emma"})
            raise KeyError
        self.assertEqual(callbacks, [])
        self.assertEqual(waiting(), [])

    def test_one_task_is_sent_on_commit(self) -> None:
        """Celery has a method for it, which returns nothing."""
        with self.captureOnCommitCallbacks(execute=True):
            cancel_unpaid.apply_async_on_commit((1,), countdown=1800, task_id="cancel-order-1")
            self.assertEqual(waiting(), [])
        self.assertEqual(waiting(), ["cancel-order-1"])

    def test_a_paid_order_is_not_cancelled(self) -> None:
        """Its task is taken back; if it runs nevertheless, it does nothing."""
        with self.captureOnCommitCallbacks(execute=True):
            self.client.post("/orders", {"book": "Emma"})
        order = Order.objects.get()
        self.client.post(f"/orders/{order.pk}/payment")
        self.assertIsNone(delayq.get(order.task_id))
        cancel_unpaid(order.pk)
        order.refresh_from_db()
        self.assertEqual(order.state, Order.State.PAID)
