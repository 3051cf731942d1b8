"""The errors, by the name of the module that users know."""

from celery_delayq.basics.errors import *  # noqa: F403
