"""Pictures of the web page for the README and the docs, from the real page in the machine's Chromium, light and dark.

python -m examples.orders.screenshots

It starts a Redis, a worker and the page, and makes up a busy shop, including what was delivered in the last hours. It
needs Playwright (`make setup` has it) and Chromium.
"""

from __future__ import annotations

import os
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

#: Width and height of the window, and the most of a page that a picture shows, in CSS pixels.
SIZE, MOST = (1280, 860), 1100

#: The end of the last section, or of the last row of a table, that is on a picture as a whole.
_END = """most => {
    const ends = [...document.querySelectorAll("main > *, tbody tr")].map(each => each.getBoundingClientRect().bottom);
    const end = Math.max(...ends.filter(each => each <= most));
    return end === Math.max(...ends) ? end + 16 : end;
}"""
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync")


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

    from examples.orders.demo import WEB, busy_shop, running

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("No Chromium on this machine: apt-get install chromium")
    with ExitStack() as stack:
        server = stack.enter_context(PrivateRedis())
        env = {**os.environ, "SHOP_REDIS": f"127.0.0.1:{server.port}/0"}
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(busy_shop(env, stack.enter_context((folder / "worker.log").open("wb"))))
        log = folder / "page.log"
        page = stack.enter_context(running(WEB, env, stack.enter_context(log.open("wb"))))
        url = url_of(page, log)
        browser = stack.enter_context(sync_playwright()).chromium.launch(executable_path=chromium, args=list(FLAGS))
        for scheme in ("light", "dark"):
            context = browser.new_context(
                color_scheme=scheme, viewport={"width": SIZE[0], "height": SIZE[1]}, locale="en-GB"
            )
            tab = context.new_page()
            for name, path in PAGES.items():
                tab.goto(url + path)
                for box in tab.locator("tbody input[type=checkbox]").all()[:3]:
                    box.check()
                end = tab.evaluate(_END, MOST)
                tab.screenshot(
                    path=PICTURES / f"web-{name}-{scheme}.png",
                    full_page=True,
                    clip={"x": 0, "y": 0, "width": SIZE[0], "height": end},
                )
        browser.close()


if __name__ == "__main__":
    main()
