"""Payloads encrypted at rest."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography")

from pump.errors import ConfigurationError
from pump.queue.engine import Engine
from pump.queue.errors import BadRequest
from pump.queue.ids import mint
from pump.queue.options import QueueOptions
from pump.queue.sealing import PASS_SECONDS, Sealing
from pump.queue.sqlite.engine import SqliteEngine
from pump.queue.vocabulary import PopRequest, Push, Settlement, State, Trace
from support.queue_rig import DEAD, Rig

EngineMaker = Callable[..., Engine]
ONE, TWO = bytes(range(32)), bytes(range(1, 33))


@pytest.fixture
def sealed(make_engine: EngineMaker) -> Rig:
    rig = Rig(make_engine(keys=Sealing({"one": ONE})))
    rig.configure(encryption=True)
    return rig


@pytest.mark.requirement("Q-64")
def test_a_sealed_payload_comes_back_as_it_was(sealed: Rig) -> None:
    sealed.push("secret")
    sealed.push("later", delay=60.0)

    (message,) = sealed.pop()

    assert message.payload == b"secret"
    sealed.one(message, DEAD)
    assert sealed.dead()[0].payload == b"secret"
    again = sealed.engine.redrive([sealed.dead()[0].id])[0]
    assert again is not None
    sealed.later(61)
    assert [each.payload for each in sealed.pop()] == [b"secret", b"later"]


@pytest.mark.requirement("Q-64")
def test_without_a_key_nothing_is_pushed_or_configured(sealed: Rig, make_engine: EngineMaker) -> None:
    keyless = make_engine()
    rig = Rig(keyless)

    assert [each.refused for each in rig.push("1")] == ["the queue is encrypted, and there is no key"]
    with pytest.raises(BadRequest):
        keyless.configure("other", QueueOptions(encryption=True))

    assert sealed.states() == {}
    assert keyless.options("other") is None


@pytest.mark.requirement("Q-64")
def test_who_has_not_the_key_gets_nothing_and_costs_nothing(sealed: Rig, make_engine: EngineMaker) -> None:
    (pushed,) = sealed.push("secret")
    keyless = Rig(make_engine(keys=Sealing({"two": TWO})))

    assert keyless.pop() == []

    stored = keyless.engine.message(pushed.partition_id, "secret")
    assert stored is not None
    assert stored.payload is None
    sealed.later(PASS_SECONDS + 1)
    (message,) = sealed.pop()
    assert (message.payload, message.retries, message.crashes) == (b"secret", 0, 0)


@pytest.mark.requirement("Q-64", "Z-11")
@pytest.mark.parametrize("keys", [{"two": TWO}, None], ids=["another key", "no key"])
@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
@pytest.mark.parametrize("auto_ack", [True, False], ids=["at once", "leased"])
def test_who_has_not_the_key_takes_nothing_from_those_who_have(
    make_engine: EngineMaker, keys: dict[str, bytes] | None, *, ordered: bool, auto_ack: bool
) -> None:
    keyed = Rig(make_engine(keys=Sealing({"one": ONE})), ordered=ordered)
    keyed.configure(encryption=True)
    keyed.push("1", "2", "3")
    keyless = Rig(make_engine(keys=Sealing(keys) if keys else None), ordered=ordered)

    for _ in range(3):
        assert keyless.pop(2, auto_ack=auto_ack) == []

    assert set(keyed.states().values()) == {State.PENDING}
    keyed.later(PASS_SECONDS + 1)
    first = keyed.pop(2)
    assert [(each.transaction_id, each.deliveries, each.crashes) for each in first] == [("1", 1, 0), ("2", 1, 0)]
    keyed.complete(first[:1])
    keyed.expire()
    keyless.engine.clock_offset = keyed.engine.clock_offset
    assert keyless.pop(auto_ack=auto_ack) == []
    keyed.later(PASS_SECONDS + 1)
    again = keyed.pop()
    assert [(each.transaction_id, each.deliveries, each.crashes) for each in again] == [("2", 2, 1), ("3", 1, 0)]
    assert all(each.success for each in keyed.complete(again))


@pytest.mark.requirement("Q-64")
def test_keys_may_be_changed(sealed: Rig, make_engine: EngineMaker) -> None:
    sealed.push("old")
    both = Rig(make_engine(keys=Sealing({"one": ONE, "two": TWO}, use="two")))
    both.push("new")

    assert {each.payload for each in both.pop()} == {b"old", b"new"}


@pytest.mark.requirement("Q-64")
def test_messages_from_before_the_queue_was_encrypted_can_still_be_read(make_engine: EngineMaker) -> None:
    rig = Rig(make_engine(keys=Sealing({"one": ONE})))
    rig.configure()
    rig.push("plain")
    rig.configure(encryption=True)
    rig.push("sealed")
    rig.configure()
    rig.push("plain again")

    assert [each.payload for each in rig.pop()] == [b"plain", b"sealed", b"plain again"]


@pytest.mark.requirement("Q-64")
def test_a_sealed_payload_opens_only_where_it_belongs() -> None:
    sealing = Sealing({"one": ONE})
    sealed = sealing.seal(b"secret", "partition", "id")

    assert b"secret" not in sealed
    assert sealing.seal(b"secret", "partition", "id") != sealed
    assert sealing.open(sealed, "partition", "id") == b"secret"
    assert sealing.open(sealed, "partition", "other") is None
    assert sealing.open(sealed, "elsewhere", "id") is None
    assert sealing.open(sealed[:-1] + bytes([sealed[-1] ^ 1]), "partition", "id") is None


@pytest.mark.requirement("Q-64")
@pytest.mark.parametrize(
    ("keys", "use"),
    [({}, None), ({"a": b"short"}, None), ({"": ONE}, None), ({"a": ONE}, "b"), ({"a" * 256: ONE}, None)],
)
def test_keys_that_are_none_are_refused(keys: dict[str, bytes], use: str | None) -> None:
    with pytest.raises(ConfigurationError):
        Sealing(keys, use)


# -- several servers, some of which lack a key


def push_with(make_engine: EngineMaker, keys: dict[str, bytes], *names: str, partition: str = "Default") -> None:
    rig = Rig(make_engine(keys=Sealing(keys)))
    rig.engine.push([Push("q", name.encode(), partition, name) for name in names])


def pops(engine: Engine, limit: int = 10, partitions: int = 10) -> list[bytes]:
    request = PopRequest(queue="q", limit=limit, partitions=partitions)
    found: list[bytes] = []
    while taken := engine.pop(request).messages:
        found += [each.payload for each in taken]
        settled = [Settlement(each.transaction_id, each.partition_id, each.lease_id) for each in taken]
        assert all(each.success for each in engine.settle(settled))
        assert {(each.deliveries, each.retries, each.crashes) for each in taken} == {(1, 0, 0)}
    return found


@pytest.mark.parametrize("limit", [1, 10])
def test_what_cannot_be_opened_stops_nothing_without_order(make_engine: EngineMaker, limit: int) -> None:
    new = {"one": ONE, "two": TWO}
    make_engine(keys=Sealing(new)).configure("q", QueueOptions(ordered=False, encryption=True))
    push_with(make_engine, new, "new 1")
    push_with(make_engine, {"one": ONE}, "old 1")
    push_with(make_engine, new, "new 2")
    push_with(make_engine, {"one": ONE}, "old 2")
    old = make_engine(keys=Sealing({"one": ONE}))
    updated = make_engine(keys=Sealing(new))

    assert pops(old, limit) == [b"old 1", b"old 2"]
    assert [each for each in old.warnings() if "the key 'two'" in each]
    assert not [each for each in updated.warnings() if "key" in each]
    updated.clock_offset += PASS_SECONDS + 1
    assert sorted(pops(updated, limit)) == [b"new 1", b"new 2"]


@pytest.mark.parametrize(("limit", "partitions"), [(1, 1), (10, 1), (10, 10)])
def test_what_cannot_be_opened_holds_back_its_own_partition_where_there_is_order(
    make_engine: EngineMaker, limit: int, partitions: int
) -> None:
    new = {"one": ONE, "two": TWO}
    make_engine(keys=Sealing(new)).configure("q", QueueOptions(encryption=True))
    push_with(make_engine, new, "a1", partition="a")
    push_with(make_engine, {"one": ONE}, "a2", partition="a")
    push_with(make_engine, {"one": ONE}, "b1", partition="b")
    push_with(make_engine, new, "b2", partition="b")
    push_with(make_engine, {"one": ONE}, "c1", "c2", partition="c")
    old, updated = make_engine(keys=Sealing({"one": ONE})), make_engine(keys=Sealing(new))

    assert sorted(pops(old, limit, partitions)) == [b"b1", b"c1", b"c2"]

    updated.clock_offset += PASS_SECONDS + 1
    assert sorted(pops(updated, limit, partitions)) == [b"a1", b"a2", b"b2"]


def test_keys_change_on_one_server_after_the_other_and_nothing_waits(make_engine: EngineMaker) -> None:
    """First every server gets the new key, before the last one; then each seals with it."""
    before, both, after = {"one": ONE}, {"two": TWO, "one": ONE}, {"one": ONE, "two": TWO}
    make_engine(keys=Sealing(before)).configure("q", QueueOptions(ordered=False, encryption=True))

    for first, second in ((before, before), (both, before), (both, both), (after, both), (after, after)):
        push_with(make_engine, first, mint())
        push_with(make_engine, second, mint())
        found = pops(make_engine(keys=Sealing(first)), 1) + pops(make_engine(keys=Sealing(second)), 1)
        assert len(found) == 2


def test_another_key_under_a_known_id_is_noticed_at_the_start(make_engine: EngineMaker) -> None:
    make_engine(keys=Sealing({"one": ONE}))

    with pytest.raises(ConfigurationError, match="the key 'one' is not the one"):
        make_engine(keys=Sealing({"two": TWO, "one": TWO}))

    make_engine(keys=Sealing({"two": TWO, "one": ONE}))


def holds(engine: Any, folder: Path, secret: bytes) -> bool:
    """Whether the files, or the tables of PostgreSQL, show these bytes to anybody who can read them."""
    if isinstance(engine, SqliteEngine):
        return any(secret in file.read_bytes() for file in folder.iterdir())

    def shown(work: Any) -> bool:
        tables = [name for (name,) in work.rows("select tablename from pg_tables where schemaname = 'message_pump'")]
        rows = [work.rows(f"select t::text from message_pump.{name} t") for name in tables]  # noqa: S608 - constants
        return secret.hex() in str(rows)

    return bool(engine._write(shown))


@pytest.mark.parametrize("encryption", [True, False])
def test_nothing_that_is_stored_of_an_encrypted_queue_can_be_read(
    make_engine: EngineMaker, tmp_path: Path, *, encryption: bool
) -> None:
    rig = Rig(make_engine(keys=Sealing({"one": ONE})))
    rig.configure(encryption=encryption)
    secrets = {name: f"the secret of {name}".encode() for name in ("dead", "waiting", "later", "note")}
    rig.engine.push([Push(rig.queue, secrets["dead"], transaction_id="dead")])
    rig.one(rig.pop()[0], DEAD)
    rig.engine.push([Push(rig.queue, secrets["waiting"]), Push(rig.queue, secrets["later"], delay=60.0)])
    partition = rig.engine.queues(rig.queue)[0].partitions[0].id
    data = b'"%s"' % secrets["note"]
    rig.engine.add_trace(Trace(transaction_id="dead", partition_id=partition, data=data, event="info", names=["n"]))

    shown = {name for name, secret in secrets.items() if holds(rig.engine, tmp_path, secret)}

    assert shown == (set() if encryption else set(secrets))


def test_notes_about_sealed_messages_are_sealed(make_engine: EngineMaker) -> None:
    rig = Rig(make_engine(keys=Sealing({"one": ONE})))
    rig.configure(encryption=True)
    (pushed,) = rig.push("1")
    note = Trace(
        transaction_id="1", partition_id=pushed.partition_id, data=b'"a secret in a note"', event="info", names=["n"]
    )
    rig.engine.add_trace(note)

    assert [each.data for each in rig.engine.traces(name="n")] == [b'"a secret in a note"']
    assert [each.data for each in make_engine().traces(name="n")] == [b"null"]
    with pytest.raises(BadRequest):
        make_engine().add_trace(note)


def test_notes_from_before_are_read_as_they_are(make_engine: EngineMaker) -> None:
    rig = Rig(make_engine(keys=Sealing({"one": ONE})))
    rig.configure()
    (pushed,) = rig.push("1")
    rig.engine.add_trace(
        Trace(transaction_id="1", partition_id=pushed.partition_id, data=b"1", event="info", names=["n"])
    )
    rig.configure(encryption=True)

    assert [each.data for each in rig.engine.traces(name="n")] == [b"1"]
