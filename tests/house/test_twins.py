"""What exists in two colours is one program: without its awaits, the awaiting twin reads as the blocking one."""

import ast
from collections.abc import Callable, Mapping

import pytest

from support.tree import modules

PAIRS = {
    "pump.pumps.async_channel": "pump.pumps.channel",
    "pump.pumps.proactor": "pump.pumps.reactor",
}

BLOCKING_NAMES: Mapping[str, str] = {
    "AsyncChannel": "Channel",
    "AsyncConsumer": "Consumer",
    "AsyncDispatch": "Dispatch",
    "Proactor": "Reactor",
    "asyncio": "threading",  # of either, only Lock is used
    "every_async": "every",
    "pump.pumps.async_channel": "pump.pumps.channel",
    "wait_async": "wait",
}
"""The names by which the blocking twin calls what the awaiting one calls otherwise."""

Tree = ast.AST


def source(module: str) -> str:
    return modules("pump")[module].read_text()


class Blocking(ast.NodeTransformer):
    """Makes an awaiting program a blocking one: what was awaited is called, and has the other colour's name."""

    def visit_Await(self, node: ast.Await) -> Tree:
        return self.visit(node.value)  # type: ignore[no-any-return] # visit is untyped

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> Tree:
        fields = {name: getattr(node, name) for name in node._fields}
        return self.generic_visit(ast.FunctionDef(**fields))

    def visit_AsyncWith(self, node: ast.AsyncWith) -> Tree:
        return self.generic_visit(ast.With(items=node.items, body=node.body, type_comment=node.type_comment))

    def visit_Subscript(self, node: ast.Subscript) -> Tree:
        if isinstance(node.value, ast.Name) and node.value.id == "Awaitable":
            return self.visit(node.slice)  # type: ignore[no-any-return] # visit is untyped
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> Tree:
        node.id = BLOCKING_NAMES.get(node.id, node.id)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> Tree:
        node.attr = BLOCKING_NAMES.get(node.attr, node.attr)
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> Tree:
        node.name = BLOCKING_NAMES.get(node.name, node.name)
        return self.generic_visit(node)


class Wordless(ast.NodeTransformer):
    """Leaves the docstrings out, and the imports, which say only where the names come from."""

    def visit_Expr(self, node: ast.Expr) -> Tree | None:
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_Import(self, _: ast.Import) -> None:
        return None

    def visit_ImportFrom(self, _: ast.ImportFrom) -> None:
        return None


def program(text: str, *names: str) -> list[str]:
    """The statements of a module, or those of them that define the names, as they read without their words."""
    tree = Wordless().visit(Blocking().visit(ast.parse(text)))
    wanted = [node for node in tree.body if not names or getattr(node, "name", None) in names]
    return [line for node in wanted for line in ast.unparse(ast.fix_missing_locations(node)).splitlines()]


@pytest.mark.parametrize("awaiting", PAIRS)
def test_the_awaiting_twin_is_the_blocking_one_with_awaits(awaiting: str) -> None:
    assert program(source(awaiting)) == program(source(PAIRS[awaiting]))


@pytest.mark.parametrize("awaiting", PAIRS)
def test_the_awaiting_twin_awaits_whatever_may_wait(awaiting: str) -> None:
    assert "await " in source(awaiting)
    assert "await " not in source(PAIRS[awaiting])


_KNOWS_ITS_LOOP = """\
    __slots__ = ('_loop',)

    def __init__(self, router: Router, channel: Channel, loop: threading.AbstractEventLoop | None=None) -> None:
        super().__init__(router, channel)
        self._loop: Final = loop

"""
_NOTES_ITS_TASK = "        context.task, context.interrupted = (threading.current_task(self._loop), False)\n"
"""As it reads, made blocking."""
_GOES_ON_AFTER_ALL = """\
            if context.interrupted and context.task is not None:
                context.task.uncancel()
"""
_UNDOES_WHAT_IT_DID_ITSELF = """\
            if isinstance(context.task, OwnTask) and context.task.own_cancellations:
                context.task.recover()
"""
_LOOKS_AT_WHAT_IT_AWAITED = """\
            result = bound.run(request)
            return result if result is None else done(result)
"""
_LOOKED_AT_ALREADY = "            return bound.run(request)\n"
"""A blocking pipeline has looked at its result; an awaiting one has only made what is awaited."""

DISPATCH_DIFFERS: Mapping[str, str] = {
    _KNOWS_ITS_LOOP: "    __slots__ = ()\n\n",
    "context = _TaskContext(": "context = Context(",  # its handler is ended by cancelling the task it runs in …
    "(registration.name, context.interrupt)": "(registration.name, context.cancel)",  # … which a thread cannot be
    _NOTES_ITS_TASK: "",
    _GOES_ON_AFTER_ALL: "",  # takes the cancellation back
    _LOOKS_AT_WHAT_IT_AWAITED: _LOOKED_AT_ALREADY,
    _UNDOES_WHAT_IT_DID_ITSELF: "",  # a handler may cancel the task it runs in
    "                if _cancelled(error):\n                    raise\n": "",  # the pump stops: no other handler
}
"""All that Dispatch and AsyncDispatch do differently, as the awaiting one says it and as the blocking one does."""


def dispatches(text: str) -> tuple[str, str]:
    """Both dispatches as one reads them, the awaiting one made blocking."""
    classes = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}
    awaiting, blocking = (ast.unparse(classes[name]) for name in ("AsyncDispatch", "Dispatch"))
    return "\n".join(program(awaiting)), "\n".join(program(blocking))


def without(text: str, differences: Mapping[str, str]) -> str:
    for awaiting, blocking in differences.items():
        shorter = text.replace(awaiting, blocking)
        assert shorter != text, f"no longer a difference: {awaiting.strip()}"
        text = shorter
    return text


def test_the_dispatches_differ_only_in_how_a_handler_is_ended() -> None:
    awaiting, blocking = dispatches(source("pump.handling.dispatch"))

    assert without(awaiting, DISPATCH_DIFFERS).splitlines() == blocking.splitlines()


# -- the test can fail


def _other_verdict(text: str) -> str:
    return text.replace("consumer.acknowledge(message)", "consumer.nack(message)")


def _forgotten_await(text: str) -> str:
    return text.replace("judge.unsettled(message, verdict, error)", "pass")


def _other_order(text: str) -> str:
    return text.replace("        if back:\n", "        if room and back:\n")


def _other_default(text: str) -> str:
    return text.replace("empty_delay: float = 0.0", "empty_delay: float = 1.0")


@pytest.mark.parametrize(
    ("module", "change"),
    [
        ("pump.pumps.async_channel", _other_verdict),
        ("pump.pumps.async_channel", _other_order),
        ("pump.pumps.proactor", _forgotten_await),
        ("pump.pumps.proactor", _other_default),
    ],
)
@pytest.mark.parametrize("twin", ["awaiting", "blocking"])
def test_a_change_in_one_twin_alone_is_seen(module: str, change: Callable[[str], str], twin: str) -> None:
    awaiting, blocking = source(module), source(PAIRS[module])
    changed = change(awaiting if twin == "awaiting" else blocking)
    assert changed not in {awaiting, blocking}

    if twin == "awaiting":
        assert program(changed) != program(blocking)
    else:
        assert program(awaiting) != program(changed)


def test_a_change_in_one_dispatch_alone_is_seen() -> None:
    awaiting, blocking = dispatches(
        source("pump.handling.dispatch").replace("except KeyboardInterrupt:", "except OSError:", 1)
    )

    assert without(awaiting, DISPATCH_DIFFERS) != blocking


def test_words_and_imports_are_no_difference() -> None:
    awaiting = (
        '"""Awaits."""\nimport asyncio\nasync def go(x: Callable[[], Awaitable[int]]) -> int:\n    return await x()'
    )
    blocking = "def go(x: Callable[[], int]) -> int:\n    'Blocks.'\n    return x()"

    assert program(awaiting) == program(blocking)
