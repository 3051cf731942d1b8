"""View: what a page has at hand while it answers a request. Page: a path, what it shows, what can be done there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from celery_delayq.web.access import Refusal
from celery_delayq.web.audit import Change
from celery_delayq.web.broker import Broker
from celery_delayq.web.language import LANGUAGES, Language
from celery_delayq.web.rendering import render
from celery_delayq.web.request import Request, Response


@dataclass(frozen=True)
class View:
    """One request, and all that is needed to answer it.

    Attributes:
        request: the request.
        broker: the broker.
        may: names of the actions that this user may do.
        language: the user's language.
        audit: records what was done.
        home: URL of the admin that the page is a part of; None if it is not.
        place: name of the app, and where its server is: what is known of it; empty for whom may not know.
    """

    request: Request
    broker: Broker
    may: frozenset[str]
    language: Language
    audit: Callable[[Change], None]
    home: str | None = None
    place: tuple[str, ...] = ()

    @property
    def _(self) -> Any:
        """Translates a sentence."""
        return self.language.gettext

    def page(self, template: str, status: int = 200, **values: Any) -> Response:
        """Return a page."""
        text = render(
            template,
            _=self.language.gettext,
            ngettext=self.language.ngettext,
            languages=LANGUAGES,
            language=self.language.code,
            home=self.home,
            place=self.place,
            may=self.may,
            can=lambda *names: bool(self.may & set(names)),
            path=self.request.path.lstrip("/"),
            query=self.request.query,
            **{"message": None, "is_live": False, **values},
        )
        return Response.html(text, status)

    def error(self, status: int, title: Markup, text: str, *, is_live: bool = False) -> Response:
        """Return a page that says why a request was not answered as it wants."""
        return self.page("error.html", status, title=title, text=text, is_live=is_live)


@dataclass(frozen=True)
class Page:
    """A page.

    Attributes:
        path: where it is, below the root: "/waiting".
        show: answers to GET.
        actions: what a form of this page may ask for by its field `action`: name -> answers to POST. The names are
            those of `access.ACTIONS`.
    """

    path: str
    show: Callable[[View], Response]
    actions: Mapping[str, Callable[[View], Response]] = field(default_factory=dict)

    def act(self, view: View) -> Response:
        """Do what a form asks for.

        Raises:
            Refusal: there is no such action, or the user may not do it.
        """
        name = view.request.form.get("action")
        if name not in self.actions:
            raise Refusal(400, "This page knows no such action.")
        if name not in view.may:
            raise Refusal(403, "You may look, but not do that.")
        try:
            return self.actions[name](view)
        except Refusal:
            raise
        except Exception as exc:
            view.audit(Change(name, error=str(exc)))
            raise
