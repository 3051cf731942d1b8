"""A loop in a process of its own, for tests that kill it: `python -m tests.loop.lone_loop PORT ID`."""

from __future__ import annotations

import sys
import threading

import redis

from celery_delayq.queue.keeper import Keeper
from celery_delayq.transfer.loop import TransferLoop
from celery_delayq.transfer.settings import TransferSettings


def main() -> None:
    """Transfer until the process is killed."""
    port, loop_id = sys.argv[1:]
    settings = TransferSettings(grace_s=0.2, interval_s=300.0)
    TransferLoop(Keeper(lambda: redis.Redis(port=int(port))), settings=settings, id=loop_id).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
