"""The description of the routes: it has every route, with its possible replies."""

from typing import Any

import pytest

from pump.queue.http.guard import Level
from pump.queue.http.openapi import document
from pump.queue.http.routes import ROUTES
from support.queue_http import InProcess


def test_every_route_is_described(http: InProcess) -> None:
    answer = http.get("/openapi.json")

    described = {(method.upper(), path) for path, methods in answer.json["paths"].items() for method in methods}
    assert described == {(entry.method, entry.path) for entry in ROUTES}
    assert len(ROUTES) == len(described)


@pytest.mark.parametrize("entry", ROUTES, ids=lambda entry: f"{entry.method} {entry.path}")
def test_a_description_says_what_a_caller_needs(entry: Any) -> None:
    paths: Any = document(ROUTES)["paths"]
    found = paths[entry.path][entry.method.lower()]

    assert found["summary"].endswith(".")
    assert [each["name"] for each in found["parameters"] if each["in"] == "path"] == entry.parameters
    assert found["security"] == ([] if entry.level is Level.PUBLIC else [{"token": []}])
    assert {"400", "403", "503"} <= found["responses"].keys()


def test_no_two_operations_have_one_name() -> None:
    paths: Any = document(ROUTES)["paths"]
    names = [operation["operationId"] for methods in paths.values() for operation in methods.values()]

    assert len(names) == len(set(names))
