"""Payloads encrypted at rest."""

from collections.abc import Callable

import pytest

pytest.importorskip("cryptography")

from pump.errors import ConfigurationError
from pump.queue.engine import Engine
from pump.queue.errors import BadRequest, Conflict, QueueError
from pump.queue.options import QueueOptions
from pump.queue.sealing import Sealing
from pump.queue.vocabulary import State
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

    with pytest.raises(QueueError):
        keyless.pop()

    stored = keyless.engine.message(pushed.partition_id, "secret")
    assert stored is not None
    assert stored.payload is None
    (message,) = sealed.pop()
    assert (message.payload, message.retries, message.crashes) == (b"secret", 0, 0)


@pytest.mark.requirement("Q-64", "Z-11")
@pytest.mark.parametrize("keys", [{"two": TWO}, {"one": TWO}], ids=["another key", "another key of that name"])
@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
@pytest.mark.parametrize("auto_ack", [True, False], ids=["at once", "leased"])
def test_who_has_not_the_key_takes_nothing_from_those_who_have(
    make_engine: EngineMaker, keys: dict[str, bytes], *, ordered: bool, auto_ack: bool
) -> None:
    keyed = Rig(make_engine(keys=Sealing({"one": ONE})), ordered=ordered)
    keyed.configure(encryption=True)
    keyed.push("1", "2", "3")
    keyless = Rig(make_engine(keys=Sealing(keys)), ordered=ordered)

    for _ in range(3):
        with pytest.raises(Conflict):
            keyless.pop(2, auto_ack=auto_ack)

    assert set(keyed.states().values()) == {State.PENDING}
    first = keyed.pop(2)
    assert [(each.transaction_id, each.deliveries, each.crashes) for each in first] == [("1", 1, 0), ("2", 1, 0)]
    keyed.complete(first[:1])
    keyed.expire()
    keyless.engine.clock_offset = keyed.engine.clock_offset
    with pytest.raises(Conflict):
        keyless.pop(auto_ack=auto_ack)
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
