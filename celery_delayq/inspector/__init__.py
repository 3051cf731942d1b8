"""See and change what waits; no worker needs to run for any of it.

    broker_lists  which there are, and which ones know an id
    message       the JSON around a task's body, which nobody decodes here
    task          a task that waits
    pages         what waits, in due order over all queues
    counts        how much waits where
    backup        export, import, release
    inspector     the whole of it for one channel

`DelayQ`, the commands and remote control are skins over it.
"""

from __future__ import annotations

from celery_delayq.inspector.inspector import Inspector

__all__ = ["Inspector"]
