"""A call that fails in the middle has changed nothing: if the database refuses one item, the whole batch fails."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from pump.errors import PumpError
from pump.queue.engine import Engine
from pump.queue.vocabulary import Push, State, Status
from support.queue_rig import BACK, DEAD, FAIL, OK, Rig

Refuse = Callable[[str], None]

SQLITE = """
CREATE TRIGGER refuses_{name} BEFORE {name} ON {table} WHEN {row}.seq = 2
BEGIN SELECT RAISE(ABORT, 'refused by a test'); END
"""
POSTGRES = """
create function {schema}.refuses_{name}() returns trigger language plpgsql as $$
begin raise exception 'refused by a test'; end $$;
create trigger refuses before {name} on {schema}.{table} for each row when ({row}.seq = 2)
execute function {schema}.refuses_{name}();
"""


@pytest.fixture
def refuse(request: pytest.FixtureRequest, engine: Engine, tmp_path: Path) -> Refuse:
    """Makes the database refuse to change ("delete delivery") the second message of a partition."""

    def make(change: str) -> None:
        name, table = change.split()
        words = {"name": name, "table": table, "row": "NEW" if name == "insert" else "OLD"}
        if "sqlite" in request.node.callspec.id:
            with sqlite3.connect(tmp_path / "queue.db") as connection:
                connection.execute(SQLITE.format(**words))
            connection.close()
            return
        import psycopg

        schema = repr(engine).partition("schema='")[2].rstrip("')")
        with psycopg.connect(request.getfixturevalue("postgres_url"), autocommit=True) as database:
            database.execute(POSTGRES.format(schema=schema, **words).encode())

    return make


@pytest.mark.requirement("Q-22")
@pytest.mark.parametrize(
    ("status", "change"),
    [(OK, "delete delivery"), (BACK, "update delivery"), (FAIL, "update delivery"), (DEAD, "insert dead")],
)
def test_settlements_of_one_call_are_carried_out_together_or_not_at_all(
    either: Rig, refuse: Refuse, status: Status, change: str
) -> None:
    either.push("1", "2", "3")
    either.push("4", partition="B")
    messages = [*either.pop(partition="Default"), *either.pop(partition="B")]
    before = either.states()
    refuse(change)

    with pytest.raises(PumpError):
        either.settle(*((each, status) for each in messages))

    assert either.states() == before
    assert set(before.values()) == {State.LEASED}
    assert either.dead() == []
    assert [each.success for each in either.settle(*((messages[n], OK) for n in (0, 2, 3)))] == [True] * 3


@pytest.mark.requirement("Q-22")
def test_messages_of_one_call_are_stored_together_or_not_at_all(either: Rig, refuse: Refuse) -> None:
    refuse("insert message")

    with pytest.raises(PumpError):
        either.engine.push([Push("orders", b"1", part, name) for name, part in zip("abcd", "ABAB", strict=True)])

    assert either.states() == {}
    assert [each.duplicate for each in either.push("a", partition="A")] == [False]
