"""The operators' page in the admin."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from django.contrib import admin
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.http import HttpRequest, HttpResponse
from django.urls import path, reverse
from django.views.decorators.csrf import csrf_exempt

from celery_delayq.basics.text import visible
from celery_delayq.contrib.django.celery_app import celery_app
from celery_delayq.contrib.django.models import PERMISSIONS, DelayedTask
from celery_delayq.web import web_module
from celery_delayq.web.audit import Change
from celery_delayq.web.request import Request

#: The longest text that a `LogEntry` has for an object.
_MOST = 200


@admin.register(DelayedTask)
class DelayedTaskAdmin(admin.ModelAdmin):
    """The page, where the list of a model's objects usually is.

    It is registered with `admin.site`; register it with a site of your own as any other `ModelAdmin`. Subclass it to
    decide otherwise who may do what: `has_view_permission` to look, `has_change_permission` to do everything.
    """

    def get_urls(self) -> list[Any]:
        """Return the URLs of the page, see `ModelAdmin`. Who is not logged in gets the login page of the site."""

        @csrf_exempt  # the page checks by itself that a change comes from it
        def page(request: HttpRequest, path: str) -> HttpResponse:
            response: HttpResponse = self._page(request, path)
            return response

        view = self.admin_site.admin_view(page, cacheable=True)  # it says itself what may be cached
        name = f"{self.opts.app_label}_{self.opts.model_name}_changelist"
        return [path("", view, {"path": ""}, name=name), path("<path:path>", view)]

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False: there is nothing to add."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: there is nothing to delete."""
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether a user may look: with any permission of the page."""
        return super().has_view_permission(request, obj) or bool(self.actions_of(request))

    def actions_of(self, request: HttpRequest) -> list[str]:
        """Return the actions for which a user has a permission; see `celery_delayq.web.access.ACTIONS`."""
        label = self.opts.app_label
        return [action for action, name in PERMISSIONS.items() if request.user.has_perm(f"{label}.{name}")]

    @cached_property
    def _page(self) -> Any:
        """The page. Only the first request looks for the Celery app, so that a missing one stops only this page."""
        home = reverse("admin:index", current_app=self.admin_site.name)
        site = web_module("site").Site(celery_app(), access=self._access, on_change=_log, home=home)
        return web_module("django").page_view(site)

    def _access(self, request: Request) -> str | list[str] | None:
        if self.has_change_permission(request.native):
            return "all"
        if actions := self.actions_of(request.native):
            return actions
        return "read" if self.has_view_permission(request.native) else None


def _log(request: Request, change: Change) -> None:
    """Add a change to the admin's log, unless nothing was changed."""
    if not (change.changed or change.error):
        return
    LogEntry.objects.create(
        user_id=request.native.user.pk,
        content_type=ContentType.objects.get_for_model(DelayedTask),
        object_repr=visible(f"{change.action}: {change.what}" if change.what else change.action)[:_MOST],
        action_flag=CHANGE,
        change_message=visible(change.result),
    )
