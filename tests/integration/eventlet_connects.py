"""A program: with eventlet, native threads connect while greenlets do. It prints how many connections there were."""

from __future__ import annotations

import eventlet

eventlet.monkey_patch()

import sys  # noqa: E402
import threading  # noqa: E402

from celery import Celery  # noqa: E402

from celery_delayq import DelayQ  # noqa: E402
from celery_delayq.fetching.native import opened, start_native_thread  # noqa: E402
from tests.support import wait_until  # noqa: E402

EACH, NATIVE, GREEN = 20, 2, 3


def main(url: str) -> None:
    app = Celery("tests", broker=url)
    DelayQ(app)
    sys.setswitchinterval(1e-6)  # threads take turns in the middle of everything
    done = []

    def connect() -> None:
        for _ in range(EACH):
            with opened(station.consumer.connect, lambda client: client.ping()) as client:
                client.ping()
            done.append(1)

    with app.connection() as connection:
        station = connection.default_channel.fetcher._begin()
        for _ in range(NATIVE):
            start_native_thread(connect)
        for _ in range(GREEN):
            threading.Thread(target=connect, daemon=True).start()
        wait_until(lambda: len(done) >= EACH * (NATIVE + GREEN), "all have connected")
        print(len(done))
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
