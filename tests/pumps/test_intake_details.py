"""Single promises of the Intake: what is on its way or came early, the accused, leases that end just now."""

import pytest

from pump.message import Message
from support.court import message
from support.desk import Desk, leased, names, of


def test_two_slots_keep_the_order_of_a_key() -> None:
    desk = Desk(slots=2)
    desk.offer(*of("a", "a1", "a2"), *of("b", "b1"))

    assert desk.take_all() == "a1 b1"


def test_what_came_too_early_is_here_until_it_goes_back() -> None:
    desk = Desk(ordered=True, largest=4)
    desk.handle("a", "b")
    desk.offer("1")
    desk.take()
    desk.intake.room()
    desk.release("1", 1.0)
    desk.offer("2", "3")

    assert (len(desk.intake), desk.waiting) == (3, "2 3")
    desk.settle("1")
    assert desk.intake.room() == 0
    assert desk.hand_back() == "2 3"
    assert (len(desk.intake), desk.waiting) == (0, "")
    assert desk.intake.room() == 1


def test_after_a_receive_that_brought_nothing_no_message_is_on_its_way() -> None:
    desk = Desk(ordered=True)
    desk.offer("1")
    desk.take()
    desk.intake.room()  # asked for, and nothing came
    desk.release("1", 1.0)
    desk.settle("1")

    desk.intake.room()  # asked for after the release: what comes now is behind the released message
    desk.offer("2")

    assert desk.hand_back() == ""
    assert desk.take_all() == "2"


def test_after_a_release_messages_are_asked_for_one_at_a_time_until_every_slot_is_taken() -> None:
    desk = Desk(slots=2)
    desk.offer(*of("a", "a1"))
    desk.take()
    desk.release("a1", 1.0)
    desk.settle("a1")

    for name in ("b", "c"):
        assert desk.intake.room() == 1
        desk.offer(*of(name, name))
        assert desk.intake.room() == 0
        assert desk.take() == name
    assert desk.intake.room() == 0


def test_what_came_is_no_longer_on_its_way() -> None:
    desk = Desk(ordered=True)
    desk.intake.room()
    desk.offer("1")
    desk.take()
    desk.release("1", 1.0)
    desk.settle("1")

    desk.offer("2")

    assert (desk.hand_back(), desk.take()) == ("", "2")


def test_only_the_messages_of_one_answer_come_too_early() -> None:
    desk = Desk(ordered=True)
    desk.offer("1")
    desk.take()
    desk.intake.room()
    desk.release("1", 1.0)
    desk.offer("2")
    desk.settle("1")
    assert desk.hand_back() == "2"

    desk.offer("3")

    assert (desk.hand_back(), desk.take()) == ("", "3")


def test_behind_a_redelivery_that_takes_its_old_place_the_others_of_the_answer_come_too() -> None:
    desk = Desk()
    desk.offer(leased("1", 1), leased("2", 1))

    desk.offer(leased("2", 2), "3", leased("1", 2), "4")

    assert desk.waiting == "1 2 3 4"


def test_beside_the_accused_a_first_delivery_of_another_message_is_harmless() -> None:
    desk = Desk(slots=20, accused={"accused"})

    desk.offer("1")

    assert desk.intake.room() == 19


def test_an_accused_message_that_is_a_suspect_is_handled_alone_though_the_broker_counts_nothing() -> None:
    desk = Desk(accused={"accused"})
    desk.suspects = {"accused"}
    desk.offer("accused", "2")

    assert desk.take() is None
    assert desk.hand_back() == "2"
    assert desk.take() == "accused"


def test_a_lease_that_ends_now_has_ended() -> None:
    desk = Desk()
    desk.offer(leased("1", 1, lease_expires=5.0), leased("2", 1, lease_expires=5.1))
    desk.now = 5.0

    assert desk.take() == "2"
    assert desk.dropped == ["1"]


def test_a_first_delivery_of_a_message_that_is_not_accused_is_no_suspect() -> None:
    desk = Desk(slots=2)
    desk.suspects = {"1"}
    desk.offer("1", "2")

    assert desk.take_all() == "1 2"


def test_one_delivery_of_unknown_outcome_makes_a_suspect_if_the_judge_says_so() -> None:
    desk = Desk(slots=2)
    desk.suspects = {"1"}
    desk.offer(message("1", deliveries=2), "2")

    assert desk.take() is None


def test_before_a_suspect_the_buffer_shrinks_although_it_has_grown_meanwhile() -> None:
    desk = Desk()
    desk.suspects = {"killer"}
    desk.offer("1", message("killer", deliveries=5), "2")
    desk.take()
    desk.settle("1")
    assert desk.intake.size == 2

    assert desk.hand_back() == "2"

    assert desk.intake.size == 1


def test_a_message_that_was_left_and_is_settled_later_counts_no_longer() -> None:
    desk = Desk()
    desk.offer("1")
    desk.take()
    desk.intake.leave_unsettled(desk.in_hand("1"))
    desk.settle("1")
    desk.offer("2")
    desk.take()

    assert (desk.intake.size, desk.intake.room()) == (2, 1)


# -- early messages of several domains


def test_with_a_released_message_only_the_early_ones_of_its_domain_go_back() -> None:
    desk = Desk(slots=3)
    desk.offer(message("x1", partition=0, key="x"))
    desk.offer(message("y1", partition=0, key="y"), message("z1", partition=1))
    assert desk.take_all() == "x1 y1 z1"
    desk.intake.room()
    desk.release("x1", 1.0)
    desk.release("z1", 1.0)
    desk.offer(message("early", partition=0), message("early too", partition=1))

    assert desk.release("y1", 1.0) == "early"
    assert desk.hand_back() == "early too"
    assert desk.waiting == ""


def test_an_early_message_whose_lease_ends_is_dropped() -> None:
    desk = Desk(ordered=True)
    desk.offer("1")
    desk.take()
    desk.intake.room()
    desk.release("1", 1.0)
    desk.offer(leased("ends", 1, lease_expires=5.0), leased("stays", 1, lease_expires=6.0))

    assert names(desk.intake.expire(5.0)) == ""
    assert (desk.waiting, desk.dropped) == ("stays", ["ends"])


# -- leases


def test_what_is_marked_as_lost_is_found_once_somebody_says_so() -> None:
    desk = Desk()
    desk.offer(leased("1", 1))
    desk.take()
    desk.in_hand("1").lost = True
    assert desk.intake.expire(0.0) == ()

    desk.intake.look_for_lost()

    assert names(desk.intake.expire(0.0)) == "1"


def test_after_a_look_the_next_lease_that_ends_is_found_too() -> None:
    desk = Desk()
    desk.offer(leased("1", 1, lease_expires=5.0), leased("2", 1, lease_expires=9.0), "unleased")
    desk.intake.look_for_lost()
    desk.intake.expire(0.0)

    for now, left in ((4.9, "1 2 unleased"), (5.0, "2 unleased"), (8.9, "2 unleased"), (9.0, "unleased")):
        desk.intake.expire(now)
        assert desk.waiting == left


# -- what is a redelivery


@pytest.mark.parametrize(
    "again",
    [leased("1", 2), message("1", deliveries=3)],
    ids=["the same count", "no lease that could have ended"],
)
def test_another_message_of_the_same_id_replaces_none(again: Message) -> None:
    desk = Desk()
    desk.offer(leased("1", 2) if again.lease_expires else message("1", deliveries=2))

    desk.offer(again)

    assert (desk.waiting, desk.dropped) == ("1 1", [])


def test_without_a_lease_a_delivery_of_another_connection_is_a_redelivery() -> None:
    desk = Desk()
    desk.offer(message("1", generation=1))

    desk.offer(message("1", deliveries=2, generation=2))

    assert [each.generation for each in desk.intake.waiting] == [2]
    assert desk.dropped == ["1"]
