"""An app for Django's `INSTALLED_APPS`. It adds system checks, and the operators' page to the admin.

    apps        its configuration
    celery_app  finds the Celery app
    checks      what people get wrong
    models      permissions: a model without a table
    admin       the page in the admin; changes are in the admin's log

It has no migrations, since it has no table: `manage.py migrate` makes the permissions all the same. docs/django.md is
the manual.
"""
