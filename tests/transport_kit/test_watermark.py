"""How far everything is settled, whatever the order in which it is."""

from hypothesis import given
from hypothesis import strategies as st

from pump.transport_kit.watermark import Watermark


def watermark(*received: int) -> Watermark:
    mark = Watermark()
    for position in received:
        mark.received(position)
    return mark


def test_there_is_no_watermark_before_anything_is_settled() -> None:
    assert watermark().position is None
    assert watermark(5, 6).position is None


def test_it_moves_with_the_contiguous_prefix_alone() -> None:
    mark = watermark(5, 6, 7, 8)

    assert [mark.settled(position) for position in (6, 5, 8, 7)] == [None, 6, None, 8]
    assert mark.position == 8


def test_positions_that_a_broker_leaves_out_are_no_gaps() -> None:
    mark = watermark(5, 9, 1000)

    assert [mark.settled(position) for position in (5, 9, 1000)] == [5, 9, 1000]


def test_saying_the_same_twice_changes_nothing() -> None:
    mark = watermark(5, 5, 6, 6)

    assert [mark.settled(position) for position in (6, 6, 5, 5, 6)] == [None, None, 6, None, None]
    assert len(mark) == 0


def test_what_is_below_the_watermark_stays_settled() -> None:
    mark = watermark(5)
    mark.settled(5)

    mark.received(5)
    mark.received(3)

    assert [mark.settled(position) for position in (3, 5)] == [None, None]
    assert mark.position == 5


def test_what_was_never_received_settles_nothing() -> None:
    mark = watermark(5)

    assert mark.settled(4) is None
    assert mark.settled(6) is None
    assert mark.position is None


def test_a_position_may_come_late_as_long_as_the_watermark_has_not_passed_it() -> None:
    mark = watermark(5, 7, 6)

    assert [mark.settled(position) for position in (5, 7, 6)] == [5, None, 7]


def test_what_comes_again_behind_a_gap_is_settled_already() -> None:
    mark = watermark(5, 6)
    mark.settled(6)
    mark.received(6)

    assert mark.settled(5) == 6


def test_it_remembers_nothing_that_is_settled_without_a_gap() -> None:
    mark = Watermark()

    for position in range(10_000):
        mark.received(position)
        mark.settled(position)
        assert len(mark) == 0


steps = st.lists(st.tuples(st.sampled_from(["received", "settled"]), st.integers(0, 12)), max_size=60)


def prefix(known: set[int], done: set[int]) -> int | None:
    """The slow way: the last position of the known ones before the first that is not done."""
    last = None
    for position in sorted(known):
        if position not in done:
            break
        last = position
    return last


@given(steps)
def test_it_says_what_the_slow_way_says(steps: list[tuple[str, int]]) -> None:
    mark, known, done = Watermark(), set[int](), set[int]()
    for act, position in steps:
        before = prefix(known, done)
        if act == "received":
            known |= {position} if before is None or position > before else set()
            mark.received(position)
        else:
            done |= {position} & known
            after = prefix(known, done)
            assert mark.settled(position) == (after if after != before else None)

        assert mark.position == prefix(known, done)
        assert len(mark) == len([each for each in known if mark.position is None or each > mark.position])


@given(st.permutations(range(30)))
def test_it_only_grows_and_ends_with_everything(order: list[int]) -> None:
    mark = watermark(*range(30))

    moved = [position for position in map(mark.settled, order) if position is not None]

    assert moved == sorted(set(moved))
    assert moved[-1] == 29
    assert len(mark) == 0
