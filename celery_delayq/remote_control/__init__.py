"""Celery's remote control.

broadcast    `app.control`
commands     commands and replies of a worker
revocation   removes waiting tasks, and announces it
"""
