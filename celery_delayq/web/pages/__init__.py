"""The pages: a module each.

`filters` reads what the URL selects; `steps` asks before a change, and tells progress; `entry_form` reads and writes
the form of a periodic task.
"""

from __future__ import annotations

from celery_delayq.web.pages import dead, entry, letter, overview, periodic, task, waiting, workers
from celery_delayq.web.view import Page

#: All of them.
PAGES: tuple[Page, ...] = (
    *(overview.PAGE, waiting.PAGE, task.PAGE),
    *(dead.PAGE, letter.PAGE, periodic.PAGE, entry.PAGE, workers.PAGE, workers.ONE),
)
