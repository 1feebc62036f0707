"""Who may import whom: values ← verdict ← transport kit ← pumps ← handling ← program ← command."""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from support.tree import PACKAGES, modules

LAYERS: tuple[str, ...] = (
    "checks duration errors text wire_name",
    "capabilities clock console_log dead_letter error_log message process_signals request subscription telemetry",
    "colour conversation in_hand ledger pump_log settling unacceptable",
    "context journal observers verdict",
    "attribute mapping transport_kit",
    "pumps queue",
    "handling",
    "program",
    "__init__ describe",
    "spark testing",
    "pytest_plugin",
    "command",
    "__main__",
)
"""From the bottom up, what stands right in pump/: its modules, and its folders, each of which is one name here.

A module imports from its own layer and those below; a new one gets its place here. `__init__` is what
`from pump import …` gives. Imports for types alone go anywhere within pump.
"""

QUEUE_LAYERS: tuple[str, ...] = (
    "causes",
    "errors forks ids listeners vocabulary",
    "limits",
    "numbers options results sealing",
    "work",
    "engine",
    "batching postgres sqlite wire",
    "client http transport",
    "async_client postgres_engine sqlite_engine",
)
"""The same for pump/queue/. Folders of one layer are walls to each other: neither imports the other."""

SPARK_LAYERS: tuple[str, ...] = (
    "columns given session staging",
    "sink source",
    "data_source posted",
    "commands",
    "cluster dead_letters journal lake recover recover_command registered",
)
"""The same for pump/spark/."""

RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer.split()}
QUEUE_RANK = {name: rank for rank, layer in enumerate(QUEUE_LAYERS) for name in layer.split()}
SPARK_RANK = {name: rank for rank, layer in enumerate(SPARK_LAYERS) for name in layer.split()}

ENGINES = ("pump.queue.sqlite", "pump.queue.postgres")
LOADERS = {"__import__", "import_module", "find_spec", "resolve_name"}


class Imported(NamedTuple):
    name: str
    for_types: bool = False
    by_name: bool = False
    """Loaded by a string, not imported by a statement."""


@cache
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


@cache
def pump_modules() -> dict[str, str]:
    return {name: file.read_text() for name, file in modules("pump").items()}


def all_modules() -> list[Path]:
    return [file for package in PACKAGES for file in modules(package).values()]


def queue_modules() -> list[str]:
    """What stands in pump/queue/, itself left out."""
    return [name for name in pump_modules() if name.startswith("pump.queue.")]


def spark_modules() -> list[str]:
    """What stands in pump/spark/, itself left out."""
    return [name for name in pump_modules() if name.startswith("pump.spark.")]


def module_of(name: str, known: dict[str, str]) -> str:
    """The module that an imported name of pump stands in."""
    while name not in known:
        name = name.rpartition(".")[0]
    return name


def name_in(package: str, module: str) -> str:
    """What stands right in the package and holds the module: a module or a folder."""
    return module.removeprefix(package).lstrip(".").partition(".")[0] or "__init__"


def beyond_own_layer(package: str, module: str, rank: Mapping[str, int]) -> set[str]:
    """What a module imports from the layers of the package above its own."""
    own = rank.get(name_in(package, module), 0)
    return {
        target
        for target in within_pump(module)
        if is_within(target, package) and rank.get(name_in(package, target), 0) > own
    }


@cache
def within_pump(module: str) -> frozenset[str]:
    """The modules of pump that one of them imports at run time, itself left out."""
    known = pump_modules()
    names = [each.name for each in imports(known[module]) if is_within(each.name, "pump") and not each.for_types]
    return frozenset(module_of(name, known) for name in names) - {module}


@pytest.mark.parametrize("module", pump_modules())
def test_a_module_of_pump_has_its_layer(module: str) -> None:
    assert name_in("pump", module) in RANK, f"say in LAYERS (tests/house/test_imports.py) where {module} belongs"


@pytest.mark.parametrize("module", queue_modules())
def test_a_module_of_the_queue_has_its_layer(module: str) -> None:
    name = name_in("pump.queue", module)

    assert name in QUEUE_RANK, f"say in QUEUE_LAYERS (tests/house/test_imports.py) where {module} belongs"


@pytest.mark.parametrize("module", spark_modules())
def test_a_module_of_the_pipeline_has_its_layer(module: str) -> None:
    name = name_in("pump.spark", module)

    assert name in SPARK_RANK, f"say in SPARK_LAYERS (tests/house/test_imports.py) where {module} belongs"
    assert beyond_own_layer("pump.spark", module, SPARK_RANK) == set(), f"{module} imports from a layer above its own"


@pytest.mark.parametrize("module", pump_modules())
def test_a_module_of_pump_imports_from_its_layer_or_below(module: str) -> None:
    assert beyond_own_layer("pump", module, RANK) == set(), f"{module} imports from a layer above its own"


@pytest.mark.parametrize("module", queue_modules())
def test_a_module_of_the_queue_imports_from_its_layer_or_below(module: str) -> None:
    assert beyond_own_layer("pump.queue", module, QUEUE_RANK) == set(), f"{module} imports from a layer above its own"


@pytest.mark.parametrize(
    ("folder", "others"),
    [
        ("pump.mapping", ["pump.transport_kit", "pump.pumps", "pump.handling", "pump.program", "pump.queue"]),
        ("pump.transport_kit", ["pump.pumps", "pump.mapping", "pump.handling", "pump.program", "pump.queue"]),
        ("pump.pumps", ["pump.mapping", "pump.handling", "pump.program", "pump.queue"]),
        ("pump.handling", ["pump.program", "pump.queue"]),
        ("pump.program", ["pump.queue"]),
        ("pump.queue", ["pump.pumps", "pump.mapping", "pump.handling", "pump.program"]),
        ("pump.queue.sqlite", ["pump.queue.postgres", "pump.queue.http", "pump.queue.client", "pump.queue.transport"]),
        ("pump.queue.postgres", ["pump.queue.sqlite", "pump.queue.http", "pump.queue.client", "pump.queue.transport"]),
        ("pump.queue.client", ["pump.queue.http", "pump.queue.transport", "pump.queue.batching", *ENGINES]),
        ("pump.queue.http", ["pump.queue.client", "pump.queue.transport"]),
        ("pump.queue.transport", ["pump.queue.client", "pump.queue.http", *ENGINES]),
        ("pump.queue.batching", ["pump.queue.client", "pump.queue.http", "pump.queue.wire", *ENGINES]),
        ("pump.queue.wire", ["pump.queue.client", "pump.queue.http", "pump.queue.batching", *ENGINES]),
    ],
)
def test_there_is_a_wall_between_two_folders(folder: str, others: list[str]) -> None:
    inside = [module for module in pump_modules() if is_within(module, folder)]
    through = {(module, target) for module in inside for target in within_pump(module) if is_within(target, *others)}

    assert inside
    assert through == set()


def test_only_the_program_chooses_an_engine_for_the_server() -> None:
    inside = [module for module in pump_modules() if is_within(module, "pump.queue.http")]
    users = {module for module in inside for target in within_pump(module) if is_within(target, *ENGINES)}

    assert users == {"pump.queue.http.command", "pump.queue.http.operating"}


@pytest.mark.parametrize(("package", "rank"), [("pump", RANK), ("pump.queue", QUEUE_RANK), ("pump.spark", SPARK_RANK)])
def test_no_two_folders_import_each_other(package: str, rank: Mapping[str, int]) -> None:
    graph: dict[str, set[str]] = {name: set() for name in rank}
    for module in pump_modules():
        if is_within(module, package) and module != package:
            name = name_in(package, module)
            graph[name] |= {name_in(package, each) for each in within_pump(module) if is_within(each, package)} - {name}

    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"folders import each other: {' ← '.join(error.args[1])}")


def test_there_is_no_import_cycle_in_pump() -> None:
    graph = {module: within_pump(module) for module in pump_modules()}

    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' ← '.join(error.args[1])}")


@pytest.mark.parametrize("module", pump_modules())
def test_pump_imports_no_transport_and_no_handler(module: str) -> None:
    may_load = module.startswith("pump.command.demo")  # the demo is a user's program, and finds what it uses by name
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
    """The transport that a module is of: `nats.consumer` and `nats.pull` are one."""
    return name.split(".")[2]


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
    source = "if TYPE_CHECKING:\n    import pump.pumps.channel\nelse:\n    import pump.verdict\nimport pump.errors"

    assert {each.name: each.for_types for each in imports(source)} == {
        "pump.pumps.channel": True,
        "pump.verdict": False,
        "pump.errors": False,
    }


@pytest.mark.parametrize(("layers", "rank"), [(LAYERS, RANK), (QUEUE_LAYERS, QUEUE_RANK), (SPARK_LAYERS, SPARK_RANK)])
def test_each_name_has_one_place_and_a_layer_is_in_order(layers: tuple[str, ...], rank: Mapping[str, int]) -> None:
    names = [layer.split() for layer in layers]

    assert len(rank) == sum(map(len, names))
    assert all(first < second for layer in names for first, second in pairwise(layer))


@pytest.mark.parametrize("folder", sorted({file.parent for file in all_modules() if file.parent.name != "pump"}))
def test_a_folder_says_what_it_is_for_what_it_may_import_and_where_to_begin(folder: Path) -> None:
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    what, _, rest = text.partition("\n\n")

    assert len(what.splitlines()) == 1
    assert [line.split(":")[0] for line in rest.splitlines()] == ["Imports", "Begin with"]
