"""The page in the reader's language."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from celery import Celery

from celery_delayq import web
from celery_delayq.web.language import LANGUAGES, Language, language_of
from celery_delayq.web.pages import PAGES
from tests.web import direct
from tests.web.direct import User, user_of

app, user = direct.app, direct.user

_TEMPLATES = Path(web.__file__).parent / "templates"


@pytest.mark.parametrize(
    ("wanted", "accepted", "code"),
    [
        ("", "", "en"),
        ("", "zh", "zh"),
        ("", "zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("", "ZH-hans", "zh"),
        ("", "en;q=0.8, zh; q=0.9", "zh"),
        ("", "en, zh", "en"),
        ("", "de, fr;q=0.9, zh;q=0.1", "zh"),
        ("", "de", "en"),
        ("", "zh;q=0", "en"),
        ("", "zh;q=nonsense, en;q=0.1", "en"),
        ("", "zh;q=nan", "en"),
        ("", "*", "en"),
        ("", ";;;,,,q=1;q=", "en"),
        ("", "de," * 10_000 + "zh", "en"),
        ("zh", "en", "zh"),
        ("en", "zh", "en"),
        ("de", "zh", "zh"),
        ("../../zh", "", "en"),
    ],
)
def test_the_language_of_a_request(wanted: str, accepted: str, code: str) -> None:
    assert language_of(wanted, accepted).code == code


def test_a_language_is_chosen_and_remembered(user: User) -> None:
    assert user.get("/", Accept_Language="zh").page.elements[0] == ("html", {"lang": "zh"})
    answer = user.get("/waiting", "text=a%26b&lang=zh&queue=%C3%A9&text=c&x=")
    assert answer.status == 303
    assert answer.headers["location"] == "waiting?text=c&queue=%C3%A9"
    cookie, *rest = answer.headers["set-cookie"].split("; ")
    assert cookie == "delayq_language=zh"
    assert {"SameSite=Lax", "HttpOnly"} <= set(rest)
    assert not any(part.startswith(("Path", "Domain")) for part in rest)  # other pages of the host do not get it
    assert user.get("/", "lang=en").headers["location"] == "./"
    for cookies in (cookie, f'other=[1, "x"]; {cookie}; more', f"{cookie};x", f"=;;{cookie}"):
        assert user.get("/", Cookie=cookies).page.elements[0] == ("html", {"lang": "zh"})
    for cookies in ("delayq_language=de", "x_delayq_language=zh", "delayq_language", "\xff"):
        assert user.get("/", Cookie=cookies).page.elements[0] == ("html", {"lang": "en"})


def test_the_other_language_is_a_link_that_keeps_the_query(user: User) -> None:
    for path in [page.path for page in PAGES]:
        for answer in (user.get(path, "text=a%26b&queue=q&name=n&id=i&letter=l"), user.post(path, b"", "queue=q%26")):
            (url,) = (str(one["href"]) for tag, one in answer.page.elements if tag == "a" and one.get("lang"))
            assert url.startswith("?")
            asked = answer.url.partition("?")[2]
            assert url == f"?{asked}&lang=zh"


def test_a_language_of_nobody_is_ignored(user: User) -> None:
    answer = user.get("/waiting", "lang=de&text=x")
    assert answer.status == 200
    assert "set-cookie" not in answer.headers


def test_values_in_a_sentence_are_escaped_and_cut() -> None:
    for code in LANGUAGES:
        language = Language(code)
        said = language.gettext("%(title)s or more", title="<b>%(title)s\u202e" + "x" * 10_000)
        assert str(said).startswith(("&lt;b&gt;%(title)s\\u202e", "至少"))
        assert len(said) < 2200
        assert "1,234" in language.ngettext("%(number)s task waits.", "%(number)s tasks wait.", 1234)


def test_templates_have_no_words_of_their_own() -> None:
    for path in _TEMPLATES.glob("*.html"):
        text = path.read_text("utf-8")
        text = re.sub(r"{#.*?#}|{%.*?%}|{{.*?}}", "", text, flags=re.S)
        words = re.findall(r"[a-zA-Z]{2,}", re.sub(r"<[^>]*>", " ", text))
        assert set(words) <= {"celery_delayq", "celery", "delayq", "DOCTYPE"}, path.name
        for name in ("aria-label", "title", "alt"):
            assert not re.findall(rf'\s{name}="[^"]*[a-zA-Z]', text), path.name


def test_each_page_speaks_the_language(app: Celery) -> None:
    app.tasks["shop.orders.remind"].apply_async((1,), task_id="a", countdown=3600)
    user = User(user_of(app).application, Accept_Language="zh")
    for page in PAGES:
        answer = user.get(page.path, {"id": "a", "queue": "celery", "letter": "x", "name": "x"})
        assert re.search("[\u4e00-\u9fff]", answer.title) or page.path == "/task", page.path  # that is the task's name
    for path in ("/nowhere", "/task"):
        assert re.search("[\u4e00-\u9fff]", "".join(user.get(path).page.texts_of("p"))), path
