"""URLs: the views of orders, and the admin, which has the page of celery_delayq."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from orders import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("orders", views.create),
    path("orders/<int:pk>/payment", views.pay),
]
