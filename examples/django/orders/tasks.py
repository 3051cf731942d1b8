"""Tasks."""

from __future__ import annotations

from datetime import timedelta

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from orders.models import Order


@shared_task
def cancel_unpaid(pk: int) -> None:
    """Cancel an order unless it was paid. It may run twice."""
    Order.objects.filter(pk=pk, state=Order.State.OPEN).update(state=Order.State.CANCELLED)


@shared_task
def sweep() -> int:
    """Cancel what `cancel_unpaid` should have cancelled: the broker may have been away when an order was committed."""
    overdue = timezone.now() - timedelta(seconds=settings.PAY_WITHIN_S + 60)
    unpaid = Order.objects.filter(state=Order.State.OPEN, created__lt=overdue)
    cancelled: int = unpaid.update(state=Order.State.CANCELLED)
    return cancelled
