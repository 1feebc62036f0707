"""Who may import whom: values ← verdict ← transport, channel ← pumps ← performer ← dispatcher ← cli."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import NamedTuple

import pytest

from support.tree import modules

LAYERS: tuple[str, ...] = (
    "capabilities clock dead_letter duration errors json_text message request subscription telemetry unsaid watermark",
    "colour json_tree ledger loop_thread own_task report",
    "json_form verdict",
    "context dataclass_codec intake queue transport",
    "async_channel attribute bridge channel handler library_codec",
    "delivery mapping outlet pipeline",
    "registry surroundings",
    "dispatch plan",
    "concurrent proactor reactor",
    "performer",
    "group processor validation",
    "dispatcher",
    "__init__ describe loading",
    "testing_clock testing_rig testing_settings",
    "testing_lane testing_settlement",
    "testing testing_contract testing_harness testing_plugin",
    "settlement signals tables workers",
    "__main__ cli demo demo_shop",
)
"""From the bottom up. A module imports from its own layer and those below; a new one gets its place here.

A sub-package of pump/ is one name, and `__init__` is what `from pump import …` gives. Imports for types alone
go anywhere within pump.
"""

RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer.split()}
LOADERS = {"__import__", "import_module", "find_spec", "resolve_name"}


class Imported(NamedTuple):
    name: str
    for_types: bool = False
    by_name: bool = False
    """Loaded by a string, not imported by a statement."""


def imports(source: str) -> list[Imported]:
    """All that a module imports, anywhere in it; `from a import b` is `a.b`, and so is a name it loads."""
    tree = ast.parse(source)
    for_types = set(_nodes_for_types(tree))
    return [
        Imported(name, node in for_types, isinstance(node, ast.Call))
        for node in ast.walk(tree)
        for name in _names(node)
    ]


def _nodes_for_types(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
            for statement in node.body:
                yield from ast.walk(statement)


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in LOADERS:
        words = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant))
        yield from (word.split(":")[0].rstrip(".") for word in words if isinstance(word, str))


def is_within(name: str, *packages: str) -> bool:
    return any(f"{name}.".startswith(f"{package}.") for package in packages)


def pump_modules() -> dict[str, str]:
    return {name: file.read_text() for name, file in modules("pump").items()}


def module_of(name: str, known: dict[str, str]) -> str:
    """The module that an imported name of pump stands in."""
    while name not in known:
        name = name.rpartition(".")[0]
    return name


def ranked_name(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def rank_of(module: str) -> int:
    return RANK.get(ranked_name(module), 0)


def within_pump(module: str) -> Iterator[str]:
    """The modules of pump that one of them imports at run time, itself left out."""
    known = pump_modules()
    for imported in imports(known[module]):
        if is_within(imported.name, "pump") and not imported.for_types:
            target = module_of(imported.name, known)
            if target != module:
                yield target


@pytest.mark.parametrize("module", pump_modules())
def test_a_module_of_pump_has_its_layer(module: str) -> None:
    assert ranked_name(module) in RANK, f"say in LAYERS (tests/test_imports.py) where {module} belongs"


@pytest.mark.parametrize("module", pump_modules())
def test_a_module_of_pump_imports_from_its_layer_or_below(module: str) -> None:
    targets = set(within_pump(module))

    above = {target for target in targets if rank_of(target) > rank_of(module)}

    assert above == set(), f"{module} imports from a layer above its own"


def test_there_is_no_import_cycle_in_pump() -> None:
    graph = {module: set(within_pump(module)) for module in pump_modules()}

    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' ← '.join(error.args[1])}")


@pytest.mark.parametrize("module", pump_modules())
def test_pump_imports_no_transport_and_no_handler(module: str) -> None:
    may_load = module.startswith("pump.demo")  # the demo is a user's program, and finds what it uses by name
    names = [each.name for each in imports(pump_modules()[module]) if not (each.by_name and may_load)]

    assert [name for name in names if is_within(name, "pump.transports", "pump.handlers")] == []


@pytest.mark.parametrize(
    ("package", "other"), [("pump.transports", "pump.handlers"), ("pump.handlers", "pump.transports")]
)
def test_transports_and_handlers_import_only_from_pump(package: str, other: str) -> None:
    wrong = [
        f"{module}: {imported.name}"
        for module, file in modules(package).items()
        for imported in imports(file.read_text())
        if is_within(imported.name, other)
        or (module != package and is_within(imported.name, package) and family(imported.name) != family(module))
    ]

    assert wrong == [], "what two of them need belongs in pump"


def family(name: str) -> str:
    """A transport may take several files: `nats`, `nats_consumer` and `nats_pull` are one."""
    return name.split(".")[2].partition("_")[0]


@pytest.mark.parametrize("package", ["pump", "pump.transports", "pump.handlers"])
def test_imports_are_absolute_and_leave_the_tests_alone(package: str) -> None:
    wrong = [
        f"{module}: {imported.name}"
        for module, file in modules(package).items()
        for imported in imports(file.read_text())
        if imported.name.startswith(".") or is_within(imported.name, "tests", "support", "brokers", "bench")
    ]

    assert wrong == []


@pytest.mark.parametrize(
    "source",
    [
        "import pump.transports.memory",
        "from pump.transports import memory",
        "from pump import transports",
        "def late():\n    from pump.transports.memory import MemoryTransport",
        "if TYPE_CHECKING:\n    from pump.transports.memory import MemoryTransport",
        "importlib.import_module('pump.transports.memory')",
        "import_module(f'pump.transports.{name}')",
        "import_module('.memory', 'pump.transports')",
        "pkgutil.resolve_name('pump.transports.memory:MemoryTransport')",
    ],
)
def test_the_check_sees_every_way_to_import(source: str) -> None:
    assert any(is_within(imported.name, "pump.transports") for imported in imports(source))


def test_the_check_tells_an_import_for_types_from_others() -> None:
    source = "if TYPE_CHECKING:\n    import pump.channel\nelse:\n    import pump.verdict\nimport pump.errors"

    assert {each.name: each.for_types for each in imports(source)} == {
        "pump.channel": True,
        "pump.verdict": False,
        "pump.errors": False,
    }


def test_each_module_has_one_place_and_a_layer_is_in_order() -> None:
    names = [layer.split() for layer in LAYERS]

    assert len(RANK) == sum(map(len, names))
    assert all(first < second for layer in names for first, second in pairwise(layer))
