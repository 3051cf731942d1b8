"""Language: the words of the page in the reader's language."""

from __future__ import annotations

import gettext
from functools import cache
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from celery_delayq.web.rendering import MOST_CHARACTERS, cut
from celery_delayq.web.request import accepted

#: Code -> name in the language itself. English needs no catalogue.
LANGUAGES = {"en": "English", "zh": "中文"}

_FOLDER, _DOMAIN = Path(__file__).parent / "locale", "celery_delayq"


@cache
def _catalogue(code: str) -> gettext.NullTranslations:
    return gettext.translation(_DOMAIN, _FOLDER, [code], fallback=True)  # a page in English is better than none


class Language:
    """Translates what the page says. The values in a sentence are escaped and cut.

    Args:
        code: one of `LANGUAGES`.
    """

    def __init__(self, code: str) -> None:
        self.code = code
        self._texts = _catalogue(code)

    def gettext(self, text: str, **values: Any) -> Markup:
        """Return a sentence with values: `_("%(number)s tasks", number=3)`."""
        return _filled(self._texts.gettext(text), values)

    def ngettext(self, one: str, many: str, number: int, **values: Any) -> Markup:
        """Return a sentence in the singular or the plural; `%(number)s` is the number, with commas."""
        return _filled(self._texts.ngettext(one, many, number), {"number": f"{number:,}", **values})


def _filled(text: str, values: dict[str, Any]) -> Markup:
    safe = {
        name: value if isinstance(value, Markup) else escape(cut(value, MOST_CHARACTERS))
        for name, value in values.items()
    }
    return Markup(escape(text) % safe) if safe else escape(text)


def language_of(wanted: str, header: str) -> Language:
    """Return the language of a request.

    Args:
        wanted: code that the user has chosen; empty if none.
        header: `Accept-Language`.
    """
    if wanted in LANGUAGES:
        return Language(wanted)
    codes = (name.partition("-")[0] for quality, name in accepted(header) if quality > 0)
    return Language(next((code for code in codes if code in LANGUAGES), "en"))
