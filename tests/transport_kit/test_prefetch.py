"""Prefetch: never more under way than wanted, and no end while something may be on its way."""

from hypothesis import given
from hypothesis import strategies as st

from pump.transport_kit.prefetch import QUIET_SECONDS, Prefetch


def consuming(largest: int, wanted: int) -> Prefetch:
    prefetch = Prefetch(largest)
    prefetch.want(wanted, 0)
    prefetch.begin(0)
    return prefetch


def test_it_asks_for_what_is_wanted_and_for_no_more_than_the_largest() -> None:
    prefetch = Prefetch(10)

    prefetch.want(4, 3)
    assert prefetch.begin(0) == 7

    prefetch.want(40, 3)
    assert prefetch.begin(0) == 10


def test_what_is_unsettled_is_left_room_for_unless_that_is_most_of_it() -> None:
    prefetch = Prefetch(10)
    prefetch.want(10, 0)

    assert prefetch.begin(3) == 7
    assert prefetch.begin(6) == 10


def test_acknowledgements_are_batched_up_to_half_of_the_largest() -> None:
    assert consuming(10, 10).ack_batch == 5
    assert consuming(10, 4).ack_batch == 4
    assert consuming(1000, 1000).ack_batch == 64
    assert Prefetch(10).ack_batch == 1


def test_credit_is_what_the_broker_may_still_send() -> None:
    prefetch = consuming(10, 4)

    prefetch.last = 3
    assert prefetch.credit == 1

    prefetch.acknowledged([1, 2], 0.0)
    assert prefetch.credit == 3


def test_deliveries_from_before_it_began_give_no_credit() -> None:
    prefetch = consuming(10, 2)
    prefetch.last = 2
    prefetch.want(5, 0)
    prefetch.begin(2)

    prefetch.acknowledged([1, 2], 0.0)

    assert prefetch.credit == prefetch.size


def test_it_may_end_when_it_is_used_up_or_was_quiet_for_long_enough() -> None:
    prefetch = consuming(10, 2)
    prefetch.began(5.0)

    assert not prefetch.may_end(5.0)
    assert prefetch.may_end(5.0 + QUIET_SECONDS)
    prefetch.last = 2
    assert prefetch.may_end(5.0)


def test_a_slow_broker_is_given_twice_the_time_of_an_answer() -> None:
    prefetch = consuming(10, 2)
    prefetch.answered(0.1)
    prefetch.began(5.0)

    assert not prefetch.may_end(5.15)
    assert prefetch.may_end(5.0 + prefetch.quiet_seconds)


def test_it_grows_when_it_is_used_up_and_more_is_wanted() -> None:
    prefetch = consuming(10, 2)
    prefetch.want(10, 0)

    assert not prefetch.is_used_up()
    prefetch.last = 2
    assert prefetch.is_used_up()
    assert prefetch.should_grow([1, 2], 2)


def test_a_little_more_is_no_reason_to_begin_anew_while_what_came_is_not_taken() -> None:
    prefetch = consuming(20, 10)
    prefetch.want(12, 0)
    prefetch.last = 10

    assert prefetch.is_used_up()
    assert not prefetch.should_grow(range(1, 11), 5)
    assert prefetch.should_grow(range(1, 11), 10)


@given(st.integers(1, 40), st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40), st.integers(0, 40)), max_size=30))
def test_a_broker_that_obeys_it_sends_no_more_than_is_wanted_beside_what_came_before(
    largest: int, rounds: list[tuple[int, int, int]]
) -> None:
    prefetch, unsettled = Prefetch(largest), list[int]()
    for limit, sent, settled in rounds:
        prefetch.want(limit, len(unsettled))
        if not prefetch.size or (prefetch.is_used_up() and prefetch.should_grow(unsettled, len(unsettled))):
            assert prefetch.begin(len(unsettled)) <= prefetch.wanted
        for _ in range(min(sent, prefetch.credit)):
            prefetch.last += 1
            unsettled.append(prefetch.last)
        assert len(unsettled) <= 2 * largest
        assert prefetch.credit <= prefetch.size <= largest
        done, unsettled = unsettled[:settled], unsettled[settled:]
        prefetch.acknowledged(done, 0.0)
