"""The two engines on PostgreSQL are one program: where the awaiting one awaits, the blocking one has it finished."""

import ast
import asyncio
from collections.abc import Callable, Mapping

import pytest

from pump.queue.postgres.session import finished
from support.tree import modules

BLOCKING: Mapping[str, str] = {
    "AsyncPostgresEngine": "PostgresEngine",
    "AsyncConnection": "Connection",
    "AwaitingSession": "BlockingSession",
    "AbstractAsyncContextManager": "AbstractContextManager",
    "return self._transaction_on(BlockingSession(connection), leases)": (
        "return Finishing(self._transaction_on(BlockingSession(connection), leases))"
    ),
}
BEGINNINGS = {"_begin", "__aenter__", "__aexit__"}
"""A blocking engine looks for its database when it is made, an awaiting one when it is entered."""

Change = Callable[[str], str]


class MadeBlocking(ast.NodeTransformer):
    """Reads awaiting code as blocking code."""

    def visit_Await(self, node: ast.Await) -> ast.Call:
        self.generic_visit(node)
        return ast.Call(ast.Name("finished"), [node.value], [])

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        return ast.FunctionDef(node.name, node.args, node.body, node.decorator_list, node.returns)


def source(module: str) -> str:
    return modules("pump")[module].read_text("utf-8")


def program(text: str) -> str:
    """The class of a module, without its own docstring and its beginning, as blocking code."""
    (engine,) = (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
    engine.body = [node for node in engine.body[1:] if getattr(node, "name", None) not in BEGINNINGS]
    read = ast.unparse(ast.fix_missing_locations(MadeBlocking().visit(engine)))
    for awaiting, blocking in BLOCKING.items():
        read = read.replace(awaiting, blocking)
    return read


BLOCKING_ENGINE = source("pump.queue.postgres.engine")
AWAITING_ENGINE = source("pump.queue.postgres.async_engine")


def test_the_awaiting_engine_is_the_blocking_one_with_awaits() -> None:
    assert program(AWAITING_ENGINE).splitlines() == program(BLOCKING_ENGINE).splitlines()


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("check_want(want)", "pass"),
        lambda text: text.replace("limit: int = 100", "limit: int = 10"),
        lambda text: text.replace("dead.retry(work, partition_id, transaction_id)", "dead.retry(work, '', '')"),
        lambda text: text.replace("Lease what is ready; never waits.", "Lease what is ready."),
    ],
    ids=["check", "default", "call", "promise"],
)
def test_a_change_in_one_engine_alone_is_seen(change: Change) -> None:
    assert program(change(AWAITING_ENGINE)) != program(BLOCKING_ENGINE)
    assert program(AWAITING_ENGINE) != program(change(BLOCKING_ENGINE))


def test_what_would_suspend_in_a_blocking_call_is_an_error_and_not_a_hang() -> None:
    closed = []

    async def sleep() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            closed.append("sleep")

    with pytest.raises(RuntimeError, match="awaited something other than a blocking session"):
        finished(sleep())
    assert closed == ["sleep"]


def test_what_a_blocking_call_raises_is_raised() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        finished(fail())
