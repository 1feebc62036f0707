"""Which tests prove which requirement, by `@pytest.mark.requirement`, and which of them are long.

`python -m support.requirement_rows`, in `tests/`, prints the requirements that only a long test proves.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from support.tree import ROOT

LONG = "pytest.mark.long"


class Proof(NamedTuple):
    """A test, or a class of tests, that proves a requirement."""

    name: str
    long: bool


class Marks(NamedTuple):
    """The marks that hold for a part of a file."""

    rows: frozenset[str] = frozenset()
    long: bool = False

    def and_of(self, *nodes: ast.expr) -> "Marks":
        """These marks, and those that the expressions make."""
        marks = self
        for node in nodes:
            if isinstance(node, ast.List | ast.Tuple):
                marks = marks.and_of(*node.elts)
            else:
                marks = Marks(marks.rows | _rows(node), marks.long or _is_long(node))
        return marks


def proofs() -> Mapping[str, Sequence[Proof]]:
    """By requirement, what proves it."""
    found: dict[str, list[Proof]] = defaultdict(list)
    for file in sorted([*ROOT.glob("tests/**/*.py"), *ROOT.glob("pump/testing/*.py")]):
        tree = ast.parse(file.read_text("utf-8"))
        for name, marks in _marked(tree, _of_module(tree)):
            for row in marks.rows:
                found[row].append(Proof(f"{file.relative_to(ROOT)}::{name}", marks.long))
    return found


def only_long() -> Mapping[str, Sequence[str]]:
    """The requirements that no test of the default run proves, with the long tests that do."""
    return {row: [each.name for each in found] for row, found in proofs().items() if all(each.long for each in found)}


def _of_module(tree: ast.Module) -> Marks:
    values = [each.value for each in tree.body if isinstance(each, ast.Assign) and _is_pytestmark(each)]
    return Marks().and_of(*values)


def _is_pytestmark(statement: ast.Assign) -> bool:
    return [ast.unparse(each) for each in statement.targets] == ["pytestmark"]


def _marked(parent: ast.Module | ast.ClassDef, marks: Marks, prefix: str = "") -> Iterator[tuple[str, Marks]]:
    for node in parent.body:
        if isinstance(node, ast.ClassDef):
            own = marks.and_of(*node.decorator_list)
            if node.bases:  # its tests may all be inherited
                yield prefix + node.name, own
            yield from _marked(node, own, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            yield from ((prefix + node.name, each) for each in _of_test(node, marks))


def _of_test(node: ast.FunctionDef | ast.AsyncFunctionDef, marks: Marks) -> Iterator[Marks]:
    """The marks of a test, and those of each of its cases that has some of its own."""
    own = marks.and_of(*node.decorator_list)
    yield own
    for case in (each for decorator in node.decorator_list for each in ast.walk(decorator)):
        if isinstance(case, ast.Call) and ast.unparse(case.func) == "pytest.param":
            given = [each.value for each in case.keywords if each.arg == "marks"]
            rows = Marks().and_of(*given).rows
            if rows:
                yield Marks(rows, own.and_of(*given).long)


def _rows(node: ast.expr) -> frozenset[str]:
    if not isinstance(node, ast.Call) or ast.unparse(node.func) != "pytest.mark.requirement":
        return frozenset()
    return frozenset(str(each.value) for each in node.args if isinstance(each, ast.Constant))


def _is_long(node: ast.expr) -> bool:
    """Whether it is the mark, or parameters that all have it."""
    if ast.unparse(node) == LONG:
        return True
    cases = node.args[1] if isinstance(node, ast.Call) and len(node.args) > 1 else None
    return isinstance(cases, ast.List) and bool(cases.elts) and all(LONG in ast.unparse(each) for each in cases.elts)


def table() -> str:
    """The rows of the table in the documentation."""
    return "".join(f"| {row} | {_short(found)} |\n" for row, found in sorted(only_long().items()))


def _short(found: Sequence[str]) -> str:
    return ", ".join(f"`{name.removeprefix('tests/')}`" for name in found)


if __name__ == "__main__":
    sys.stdout.write(table())
