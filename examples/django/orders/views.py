"""Views. A real shop would have forms and customers."""

from __future__ import annotations

from django.conf import settings
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from bookshop.celery import delayq
from orders.models import Order
from orders.tasks import cancel_unpaid


@csrf_exempt
@require_POST
def create(request: HttpRequest) -> JsonResponse:
    """Order books: one order for each field `book`."""
    with transaction.atomic():
        orders = [Order.objects.create(book=book) for book in request.POST.getlist("book")]
        # Not before the commit: there may be none, and a worker would find no order.
        transaction.on_commit(lambda: send_cancellations(orders), robust=True)
    return JsonResponse({"orders": [order.pk for order in orders]}, status=201)


def send_cancellations(orders: list[Order]) -> None:
    """Send a delayed task for each order, in one round trip."""
    delayq.apply_async_many(
        cancel_unpaid.s(order.pk).set(countdown=settings.PAY_WITHIN_S, task_id=order.task_id) for order in orders
    )


@csrf_exempt
@require_POST
def pay(request: HttpRequest, pk: int) -> JsonResponse:
    """Pay an order."""
    order = get_object_or_404(Order, pk=pk)
    paid = Order.objects.filter(pk=pk, state=Order.State.OPEN).update(state=Order.State.PAID)
    if not paid:
        return JsonResponse({"error": f"this order is {order.state}"}, status=409)
    delayq.cancel(order.task_id)
    return JsonResponse({"state": Order.State.PAID})
