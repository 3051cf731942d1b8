"""The configuration of the app."""

from __future__ import annotations

from django.apps import AppConfig


class OrdersConfig(AppConfig):
    """Orders."""

    name = "orders"
