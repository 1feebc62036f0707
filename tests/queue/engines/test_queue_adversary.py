"""Both engines under races of producers, consumers and operators: nothing is lost, doubled or stuck."""

import contextlib
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from pump.queue.engine import Engine
from pump.queue.errors import Conflict
from pump.queue.options import QueueOptions
from pump.queue.vocabulary import Filter, Leased, PopRequest, PopResult, Push, Pushed, Settled, State, Status
from support.queue_races import drained, names, patiently, race, settlements
from support.queue_rig import BACK, DEAD, OK, Rig

EngineMaker = Callable[..., Engine]

BOTH_MODES = pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])


@pytest.fixture
def engines(make_engine: EngineMaker) -> list[Engine]:
    """Two engines on one database, as two processes have them."""
    return [make_engine(), make_engine()]


def push(engine: Engine, *names: str, partition: str = "Default", queue: str = "orders") -> list[Pushed]:
    return engine.push([Push(queue, name.encode(), partition, name) for name in names])


def stored_names(engine: Engine, queue: str = "orders") -> list[str]:
    return sorted(each.transaction_id for each in engine.stored(Filter(queue=queue, limit=10_000)))


def numbered(count: int, prefix: str = "m") -> list[str]:
    return [f"{prefix}{number:04}" for number in range(count)]


# -- found by the property


@pytest.mark.requirement("Z-08")
def test_a_crash_is_counted_although_a_later_lease_of_the_partition_ended_well(rig: Rig) -> None:
    rig.push("1", "2")
    rig.pop(2)
    rig.expire()
    rig.complete(rig.pop(1))

    (second,) = rig.pop(2)

    assert (second.transaction_id, second.deliveries, second.crashes) == ("2", 2, 1)


@pytest.mark.requirement("Z-08")
@pytest.mark.parametrize("status", [Status.RETRY, Status.FAILED])
def test_a_crash_is_counted_although_a_later_lease_of_the_partition_gave_back(rig: Rig, status: Status) -> None:
    rig.push("1", "2")
    rig.pop(2)
    rig.expire()
    (first,) = rig.pop(1)
    rig.one(first, status)

    again = rig.pop(2)

    assert [(each.transaction_id, each.crashes) for each in again] == [("1", 1), ("2", 1)]


@pytest.mark.requirement("Z-08")
def test_a_crash_is_counted_although_an_operator_ended_the_later_lease(rig: Rig) -> None:
    rig.push("1", "2")
    rig.pop(2)
    rig.expire()
    (first,) = rig.pop(1)
    rig.engine.delete_message(first.partition_id, "1")

    (second,) = rig.pop(2)

    assert (second.transaction_id, second.crashes) == ("2", 1)


# -- producers


@pytest.mark.requirement("Q-56", "Q-54")
def test_of_twenty_pushers_of_the_same_messages_one_stores_each(engines: list[Engine]) -> None:
    wanted = numbered(60)

    def pusher(number: int) -> list[Pushed]:
        mine = wanted[:]
        random.Random(number).shuffle(mine)
        batches = [mine[start : start + 7] for start in range(0, len(mine), 7)]
        return [each for batch in batches for each in push(engines[number % 2], *batch)]

    answers = list(itertools.chain(*race(*(partial(pusher, number) for number in range(20)))))

    assert Counter(each.transaction_id for each in answers if not each.duplicate) == Counter(wanted)
    assert len({(each.transaction_id, each.message_id) for each in answers}) == len(wanted)
    sequences = [each.sequence for each in engines[0].stored(Filter(queue="orders", limit=1000)) if each.sequence]
    assert sorted(sequences) == list(range(1, len(wanted) + 1))
    assert sorted(names(drained(engines[1], "orders"))) == wanted


@pytest.mark.requirement("Q-56")
def test_pushers_who_race_to_make_queues_and_partitions_all_find_them_made(engines: list[Engine]) -> None:
    def pusher(number: int) -> None:
        for turn in range(8):
            places = [(f"queue-{turn}", f"{part}") for part in range(3)]
            random.Random(number).shuffle(places)
            engines[number % 2].push([Push(q, b"", p, f"{number}-{q}-{p}") for q, p in places])

    race(*(partial(pusher, number) for number in range(8)))

    for turn in range(8):
        (info,) = engines[0].queues(f"queue-{turn}")
        assert sorted(each.name for each in info.partitions) == ["0", "1", "2"]
        assert len(drained(engines[1], f"queue-{turn}", partitions=3)) == 24


@pytest.mark.requirement("Q-67")
def test_racing_pushers_fill_a_queue_to_its_limit_and_no_further(engines: list[Engine]) -> None:
    engines[0].configure("orders", QueueOptions(max_size=50))
    engines[0].subscribe("orders", "one")

    def pusher(number: int) -> list[Pushed]:
        batches = [[f"{number}-{turn}-{item}" for item in range(3)] for turn in range(5)]
        return [
            each
            for turn, batch in enumerate(batches)
            for each in push(engines[number % 2], *batch, partition=str(turn))
        ]

    answers = list(itertools.chain(*race(*(partial(pusher, number) for number in range(8)))))

    taken = sorted(each.transaction_id for each in answers if not each.refused)
    assert len(taken) == 50
    assert taken == stored_names(engines[0])
    assert {each.refused for each in answers} == {"", "queue is full"}


@pytest.mark.requirement("Q-67")
@pytest.mark.parametrize("groups", [[], ["one"]], ids=["no group", "a group"])
def test_what_an_operator_removed_takes_no_room(engine: Engine, groups: list[str]) -> None:
    engine.configure("orders", QueueOptions(max_size=2))
    for group in groups:
        engine.subscribe("orders", group)
    pushed = push(engine, "1", "2")
    assert [each.refused for each in push(engine, "3")] == ["queue is full"]

    for each in pushed:
        engine.delete_message(each.partition_id, each.transaction_id)

    assert [each.refused for each in push(engine, "4", "5")] == ["", ""]
    assert [each.refused for each in push(engine, "6")] == ["queue is full"]


# -- groups that are made meanwhile


@pytest.mark.requirement("Q-34", "Z-07")
@BOTH_MODES
def test_a_group_made_while_others_push_misses_nothing(engines: list[Engine], *, ordered: bool) -> None:
    engines[0].configure("orders", QueueOptions(ordered=ordered))
    groups = [f"group-{number}" for number in range(6)]
    got: dict[str, list[Leased]] = {group: [] for group in groups}

    def pusher(number: int) -> None:
        for turn in range(12):
            push(engines[number % 2], f"{number}-{turn}", partition=f"{(number + turn) % 9}")

    def consumer(group: str) -> None:
        got[group] += drained(engines[len(group) % 2], "orders", group, partitions=3)

    race(*(partial(pusher, number) for number in range(5)), *(partial(consumer, group) for group in groups))
    for group in groups:
        got[group] += drained(engines[0], "orders", group)

    everything = stored_names(engines[0])
    assert len(everything) == 60
    assert {group: sorted(names(found)) for group, found in got.items()} == dict.fromkeys(groups, everything)


@pytest.mark.requirement("Q-60")
def test_a_group_that_begins_with_what_is_new_gets_all_that_is_pushed_afterwards(engines: list[Engine]) -> None:
    for turn in range(6):
        started, ended, subscribed = dict[str, float](), dict[str, float](), list[float]()
        queue = f"queue-{turn}"
        push(engines[0], "first", queue=queue)

        def pusher(number: int, queue: str = queue) -> None:
            for each in numbered(15, f"{number}-"):
                started[each] = time.monotonic()  # noqa: B023 - it is called in this round
                push(engines[number % 2], each, partition=f"{number % 2}", queue=queue)
                ended[each] = time.monotonic()  # noqa: B023

        def subscriber(queue: str = queue) -> None:
            subscribed.append(time.monotonic())  # noqa: B023
            engines[1].subscribe(queue, "late", "new")
            subscribed.append(time.monotonic())  # noqa: B023

        race(*(partial(pusher, number) for number in range(3)), subscriber)

        got = Counter(names(drained(engines[0], queue, "late")))
        assert not [name for name, at in started.items() if at > subscribed[1] and not got[name]]
        assert not [name for name, at in ended.items() if at < subscribed[0] and got[name]]
        assert max(got.values(), default=1) == 1


# -- operators among consumers


@pytest.mark.requirement("Q-65", "Z-09")
@BOTH_MODES
def test_whoever_acknowledges_while_an_operator_goes_back_takes_nothing_away(
    engines: list[Engine], *, ordered: bool
) -> None:
    engines[0].configure("orders", QueueOptions(ordered=ordered))
    wanted = numbered(12)
    for part in range(3):
        push(engines[0], *wanted, partition=str(part))

    for turn in range(10):
        held = [engines[turn % 2].pop(PopRequest(queue="orders", limit=5)) for turn in range(2)]
        race(
            lambda: engines[0].seek("__QUEUE_MODE__", "orders", 0.0),
            *(partial(engines[1].settle, settlements(taken.messages)) for taken in held),
            partial(engines[turn % 2].extend, held[0].lease_id),
        )
        engines[0].clock_offset += 400
        engines[1].clock_offset += 400

    engines[0].seek("__QUEUE_MODE__", "orders", 0.0)
    assert Counter(names(drained(engines[1], "orders", partitions=3))) == Counter(wanted * 3)


@pytest.mark.requirement("Q-65")
@BOTH_MODES
def test_a_group_deleted_under_its_consumers_begins_anew_with_everything(
    engines: list[Engine], *, ordered: bool
) -> None:
    engines[0].configure("orders", QueueOptions(ordered=ordered))
    wanted = numbered(30)
    for name in wanted:
        push(engines[0], name, partition=name[-1])
    stop = threading.Event()

    def consumer(number: int) -> None:
        while not stop.is_set():
            messages = engines[number % 2].pop(PopRequest(queue="orders", group="one", limit=4, partitions=2)).messages
            engines[number % 2].settle(settlements(messages, "one"))

    def operator() -> None:
        try:
            for _ in range(25):
                engines[0].delete_group("one", "orders")
        finally:
            stop.set()

    race(operator, *(partial(consumer, number) for number in range(3)))

    engines[0].delete_group("one", "orders")
    assert sorted(names(drained(engines[1], "orders", "one"))) == wanted


@pytest.mark.requirement("Q-67")
def test_what_is_cleared_and_what_is_left_is_what_was_pushed(engines: list[Engine]) -> None:
    engines[0].subscribe("orders", "one")
    cleared: list[int] = []

    def pusher(number: int) -> None:
        for name in numbered(30, f"{number}-"):
            push(engines[number % 2], name, partition=name[-1])

    def operator() -> None:
        cleared.extend(engines[1].clear("orders") for _ in range(12))

    push(engines[0], "first")
    race(operator, *(partial(pusher, number) for number in range(4)))

    left = stored_names(engines[0])
    assert sum(cleared) + len(left) == 121
    assert sorted(names(drained(engines[0], "orders", "one"))) == left


@pytest.mark.requirement("Q-67")
def test_a_queue_deleted_under_pushes_and_pops_works_on(engines: list[Engine]) -> None:
    stop = threading.Event()

    def pusher(number: int) -> None:
        for name in itertools.count():
            patiently(partial(push, engines[number % 2], f"{number}-{name}", partition=f"{name % 3}"))
            if stop.is_set():
                return

    def consumer() -> None:
        while not stop.is_set():
            messages = patiently(partial(engines[1].pop, PopRequest(queue="orders", limit=5))).messages
            patiently(partial(engines[1].settle, settlements(messages)))

    def operator() -> None:
        try:
            for _ in range(15):
                patiently(partial(engines[0].delete_queue, "orders"))
        finally:
            stop.set()

    race(operator, consumer, *(partial(pusher, number) for number in range(3)))
    drained(engines[0], "orders")
    engines[0].clock_offset += 400
    drained(engines[0], "orders")

    states = {
        state for each in engines[0].stored(Filter(queue="orders", limit=10_000)) for state in each.states.values()
    }
    assert states <= {State.COMPLETED}


@pytest.mark.requirement("Q-41", "Q-39")
def test_of_operators_who_redrive_the_same_dead_letters_one_pushes_each(engines: list[Engine]) -> None:
    rig = Rig(engines[0])
    rig.configure()
    wanted = numbered(12)
    rig.push(*wanted)
    rig.settle(*((each, DEAD) for each in rig.pop()))
    ids = [each.id for each in rig.dead()]

    answers = race(
        *(partial(engines[turn % 2].redrive, ids if turn % 3 else ids[::-1]) for turn in range(6)),
    )

    pushed = [each.transaction_id for answer in answers for each in answer if each is not None]
    assert Counter(pushed) == Counter(f"reprocess-{name}" for name in wanted)
    assert sorted(rig.names()) == sorted(pushed)


@pytest.mark.requirement("Z-01", "Q-39")
@BOTH_MODES
def test_a_message_given_up_and_made_pending_again_at_once_is_one_of_both(
    engines: list[Engine], *, ordered: bool
) -> None:
    rig = Rig(engines[0], ordered=ordered)
    rig.configure()
    for turn in range(15):
        name = f"m{turn}"
        rig.push(name, f"{name}-next")
        first, second = rig.pop(2)

        settled, retried = race(
            partial(rig.settle, (first, DEAD), (second, OK)),
            partial(engines[1].retry, first.partition_id, first.transaction_id),
        )

        assert [each.success for each in settled] == [True, True]
        assert rig.states()[name] is (State.PENDING if retried else State.DEAD)
        assert rig.names() == ([name] if retried else [])
        rig.expire()
        engines[1].clock_offset = engines[0].clock_offset
        drained(engines[0], "orders")


@pytest.mark.requirement("Z-01")
@BOTH_MODES
def test_what_is_made_pending_again_while_its_batch_is_acknowledged_comes(
    engines: list[Engine], *, ordered: bool
) -> None:
    rig = Rig(engines[0], ordered=ordered)
    rig.configure()
    for turn in range(15):
        rig.push(*(f"{turn}-{number}" for number in range(4)))
        first, *others = rig.pop(4)
        rig.one(first, DEAD)

        race(
            partial(rig.complete, others),
            partial(engines[1].retry, first.partition_id, first.transaction_id),
        )

        assert [each.success for each in rig.complete(rig.pop())] == [True]
    assert set(rig.states().values()) == {State.COMPLETED}


@pytest.mark.requirement("Z-01", "Q-37")
@BOTH_MODES
def test_upkeep_among_consumers_takes_nothing_that_is_in_hand(engines: list[Engine], *, ordered: bool) -> None:
    rig = Rig(engines[0], ordered=ordered)
    rig.configure(max_wait_time=50.0, retention_enabled=True, completed_retention=1.0)
    completed: Counter[str] = Counter()
    for turn in range(10):
        for part in range(4):
            rig.push(*(f"{turn}-{part}-{number}" for number in range(3)), partition=str(part))
        held = [rig.take(4, partitions=2) for _ in range(2)]
        for engine in engines:
            engine.clock_offset += 60

        def finish(taken: PopResult) -> None:
            settled = rig.complete(taken.messages)
            assert all(each.success for each in settled)
            completed.update(each.transaction_id for each in settled)

        race(engines[1].maintain, *(partial(finish, taken) for taken in held))

    while engines[0].maintain() == 0.0:
        pass
    dead = Counter(rig.dead_names())
    assert max((completed + dead).values()) == 1
    assert len(completed + dead) == 120


@pytest.mark.requirement("Z-01", "Q-67")
def test_a_mode_that_changes_among_consumers_leaves_nothing_behind(engines: list[Engine]) -> None:
    options = {ordered: QueueOptions(ordered=ordered, retry_limit=None) for ordered in (True, False)}
    engines[0].configure("orders", options[True])
    stop = threading.Event()

    def pusher() -> None:
        for name in numbered(60):
            push(engines[0], name, partition=name[-1])

    def consumer(number: int) -> None:
        while not stop.is_set():
            messages = engines[number % 2].pop(PopRequest(queue="orders", limit=3)).messages
            engines[number % 2].settle(settlements(messages[: 1 + number]))

    def operator() -> None:
        try:
            for turn in range(25):
                with contextlib.suppress(Conflict):
                    engines[1].configure("orders", options[turn % 2 == 0])
        finally:
            stop.set()

    race(pusher, operator, *(partial(consumer, number) for number in range(3)))
    for _ in range(2):
        drained(engines[0], "orders")
        engines[0].clock_offset += 301

    states = [each.states["__QUEUE_MODE__"] for each in engines[0].stored(Filter(queue="orders", limit=1000))]
    assert Counter(states) == {State.COMPLETED: 60}


# -- leases


@pytest.mark.requirement("Q-31", "Q-28", "Z-09")
@BOTH_MODES
def test_whoever_extends_a_lease_too_late_is_told_so(engines: list[Engine], *, ordered: bool) -> None:
    rig = Rig(engines[0], ordered=ordered)
    rig.configure(lease_time=0.03, retry_limit=None)
    patience = random.Random(1)
    for turn in range(8):
        rig.push(f"{turn}")
        (mine,) = rig.pop(1)
        times = patience.randrange(1, 12)

        def extend(mine: Leased = mine, times: int = times) -> list[tuple[float, bool]]:
            return [(time.monotonic(), engines[0].extend(mine.lease_id, 0.03).success) for _ in range(times)]

        def take() -> tuple[float, Leased]:
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                for found in engines[1].pop(PopRequest(queue="orders", lease_time=60.0)).messages:
                    return time.monotonic(), found
            raise AssertionError("nobody got it although nobody extends it")

        extended, (at, theirs) = race(extend, take)

        assert theirs.transaction_id == mine.transaction_id
        assert not [began for began, success in extended if began > at and success]
        assert not rig.one(mine).success
        assert engines[1].settle(settlements([theirs]))[0].success


@pytest.mark.requirement("Q-32", "Q-46")
@BOTH_MODES
def test_a_message_settled_twice_at_once_is_settled_once(engines: list[Engine], *, ordered: bool) -> None:
    rig = Rig(engines[0], ordered=ordered)
    rig.configure()
    for turn in range(10):
        rig.push(f"{turn}-1", f"{turn}-2")
        messages = rig.pop(2)

        def settle(status: Status, number: int, messages: list[Leased] = messages) -> list[Settled]:
            return engines[number % 2].settle(settlements(messages, status=status))

        answers = race(*(partial(settle, status, number) for number, status in enumerate([OK, DEAD, BACK, OK])))

        really = [
            [each.message for answer in answers for each in (answer[place],) if each.success] for place in range(2)
        ]
        for said in really:
            assert len([each for each in said if each != "already_acknowledged"]) == 1, said
        drained(engines[0], "orders")
    assert set(rig.states().values()) <= {State.COMPLETED, State.DEAD}
    assert rig.progress().leased == rig.progress().pending == 0


# -- limits of a reply


@pytest.mark.requirement("Q-61")
@BOTH_MODES
@pytest.mark.parametrize("seed", range(4))
def test_whatever_the_caps_of_a_reply_every_message_comes_once_and_in_order(
    make_engine: EngineMaker, seed: int, *, ordered: bool
) -> None:
    engine = make_engine()
    chance = random.Random(seed)
    engine.configure("orders", QueueOptions(ordered=ordered, retry_delay=0.0, retry_limit=None))
    sent: dict[str, list[str]] = {str(part): numbered(12) for part in range(5)}
    for part, wanted in sent.items():
        engine.push([Push("orders", b"x" * chance.choice([0, 10, 400, 1500]), part, name) for name in wanted])
    first: dict[str, list[str]] = {part: [] for part in sent}
    done: Counter[tuple[str, str]] = Counter()

    while sum(done.values()) < 60:
        largest = chance.choice([1, 900, 2500])
        parts, limit = chance.randrange(1, 5), chance.randrange(1, 9)
        messages = engine.pop(PopRequest(queue="orders", limit=limit, partitions=parts, largest_reply=largest)).messages
        assert 0 < len(messages) <= limit
        assert len({each.partition for each in messages}) <= parts
        assert sum(len(each.payload) for each in messages) <= largest or len(messages) == 1
        for each in messages:
            if each.deliveries == 1:
                first[each.partition].append(each.transaction_id)
        kept = [each for each in messages if chance.random() < 0.7]
        back = [each for each in messages if each not in kept]
        answers = engine.settle([*settlements(kept), *settlements(back, status=BACK)])
        assert all(each.success for each in answers)
        done.update((each.partition, each.transaction_id) for each in kept)

    assert first == sent
    assert set(done.values()) == {1}


@pytest.mark.requirement("Q-33", "Q-61")
@BOTH_MODES
def test_a_partition_whose_message_does_not_fit_beside_others_has_its_turn(
    make_engine: EngineMaker, *, ordered: bool
) -> None:
    engine = make_engine()
    engine.configure("orders", QueueOptions(ordered=ordered))
    engine.subscribe("orders", "__QUEUE_MODE__")
    for part in ("A", "B"):
        engine.push([Push("orders", b"x" * 600, part) for _ in range(6)])

    turns: list[str] = []
    for _ in range(6):
        engine.push([Push("orders", b"x" * 600, "A")])
        messages = engine.pop(PopRequest(queue="orders", limit=5, partitions=2, largest_reply=1000)).messages
        engine.settle(settlements(messages))
        turns += [each.partition for each in messages]

    assert Counter(turns) == {"A": 3, "B": 3}


# -- messages that become due


@pytest.mark.requirement("Q-51", "Q-62")
@BOTH_MODES
def test_what_becomes_due_in_a_partition_that_is_leased_comes_when_it_is_free(
    make_engine: EngineMaker, *, ordered: bool
) -> None:
    rig = Rig(make_engine(), ordered=ordered)
    rig.configure()
    rig.push("1", "2")
    rig.push("due", delay=100.0)
    rig.push("other", partition="other", delay=100.0)
    held = rig.pop(1)
    rig.later(101)

    beside = rig.pop(10, partitions=5)

    assert {each.transaction_id for each in beside} == ({"other"} if ordered else {"2", "due", "other"})
    rig.complete([*held, *beside])
    assert rig.names() == (["2", "due"] if ordered else [])


@pytest.mark.requirement("Q-51")
def test_what_becomes_due_under_many_consumers_is_placed_once(engines: list[Engine]) -> None:
    rig = Rig(engines[0], ordered=False)
    rig.configure()
    wanted = numbered(40)
    for name in wanted:
        rig.push(name, partition=name[-1], delay=100.0)
    for engine in engines:
        engine.clock_offset += 101

    def consumer(number: int) -> list[Leased]:
        return drained(engines[number % 2], "orders", partitions=3, limit=4)

    found = race(*(partial(consumer, number) for number in range(6)))

    assert sorted(names([each for mine in found for each in mine] + drained(engines[0], "orders"))) == wanted


@pytest.mark.requirement("Q-62")
@BOTH_MODES
def test_groups_wait_for_calm_each_for_itself(make_engine: EngineMaker, *, ordered: bool) -> None:
    rig = Rig(make_engine(), ordered=ordered)
    rig.configure(window_buffer=10.0)
    rig.engine.subscribe("orders", "early")
    rig.push("1", "2")
    assert rig.take(group="early", partition="Default").why_empty == "window_buffer"
    rig.later(8)
    rig.push("3")
    rig.push("apart", partition="calm")
    rig.later(8)
    assert rig.names(group="early", partitions=5) == rig.names(group="late", partitions=5) == []
    rig.later(3)

    early = rig.pop(2, group="early", partition="Default")
    rig.complete(early[:1], group="early")
    rig.push("4")

    assert [each.transaction_id for each in early] == ["1", "2"]
    assert rig.names(group="late", partition="Default") == []
    assert rig.names(group="late", partitions=5) == ["apart"]
    rig.later(11)
    assert rig.names(group="late") == ["1", "2", "3", "4"]
    rig.expire()
    assert sorted(rig.names(group="early", partition="Default")) == ["2", "3", "4"]


@pytest.mark.requirement("Q-62")
@BOTH_MODES
def test_an_age_that_messages_must_have_delays_no_group_twice(make_engine: EngineMaker, *, ordered: bool) -> None:
    rig = Rig(make_engine(), ordered=ordered)
    rig.configure(delayed_processing=10.0)
    rig.push("1")
    assert rig.take(group="one").due_in == pytest.approx(10.0, abs=1.5)
    rig.later(6)
    rig.push("2")
    rig.later(6)

    (first,) = rig.pop(group="one")
    rig.one(first, BACK, group="one")

    assert rig.names(group="one") == ["1"]
    assert rig.names(group="two") == ["1"]
    rig.later(6)
    rig.expire()
    assert rig.names(group="one") == ["1", "2"]
    assert rig.names(group="two") == ["1", "2"]
