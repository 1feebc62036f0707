"""The routes of the server as OpenAPI has them, made from the same entries that the server answers by."""

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final, TypeAlias

from starlette.responses import Response

from pump.queue.http.call import Call
from pump.queue.http.guard import Level

Schema: TypeAlias = Mapping[str, object]

STRING: Final[Schema] = {"type": "string"}
NUMBER: Final[Schema] = {"type": "number"}
OBJECT: Final[Schema] = {"type": "object"}

_PARAMETER: Final = re.compile(r"{(\w+)}")
_MEANINGS: Final[Mapping[int, str]] = {
    200: "As it says",
    201: "Stored",
    204: "Nothing is ready; there is no body",
    400: "What was asked is built wrongly; nothing was done",
    401: "A valid token is needed",
    403: "Whoever asks may not",
    404: "There is no such thing",
    408: "The body did not come in time; nothing was done, and the connection is closed",
    409: "It contradicts what is there",
    413: "The request is too large",
    429: "The queue is full; nothing was stored",
    503: "The database cannot be reached",
}
_ALWAYS: Final = (400, 403, 503)


@dataclass(frozen=True, slots=True)
class Entry:
    """One route: who answers it, who may ask, and how it is described."""

    method: str
    path: str
    act: Callable[[Call], Awaitable[Response]]
    level: Level
    statuses: Sequence[int] = (200,)
    query: Sequence[str] = ()
    body: Schema | None = None

    @property
    def parameters(self) -> Sequence[str]:
        """The names of the parts of its path that stand for something."""
        return _PARAMETER.findall(self.path)


def members(required: Sequence[str] = (), **schemas: Schema) -> Schema:
    """The schema of an object."""
    found = {"type": "object", "properties": schemas}
    return {**found, "required": list(required)} if required else found


def array(of: Schema) -> Schema:
    """The schema of an array."""
    return {"type": "array", "items": of}


def document(entries: Sequence[Entry]) -> Mapping[str, object]:
    """All of them as one OpenAPI document."""
    paths: dict[str, dict[str, object]] = {}
    for entry in entries:
        paths.setdefault(entry.path, {})[entry.method.lower()] = _operation(entry)
    return {
        "openapi": "3.1.0",
        "info": {"title": "message-pump queue", "version": version("message-pump")},
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": members(["success", "error"], success={"type": "boolean"}, error=STRING)},
        },
    }


def _operation(entry: Entry) -> Mapping[str, object]:
    path = [{"name": name, "in": "path", "required": True, "schema": STRING} for name in entry.parameters]
    query = [{"name": name, "in": "query", "required": False, "schema": STRING} for name in entry.query]
    public = entry.level is Level.PUBLIC
    operation: dict[str, object] = {
        "summary": (inspect.getdoc(entry.act) or "").split("\n", maxsplit=1)[0],
        "operationId": f"{entry.method.lower()}{re.sub(r'[^0-9A-Za-z]+', '_', entry.path).rstrip('_')}",
        "parameters": [*path, *query],
        "responses": {str(status): _response(status) for status in _statuses(entry)},
        "security": [] if public else [{"token": []}],
        "x-level": entry.level.name.lower(),
    }
    if entry.body is not None:
        operation["requestBody"] = {"content": {"application/json": {"schema": entry.body}}}
    return operation


def _statuses(entry: Entry) -> Sequence[int]:
    others = {
        *_ALWAYS,
        *([401] if entry.level is not Level.PUBLIC else []),
        *([408, 413] if entry.body is not None else []),
    }
    return sorted({*entry.statuses, *others})


def _response(status: int) -> Mapping[str, object]:
    described: dict[str, object] = {"description": _MEANINGS[status]}
    if status >= 400:  # noqa: PLR2004 - where the errors begin
        described["content"] = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return described
