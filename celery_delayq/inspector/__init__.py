"""Read and change waiting tasks. No worker needs to run.

    away          nodes of a cluster that are away, and what is lost meanwhile
    broker_lists  the broker lists of an app, and which of them hold an id
    task          a waiting task
    pages         waiting tasks in due order across all queues
    counts        message counts per queue
    dead          dead letters of a queue: pages, chunks
    backup        export, import, release
    inspector     Inspector: all of this for one channel

`DelayQ`, the commands and remote control are thin layers over the inspector.
"""

from __future__ import annotations

from celery_delayq.inspector.inspector import Inspector

__all__ = ["Inspector"]
