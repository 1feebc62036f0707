"""Which leases are renewed together: a channel that asks for each message alone makes a tenth of the requests."""

from pump.transports.sqs.leases import LeaseRounds

LEASE = 30.0
INTERVAL = LEASE / 3


def a_round(rounds: LeaseRounds[int], keys: range, now: float) -> list[int]:
    """What each request of one round renews."""
    sizes = []
    for key in keys:
        together = rounds.asked(key, now)
        if together:
            rounds.renewed(together, now)
            sizes.append(len(together))
    return sizes


def test_a_thousand_leases_are_renewed_by_a_hundred_requests() -> None:
    rounds, keys = LeaseRounds[int](LEASE, 10), range(1000)
    rounds.begins(keys, 0.0)

    for number in range(1, 5):
        assert a_round(rounds, keys, number * INTERVAL) == [10] * 100


def test_whoever_is_not_asked_for_any_more_is_renewed_once_more_at_most() -> None:
    rounds = LeaseRounds[int](LEASE, 10)
    rounds.begins([1, 2], 0.0)
    a_round(rounds, range(1, 3), INTERVAL)

    assert a_round(rounds, range(1, 2), 2 * INTERVAL) == [2]
    assert a_round(rounds, range(1, 2), 3 * INTERVAL) == [1]


def test_what_is_settled_is_not_renewed() -> None:
    rounds = LeaseRounds[int](LEASE, 10)
    rounds.begins([1, 2], 0.0)
    rounds.ends(2)

    assert rounds.asked(1, INTERVAL) == [1]


def test_what_was_renewed_just_now_needs_no_request() -> None:
    rounds = LeaseRounds[int](LEASE, 10)
    rounds.begins([1], 0.0)
    rounds.renewed(rounds.asked(1, INTERVAL), INTERVAL)

    assert rounds.asked(1, INTERVAL + 1.0) == ()


def test_a_renewal_that_failed_is_tried_with_the_next_one() -> None:
    rounds = LeaseRounds[int](LEASE, 10)
    rounds.begins([1, 2], 0.0)

    assert rounds.asked(1, INTERVAL) == [1, 2]
    assert rounds.asked(2, INTERVAL + 0.1) == [2]
    assert rounds.asked(1, 2 * INTERVAL) == [1, 2]


def test_what_was_received_just_now_is_not_taken_along() -> None:
    rounds = LeaseRounds[int](LEASE, 10)
    rounds.begins([1], 0.0)
    rounds.begins([2], INTERVAL)

    assert rounds.asked(1, INTERVAL) == [1]
