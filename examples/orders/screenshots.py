"""Pictures of the web page for the README and the docs, from the real page in the machine's Chromium, light and dark.

python -m examples.orders.screenshots

It starts a Redis, a worker and the page, and makes up a busy shop, including what was transferred in the last hours. It
needs Playwright (`make setup` has it) and Chromium.
"""

from __future__ import annotations

import math
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from examples.private_redis import PrivateRedis

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"

#: The name of each picture, and the path of its page.
PAGES = {
    "overview": "",
    "waiting": "waiting?text=order-11",
    "periodic": "periodic",
}

SIZE = (1280, 860)
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync")

_DAY_S = 86400


def fill() -> None:
    """Make up what waits: reads SHOP_REDIS."""
    from celery_delayq.queue import dead_letter, measuring
    from celery_delayq.queue.keys import QueueKeys
    from examples.orders import shop

    chance = random.Random(3)
    queue = shop.app.conf.task_default_queue
    for number in range(1001, 1301):
        shop.place_order(f"order-{number}", pay_within_s=chance.uniform(120, 30 * 60))
    shop.app.send_task("shop.remind", (42,), countdown=3 * _DAY_S, queue="mail", task_id="remind:42")
    for number in range(600):
        countdown = chance.expovariate(1 / (2 * 3600)) + 60
        shop.app.send_task("shop.remind", (number,), {"by": "mail"}, countdown=countdown, queue="mail")
    shop.delayq.schedule.add("nightly-report", "shop.report", "30 2 * * *", tz="Europe/Berlin")
    shop.delayq.schedule.add("stock-sync", "shop.sync_stock", 90, options={"queue": "mail"})
    keys, now_s = QueueKeys.of("mail"), int(time.time())
    for number in range(3):
        message = b'{"headers": {"id": "remind:%d", "task": "shop.remind", "argsrepr": "(%d,)"}, "properties": {}}'
        died_s = now_s - 600 * (2 - number)
        letter_id = f"{died_s:08x}00000000"
        shop.database.zadd(keys.dead, {letter_id: died_s * 1000})
        record = dead_letter.pack(message % (number, number), reason="delivery-limit", deliveries=5)
        shop.database.hset(keys.records, letter_id, record)
    for ago_s in range(0, 8 * 3600, 60):
        transferred = round(60 + 40 * math.sin(ago_s / 5000) + chance.uniform(-12, 12))
        numbers = {
            "transferred": transferred,
            "transfer_lateness:0.0025": transferred - 4,
            "transfer_lateness:0.005": 4,
        }
        measuring.count(QueueKeys.of(queue), now_s=now_s - ago_s, numbers=numbers).run(shop.database)


def url_of(page: subprocess.Popen[bytes], log: Path) -> str:
    """Wait until the page says where it is."""
    while page.poll() is None:
        if found := re.search(r" at (http://\S+/)", log.read_text("utf-8", "replace")):
            return found[1]
        time.sleep(0.1)
    sys.exit(f"The page ended:\n{log.read_text()}")


def main() -> None:
    """Draw all pictures."""
    from playwright.sync_api import sync_playwright

    from examples.orders.demo import WORKER, running

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("No Chromium on this machine: apt-get install chromium")
    with ExitStack() as stack:
        server = stack.enter_context(PrivateRedis())
        env = {**os.environ, "SHOP_REDIS": f"127.0.0.1:{server.port}/0"}
        # In a process of its own: the demo, which is used below, also imports the shop on a cluster.
        code = "from examples.orders.screenshots import fill; fill()"
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, check=True)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        worker_log = stack.enter_context((folder / "worker.log").open("wb"))
        stack.enter_context(running((*WORKER, "--beat", "--scheduler", "delayq"), env, worker_log))
        log = folder / "page.log"
        command = ("-m", "celery", "-A", "examples.orders.shop", "delayq", "web", "--port", "0")
        page = stack.enter_context(running(command, env, stack.enter_context(log.open("wb"))))
        url = url_of(page, log)
        time.sleep(8)  # the worker plans the periodic tasks
        browser = stack.enter_context(sync_playwright()).chromium.launch(executable_path=chromium, args=list(FLAGS))
        for scheme in ("light", "dark"):
            context = browser.new_context(
                color_scheme=scheme, viewport={"width": SIZE[0], "height": SIZE[1]}, locale="en-GB"
            )
            tab = context.new_page()
            for name, path in PAGES.items():
                tab.goto(url + path)
                tab.screenshot(path=PICTURES / f"web-{name}-{scheme}.png")
        browser.close()


if __name__ == "__main__":
    main()
