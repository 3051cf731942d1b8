"""The examples of the pages that are not marked as `run` work, too, with what each page takes for granted.

The blocks of a page run one after the other, in one process. So each example of the docs runs: what is marked is in
test_docs_examples.py, and the tests of docs/testing.md are there, too.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from examples.private_redis import PrivateRedis
from tests.redis_cluster.servers import Cluster
from tests.support import missing

REPOSITORY = Path(__file__).parents[1]

_BLOCK = re.compile(r"^[ ]*```python\n(.*?)^[ ]*```$", re.DOTALL | re.MULTILINE)

#: A shop, as most pages have it.
_SHOP = """
from celery import Celery
from celery_delayq import DelayQ

app = Celery("shop", broker="delayq://localhost:6379/0", set_as_current=False)
app.conf.beat_scheduler = "celery_delayq.beat:Scheduler"
delayq = DelayQ(app)
celery_app = app

@app.task(name="shop.cancel_unpaid")
def cancel_unpaid(order_id): ...

@app.task(name="shop.remind")
def remind(*args, **kwargs): ...

@app.task(name="shop.report")
def report(*args): ...

result = cancel_unpaid.apply_async((42,), countdown=1800)
task_id = result.id
"""

#: Page -> what its examples take for granted, besides the shop.
GIVEN = {
    "cluster.md": "",
    "dead-letters.md": """
        import redis

        with redis.Redis.from_url("redis://localhost:6379/0") as client:
            for number in range(3):
                client.zadd("delayq:dead:{celery}", {f"{number:016x}": number})
                client.hset("delayq:dead_records:{celery}", f"{number:016x}", '{"reason": "not-a-message"}\\n{}')
    """,
    "failover.md": "",
    "monitor.md": """
        import sys
        from pathlib import Path

        sys.path.append(str(Path(sys.prefix, "integrations")))
        from fastapi import FastAPI
        from flask import Flask

        application = Flask("shop").wsgi_app
        the_celery_app, app = app, FastAPI()
    """,
    "options.md": "",
    "periodic.md": """
        import sys
        from pathlib import Path

        from celery.schedules import crontab

        sys.path.append(str(Path(sys.prefix, "integrations")))
        import sentry_sdk
    """,
    "recipes.md": """
        import sys
        from pathlib import Path

        import django
        from django.conf import settings

        sys.path.append(str(Path(sys.prefix, "integrations")))
        database = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
        settings.configure(INSTALLED_APPS=["django.contrib.contenttypes"], DATABASES={"default": database}, USE_TZ=True)
        django.setup()
        __name__ = "django.contrib.contenttypes.models"  # of the models of the page
    """,
    "redis.md": "",
    "reference/api.md": "",
    "redisson.md": "",
    "unique.md": """
        from types import SimpleNamespace

        cart = user = SimpleNamespace(id=42)
        text = "hello"

        @app.task(name="shop.rebuild_first")
        def rebuild(cart_id, reason=""): ...
    """,
    "waiting-tasks.md": "users = range(3)",
    "web.md": """
        import logging

        from django.conf import settings
        from django.urls import include, path
        from fastapi import FastAPI
        from flask import Flask

        settings.configure()
        flask_app, fastapi_app = Flask("shop"), FastAPI()
    """,
}

#: Page -> what has to hold after its examples.
THEN = {
    "monitor.md": """
        assert delayq.cancel(cancel_unpaid.apply_async((42,), countdown=60).id)  # with Sentry
    """,
    "recipes.md": """
        from celery.app import amqp
        from django.db import connection

        delayq.cancel_all(everything=True)
        Base.metadata.create_all(engine)
        with Session(engine) as session:
            place_order(session, 42)
        relay()
        relay()
        with connection.schema_editor() as editor:
            editor.create_model(OutboxEntry)
        eta = datetime(2030, 1, 1, tzinfo=timezone.utc)
        for origin in ("1@shop", "2@shop"):  # the second process sends again what the first did not commit
            amqp.anon_nodename = lambda: origin
            OutboxEntry.objects.create(pk=1, task="shop.remind", args=[42], eta=eta)
            relay_entries()
        relay_entries()
        assert [task.name for task in delayq.scheduled()] == ["shop.cancel_unpaid", "shop.remind"]
    """,
}

#: What runs in another way.
OTHERS = {"django.md", "testing.md"}

#: What a Django project has besides what the page shows.
_DJANGO_SETTINGS = """
SECRET_KEY = "only for tests"
USE_TZ = True
"""
_DJANGO_APPS = "".join(f'    "django.contrib.{name}",\n' for name in ("admin", "auth", "contenttypes", "messages"))

_DJANGO_CHECK = """
import django

django.setup()
from django.contrib.admin import AdminSite
from django.core.checks import run_checks

my_site = AdminSite()
{site}
assert not run_checks(tags=["delayq"]), run_checks(tags=["delayq"])
"""

#: Code in the project of examples/django, with a database of its own.
_BOOKSHOP = """
import django

django.setup()
from bookshop.celery import delayq
from django.core.management import call_command
from django.db import transaction
from django.test import TestCase
from django.test.utils import setup_test_environment
from orders.models import Order
from orders.tasks import cancel_unpaid

setup_test_environment()
call_command("migrate", verbosity=0)
order = Order.objects.create(book="Emma")
books = ["Emma", "Faust"]
self = TestCase()
self.client = TestCase.client_class()
{blocks}
assert Order.objects.count() == 4
assert len(delayq.scheduled()) == 4
"""

#: A file of tests, with the tutorial's shop.
_TESTS = """
from datetime import datetime, timedelta, timezone
from unittest import mock

from shop import app, cancel_unpaid, place_order


@app.task(name="shop.remind")
def remind(user, text): ...


def test_assertions(delayq):
    result = remind.apply_async((7,), {{"text": "hello"}}, countdown=60, queue="mail")
    place_order("7", pay_within_s=1800)
    cancel_unpaid.apply_async(("8",), eta=datetime(2030, 1, 1, tzinfo=timezone.utc))
{assertions}


{clock}


def test_without_the_fixture():
{without}
        assert not delayq.scheduled()
"""


def fragments(page: Path) -> list[str]:
    """Return the examples of a page that are not marked."""
    return [textwrap.dedent(code) for code in _BLOCK.findall(page.read_text(encoding="utf-8"))]


def run(code: str, folder: Path, server: PrivateRedis, **env: str) -> str:
    """Run code in a process of its own, on a server; return what it prints."""
    with server.client() as client:
        client.flushall()
    code = code.replace("localhost:6379", f"127.0.0.1:{server.port}")
    code = code.replace("redis.Redis()", f"redis.Redis(port={server.port})")
    folder.joinpath("fragments.py").write_text(code, encoding="utf-8")
    paths = os.pathsep.join([str(folder), str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "fragments.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, **env},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if module := re.search(r"ModuleNotFoundError: No module named '(\w+)'", done.stderr):
        missing(f"no {module[1]}: `make setup` installs it")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_page_with_fragments_is_known() -> None:
    docs = REPOSITORY / "docs"
    pages = {page.relative_to(docs).as_posix() for page in docs.rglob("*.md") if fragments(page)}
    assert pages == set(GIVEN) | OTHERS


@pytest.mark.thorough
@pytest.mark.parametrize("page", [name for name in GIVEN if name != "cluster.md"])
def test_the_fragments_of_a_page_run(page: str, tmp_path: Path, redis_server: PrivateRedis) -> None:
    blocks = fragments(REPOSITORY / "docs" / page)
    code = [_SHOP, textwrap.dedent(GIVEN[page]), *blocks, textwrap.dedent(THEN.get(page, ""))]
    run("\n".join(code), tmp_path, redis_server)


def test_the_fragments_about_a_cluster_run(tmp_path: Path, redis_server: PrivateRedis, whole_cluster: Cluster) -> None:
    code = "\n".join([_SHOP, *fragments(REPOSITORY / "docs" / "cluster.md")])
    for number, node in enumerate(whole_cluster.nodes[:2], 1):
        code = code.replace(f"h{number}:6379", f"127.0.0.1:{node.port}")
    run(code.replace("old:6379", "localhost:6379"), tmp_path, redis_server)


def test_the_project_of_the_django_guide_passes_its_checks(tmp_path: Path, redis_server: PrivateRedis) -> None:
    celery, package, settings, more, site, *_ = fragments(REPOSITORY / "docs" / "django.md")
    project = tmp_path / "proj"
    project.mkdir()
    settings = settings.replace("    ...,\n", _DJANGO_APPS).replace("localhost:6379", f"127.0.0.1:{redis_server.port}")
    for name, text in (("celery", celery), ("__init__", package), ("settings", settings + more + _DJANGO_SETTINGS)):
        project.joinpath(f"{name}.py").write_text(text, encoding="utf-8")
    run(_DJANGO_CHECK.format(site=site), tmp_path, redis_server, DJANGO_SETTINGS_MODULE="proj.settings")


def test_the_django_guide_sends_on_commit(tmp_path: Path, redis_server: PrivateRedis) -> None:
    *_, single, several, captured = fragments(REPOSITORY / "docs" / "django.md")
    function = several.index("def ")  # it stands behind the call
    several = several[function:] + "\n" + several[:function]
    run(
        _BOOKSHOP.format(blocks="\n".join([single, several, captured])),
        tmp_path,
        redis_server,
        BROKER=f"delayq://127.0.0.1:{redis_server.port}/0",
        DATABASE=":memory:",
        DJANGO_SETTINGS_MODULE="bookshop.settings",
        PYTHONPATH=os.pathsep.join([str(REPOSITORY / "examples" / "django"), str(REPOSITORY)]),
    )


def test_the_testing_guide_runs(tmp_path: Path, redis_server: PrivateRedis) -> None:
    _, assertions, clock, without = fragments(REPOSITORY / "docs" / "testing.md")
    lines = assertions.splitlines()
    first_not = next(number for number, line in enumerate(lines) if "assert_not_scheduled" in line)
    lines.insert(first_not, "delayq.cancel_all(everything=True)")
    tests = _TESTS.format(
        assertions=textwrap.indent("\n".join(lines), "    "), clock=clock, without=textwrap.indent(without, "    ")
    )
    tmp_path.joinpath("test_fragments.py").write_text(tests, encoding="utf-8")
    guide = (REPOSITORY / "docs" / "testing.md").read_text(encoding="utf-8")
    (configuration,) = re.findall(r"^```ini\n(.*?)^```$", guide, re.DOTALL | re.MULTILINE)
    tmp_path.joinpath("pytest.ini").write_text(configuration, encoding="utf-8")
    tutorial = (REPOSITORY / "docs" / "tutorial.md").read_text(encoding="utf-8")
    (shop,) = re.findall(r"^```python run\n# shop.py\n(.*?)^```$", tutorial, re.DOTALL | re.MULTILINE)
    tmp_path.joinpath("shop.py").write_text(shop, encoding="utf-8")
    code = "import sys, pytest\nsys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', 'test_fragments.py']))"
    assert "3 passed" in run(code, tmp_path, redis_server)


@pytest.mark.parametrize("readme", ["README.md", "README.zh-CN.md"])
def test_the_readme_runs(readme: str, tmp_path: Path, redis_server: PrivateRedis) -> None:
    shop, customer = fragments(REPOSITORY / readme)
    shop = shop.replace("localhost:6379", f"127.0.0.1:{redis_server.port}")
    tmp_path.joinpath("shop.py").write_text(shop, encoding="utf-8")
    assert " shop.cancel_unpaid (42,)" in run(customer, tmp_path, redis_server)
