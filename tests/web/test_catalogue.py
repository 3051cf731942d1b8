"""The Chinese words of the page: the catalogue has them all, and no page says anything else.

Errors of the library are not part of the page: they are in English everywhere, as in the log.
"""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from string import ascii_letters
from typing import Any

import pytest
from babel.messages import Catalog, Message
from babel.messages.frontend import CommandLineInterface
from babel.messages.mofile import read_mo, write_mo
from babel.messages.pofile import read_po

from celery_delayq.queue.dead_letter import REASONS
from celery_delayq.schedule.periodic_task import STATUSES
from celery_delayq.web.language import Language
from celery_delayq.web.rendering import ENVIRONMENT
from celery_delayq.web.request import Response, encoded
from celery_delayq.web.words import WEEKDAYS
from examples.private_redis import PrivateRedis
from tests.web.zh_shop import CONFIGURED, EMPTY, FIRST, LONG, PICKLED, QUEUE, RICH, Chinese, fill, make_app

REPOSITORY = Path(__file__).parents[2]
LOCALE = REPOSITORY / "celery_delayq" / "web" / "locale"
PO, MO = (Path("zh", "LC_MESSAGES", f"celery_delayq.{ending}") for ending in ("po", "mo"))

_PLACEHOLDER = re.compile(r"%\(\w+\)s")


# -- the catalogue


def run_messages(locale: Path, template: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what `make messages` does, with these files: the commands are those of the Makefile."""
    text = (REPOSITORY / "Makefile").read_text("utf-8").replace("\\\n", "")
    names = {
        **dict(re.findall(r"^(\w+) := (.*)$", text, re.MULTILINE)),
        **dict(re.findall(r"^(\w+) = (.*)$", text, re.M)),
    }
    names |= {"LOCALE": str(locale), "TEMPLATE": str(template)}
    commands = re.findall(r"^\t\$\(BIN\)/(pybabel .*)$", text, re.MULTILINE)
    assert [command.split()[2] for command in commands] == ["extract", "update", "compile"]
    monkeypatch.chdir(REPOSITORY)
    for command in commands:
        words = re.findall(r"'([^']*)'|(\S+)", re.sub(r"\$\((\w+)\)", lambda found: names[found[1]], command))
        assert not CommandLineInterface().run([quoted or word for quoted, word in words])


def load(path: Path) -> Catalog:
    with path.open("rb") as file:
        return read_po(file, abort_invalid=True)


@pytest.fixture
def locale(tmp_path: Path) -> Path:
    """A copy of the folder of catalogues."""
    return Path(shutil.copytree(LOCALE, tmp_path / "locale"))


@pytest.fixture
def found(locale: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """What the sources say: the template that `make messages` makes."""
    run_messages(locale, tmp_path / "template.pot", monkeypatch)
    return load(tmp_path / "template.pot")


@pytest.fixture(scope="module")
def known() -> Catalog:
    """The catalogue as it is."""
    return load(LOCALE / PO)


def forms(message: Message) -> tuple[str, ...]:
    return (message.id,) if isinstance(message.id, str) else tuple(message.id)


def texts(message: Message) -> tuple[str, ...]:
    return (message.string,) if isinstance(message.string, str) else tuple(message.string)


def test_it_has_what_the_sources_say_and_nothing_else(found: Catalog, known: Catalog) -> None:
    assert {forms(message) for message in known if message.id} == {forms(message) for message in found if message.id}
    assert not known.obsolete


def test_all_is_translated(known: Catalog) -> None:
    assert known.num_plurals == 1
    assert [message.id for message in known if message.id and not all(texts(message))] == []
    assert [message.id for message in known if message.id and message.fuzzy] == []


def test_translations_have_the_same_placeholders(known: Catalog) -> None:
    for message in known:
        if message.id:
            for text in texts(message):
                wanted = sorted(_PLACEHOLDER.findall(forms(message)[-1]))
                assert sorted(_PLACEHOLDER.findall(text)) == wanted, message.id
                assert text.replace("%%", "").count("%") == len(wanted), message.id


def test_make_messages_changes_nothing(found: Catalog, locale: Path) -> None:
    def lines(path: Path) -> list[str]:
        """Without Babel's version, which is not the same everywhere."""
        return [line for line in path.read_text("utf-8").splitlines() if "Generated-By" not in line]

    assert lines(locale / PO) == lines(LOCALE / PO)


def test_users_get_what_was_translated(known: Catalog) -> None:
    compiled = io.BytesIO()
    write_mo(compiled, known)
    compiled.seek(0)

    def pairs(catalog: Catalog) -> dict[tuple[str, ...], tuple[str, ...]]:
        return {forms(message): texts(message) for message in catalog if message.id}

    with (LOCALE / MO).open("rb") as file:
        assert pairs(read_mo(file)) == pairs(read_mo(compiled))


@pytest.mark.parametrize("word", [*STATUSES, *WEEKDAYS])
def test_words_that_no_page_has_are_translated(word: str) -> None:
    assert not set(Language("zh").gettext(word)) & set(ascii_letters)


def test_the_header_names_nobody(known: Catalog) -> None:
    header = (LOCALE / PO).read_text("utf-8").partition("\n\n")[0]
    assert "@" not in header
    assert "celery_delayq" in header
    assert known.locale_identifier == "zh"


# -- the pages


class Words(HTMLParser):
    """Collects what a page says, without what is data: code, times, and what is not to be translated."""

    SKIPPED = ("code", "pre", "time", "option", "script", "style")
    SPOKEN = ("title", "aria-label", "data-label", "data-pause", "data-resume", "data-other")
    VOID = ("br", "input", "link", "meta", "wbr")

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.skips: list[bool] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if not any(self.skips):
            self.words += [given[name] or "" for name in self.SPOKEN if name in given]
        if tag not in self.VOID:
            foreign = given.get("lang", "zh") != "zh" or given.get("translate") == "no"
            self.skips.append(tag in self.SKIPPED or foreign)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """SVG: nothing to read."""

    def handle_endtag(self, tag: str) -> None:
        self.skips.pop()

    def handle_data(self, data: str) -> None:
        if not any(self.skips) and data.strip():
            self.words.append(" ".join(data.split()))


#: Names, and what one types, that are the same in Chinese.
NAMES = (
    *(
        "celery_delayq",
        "celery -A app worker",
        "apply_async",
        "beat_schedule",
        "mon-fri",
        "every 1h 30m",
        "crontab",
        "countdown",
        "eta",
    ),
    *(
        "--allow-host",
        "hosts=",
        "acks_late",
        "Celery",
        "Redis",
        "UTC",
        "JSON",
        "URL",
        "GET",
        "HEAD",
        "POST",
        "ID",
        "unpickle",
    ),
    *("acks_late", "expires", "name=value"),
    *(*REASONS, "application/json", "application/x-python-serialize"),
)

#: Numbers with units, and ids of dead letters.
_MEASURE = re.compile(r"\b[0-9a-f]{16}\b|-?\d[\d.,]*\s?(?:ms|kB|MB|[dhmskMGB])(?![a-zA-Z])")


def english(response: Response) -> list[str]:
    """Return what a page says with Latin letters."""
    parser = Words()
    parser.feed(response.body.decode())
    assert not parser.skips
    found = []
    for text in parser.words:
        rest = text
        for name in NAMES:
            rest = rest.replace(name, "")
        if set(_MEASURE.sub("", rest)) & set(ascii_letters):
            found.append(text)
    return found


def first_letter(user: Chinese) -> str:
    """The key of a dead letter that is a message."""
    keys = re.findall(r'name="letter" value="([^"]+)"', user.ask(f"/dead?{encoded({'queue': QUEUE})}").body.decode())
    return str(keys[1])


def cursor(user: Chinese, path: str) -> str:
    """The URL of the next page."""
    (url,) = re.findall(r'rel="next" href="([^"]+)"', user.ask(path).body.decode())
    return "/" + str(url).replace("&amp;", "&")


HERE, DEAD = f"?{encoded({'queue': QUEUE})}", f"/dead?{encoded({'queue': QUEUE})}"
ALL = ("scope", "matching")
CODE, OWN = (f"/entry?{encoded({'name': name})}" for name in (CONFIGURED, "每分钟"))
NEW = (("name", "新的"), ("task", "发送"), ("when", "60s"))

#: All fields.
FILTER = {"queue": QUEUE, "task": "发送", "due_after": "-1h", "due_before": "2h", "text": "1"}


def deed(path: str, action: str, *pairs: tuple[str, object], confirmed: bool = True) -> Callable[[Chinese], Response]:
    return lambda user: user.act(path, action, *pairs, confirmed=confirmed)


def some_letters(action: str, *, confirmed: bool) -> Callable[[Chinese], Response]:
    """One that is there, and one that is gone."""
    return lambda user: user.act(DEAD, action, ("letter", first_letter(user)), ("letter", "1"), confirmed=confirmed)


#: What a user does -> HTTP status, and how.
VISITS: dict[str, tuple[int, Callable[[Chinese], Response]]] = {
    "overview": (200, lambda user: user.ask("/")),
    "overview of a day": (200, lambda user: user.ask("/?span=86400&hours=72")),
    "overview of later": (200, lambda user: user.ask("/?from=4102444800000")),
    "overview, paused": (200, lambda user: user.act("/", "queue.pause", ("queue", QUEUE))),
    "overview, resumed": (200, lambda user: user.act("/", "queue.resume", ("queue", QUEUE))),
    "overview, which queue": (404, lambda user: user.act("/", "queue.pause", ("queue", "1"))),
    "waiting": (200, lambda user: user.ask("/waiting")),
    "waiting, next page": (200, lambda user: user.ask(cursor(user, "/waiting"))),
    "waiting, searched": (200, lambda user: user.ask(f"/waiting?{encoded({'task': '发送'})}")),
    "waiting, none found": (200, lambda user: user.ask("/waiting?text=0987654321")),
    "waiting, none there": (200, lambda user: user.ask(f"/waiting?{encoded({'queue': EMPTY})}")),
    "waiting, not a time": (400, lambda user: user.ask("/waiting?due_after=昨天")),
    "ready": (200, lambda user: user.ask("/waiting?state=ready")),
    "ready, none there": (200, lambda user: user.ask(f"/waiting?{encoded({'state': 'ready', 'queue': EMPTY})}")),
    "ready, asked about all": (200, deed("/waiting?state=ready", "cancel", ALL, confirmed=False)),
    "task, not in a queue": (404, lambda user: user.ask("/task?id=1&ready=yes")),
    "task": (200, lambda user: user.ask(f"/task?id={FIRST}")),
    "task, rich": (200, lambda user: user.ask(f"/task?id={RICH}")),
    "task, long": (200, lambda user: user.ask(f"/task?id={LONG}")),
    "task, pickled": (200, lambda user: user.ask(f"/task?id={PICKLED}")),
    "task, gone": (404, lambda user: user.ask("/task?id=1")),
    "task, which": (400, lambda user: user.ask("/task")),
    **{
        f"{action}, {name}": (200, deed(path, action, *pairs, confirmed=name.startswith("done")))
        for action in ("cancel", "reschedule", "run_now")
        for name, path, pairs in (
            ("asked", "/waiting", (("id", FIRST), ("id", RICH), ("id", "1"))),
            ("done", "/waiting", (("id", FIRST), ("id", "1"), ("when", "2h"))),
            ("asked about all", "/waiting", (ALL,)),
            ("asked about a filter", f"/waiting?{encoded(FILTER)}", (ALL,)),
            ("done with all", "/waiting", (ALL, ("when", "2h"), ("missed", 3))),
        )
    },
    "reschedule to no time": (400, lambda user: user.act("/waiting", "reschedule", ("id", FIRST), ("when", "昨天"))),
    "reschedule all to no time": (400, lambda user: user.act("/waiting", "reschedule", ALL, ("when", "昨天"))),
    "nothing selected": (400, lambda user: user.act("/waiting", "cancel")),
    "too many selected": (400, lambda user: user.act("/waiting", "cancel", *(("id", n) for n in range(1, 1003)))),
    "dead": (200, lambda user: user.ask(DEAD)),
    "dead, next page": (200, lambda user: user.ask(cursor(user, DEAD))),
    "dead, none": (200, lambda user: user.ask(f"/dead?{encoded({'queue': EMPTY})}")),
    "dead, which queue": (400, lambda user: user.act("/dead", "dead.purge")),
    "dead, nothing selected": (400, lambda user: user.act(DEAD, "dead.purge")),
    "letter": (200, lambda user: user.ask(f"/letter{HERE}&letter={first_letter(user)}")),
    "letter, gone": (404, lambda user: user.ask(f"/letter{HERE}&letter=1")),
    "letter, which": (400, lambda user: user.ask("/letter")),
    **{
        f"{action}, {name}": (200, go)
        for action in ("dead.requeue", "dead.purge")
        for name, go in (
            ("asked", some_letters(action, confirmed=False)),
            ("done", some_letters(action, confirmed=True)),
            ("asked about all", deed(DEAD, action, ALL, confirmed=False)),
            ("done with all", deed(DEAD, action, ALL)),
        )
    },
    "periodic": (200, lambda user: user.ask("/periodic")),
    "periodic, added": (200, lambda user: user.act("/periodic", "schedule.add", *NEW)),
    "entry": (200, lambda user: user.ask(OWN)),
    "entry of the configuration": (200, lambda user: user.ask(CODE)),
    "entry, gone": (404, lambda user: user.ask("/entry?name=1")),
    "entry, which": (400, lambda user: user.ask("/entry")),
    "entry, saved": (200, lambda user: user.act(OWN, "schedule.update", *NEW)),
    "entry, paused": (200, lambda user: user.act(OWN, "schedule.pause")),
    "entry, resumed": (200, lambda user: user.act(OWN, "schedule.resume")),
    "entry, run now, asked": (200, lambda user: user.act(OWN, "schedule.run_now", confirmed=False)),
    "entry, removal asked": (200, lambda user: user.act(OWN, "schedule.remove", confirmed=False)),
    "entry, removed": (200, lambda user: user.act(OWN, "schedule.remove")),
    "workers": (200, lambda user: user.ask("/workers")),
    "worker": (200, lambda user: user.ask(f"/worker?{encoded({'name': '主机:1'})}")),
    "worker, gone": (404, lambda user: user.ask("/worker?name=1")),
    "no such page": (404, lambda user: user.ask("/nowhere")),
    "no such action": (400, lambda user: user.act("/waiting", "nothing")),
    "no such method": (405, lambda user: user.ask("/", "PUT")),
    "another host": (421, lambda user: user.ask("/", host="there")),
    "another site": (403, lambda user: user.ask("/waiting", "POST", "action=cancel", sec_fetch_site="cross-site")),
}


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateRedis]:
    """A broker of its own: connections of a site outlive the test."""
    with PrivateRedis() as server:
        yield server


@pytest.fixture
def empty(server: PrivateRedis) -> Iterator[Chinese]:
    """A user of an empty broker."""
    app = make_app(f"delayq://127.0.0.1:{server.port}/0")
    with server.client() as client:
        client.flushall()
    yield Chinese(app)
    app.close()


@pytest.fixture
def user(empty: Chinese, server: PrivateRedis) -> Chinese:
    """A user of a broker where something of everything is."""
    with server.client() as client:
        fill(empty.app, client)
    return empty


@pytest.mark.parametrize("visit", VISITS)
def test_a_page_has_no_english_words(user: Chinese, visit: str) -> None:
    status, go = VISITS[visit]
    response = go(user)
    assert response.status == status, response.body.decode()
    assert '<html lang="zh">' in response.body.decode()
    assert english(response) == []


@pytest.mark.parametrize("path", ["/", "/waiting", "/dead", "/periodic", "/workers"])
def test_an_empty_page_has_no_english_words(empty: Chinese, path: str) -> None:
    response = empty.ask(path)
    assert response.status == 200
    assert english(response) == []


@pytest.mark.parametrize(("may", "path"), [(None, "/"), ("read", "/waiting"), ([], "/entry")])
def test_a_refusal_has_no_english_words(empty: Chinese, may: object, path: str) -> None:
    empty.may = may
    response = (
        empty.act(path, "cancel" if path == "/waiting" else "schedule.pause") if may is not None else empty.ask(path)
    )
    assert response.status == 403
    assert english(response) == []


def test_a_mistake_in_the_configuration_is_told_in_chinese(empty: Chinese) -> None:
    empty.may = "everything"
    response = empty.ask("/")
    assert response.status == 500
    assert english(response) == []


def test_a_broker_that_is_away_is_told_in_chinese() -> None:
    app = make_app("delayq://127.0.0.1:1/0")
    page = Chinese(app).ask("/").body.decode()
    app.close()
    assert "无法读取 Redis" in page
    assert "本页面会自动重试。" in page


def test_every_template_is_among_these_pages(user: Chinese, monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[str] = set()
    load = ENVIRONMENT.get_template

    def noted(name: str, *rest: Any) -> Any:
        if not rest[:1] or rest[0] is None:  # not by another template
            used.add(name)
        return load(name, *rest)

    monkeypatch.setattr(ENVIRONMENT, "get_template", noted)
    for name, (_, go) in VISITS.items():
        if name not in ("dead.requeue, done with all", "dead.purge, done with all"):  # others need the letters
            go(user)
    parts = {"base.html", "macros.html", "actions.html", "entry_fields.html"}
    assert used == set(ENVIRONMENT.list_templates()) - parts


def test_english_words_in_a_page_are_seen() -> None:
    page = '<html lang="zh"><p title="Waiting">任务 <b>ends</b> 3m</p><code>data</code><a lang="en">English</a></html>'
    assert english(Response(200, page.encode())) == ["Waiting", "ends"]


def test_consumers_are_seen(user: Chinese) -> None:
    page = user.ask("/workers").body.decode()
    assert "主机" in page
    assert all(word in page for word in ("有效", "已结束", "已放弃"))
