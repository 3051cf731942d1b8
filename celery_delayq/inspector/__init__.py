"""Read and change waiting tasks, and those in their queues. No worker needs to run.

    away          nodes of a cluster that are away, and what is lost meanwhile
    broker_lists  the broker lists of an app, and which of them hold an id
    task          a waiting task
    pages         waiting tasks in due order across all queues
    ready_tasks   tasks in their queues: find, show, cancel
    histogram     how many tasks are due when
    counts        message counts per queue
    history       how many messages moved in the last hours or days, and how late
    consumers     who consumes which lists, and what they hold
    held          the tasks that consumers have fetched
    bulk          changes of many tasks, a chunk at a time
    letters       filters for dead letters, and changes of many
    backup        export, import, release
    inspector     Inspector: tasks by their ids or unique keys, and the lists for everything else

`DelayQ`, the commands and the web page are thin layers over these: each opens an `Inspector`, and calls it, or passes
its `lists`.
"""

from __future__ import annotations

from celery_delayq.inspector.inspector import Inspector

__all__ = ["Inspector"]
