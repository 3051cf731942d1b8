"""Permissions, by a model without a table."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models

from celery_delayq.web.access import ACTIONS

#: Action of the page -> permission, without the label of the app: "dead.purge" -> "dead_purge".
PERMISSIONS = {action: action.replace(".", "_") for action in ACTIONS}

_NAMES = {
    "cancel": "Can cancel delayed tasks",
    "reschedule": "Can reschedule delayed tasks",
    "run_now": "Can run delayed tasks now",
    "dead.requeue": "Can requeue dead letters",
    "dead.purge": "Can delete dead letters",
    "queue.pause": "Can pause queues",
    "queue.resume": "Can resume queues",
    "schedule.add": "Can add periodic tasks",
    "schedule.update": "Can edit periodic tasks",
    "schedule.remove": "Can remove periodic tasks",
    "schedule.pause": "Can pause periodic tasks",
    "schedule.resume": "Can resume periodic tasks",
    "schedule.run_now": "Can run periodic tasks now",
}


class _Nothing(models.Manager):
    """Finds nothing, and asks no database: commands such as `dumpdata` ask each model."""

    def get_queryset(self) -> Any:
        """Return an empty query set."""
        return super().get_queryset().none()


class DelayedTask(models.Model):
    """Stands for the operators' page, which is about tasks in Redis. It has no table, and no instances.

    `view_delayedtask` is the permission to look, `change_delayedtask` to do everything; each action has its own, too.
    """

    objects = _Nothing()

    class Meta:
        """Table information."""

        managed = False
        base_manager_name = "objects"
        verbose_name = "delayed task"
        verbose_name_plural = "delayed tasks"
        default_permissions = ("view", "change")
        permissions: ClassVar = [(PERMISSIONS[action], _NAMES[action]) for action in ACTIONS]
