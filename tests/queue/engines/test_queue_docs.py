"""The examples of docs/queue.md run unchanged, and do what the page says."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from brokers.postgres import Postgres
from pump.command.cli import main
from pump.queue.sqlite.engine import SqliteEngine
from pump.queue.vocabulary import DEFAULT_GROUP, Filter, PopRequest, State
from pump.transports.postgres import _OPTIONS as POSTGRES_OPTIONS
from pump.transports.sqlite import _OPTIONS as SQLITE_OPTIONS
from support.programs import DEADLINE, Program
from support.queue_listening import serving
from support.tree import ROOT

PAGE = (ROOT / "docs" / "queue.md").read_text("utf-8")


@pytest.fixture
def programs(tmp_path: Path) -> Mapping[str, Path]:
    """The programs of the page, each in the file that its first line names."""
    found = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        name = block.splitlines()[0].removeprefix("# ")
        found[name] = tmp_path / name
        found[name].write_text(block, "utf-8")
    return found


@pytest.mark.requirement("R-41")
def test_the_program_runs_on_a_file_as_it_stands(programs: Mapping[str, Path]) -> None:
    folder = programs["shop.py"].parent

    with Program((sys.executable, "-m", "pump", "run", "shop:dispatcher"), folder) as program:
        program.says("2 × tea")
        program.says("1 × coffee")

    queue = SqliteEngine(folder / "shop.db")
    (letter,), _ = queue.dead_letters(Filter(queue="orders"))
    queue.close()
    assert "nothing was ordered" in letter.error


def test_the_queue_works_without_a_pump(programs: Mapping[str, Path]) -> None:
    folder = programs["embedded.py"].parent

    subprocess.run([sys.executable, "embedded.py"], cwd=folder, check=True, timeout=DEADLINE)

    queue = SqliteEngine(folder / "shop.db")
    assert [each.payload for each in queue.pop(PopRequest(queue="invoices")).messages] == [b'{"order": 1}']
    assert queue.pop(PopRequest(queue="parcels", group="packing")).messages == ()
    queue.close()


@pytest.mark.requirement("Q-49")
def test_an_awaiting_program_has_transactions_of_its_own(programs: Mapping[str, Path], postgres: Postgres) -> None:
    scope: dict[str, Any] = {}
    exec(compile(programs["awaited.py"].read_text("utf-8"), "awaited.py", "exec"), scope)  # noqa: S102 - the docs' own
    with postgres.connect() as connection:
        connection.execute("create table packed (parcel text)")

        asyncio.run(scope["pack"](postgres.url))

        assert connection.execute("select parcel from packed").fetchall() == [("order-1",)]
        with closing(scope["PostgresEngine"](postgres.url, schema="shop")) as queue:
            assert {each.queue: dict(each.states) for each in queue.stored(Filter())} == {
                "parcels": {"packing": State.COMPLETED},
                "invoices": {DEFAULT_GROUP: State.PENDING},
            }
        connection.execute("drop table packed")
        connection.execute("drop schema shop cascade")


def test_the_client_works(programs: Mapping[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    scope: dict[str, object] = {}
    exec(compile(programs["client.py"].read_text("utf-8"), "client.py", "exec"), scope)  # noqa: S102 - the docs' own
    queue = SqliteEngine(programs["client.py"].parent / "shop.db")

    with serving(queue) as url:
        work = scope["work"]
        assert callable(work)
        work(url)

    assert capsys.readouterr().out == "packing {'sku': 'tea'}\npacked {'sku': 'tea'}\n"
    assert [each.payload for each in queue.pop(PopRequest(queue="invoices")).messages] == [b'{"sku":"tea"}']
    queue.close()


def test_the_page_names_every_option_of_the_urls() -> None:
    table = PAGE.partition("| option of the URL |")[2].partition("\n\n")[0]

    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == {*SQLITE_OPTIONS, *POSTGRES_OPTIONS}


def test_the_program_is_sound(programs: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(programs["shop.py"].parent)
    monkeypatch.syspath_prepend(str(programs["shop.py"].parent))
    monkeypatch.delitem(sys.modules, "shop", raising=False)

    assert main(["check", "shop:dispatcher"]) == 0
    monkeypatch.delitem(sys.modules, "shop", raising=False)
