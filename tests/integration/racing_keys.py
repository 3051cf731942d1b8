"""A program: threads that send tasks with one unique key as fast as they can, until it is killed.

`python -m tests.integration.racing_keys BROKER LEDGER THREADS CONFLICTS`
"""

from __future__ import annotations

import random
import sys
import threading

from celery_delayq import KeyHeld
from tests.worker_app import make_app

KEY = "one of a kind"


def main(broker: str, ledger: str, threads: int, conflicts: list[str]) -> None:
    app = make_app(broker, ledger)
    note = app.tasks["note"]

    def send() -> None:
        while True:
            countdown = random.choice([0.01, 0.05, 600, 900])
            try:
                note.apply_async(countdown=countdown, unique=KEY, on_conflict=random.choice(conflicts))
            except KeyHeld:
                continue

    for _ in range(threads):
        threading.Thread(target=send, daemon=True).start()
    print("racing", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4].split(","))
