"""The changes: each is one wrong character or line, as a person might leave it there.

Only the bodies of functions are changed: not what they log, not the text of what they raise, not their defaults.
"""

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
CALLS: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
LOGS: Final = frozenset({"debug", "info", "warning", "error", "exception"})


@dataclass(frozen=True)
class Mutant:
    """One change of one function."""

    function: str
    """Its qualified name."""
    version: str
    """The same as long as the function's code is the same."""
    starts: int
    """The first line of the function, with its decorators."""
    lines: range
    """Where the change is."""
    change: str
    """What was changed, and to what; a number follows where the same can be done more than once in the function."""
    place: tuple[ast.Module, ast.AST, ast.AST] = field(repr=False, compare=False)
    """The whole module, the node of it that is changed, and what is put in the place of that node."""

    @property
    def tree(self) -> ast.Module:
        """The whole module, changed."""
        tree, node, changed = self.place
        return _replaced(tree, node, changed)


def mutants(source: str) -> Iterator[Mutant]:
    """Every change of a module, one after another."""
    tree = ast.parse(source)
    for name, function in _functions(tree, ""):
        starts = min([function.lineno, *(each.lineno for each in function.decorator_list)])
        version = hashlib.sha256(ast.unparse(function).encode()).hexdigest()[:12]
        seen = Counter[str]()
        for node in _changeable(function):
            for changed in _changes(node):
                change = f"{_shown(node)} → {_shown(changed)}"
                seen[change] += 1
                numbered = change if seen[change] == 1 else f"{change} ({seen[change]})"
                yield Mutant(name, version, starts, _lines(node, function), numbered, (tree, node, changed))


def _lines(node: ast.AST, function: Function) -> range:
    place = node if isinstance(node, ast.stmt | ast.expr) else function
    return range(place.lineno, (place.end_lineno or place.lineno) + 1)


def _shown(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 90 else f"{text[:60]} … {text[-27:]}"


def _replaced(tree: ast.Module, node: ast.AST, changed: ast.AST) -> ast.Module:
    """A copy of the tree, with the changed node in place of this one."""
    memory = {id(node): ast.copy_location(changed, node)}
    return ast.fix_missing_locations(copy.deepcopy(tree, memory))


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    """The functions that are in no other one."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.ClassDef):
            yield from _functions(each, f"{prefix}{each.name}.")
        elif isinstance(each, Function):
            yield f"{prefix}{each.name}", each


def _changeable(function: Function) -> Iterator[ast.AST]:
    pending: list[ast.AST] = list(reversed(function.body))
    while pending:
        node = pending.pop()
        yield node
        pending += reversed(list(_parts(node)))


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """What of a node may be changed in its turn."""
    match node:
        case ast.AnnAssign(value=value):
            if value is not None:
                yield value
        case ast.FunctionDef(body=body) | ast.AsyncFunctionDef(body=body):
            yield from body
        case ast.Raise() | ast.Assert() | ast.JoinedStr():
            return
        case ast.Expr(value=value) if _is_log(value):
            return
        case _:
            yield from ast.iter_child_nodes(node)


def _is_log(value: ast.expr) -> bool:
    """Whether it is a call that only logs."""
    match value:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=name)):
            return name in LOGS
        case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="log"))):
            return True
        case _:
            return False


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    yield from _changed_statement(node)
    yield from _changed_expression(node)


def _changed_statement(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Expr(value=value) if not (
            isinstance(value, ast.Constant | ast.Yield | ast.YieldFrom) or _is_log(value)
        ):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign() | ast.Delete():
            yield ast.Pass()
        case ast.Raise():
            yield ast.Pass()
        case ast.Return(value=value) if value is not None and not _is_no(value):
            yield ast.Return(ast.Constant(None))
        case ast.Continue():
            yield ast.Break()
        case ast.Break():
            yield ast.Continue()
        case _:
            pass
    match node:
        case ast.If(test=test) | ast.While(test=test) if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp):
            changed = copy.copy(node)
            changed.test = _not(test)
            yield changed
        case ast.AugAssign(target=target, op=op, value=value) if type(op) in ARITHMETIC:
            yield ast.AugAssign(target, ARITHMETIC[type(op)](), value)
        case _:
            pass


def _changed_expression(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=comparators):
            yield ast.Compare(left, [COMPARISONS[type(op)]()], comparators)
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.IfExp(test=test, body=body, orelse=orelse) if not isinstance(test, ast.Compare | ast.UnaryOp):
            yield ast.IfExp(_not(test), body, orelse)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC and not _is_text(left, right):
            yield ast.BinOp(left, ARITHMETIC[type(op)](), right)
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in CALLS:
            yield ast.Call(ast.Name(CALLS[name], ast.Load()), args, keywords)
        case _:
            pass


def _not(test: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), test)


def _is_no(value: ast.expr) -> bool:
    """Whether it is None or False, which mean the same to whoever asks for one of them."""
    return isinstance(value, ast.Constant) and (value.value is None or value.value is False)


def _is_text(*parts: ast.expr) -> bool:
    return any(
        isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant) and isinstance(part.value, str | bytes))
        for part in parts
    )
