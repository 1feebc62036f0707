"""Both engines with very large, strange or changed values: each value comes back unchanged, or is refused."""

import itertools
import os
from collections.abc import Callable

import pytest

from pump.queue.engine import Engine
from pump.queue.errors import BadRequest, Conflict, NotFound
from pump.queue.options import QueueOptions
from pump.queue.sealing import PASS_SECONDS, Sealing
from pump.queue.vocabulary import Filter, PopRequest, Push, Settlement, State, Status, Trace
from support.queue_races import drained, settlements
from support.queue_rig import DEAD, FAIL, Rig

EngineMaker = Callable[..., Engine]

STRANGE = [
    "O'Brien; DROP TABLE message; --",
    '"quoted" \\back\\slash/ %s %(name)s {0} $1 ?1 :x',
    "100 % ünïcödé 日本語 🚚📦 e\u0301",
    " leading and trailing ",
    "null",
    '{a,NULL,"b"}',
    "\u200b\u202e\ufeff",
    "🚚" * 255,
    "x" * 255,
]
IDS = ["strange", "formats", "unicode", "blanks", "null", "array", "invisible", "longest emoji", "longest"]
LARGEST = os.urandom(1_000_000)


def short(text: str) -> str:
    """The text, cut to the length of a transaction id."""
    return text.encode()[:252].decode("utf-8", "ignore")


@pytest.mark.requirement("Q-56", "Q-40", "Q-66", "Z-11")
@pytest.mark.parametrize("name", STRANGE, ids=IDS)
def test_any_name_that_is_text_lives_through_everything(engine: Engine, name: str) -> None:
    engine.configure(name, QueueOptions(retry_delay=0.0, retry_limit=1), namespace=name, task=name)
    item = Push(name, name.encode(), name, short(name), producer=name)
    (pushed,) = engine.push([item])
    assert engine.push([item])[0].duplicate
    want = PopRequest(queue=name, group=name, partition=name)

    for time in range(2):
        (message,) = engine.pop(want).messages
        assert (message.queue, message.partition, message.producer) == (name, name, name)
        assert (message.transaction_id, message.payload) == (short(name), name.encode())
        (settled,) = engine.settle(settlements([message], name, status=FAIL, error=name, reason=name))
        assert (settled.success, settled.queue, settled.partition) == (True, name, name)
        assert settled.dead == (time == 1)

    (letter,), _ = engine.dead_letters(Filter(queue=name, partition=name, group=name))
    assert (letter.error, letter.payload, letter.reason) == (name, name.encode(), name)
    (again,) = engine.redrive([letter.id])
    assert again is not None
    assert again.transaction_id == f"reprocess-{short(name)}"
    assert [each.transaction_id for each in drained(engine, name, name)] == [again.transaction_id]
    assert engine.retry(pushed.partition_id, short(name)) == 1
    (stored,) = engine.stored(Filter(queue=name, partition=name, group=name, state=State.PENDING))
    assert stored.states == {name: State.PENDING}
    trace = Trace(
        transaction_id=short(name), partition_id=pushed.partition_id, data=b"{}", group=name, event=name, names=[name]
    )
    assert engine.add_trace(trace) == engine.traces(name=name)[0].id
    assert engine.trace_names() == [name]
    assert engine.seek(name, name, 0.0, name) == 1
    assert [each.name for each in engine.groups(name)] == [name]
    assert engine.delete_message(pushed.partition_id, short(name))
    assert engine.clear(name, name) == 1
    assert engine.delete_group(name, name)
    assert engine.delete_queue(name)


@pytest.mark.requirement("Q-56")
def test_the_longest_transaction_id_may_die_be_redriven_and_come_again(rig: Rig) -> None:
    name = "ü" * 127 + "x"
    rig.push(name)
    rig.one(rig.pop()[0], DEAD)
    (pushed,) = rig.engine.redrive([each.id for each in rig.dead()])
    assert pushed is not None

    (message,) = rig.pop()
    found = rig.engine.message(message.partition_id, message.transaction_id)

    assert message.transaction_id == f"reprocess-{name}"
    assert found is not None
    assert found.payload == name.encode()
    assert rig.one(message).success
    with pytest.raises(BadRequest, match="255 bytes"):
        rig.push(name + "x")


@pytest.mark.requirement("Q-61", "Q-64")
@pytest.mark.parametrize("encryption", [False, True], ids=["open", "sealed"])
def test_the_largest_payload_comes_back_whole_and_one_byte_more_is_refused(
    make_engine: EngineMaker, *, encryption: bool
) -> None:
    engine = make_engine(keys=Sealing({"one": bytes(32)}))
    engine.configure("orders", QueueOptions(encryption=encryption, retry_delay=0.0))
    engine.push([Push("orders", LARGEST, transaction_id=str(number)) for number in range(12)])

    first = engine.pop(PopRequest(queue="orders", limit=100)).messages
    engine.settle(settlements(first, status=FAIL))
    rest = drained(engine, "orders")

    assert 9 <= len(first) <= 10
    assert [each.transaction_id for each in rest] == [str(number) for number in range(12)]
    assert {each.payload for each in rest} == {LARGEST}
    with pytest.raises(BadRequest, match="1000000 bytes"):
        engine.push([Push("orders", b"small"), Push("orders", LARGEST + b"x")])
    assert len(engine.stored(Filter(queue="orders"))) == 12


TEXTS = ["\0", "a\0b", "\ud800", "", "x" * 3000]
NUMBERS = [2**63, 2**100, 10**400]


@pytest.mark.requirement("Z-11", "Z-09")
@pytest.mark.parametrize("text", TEXTS, ids=["zero", "zero inside", "surrogate", "empty", "long"])
def test_ids_and_names_that_name_nothing_are_answered(rig: Rig, text: str) -> None:
    engine = rig.engine
    rig.push("1")
    (message,) = rig.pop()
    part, lease = message.partition_id, message.lease_id
    wrong = [
        Settlement(text, part, lease),
        Settlement("1", text, lease),
        Settlement("1", part, text),
        Settlement("1", part, lease, group=text),
        *(Settlement(text, part, lease, status) for status in Status),
    ]

    failures = Failures()
    for each in wrong:
        failures.unless("no", lambda each=each: engine.settle([each])[0].success)  # type: ignore[misc]
        failures.unless("no", lambda each=each: engine.transaction([each]).success)  # type: ignore[misc]
    failures.unless("no", lambda: engine.transaction([Settlement("1", part)], frozenset({text})).success)
    failures.unless("no", lambda: engine.extend(text).success)
    failures.unless(None, lambda: engine.message(part, text), lambda: engine.message(text, "1"))
    failures.unless("no", lambda: engine.delete_message(part, text), lambda: engine.delete_message(text, "1"))
    failures.unless(0, lambda: engine.retry(part, text), lambda: engine.retry(text, "1"))
    failures.unless([None], lambda: engine.redrive([text]))
    failures.unless([], lambda: list(engine.stored(Filter(partition=text))))
    failures.unless([], lambda: list(engine.dead_letters(Filter(group=text))[0]))
    failures.unless([], lambda: list(engine.traces(partition_id=text, transaction_id="1")))
    failures.unless([], lambda: list(engine.traces(partition_id=part, transaction_id=text)))
    failures.unless([], lambda: list(engine.traces(name=text)))
    failures.unless([], lambda: list(engine.queues(text)), lambda: list(engine.groups(text)))
    failures.unless(None, lambda: engine.options(text))
    failures.unless("no", lambda: engine.delete_queue(text), lambda: engine.delete_group(text))
    failures.unless(
        (BadRequest, NotFound),
        lambda: engine.seek(text, "orders", None),
        lambda: engine.seek("one", text, None),
        lambda: engine.seek("__QUEUE_MODE__", "orders", None, text),
        lambda: engine.clear(text),
        lambda: engine.clear("orders", text),
        lambda: engine.subscribe("orders", text),
        lambda: engine.pop(PopRequest(queue="orders", group=text)),
        lambda: engine.pop(PopRequest(queue="orders", partition=text)),
        lambda: engine.configure(text, QueueOptions()),
    )

    assert not failures.found
    good = settlements([message], status=FAIL, error=text, reason=text)
    assert [each.success for each in engine.settle([*wrong, *good])] == [False] * len(wrong) + [True]


class Failures:
    """What was not as it should be, all of it."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str]] = []
        self._numbers = itertools.count()

    def unless(self, right: object, *acts: Callable[[], object]) -> None:
        """Each has to answer so (... is anything); that what is asked makes no sense is an answer as well."""
        for number, act in zip(self._numbers, acts, strict=False):
            try:
                answer = act()
            except BadRequest:
                continue
            except Exception as error:
                if not (isinstance(right, tuple) and isinstance(error, right)):
                    self.found.append((number, repr(error)))
                continue
            if right is not ... and answer != (False if right == "no" else right):
                self.found.append((number, repr(answer)))


@pytest.mark.requirement("Z-11")
@pytest.mark.parametrize("number", NUMBERS, ids=["63 bits", "100 bits", "400 digits"])
def test_numbers_that_no_database_holds_are_refused_or_mean_very_many(rig: Rig, number: int) -> None:
    engine = rig.engine
    rig.push("1", "2", "3")
    (message, *others) = rig.pop(3)

    failures = Failures()
    failures.unless(
        ...,
        lambda: engine.settle(settlements([message], status=FAIL, retries=number)),
        lambda: engine.settle(settlements([others[0]], status=FAIL, delay=number)),
        lambda: engine.extend(others[1].lease_id, number),
        lambda: engine.pop(PopRequest(queue="orders", limit=number)),
        lambda: engine.pop(PopRequest(queue="orders", partitions=number)),
        lambda: engine.pop(PopRequest(queue="orders", lease_time=number)),
        lambda: engine.pop(PopRequest(queue="orders", retry_limit=number)),
        lambda: engine.pop(PopRequest(queue="orders", largest_reply=number)),
        lambda: engine.pop(PopRequest(queue="orders", group="since", subscribe_from=number)),
        lambda: engine.stored(Filter(limit=number)),
        lambda: engine.stored(Filter(offset=number)),
        lambda: engine.stored(Filter(since=number)),
        lambda: engine.dead_letters(Filter(until=number)),
        lambda: engine.dead_letters(Filter(offset=number)),
        lambda: engine.traces(limit=number),
        lambda: engine.traces(offset=number),
        lambda: engine.seek("__QUEUE_MODE__", "orders", number),
        lambda: engine.push([Push("orders", b"", delay=number)]),
        lambda: engine.push([Push("orders", b"", not_before=number)]),
        lambda: engine.configure("other", QueueOptions(lease_time=number)),
        lambda: engine.configure("other", QueueOptions(max_size=number)),
        lambda: engine.configure("other", QueueOptions(retry_limit=number)),
        lambda: engine.configure("other", QueueOptions(retention_enabled=True, retention=number)),
        engine.maintain,
    )

    assert not failures.found
    assert rig.push("4")[0].message_id


@pytest.mark.requirement("Z-11")
def test_whole_numbers_are_as_good_as_others(rig: Rig) -> None:
    rig.engine.push([Push("orders", b"", transaction_id="1"), Push("orders", b"", transaction_id="2", delay=5)])
    rig.engine.push([Push("orders", b"", transaction_id="3", not_before=1), Push("orders", b"", transaction_id="4")])
    messages = rig.pop(lease_time=100)

    said = [*settlements(messages[:1], status=FAIL, delay=1), *settlements(messages[1:2], status=FAIL, delay=1.5)]

    assert [each.success for each in rig.engine.settle([*said, *settlements(messages[2:])])] == [True] * 3
    rig.later(10)
    assert rig.engine.seek("__QUEUE_MODE__", "orders", 0) == 1
    assert sorted(rig.names(100)) == ["1", "2", "3", "4"]


# -- keys


def sealing(*keys: str) -> Sealing:
    return Sealing({key: key.encode().ljust(32) for key in keys})


@pytest.mark.requirement("Q-64")
def test_what_was_stored_before_encryption_or_under_an_older_key_comes_with_the_rest(make_engine: EngineMaker) -> None:
    first, second = make_engine(keys=sealing("one")), make_engine(keys=sealing("one", "two"))
    options = QueueOptions(retry_delay=0.0, retry_limit=0)

    first.push(
        [Push("orders", b"plain", transaction_id="plain"), Push("orders", b"late", transaction_id="late", delay=50)]
    )
    first.configure("orders", QueueOptions(encryption=True, retry_delay=0.0, retry_limit=0))
    first.push(
        [Push("orders", b"one", transaction_id="one"), Push("orders", b"1", transaction_id="one-late", delay=60)]
    )
    second.push([Push("orders", b"two", transaction_id="two")])
    second.configure("orders", options)
    second.push([Push("orders", b"plain again", transaction_id="plain again")])
    second.clock_offset += 100

    found = second.pop(PopRequest(queue="orders", limit=10)).messages
    assert [each.payload for each in found] == [b"plain", b"one", b"two", b"plain again", b"late", b"1"]
    assert all(each.dead for each in second.settle(settlements(found, status=FAIL)))

    letters, _ = second.dead_letters(Filter(queue="orders"))
    assert {each.transaction_id: each.payload for each in letters} == {
        each.transaction_id: each.payload for each in found
    }
    assert all(second.redrive([each.id for each in letters]))
    assert {each.payload for each in drained(second, "orders")} == {each.payload for each in found}


@pytest.mark.requirement("Q-64", "Z-09")
def test_who_lacks_the_key_is_told_so_and_nothing_is_counted(make_engine: EngineMaker) -> None:
    knows, lacks, has_none = make_engine(keys=sealing("one", "two")), make_engine(keys=sealing("one")), make_engine()
    knows.configure("orders", QueueOptions(encryption=True, retry_delay=0.0, retry_limit=0))
    knows.push([Push("orders", b"two", transaction_id="1")])

    for turn, engine in enumerate((lacks, has_none)):
        engine.clock_offset += turn * (PASS_SECONDS + 1)
        assert not engine.pop(PopRequest(queue="orders")).messages
        assert "messages sealed with the key 'two' are passed over" in "".join(engine.warnings())
        (seen,) = engine.stored(Filter(queue="orders"))
        found = engine.message(seen.partition_id, "1")
        assert found is not None
        assert found.payload is None
    assert has_none.push([Push("orders", b"x")])[0].refused
    for engine in (knows, lacks, has_none):
        engine.clock_offset = 3 * (PASS_SECONDS + 1)
    (message,) = knows.pop(PopRequest(queue="orders")).messages
    assert (message.payload, message.deliveries) == (b"two", 1)
    knows.settle(settlements([message], status=DEAD))
    (letter,), _ = lacks.dead_letters(Filter(queue="orders"))
    assert letter.payload is None
    for engine in (lacks, has_none):
        with pytest.raises(Conflict, match="key that the server does not have"):
            engine.redrive([letter.id])
    assert letter.redriven_at is None
    assert [each.payload for each in drained(knows, "orders")] == []
    assert knows.redrive([letter.id])[0] is not None


@pytest.mark.requirement("Q-64", "Q-71")
@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_a_message_that_cannot_be_opened_does_not_keep_back_other_partitions(
    make_engine: EngineMaker, *, ordered: bool
) -> None:
    knows, lacks = make_engine(keys=sealing("one", "two")), make_engine(keys=sealing("one"))
    knows.configure("orders", QueueOptions(ordered=ordered, encryption=True))
    knows.push([Push("orders", b"", "sealed")])
    lacks.push([Push("orders", b"", f"{number}", f"{number}") for number in range(3)])

    found: list[str] = []
    for _ in range(4):  # in order, what is beside it may come with the next look
        found += [
            each.transaction_id for each in lacks.pop(PopRequest(queue="orders", limit=10, partitions=10)).messages
        ]

    assert sorted(found) == ["0", "1", "2"]
