"""The README is short, and every link between pages leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
DOCS = REPOSITORY / "docs"
README = REPOSITORY / "README.md"
PAGES = [README, *sorted(DOCS.rglob("*.md")), *sorted(REPOSITORY.glob("examples/*/README.md"))]

_CODE_BLOCK = re.compile(r"^(```+).*?^\1", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)")


def prose(page: Path) -> str:
    """Return a page without its code blocks."""
    return _CODE_BLOCK.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_relative_links_resolve(page: Path) -> None:
    broken = []
    for link in _LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_the_readme_has_at_most_900_words() -> None:
    assert len(README.read_text(encoding="utf-8").split()) <= 900


def test_the_list_of_pages_has_each_page() -> None:
    linked = set(_LINK.findall(prose(DOCS / "README.md")))
    assert {page.name for page in DOCS.glob("*.md")} - {"README.md"} <= linked


def test_pictures_are_small_and_name_no_host_and_no_path() -> None:
    pictures = list(DOCS.glob("pictures/*.svg"))
    assert pictures
    for picture in pictures:
        svg = picture.read_text(encoding="utf-8")
        assert len(svg) < 100_000
        assert not re.search(r"127\.0\.0\.1|localhost|/(home|root|tmp|usr|work)/|url\(http", svg)
