"""The setting `beat_scheduler`: whether workers plan the periodic tasks."""

from __future__ import annotations

from typing import Any

from celery.utils.imports import load_extension_class_names, symbol_by_name
from celery.utils.log import get_logger

from celery_delayq.basics.errors import ConfigurationError

logger = get_logger("celery.beat")


class PlansInWorkers:
    """What `celery_delayq.beat:Scheduler` is: if `beat_scheduler` names such a class, workers plan."""


def is_ours(app: Any) -> bool:
    """Return whether the app's `beat_scheduler` is the one of this package, or a subclass of it.

    Raises:
        ConfigurationError: the name starts with `celery_delayq`, but cannot be imported.
    """
    named = app.conf.beat_scheduler
    if isinstance(named, str):
        aliases = dict(load_extension_class_names("celery.beat_schedulers"))
        try:
            named = symbol_by_name(named, aliases=aliases)
        except Exception as exc:
            if str(named).startswith("celery_delayq"):
                raise ConfigurationError(f"beat_scheduler must be celery_delayq.beat:Scheduler, not {named}") from exc
            return False  # beat itself reports the error
    return isinstance(named, type) and issubclass(named, PlansInWorkers)


def warn_of_another(sender: Any, **kwargs: Any) -> None:
    """Warn if beat starts with another scheduler while workers plan: each entry would be sent twice.

    Receives the signal `beat_init`; `sender` is beat's `Service`.
    """
    app, scheduler = sender.app, sender.scheduler
    if is_ours(app) and not isinstance(scheduler, PlansInWorkers):
        logger.warning(
            "Each entry of beat_schedule runs twice: this beat sends it with %s, and workers plan it because their "
            "beat_scheduler is celery_delayq's. Start beat without -S, or give beat and workers the same "
            "beat_scheduler.",
            type(scheduler).__qualname__,
        )
