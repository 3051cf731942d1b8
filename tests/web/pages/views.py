"""All that the page can show, one view after the other."""

from __future__ import annotations

from collections.abc import Iterator

import redis
from celery import Celery
from playwright.sync_api import Page

from tests.web.filling import add_orders, fill
from tests.web.pages.lists import Held
from tests.web.watch import Watch


def views(page: Page, watch: Watch, url: str, app: Celery, client: redis.Redis) -> Iterator[str]:
    """Show one view after the other, and yield the name of each. It presses buttons by their values, in any language.

    Args:
        page: a page that is open.
        watch: its watch.
        url: where the site is, with a slash at the end.
        app: the shop; its broker is empty.
        client: a client of the broker.
    """
    for path in ("", "waiting", "dead", "periodic", "workers"):
        page.goto(f"{url}{path}")
        yield f"empty {path or 'overview'}"
    filled = fill(app, client)
    add_orders(app, 60)
    watch.expect("status of 404", "status of 400")
    letters = filled.dead.values()
    paths = [
        *(
            "?hours=72",
            "?span=31536000",
            f"?from={4_000_000_000_000}&span=3600",
            "waiting",
            "waiting?queue=mail&text=shop",
            "waiting?state=ready",
            f"task?id={filled.ready}&ready=yes",
        ),
        *(
            "waiting?task=nothing",
            "waiting?due_after=never",
            "dead?queue=mail",
            "dead?queue=celery",
            "periodic",
            "workers",
            "worker?name=worker@shop.example:4711",
        ),
        *(f"task?id={filled.waiting[what]}" for what in ("expires", "mail 1", "chord 0")),
        *(f"letter?queue=celery&letter={letter}" for letter in letters),
        *(f"entry?name={name}" for name in filled.periodic),
        *(
            "task?id=gone",
            "task?id=gone&ready=yes",
            "letter?queue=celery&letter=gone",
            "entry?name=gone",
            "nowhere",
            "task",
        ),
    ]
    for path in paths:
        page.goto(f"{url}{path}")
        yield path

    def click(selector: str) -> None:
        with page.expect_navigation():  # a click does not wait for the page to which it leads
            page.locator(selector).click()

    def press(value: str) -> None:
        click(f"button[value='{value}']")

    def confirm() -> None:
        click("main form button[type=submit]")

    page.goto(f"{url}waiting?queue=celery")
    page.locator("tbody input").nth(1).check()
    press("reschedule")
    yield "a question with a time"
    page.locator("[name=when]").fill("whenever")
    confirm()
    yield "a question that was answered wrongly"
    page.goto(f"{url}waiting?queue=celery")
    page.locator("input[data-all]").check()
    press("cancel")
    app.delayq.run_now(shown_id(page))
    yield "a question about many"
    confirm()
    yield "results"
    add_orders(app, 1100, first_due_s=7200)
    page.goto(f"{url}waiting?queue=celery")
    page.locator("[value=matching]").check()
    press("cancel")
    yield "a question about all that match"
    with Held(page, "waiting", after=1):
        confirm()
        page.locator("progress").wait_for()
        yield "progress"
        page.goto(f"{url}waiting?queue=celery")
    page.goto(f"{url}dead?queue=celery")
    page.locator("input[data-all]").check()
    press("dead.requeue")
    yield "a question about dead letters"
    confirm()
    yield "results of dead letters"
    page.locator("[value=matching]").check()
    press("dead.purge")
    confirm()
    yield "all done"
    page.goto(f"{url}periodic")
    page.locator("#add > summary").click()
    for name, value in (("name", "new"), ("task", "shop.carts.tidy"), ("when", "never")):
        page.locator(f"input[name={name}]").fill(value)
    press("schedule.add")
    yield "a periodic task that is not valid"
    page.locator("input[name=when]").fill("5m")
    press("schedule.add")
    yield "a periodic task that is shown before it is added"
    press("schedule.add")
    yield "a periodic task that was added"
    page.goto(f"{url}entry?name=new")
    press("schedule.pause")
    yield "a periodic task that was paused"
    press("schedule.remove")
    yield "a question about a periodic task"
    confirm()
    yield "a periodic task that was removed"


def shown_id(page: Page) -> str:
    """Return the first id that a question names."""
    return page.locator(".names code").first.inner_text().split()[0]


def open_details(page: Page) -> None:
    """Open all that can be opened."""
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
