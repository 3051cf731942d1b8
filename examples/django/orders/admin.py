"""Orders in the admin."""

from __future__ import annotations

from typing import ClassVar

from django.contrib import admin

from orders.models import Order


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    """Orders."""

    list_display: ClassVar = ["book", "state", "created"]
