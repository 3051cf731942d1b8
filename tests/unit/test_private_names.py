"""The private names of other libraries that are used are all in the table of docs/dev/internals.md, and exist.

Tests use no private names of this package: they say what others see, so that it can be built anew.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import kombu
import pytest

import celery_delayq

PACKAGE = Path(celery_delayq.__file__).parent
TESTS = Path(__file__).parents[1]
DEV = PACKAGE.parent / "docs" / "dev"
PAGE = (DEV / "internals.md").read_text("utf-8")

#: Names of ours that are used on another object than `self`.
OURS = {"_app", "_headers", "_message", "_payload", "_serializer", "_stored"}

#: Public in spite of its underscore: a method of each NamedTuple.
PUBLIC = {"_replace"}

#: Not in kombu 5.6, nor in Celery 5.6.
SINCE_5_7 = {"_publish_batch", "_expires", "_dump_pydantic_arguments"}


#: Private names of ours that tests use all the same. `test_*_contract.py` may use all of them: they check hooks of
#: kombu and Celery, some of which our classes override.
USED_BY_TESTS = {
    ("benchmarks/loops.py", "_look"),  # only the loop knows which of its commands belong to a look
    ("contrib/conftest.py", "_registry"),  # that of Django's admin, which has no public one
}


def documented() -> dict[str, str]:
    """Name -> the full name of what has it."""
    found = {}
    for cell in re.findall(r"^\| (`[a-z]+\..*?) \|", PAGE, re.MULTILINE):
        first, *others = re.findall(r"`(.*?)`", cell)
        owner, _, name = first.rpartition(".")
        if is_private(name):
            found |= dict.fromkeys([name, *others], owner)
    return found


def is_private(name: str) -> bool:
    return re.fullmatch(r"_[a-z]\w*", name) is not None


def used() -> Iterator[tuple[str, bool]]:
    """Yield each private name of an attribute, and whether it is one of `self`."""
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and is_private(node.attr):
                yield node.attr, isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
                name = node.args[1]
                if isinstance(name, ast.Constant) and is_private(name.value):
                    yield name.value, False


def defined() -> Iterator[str]:
    """Yield what this package defines."""
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                yield node.name
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                yield node.attr


def test_all_are_documented() -> None:
    ours = {*defined()}
    foreign = {name for name, is_own in used() if (name not in ours if is_own else name not in OURS)}
    assert foreign - documented().keys() == PUBLIC


def test_none_is_documented_that_is_not_used() -> None:
    assert documented().keys() - {name for name, _ in used()} - {"_publish_batch"} == set()


@pytest.mark.parametrize("page", ["internals.md", "meetings.md"])
def test_the_tests_that_are_named_exist(page: str) -> None:
    tests = re.findall(r"`((?:[a-z_]+/)?test_\w+\.py)", (DEV / page).read_text("utf-8"))
    assert tests
    assert [test for test in tests if not (PACKAGE.parent / "tests" / test).exists()] == []


@pytest.mark.parametrize(("name", "owner"), documented().items())
def test_it_exists(name: str, owner: str) -> None:
    if name in SINCE_5_7 and kombu.VERSION < (5, 7):
        return
    module, _, kind = owner.rpartition(".")
    classes = getattr(import_module(module), kind).__mro__[:-1]
    assert any(re.search(rf"\b{name}\b", inspect.getsource(one)) for one in classes), f"{owner} has no {name}"


def all_defined() -> set[str]:
    """Return the private names of this package, also those that are assigned in a module or a class."""
    assigned = {
        target.id
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, (ast.Module, ast.ClassDef))
        for statement in node.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    return {name for name in {*defined(), *assigned} if is_private(name)}


def names_of_others(code: str) -> Iterator[str]:
    """Yield the names that code imports from this package, or uses of anything but `self` and `cls`."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(attr=name):
                yield name
            case ast.Call(
                func=ast.Name(id=function) | ast.Attribute(attr=function), args=[_, ast.Constant(value=str(name)), *_]
            ) if function.endswith("attr"):
                yield name
            case ast.Call(func=ast.Attribute(attr="setattr" | "delattr"), args=[ast.Constant(value=str(path)), *_]):
                yield path.rpartition(".")[2]
            case ast.ImportFrom(module=str(module)) if module.startswith("celery_delayq"):
                yield from (alias.name for alias in node.names)


def test_tests_use_no_private_names_of_this_package() -> None:
    ours = all_defined()
    files = [file for file in TESTS.rglob("*.py") if not file.name.endswith("_contract.py")]
    found = {
        (file.relative_to(TESTS).as_posix(), name)
        for file in files
        for name in names_of_others(file.read_text("utf-8"))
        if name in ours
    }
    assert found == USED_BY_TESTS


@pytest.mark.parametrize(
    "code",
    [
        "channel._x",
        "channel.fetcher._x.y",
        "self.channel._x",
        "super()._x()",
        "monkeypatch.setattr(loop, '_x', 1)",
        "monkeypatch.setattr('celery_delayq.loop._x', 1)",
        "getattr(loop, '_x', None)",
        "with patch(loop._x): pass",
        "from celery_delayq.loop import _x",
    ],
)
def test_a_private_name_is_found_wherever_it_is_used(code: str) -> None:
    assert "_x" in names_of_others(code)


@pytest.mark.parametrize("code", ["self._x", "cls._x", "_x", "from tests.loop import _x", "def _x(): pass"])
def test_a_private_name_of_a_test_is_left_alone(code: str) -> None:
    assert "_x" not in names_of_others(code)
