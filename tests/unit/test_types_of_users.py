"""What users write passes `mypy --strict`: with celery-types, whose stubs know no options but Celery's, and without."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import missing

api = pytest.importorskip("mypy.api", reason="no mypy: `make setup` installs it, tox does not")

#: Where `make setup` installs celery-types.
STUBS = Path(sys.prefix, "monitors")

ROOT = Path(__file__).parents[2]

SHOP = """
from datetime import datetime, timedelta, timezone

from celery import Celery, chain, group
from celery_delayq import DelayQ, KeyHeld, Page, PeriodicTask, ScheduledTask, Task, Throttle, Unique

app = Celery("shop", broker="delayq://localhost:6379/0", task_cls=Task)
delayq = DelayQ(app)


@app.task(unique=Unique(by=("user_id",), for_="until_done", ttl=60, on_conflict="replace"))
def remind(user_id: int) -> None: ...


@app.task(throttle=Throttle(rate="10/m", by=("customer",)))
def sync(customer: int) -> None: ...


def use() -> None:
    result = remind.apply_async((1,), countdown=600, unique="remind:42", on_conflict="extend")
    print(result.id, delayq.was_new(result), result.was_new.bit_length(), remind.delay(1).was_new.bit_length())
    remind.apply_async(kwargs={"user_id": 1}, unique=Unique(key="remind:42"), queue="mail", expires=60)
    remind.apply_async((1,), unique=Unique(by=("user_id",), period=timedelta(days=1), on_conflict="raise"))
    sync.apply_async((7,), throttle=Throttle("10/m", key="partner api"))
    remind.signature((1,), options={"unique": "remind:42"}).apply_async()
    delayq.schedule.add("report", "shop.report", "0 6 * * mon-fri", tz="Europe/Berlin", jitter=timedelta(minutes=1))
    delayq.schedule.update("report", schedule=timedelta(hours=1), start=datetime(2030, 1, 1, tzinfo=timezone.utc))
    print(delayq.update(result, args=(2,), priority=9), delayq.update([result], kwargs={}).keys())
    group(remind.s(1), sync.s(2)).apply_async(countdown=3)
    chain(remind.si(1), sync.si(2)).apply_async()
    delayq.apply_async_many([remind.s(1), sync.s(2)])
    task = delayq.waiting(remind.s(1)) or delayq.waiting("remind:42")
    print(task and task.due, delayq.forget("remind:42"))
    print(delayq.cancel("a", timeout=1) is True, delayq.counts(timeout=timedelta(seconds=1)).queues)
    in_queue = delayq.get("a", ready=True)
    print(in_queue and in_queue.state, delayq.cancel("a", ready=True) is True, delayq.cancel(["a"], ready=True))
    print([found.state for found in delayq.scheduled("mail", state="ready")])
    print(delayq.cancel_all(task=remind, dry_run=True) + delayq.run_now_all(task=remind.s(1)))
    print(delayq.reschedule_all(task="shop.remind", countdown=timedelta(hours=1)), delayq.forget(remind))
    for waiting in delayq.scheduled(task=remind):
        print(waiting.args, waiting.kwargs, waiting.due.year)
    print(delayq.history(timedelta(hours=72)).points[0].start.year, delayq.check()[0].level == "ok")
    delayq.schedule.add("remind", remind, timedelta(hours=1), jitter=timedelta(minutes=1))
    try:
        app.send_task("shop.remind", (1,), unique=Unique(key="x"))
    except KeyHeld as exc:
        print(exc.key.upper(), exc.task_id.upper())


async def use_in_a_coroutine() -> None:
    sent = await delayq.asend(remind, (1,), countdown=600, timeout=1)
    task: ScheduledTask | None = await delayq.aget(sent.id)
    cancelled: bool = await delayq.acancel("a", timeout=timedelta(seconds=1))
    number: int = await delayq.aapply_async_many([remind.s(1)], results=False)
    page: Page = await delayq.ascheduled("mail", limit=3, state="ready")
    in_queue: bool = await delayq.acancel("a", ready=True)
    entry: PeriodicTask = await delayq.schedule.apause("report")
    print(task, cancelled, number, page, in_queue, entry, [found.due async for found in delayq.aiter_scheduled()])
"""


#: What is wrong instead of what is right, and what mypy says.
WRONG = [
    ('"extend"', '"extends"', 'Argument "on_conflict" to "apply_async" of "Task" has incompatible type'),
    ('("a", timeout', '("a", timout', 'Unexpected keyword argument "timout"'),
    ("tz=", "tzz=", 'Unexpected keyword argument "tzz" for "add" of "Schedule"; did you mean "tz"?'),
    ("start=", "begin=", 'Unexpected keyword argument "begin" for "update" of "Schedule"'),
    ("args=(2,)", "args=2", 'No overload variant of "update" of "Updates" matches'),
]


def checked(folder: Path, monkeypatch: pytest.MonkeyPatch, *, text: str, stubs: bool) -> str:
    """What `mypy --strict` says about a user's module."""
    module = folder / "shop.py"
    module.write_text(text)
    options = ["--strict", "--config-file=", "--follow-imports=silent", f"--cache-dir={folder / 'cache'}", str(module)]
    monkeypatch.setenv("MYPYPATH", f"{ROOT}:{folder / 'stubs'}")
    if stubs:
        # mypy takes packages named `celery-stubs` only from where it looks for installed packages.
        (folder / "stubs").mkdir(exist_ok=True)
        for package in STUBS.glob("*-stubs"):
            link = folder / "stubs" / package.name.removesuffix("-stubs")
            if not link.exists():
                link.symlink_to(package)
    else:
        options += ["--ignore-missing-imports", "--allow-untyped-decorators"]
    output, errors, _ = api.run(options)
    return f"{output}{errors}"


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize("stubs", [True, False], ids=["with celery-types", "without stubs"])
def test_a_users_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stubs: bool) -> None:
    if stubs and not (STUBS / "celery-stubs").exists():
        missing("no celery-types: `make setup` installs it (dependency group `monitors`)")
    said = checked(tmp_path, monkeypatch, text=SHOP, stubs=stubs)
    about = [line for line in said.splitlines() if "shop.py" in line]
    assert about == [], said
    text = SHOP
    for right, wrong, _ in WRONG:
        assert right in SHOP
        text = text.replace(right, wrong)
    said = checked(tmp_path, monkeypatch, text=text, stubs=stubs)
    assert [answer for _, _, answer in WRONG if answer not in said] == ([] if stubs else [WRONG[0][2]])
