"""The private names of other libraries that are used are all in the table of docs/internals.md, and exist."""

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
PAGE = (PACKAGE.parent / "docs" / "internals.md").read_text("utf-8")

#: Names of ours that are used on another object than `self`.
OURS = {"_app", "_headers", "_message", "_payload", "_serializer", "_stored"}

#: Not in kombu 5.6, nor in Celery 5.6.
SINCE_5_7 = {"_publish_batch", "_expires", "_dump_pydantic_arguments"}


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
    assert foreign - documented().keys() == set()


def test_none_is_documented_that_is_not_used() -> None:
    assert documented().keys() - {name for name, _ in used()} - {"_publish_batch"} == set()


def test_the_tests_that_are_named_exist() -> None:
    tests = re.findall(r"`((?:[a-z_]+/)?test_\w+\.py)", PAGE)
    assert tests
    assert [test for test in tests if not (PACKAGE.parent / "tests" / test).exists()] == []


@pytest.mark.parametrize(("name", "owner"), documented().items())
def test_it_exists(name: str, owner: str) -> None:
    if name in SINCE_5_7 and kombu.VERSION < (5, 7):
        return
    module, _, kind = owner.rpartition(".")
    classes = getattr(import_module(module), kind).__mro__[:-1]
    assert any(re.search(rf"\b{name}\b", inspect.getsource(one)) for one in classes), f"{owner} has no {name}"
