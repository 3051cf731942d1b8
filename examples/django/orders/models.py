"""Models."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class Order(models.Model):
    """An order."""

    class State(models.TextChoices):
        """What has become of an order."""

        OPEN = "open"
        PAID = "paid"
        CANCELLED = "cancelled"

    book = models.CharField(max_length=200)
    state = models.CharField(max_length=9, choices=State.choices, default=State.OPEN)
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        """Table information."""

        ordering: ClassVar = ["pk"]

    def __str__(self) -> str:
        return f"order {self.pk}: {self.book}"

    @property
    def task_id(self) -> str:
        """The id of the task that cancels it: nobody needs to store it."""
        return f"cancel-order-{self.pk}"
