"""The project. It imports the Celery app, so that Django's processes have it, too."""

from bookshop.celery import app as celery_app

__all__ = ["celery_app"]
