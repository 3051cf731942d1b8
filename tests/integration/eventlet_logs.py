"""A program: with eventlet, a native thread logs while greenlets do. It prints how many lines there were."""

from __future__ import annotations

import eventlet

eventlet.monkey_patch()

import logging  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402

from celery_delayq.fetching.native import logger_for, start_native_thread  # noqa: E402

LINES = 3000


class Counter(logging.Handler):
    """Counts; it is slow, so that others wait for its lock."""

    lines = 0

    def emit(self, record: logging.LogRecord) -> None:
        Counter.lines += 1
        time.sleep(0)


def main() -> None:
    logging.getLogger().addHandler(Counter())
    logger = logger_for("native")

    def log() -> None:
        for number in range(LINES):
            logger.warning("line %d", number)

    start_native_thread(log)
    greenlets = [threading.Thread(target=log) for _ in range(3)]
    for greenlet in greenlets:
        greenlet.start()
    for greenlet in greenlets:
        greenlet.join()
    until = time.monotonic() + 20
    while Counter.lines < 4 * LINES and time.monotonic() < until:
        time.sleep(0.05)
    print(Counter.lines)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
