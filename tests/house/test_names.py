"""One name for one thing: no two classes of the package have the same name."""

import ast
from collections import defaultdict
from collections.abc import Mapping

import pytest

from support.tree import PACKAGES, modules

ALLOWED: Mapping[str, str] = {
    "DeadLetter": "of a handler under test, and of the queue: public in both places",
}
"""The names that several classes have, and why."""


def class_names() -> Mapping[str, list[str]]:
    """The modules in which a class of each name stands."""
    found: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for module, file in modules(package).items():
            for name in classes_of(file.read_text()):
                found[name].append(module)
    return found


def classes_of(source: str) -> list[str]:
    return [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]


def test_no_two_classes_have_one_name() -> None:
    several = {name: where for name, where in class_names().items() if len(where) > 1}

    assert several.keys() == ALLOWED.keys(), "rename all but one, or say in ALLOWED why both have the name"


@pytest.mark.parametrize("source", ["class A: ...", "def f():\n    class A: ...", "if True:\n    class A(B): ..."])
def test_a_class_is_found_wherever_it_stands(source: str) -> None:
    assert classes_of(source) == ["A"]
