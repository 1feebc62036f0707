"""Words that have a plain replacement are not names in the code. docs/glossary.md has the words that are."""

import ast
import re
from collections.abc import Iterator

import pytest

from support.tree import PACKAGES, modules

REPLACED = {
    "announcer": "notifier",
    "bell": "notifier",
    "broom": "vacuum",
    "bury": "give_up, remove",
    "desk": "batched_engine",
    "grave": "dead_letter",
    "graves": "dead_letters",
    "hall": "waiters",
    "leash": "link",
    "naked": "asked_again",
    "outlet": "producers",
    "shelf": "batch",
    "spared": "uncounted",
    "surroundings": "settings",
    "unsaid": "ack_batch",
    "unspent": "uncounted",
}
"""Only words that could not be meant otherwise."""

PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def names(source: str) -> Iterator[str]:
    """Everything that a module names: classes, functions, parameters, variables and attributes."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Attribute(attr=name) | ast.Name(id=name):
                yield name
            case _:
                pass


def words(name: str) -> set[str]:
    """The words of a name, in small letters."""
    return {part.lower() for part in PARTS.findall(name)}


@pytest.mark.parametrize("module", [module for package in PACKAGES for module in modules(package)])
def test_a_module_uses_the_plain_word(module: str) -> None:
    package = next(package for package in reversed(PACKAGES) if f"{module}.".startswith(f"{package}."))
    source = modules(package)[module].read_text()

    used = {name: word for name in {module, *names(source)} for word in words(name) & REPLACED.keys()}

    assert {name: f"{word}: say {REPLACED[word]}" for name, word in used.items()} == {}


def test_a_word_is_seen_in_any_name() -> None:
    source = "class OpenDesk:\n    def bury(self, grave_of):\n        self._unsaid = LEASH"

    assert {word for name in names(source) for word in words(name)} & REPLACED.keys() == {
        "desk",
        "bury",
        "grave",
        "unsaid",
        "leash",
    }
