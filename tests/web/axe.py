"""axe-core: rules of accessibility, applied to a page in the browser."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from tests.support import missing
from tests.web.visit import WITHOUT_SCRIPTS

#: WCAG 2.1 A and AA.
TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa")

#: Where `make setup` and tox install it from npm: in the environment that runs the tests.
_SCRIPT = Path(sys.prefix, "node", "node_modules", "axe-core", "axe.min.js")


@dataclass(frozen=True)
class Violation:
    """A rule that a page breaks.

    Attributes:
        rule: id of the rule, such as `color-contrast`.
        impact: `minor`, `moderate`, `serious` or `critical`.
        help: the rule in a sentence.
        url: page about the rule.
        places: for each element, its selector, its HTML, and what to mend.
    """

    rule: str
    impact: str
    help: str
    url: str
    places: tuple[tuple[str, str, str], ...]

    def __str__(self) -> str:
        places = (f"    {selector}\n        {html}\n        {todo}" for selector, html, todo in self.places)
        return "\n".join((f"{self.rule} ({self.impact}): {self.help}\n    {self.url}", *places))


class Violations(list[Violation]):
    """Violations that a failed assertion shows in full."""

    def __repr__(self) -> str:
        return "\n" + "\n".join(map(str, self)) if self else "[]"

    @property
    def rules(self) -> set[str]:
        """Ids of the broken rules."""
        return {violation.rule for violation in self}


@cache
def _source() -> str:
    if not _SCRIPT.is_file():
        missing(f"no axe-core: `make setup` installs it where npm is (npm install --prefix {sys.prefix}/node axe-core)")
    return _SCRIPT.read_text("utf-8")


def axe(page: Page, *, within: str | None = None, tags: tuple[str, ...] = TAGS) -> Violations:
    """Return the violations on a page as it is now: `assert axe(page) == []`.

    The script is evaluated by the debugger, so the page's Content-Security-Policy need not allow it. Scripts must
    be on: timers do not run without, and axe waits for some.

    Args:
        page: the page.
        within: selector of the part to look at; by default, all of it.
        tags: tags of the rules to apply.
    """
    assert page.context not in WITHOUT_SCRIPTS, "axe needs scripts: where they are off, timers do not run"
    page.evaluate(_source())
    found = page.evaluate(
        "([within, tags]) => axe.run(within ? document.querySelector(within) : document, "
        "{runOnly: {type: 'tag', values: tags}, resultTypes: ['violations']})",
        [within, list(tags)],
    )
    return Violations(map(_violation, found["violations"]))


def _violation(data: dict[str, Any]) -> Violation:
    def place(node: dict[str, Any]) -> tuple[str, str, str]:
        selector = " ".join(part if isinstance(part, str) else json.dumps(part) for part in node["target"])
        return selector, node["html"][:300], " ".join(str(node.get("failureSummary", "")).split())

    places = tuple(map(place, data["nodes"]))
    return Violation(data["id"], str(data["impact"]), data["help"], data["helpUrl"], places)
