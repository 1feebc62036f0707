"""What the Intake sends back, drops or renews: suspects, lapsed leases, earlier generations of the consumer."""

import pytest

from pump.message import Message
from support.court import message
from support.desk import Desk, leased, names

# -- suspects


def suspicious(name: str) -> Message:
    return message(name, deliveries=5)


def test_a_suspect_waits_until_nothing_is_in_hand_and_the_others_are_back() -> None:
    desk = Desk(slots=3)
    desk.suspects = {"killer"}
    desk.offer("1", suspicious("killer"), "2")
    desk.take()

    assert (desk.take(), desk.hand_back()) == (None, "")
    desk.settle("1")
    assert desk.hand_back() == "2"
    assert desk.take() == "killer"


@pytest.mark.parametrize("slots", [1, 3])
def test_beside_a_suspect_nothing_begins_and_nothing_is_asked_for(slots: int) -> None:
    desk = Desk(slots=slots)
    desk.suspects = {"killer"}
    desk.offer(suspicious("killer"))
    desk.take()
    desk.offer("late")

    assert (desk.take(), desk.intake.room()) == (None, 0)
    desk.settle("killer")
    assert desk.take() == "late"


def test_the_late_end_of_another_delivery_changes_nothing_for_a_suspect() -> None:
    desk = Desk(slots=3)
    desk.suspects = {"killer"}
    desk.offer(suspicious("killer"))
    desk.take()
    desk.intake.settled(message("killer"))
    desk.intake.settled(message("long gone"))
    desk.offer("late")

    assert (desk.take(), desk.intake.room()) == (None, 0)
    assert names(desk.intake.in_hand) == "killer"


def test_of_several_suspects_one_stays() -> None:
    desk = Desk()
    desk.suspects = {"a", "b", "c"}
    desk.offer(*map(suspicious, "abc"))

    assert (desk.take(), desk.hand_back(), desk.take()) == (None, "b c", "a")


def test_a_suspect_behind_a_held_message_of_its_domain_sends_nothing_back() -> None:
    desk = Desk(ordered=True)
    desk.suspects = {"killer"}
    desk.offer("1")
    desk.take()
    desk.hold("1", 5.0)
    desk.offer(suspicious("killer"))

    assert (desk.take(), desk.hand_back()) == (None, "")
    desk.now = 5.0
    assert desk.take() == "1"


def test_a_held_suspect_waits_for_its_time() -> None:
    desk = Desk()
    desk.suspects = {"killer"}
    desk.dues = {"killer": 5.0}
    desk.offer(suspicious("killer"), "1")

    assert (desk.hand_back(), desk.take()) == ("", "1")


def test_the_delivered_again_who_are_no_suspects_are_handled_among_the_others() -> None:
    desk = Desk()
    desk.offer(suspicious("1"), "2")

    assert (desk.hand_back(), desk.take()) == ("", "1")


# -- what is not ours any more


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("held", [False, True])
def test_what_has_lapsed_is_never_handed_out_and_was_never_begun(slots: int, *, held: bool) -> None:
    desk = Desk(slots=slots)
    offered = desk.offer("held", *(leased(str(number), 1, lease_expires=5.0) for number in range(2000)), "ours")
    if held:
        desk.take()
        desk.hold("held", 9.0)
    else:
        desk.take()
        desk.settle("held")

    desk.now = 5.0

    assert desk.take() == "ours"
    assert len(desk.dropped) == 2000
    assert all(each.lost for each in offered if each.lease_expires)


@pytest.mark.parametrize("slots", [1, 2])
def test_what_was_found_lost_while_it_waited_is_never_handed_out(slots: int) -> None:
    desk = Desk(slots=slots)
    lost, _ = desk.offer(leased("1", 1), leased("2", 1))
    lost.lost = True

    assert desk.take() == "2"
    assert desk.dropped == ["1"]


def test_expiring_drops_what_waits_and_tells_of_what_is_in_hand() -> None:
    desk = Desk()
    desk.offer(leased("1", 1, lease_expires=5.0), leased("2", 1, lease_expires=5.0), leased("3", 1))
    desk.take()

    assert names(desk.intake.expire(5.0)) == "1"
    assert (desk.waiting, desk.dropped) == ("3", ["2"])
    assert desk.in_hand("1").lost
    assert desk.take() is None


def test_another_life_of_the_consumer_voids_what_the_first_received() -> None:
    desk = Desk(slots=2)
    desk.offer(*(message(name, generation=1) for name in "123"), message("4", generation=2))
    desk.take_all()

    assert names(desk.intake.drop_others(2)) == "1 2"
    assert (desk.waiting, desk.dropped) == ("4", ["3"])


def test_what_was_left_keeps_its_slot_until_its_lease_runs_out() -> None:
    desk = Desk()
    desk.offer(leased("1", 1, lease_expires=5.0), leased("2", 1))
    desk.take()
    desk.intake.leave_unsettled(desk.in_hand("1"))

    assert desk.take() is None
    desk.intake.expire(5.0)
    assert desk.take() == "2"


def test_leaving_what_is_not_in_hand_does_nothing() -> None:
    desk = Desk()
    desk.offer(leased("1", 1))

    desk.intake.leave_unsettled(desk.intake.waiting[0])

    assert names(desk.intake.leased(200.0)) == "1"


def test_leases_are_renewed_of_all_that_is_here_but_what_was_left_or_is_lost() -> None:
    desk = Desk(slots=3)
    desk.offer(*(leased(name, 1) for name in ("left", "hand", "held")))
    desk.take_all()
    desk.intake.leave_unsettled(desk.in_hand("left"))
    desk.hold("held", 5.0)
    desk.offer(leased("ready", 1), leased("later", 1, lease_expires=900.0), message("unleased"), leased("lost", 1))
    desk.intake.waiting[-1].lost = True

    assert names(desk.intake.leased(200.0)) == "hand held ready"
    assert names(desk.intake.leased(100.0)) == ""
