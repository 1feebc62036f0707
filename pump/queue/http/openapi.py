"""The routes of the server as an OpenAPI document, made from the table that the server itself uses."""

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from pump.queue.http.guard import Level
from pump.queue.http.request import QueueRequest
from pump.queue.wire.times import Time

Schema: TypeAlias = Mapping[str, object]

_PARAMETER: Final = re.compile(r"{(\w+)}")
_MEANINGS: Final[Mapping[int, str]] = {
    200: "Done",
    201: "Stored",
    204: "Nothing is ready; there is no body",
    400: "The request is not valid; nothing was done",
    401: "A valid token is needed",
    403: "Not allowed with this token, host or origin",
    404: "There is no such thing",
    408: "The body did not arrive in time; nothing was done, and the connection is closed",
    409: "The request contradicts what is there",
    413: "The request is too large",
    429: "The queue is full; nothing was stored",
    503: "The database cannot be reached",
}
_ERROR: Final[Schema] = {
    "type": "object",
    "properties": {"success": {"type": "boolean"}, "error": {"type": "string"}},
    "required": ["success", "error"],
}


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """One route: the function that responds, who may use it, and its description."""

    method: str
    path: str
    respond: Callable[[QueueRequest], Awaitable[object]]
    """Returns a Response, or a value to send as JSON with status 200."""
    level: Level
    statuses: Sequence[int] = (200,)
    query: type[Struct] | None = None
    body: type[Struct] | None = None

    @property
    def parameters(self) -> Sequence[str]:
        """The names of the parameters in its path."""
        return _PARAMETER.findall(self.path)


def document(routes: Sequence[RouteSpec]) -> Mapping[str, object]:
    """All routes as one OpenAPI document."""
    bodies = {each.body: None for each in routes if each.body is not None}
    schemas, components = msgspec.json.schema_components(
        bodies, schema_hook=_schema, ref_template="#/components/schemas/{name}"
    )
    described = dict(zip(bodies, schemas, strict=True))
    paths: dict[str, dict[str, object]] = {}
    for route in routes:
        operation = _operation(route)
        if route.body is not None:
            operation["requestBody"] = {"content": {"application/json": {"schema": described[route.body]}}}
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "message-pump queue", "version": version("message-pump")},
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": _ERROR, **components},
        },
    }


def _schema(_: type[Time]) -> dict[str, object]:
    return {"type": "string", "format": "date-time"}


def _operation(route: RouteSpec) -> dict[str, object]:
    path = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in route.parameters]
    public = route.level is Level.PUBLIC
    statuses = {*route.statuses, 400, 403, 503, *(() if public else (401,)), *((408, 413) if route.body else ())}
    return {
        "summary": (inspect.getdoc(route.respond) or "").split("\n", maxsplit=1)[0],
        "operationId": f"{route.method.lower()}{re.sub(r'[^0-9A-Za-z]+', '_', route.path).rstrip('_')}",
        "parameters": [*path, *_query_parameters(route.query)],
        "responses": {str(status): _response(status) for status in sorted(statuses)},
        "security": [] if public else [{"token": []}],
        "x-level": route.level.name.lower(),
    }


def _query_parameters(query: type[Struct] | None) -> Sequence[Schema]:
    if query is None:
        return []
    _, components = msgspec.json.schema_components([query], schema_hook=_schema)
    properties = components[query.__name__]["properties"]
    return [{"name": name, "in": "query", "required": False, "schema": schema} for name, schema in properties.items()]


def _response(status: int) -> Mapping[str, object]:
    described: dict[str, object] = {"description": _MEANINGS[status]}
    if status >= 400:  # noqa: PLR2004 - where the errors begin
        described["content"] = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return described
