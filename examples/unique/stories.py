"""Three stories of tasks that are one of a kind or take turns, on a Redis and a worker of its own.

python -m examples.unique.stories
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from examples.private_redis import PrivateRedis, dying_with_us

ROOT = Path(__file__).parents[2]
WORKER = ("-m", "celery", "-A", "examples.unique.shop", "worker", "--concurrency=2", "--loglevel=INFO")
LONGEST_S = 60.0


def tell(shop: Any) -> bool:
    """Play the stories; returns whether each ended as it should."""
    right = True

    print("A user edits a text five times within a second. The reminder comes after the last edit:")
    last = 0.0
    for number in range(5):
        last = time.time()
        shop.edited(42, f"edit {number}", quiet_s=1.0)
        time.sleep(0.2)
    (reminder,) = wait_for(shop, "remind", 1)
    right &= show("one reminder", reminder["text"] == "edit 4" and float(reminder["at"]) >= last + 1)

    print("A cart changes four times. One rebuild waits:")
    new = [shop.changed(7, reason, soon_s=1.0) for reason in ("price", "stock", "address", "voucher")]
    rebuilds = wait_for(shop, "rebuild", 1)
    right &= show("one rebuild", new == [True, False, False, False] and len(rebuilds) == 1)

    print("A customer is synchronised five times at once. The partner is asked twice a second:")
    for _ in range(5):
        shop.sync.delay(7)
    times = sorted(float(entry["at"]) for entry in wait_for(shop, "sync", 5))
    right &= show(f"five turns in {times[-1] - times[0]:.1f} s", times[-1] - times[0] > 1.8)
    return right


def show(what: str, is_right: bool) -> bool:
    """Print how a story ended."""
    print(f"   {what}{'' if is_right else ', which is WRONG'}\n")
    return is_right


def wait_for(shop: Any, what: str, count: int) -> list[dict[str, str]]:
    """Return what ran, once that is as much as expected.

    Raises:
        TimeoutError: it takes too long.
    """
    until = time.monotonic() + LONGEST_S
    while time.monotonic() < until:
        found = [entry for _, entry in shop.database.xrange(shop.JOURNAL) if entry["what"] == what]
        if len(found) >= count:
            return found
        time.sleep(0.02)
    raise TimeoutError(f"{what} did not run {count} times within {LONGEST_S:g} s")


def main() -> int:
    """Start everything, play the stories, stop everything. Returns the exit status."""
    with PrivateRedis() as server, tempfile.TemporaryFile() as log:
        os.environ["SHOP_REDIS"] = f"127.0.0.1:{server.port}/0"
        from examples.unique import shop

        worker = subprocess.Popen(
            dying_with_us([sys.executable, *WORKER]), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            return 0 if tell(shop) else 1
        except TimeoutError as exc:
            print(exc, file=sys.stderr)
            return 1
        finally:
            worker.terminate()
            worker.wait(30)


if __name__ == "__main__":
    sys.exit(main())
