"""The README is short, and every link between pages leads somewhere."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import yaml

import celery_delayq

REPOSITORY = Path(__file__).parents[1]
DOCS = REPOSITORY / "docs"
README = REPOSITORY / "README.md"
CHINESE = REPOSITORY / "README.zh-CN.md"
OTHERS = [REPOSITORY / "CONTRIBUTING.md", REPOSITORY / "SECURITY.md"]
PAGES = [README, CHINESE, *OTHERS, *sorted(DOCS.rglob("*.md")), *sorted(REPOSITORY.glob("examples/*/README.md"))]

#: The names of docs/reference.py, which makes the reference.
REFERENCE = runpy.run_path(str(DOCS / "reference.py"))

#: Of the pages for users, and of those for contributors, too.
MOST_WORDS_FOR_USERS = 30_000
MOST_WORDS = 45_000

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


def figures(readme: Path) -> list[list[str]]:
    """Return the rows of the table of figures, each from its first number on."""
    rows = re.findall(r"^\| .+? \|(.+`make bench .+)\|$", readme.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.findall(r"[\d,.]+|`.+`", row) for row in rows]


def test_the_chinese_readme_has_the_same_figures() -> None:
    assert len(figures(README)) == 5
    assert figures(CHINESE) == figures(README)


def test_the_chinese_readme_leads_to_the_same_pages_and_to_the_english_one() -> None:
    linked = set(_LINK.findall(prose(README))) - {CHINESE.name}
    assert linked | {README.name} <= set(_LINK.findall(prose(CHINESE)))


def test_the_chinese_readme_has_the_same_commands_and_code() -> None:
    def code(readme: Path) -> list[str]:
        """Return the blocks of code without their comments."""
        blocks = [found[0] for found in _CODE_BLOCK.finditer(readme.read_text(encoding="utf-8"))]
        return [re.sub(r"\s*#.*", "", block) for block in blocks]

    assert set(code(README)) <= set(code(CHINESE))


def test_the_navigation_has_each_page_in_the_order_of_the_list_of_pages() -> None:
    sections = yaml.safe_load(DOCS.joinpath("nav.yml").read_text(encoding="utf-8"))["subtrees"]
    named = [REPOSITORY / f"{entry['file']}.md" for section in sections for entry in section["entries"]]
    listed = [(DOCS / link).resolve() for link in _LINK.findall(prose(DOCS / "README.md"))]
    assert [page for page in named if page != CHINESE] == listed
    decisions = set(DOCS.glob("dev/decisions/0*.md"))  # nav.yml has them below the list of decisions
    assert {*named, *decisions} == {*PAGES, REPOSITORY / "CHANGELOG.md"} - {DOCS / "README.md"}


def test_the_reference_has_each_public_name() -> None:
    named = [name for names in REFERENCE["GROUPS"].values() for name in names]
    assert sorted(named) == sorted(set(celery_delayq.__all__) - {"__version__"})


@pytest.mark.parametrize("page", REFERENCE["PAGES"])
def test_the_reference_is_what_the_code_says(page: str) -> None:
    assert DOCS.joinpath("reference", page).read_text(encoding="utf-8") == REFERENCE["PAGES"][page](), "make reference"


def words(page: Path) -> int:
    return len(page.read_text(encoding="utf-8").split())


def test_the_readme_has_at_most_700_words() -> None:
    assert words(README) <= 700


def test_the_docs_have_at_most_so_many_words() -> None:
    """What commands write is not counted: the reference, and the tables of a run of the benchmarks."""
    made = {*DOCS.glob("reference/*.md"), DOCS / "dev" / "figures.md"}
    assert sum(map(words, DOCS.glob("*.md"))) <= MOST_WORDS_FOR_USERS
    assert sum(map(words, {*DOCS.rglob("*.md")} - made)) <= MOST_WORDS


def test_pictures_are_small_keep_their_spaces_and_name_no_host_and_no_path() -> None:
    pictures = list(DOCS.glob("pictures/*.svg"))
    assert pictures
    for picture in pictures:
        svg = picture.read_text(encoding="utf-8")
        assert len(svg) < 100_000
        assert not re.search(r"<tspan[^>]*> ", svg), "viewers other than browsers drop the space between two words"
        assert not re.search(r"127\.0\.0\.1|localhost|/(home|root|tmp|usr|work)/|url\(http", svg)
