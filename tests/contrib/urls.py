"""The URLs of the project: Django's admin, and a site of its own."""

from __future__ import annotations

from typing import Any

from django.utils.functional import SimpleLazyObject


def _own() -> Any:
    from django.contrib import admin

    from celery_delayq.contrib.django.admin import DelayedTaskAdmin
    from celery_delayq.contrib.django.models import DelayedTask

    site = admin.AdminSite(name="own")
    site.register(DelayedTask, DelayedTaskAdmin)
    return site


def _patterns() -> list[Any]:
    from django.contrib import admin
    from django.urls import path

    return [path("admin/", admin.site.urls), path("ops/own/", own.urls)]


#: A site of the project's own.
own = SimpleLazyObject(_own)

urlpatterns = SimpleLazyObject(_patterns)
