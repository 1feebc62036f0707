"""The two clients have the same code: without `await` and `async`, the awaiting one equals the blocking one."""

import ast
from collections.abc import Mapping

from support.tree import modules

BLOCKING: Mapping[str, str] = {
    "return await _awaited(effect.function())": "return done(effect.function())",
    "Awaitable[object]": "object",
    "= awaiting(": "= blocking(",
    "async def ": "def ",
    "await ": "",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    ".aclose()": ".close()",
    "asynccontextmanager": "contextmanager",
    "AsyncIterator": "Iterator",
    "AsyncBaseTransport": "BaseTransport",
    "AsyncClient": "Client",
    "AsyncQueueClient": "QueueClient",
    "AsyncClientConsumer": "ClientConsumer",
    "wait_async": "wait",
    "every_async": "every",
}


def program(module: str) -> dict[str, str]:
    """The classes of a module by their names, without docstrings."""
    classes = {}
    for node in ast.parse(modules("pump")[module].read_text()).body:
        if isinstance(node, ast.ClassDef):
            for each in ast.walk(node):
                if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(each):
                    each.body = each.body[1:] or [ast.Pass()]
            classes[node.name] = ast.unparse(node)
    return classes


def made_blocking(text: str) -> str:
    for awaiting, blocking in BLOCKING.items():
        text = text.replace(awaiting, blocking)
    return text


def test_the_awaiting_client_is_the_blocking_one_with_awaits() -> None:
    awaiting = {
        made_blocking(name): made_blocking(text) for name, text in program("pump.queue.client.awaiting").items()
    }

    assert awaiting == program("pump.queue.client.blocking")
