"""Which message may be handled next: each promise of the Intake by example."""

from typing import Any

import pytest

from support.court import message
from support.desk import Desk, leased, names, of

# -- slots and order


def test_messages_are_handed_out_in_order_and_one_at_a_time() -> None:
    desk = Desk()
    desk.offer("1", "2", "3")

    assert desk.take() == "1"
    assert desk.take() is None
    desk.settle("1")
    assert desk.take() == "2"


@pytest.mark.parametrize("slots", [2, 3, 5])
def test_there_are_never_more_in_hand_than_slots(slots: int) -> None:
    desk = Desk(slots=slots)
    desk.offer(*"1234567")

    assert desk.take_all().split() == list("1234567")[:slots]
    assert len(desk.intake.in_hand) == slots


def test_of_one_key_there_is_one_message_in_hand_and_the_next_is_the_next_of_the_key() -> None:
    desk = Desk(slots=4)
    desk.offer(*of("a", "a1", "a2"), *of("b", "b1"), *of("a", "a3"), "free")

    assert desk.take_all() == "a1 b1 free"
    desk.settle("a1")
    assert desk.take_all() == "a2"


def test_of_one_key_all_come_in_order_however_many_wait() -> None:
    desk = Desk(slots=3, largest=9)
    desk.offer(*of("a", *(f"a{each}" for each in range(1, 5))))
    assert desk.take_all() == "a1"
    desk.offer(*of("a", *(f"a{each}" for each in range(5, 8))), *of("b", "b1"))
    assert desk.take_all() == "b1"

    for ended, following in zip(range(1, 7), range(2, 8), strict=True):
        desk.settle(f"a{ended}")
        assert desk.take_all() == f"a{following}"


def test_what_was_put_aside_comes_in_the_order_in_which_it_came() -> None:
    desk = Desk(slots=3, largest=9)
    desk.offer(*of("a", "a1"), *of("b", "b1"))
    desk.take_all()
    desk.offer(*of("b", "b2"), *of("a", "a2"))
    assert desk.take_all() == ""

    desk.settle("a1")
    desk.settle("b1")

    assert desk.take() == "b2"
    assert desk.take() == "a2"


def test_what_is_held_and_due_comes_before_what_was_put_aside_earlier() -> None:
    desk = Desk(slots=3, largest=9)
    desk.offer(*of("a", "a1"), *of("b", "b1"))
    desk.take_all()
    desk.offer(*of("a", "a2"))
    assert desk.take_all() == ""
    desk.hold("b1", 1.0)
    desk.settle("a1")
    desk.now = 1.0

    assert desk.take() == "b1"
    assert desk.take() == "a2"


def test_nothing_of_its_domain_begins_beside_a_message_that_is_going_back() -> None:
    desk = Desk(slots=3, blocks="partition")
    desk.offer(message("1", key="1", partition=0))
    desk.take()
    desk.release("1", 5.0)
    desk.offer(message("2", key="2", partition=0), message("3", key="3", partition=1))

    assert desk.take_all() == "3"


def test_behind_a_blocked_message_of_its_key_none_overtakes_when_the_key_is_free() -> None:
    """The first message waits for its partition, so messages of its key in another partition wait for it."""
    desk = Desk(slots=3, blocks="partition", largest=9)
    desk.offer(message("0", key="x", partition=0))
    desk.take()
    desk.hold("0", 5.0)
    desk.offer(message("1", key="k", partition=0), message("2", key="k", partition=1))
    assert desk.take_all() == ""

    desk.offer(message("3", key="k", partition=1))
    assert desk.take_all() == ""
    desk.now = 5.0
    assert desk.take_all() == "0"
    desk.settle("0")
    assert desk.take_all() == "1"
    desk.settle("1")
    assert desk.take_all() == "2"


def test_messages_without_a_key_wait_for_nobody_unless_the_channel_is_ordered() -> None:
    free, ordered = Desk(slots=3), Desk(slots=3, ordered=True)
    free.offer("1", "2")
    ordered.offer("1", "2")

    assert free.take_all() == "1 2"
    assert ordered.take_all() == "1"


def test_a_partition_is_a_key_where_there_is_none() -> None:
    desk = Desk(slots=3)
    desk.offer(message("1", partition=0), message("2", partition=0), message("3", partition=1))

    assert desk.take_all() == "1 3"


def test_one_identity_is_in_hand_once() -> None:
    desk = Desk(slots=3)
    desk.offer("1", message("1", receipt="again"))

    assert desk.take_all() == "1"
    desk.settle("1")
    assert desk.take_all() == "1"


# -- the buffer


def test_the_buffer_begins_with_one_and_doubles_with_each_message_that_was_settled() -> None:
    desk, sizes = Desk(largest=10), []

    for number in range(5):
        sizes.append(desk.intake.size)
        desk.handle(str(number))

    assert sizes == [1, 2, 4, 8, 10]


def test_a_redelivery_shrinks_the_buffer_to_one_and_does_not_make_it_grow() -> None:
    desk = Desk()
    desk.handle("1", "2")
    desk.offer(message("again", deliveries=2))

    assert desk.intake.size == 1
    desk.take()
    desk.settle("again")
    assert desk.intake.size == 1


def test_what_is_asked_for_never_exceeds_the_buffer() -> None:
    desk = Desk()
    desk.handle("1", "2")
    desk.offer("3", "4")
    desk.take()

    assert (desk.intake.size, desk.intake.room()) == (4, 2)


def test_held_messages_leave_room_but_for_the_largest_buffer() -> None:
    desk = Desk(largest=2, blocks="partition")
    for number in range(2):
        desk.offer(message(str(number), partition=number))
        desk.take()
        desk.hold(str(number), 10.0)

    assert desk.intake.room() == 0
    desk.now = 10.0
    desk.take()
    desk.settle("0")
    assert desk.intake.room() == 1


def test_with_slots_the_largest_buffer_holds_at_least_as_many() -> None:
    desk = Desk(largest=1, slots=4)
    desk.handle(*"123456")

    assert desk.intake.size == 4


@pytest.mark.parametrize("ending", ["lost", "held", "released"])
def test_only_what_was_settled_makes_the_buffer_grow(ending: str) -> None:
    desk = Desk()
    desk.offer("1")
    desk.take()

    if ending == "lost":
        desk.in_hand("1").lost = True
        desk.settle("1")
    elif ending == "held":
        desk.hold("1", 1.0)
    else:
        desk.release("1", 1.0)
        desk.settle("1")

    assert desk.intake.size == 1


# -- in hand


def test_at_first_one_message_is_asked_for_and_after_it_as_many_as_may_be_in_hand() -> None:
    desk = Desk(slots=50)

    assert desk.intake.room() == 1
    desk.offer("1")
    assert desk.intake.room() == 49


def test_nothing_need_be_settled_for_every_slot_to_be_filled() -> None:
    desk = Desk(slots=20)
    desk.offer("0")
    desk.offer(*map(str, range(1, 1 + desk.intake.room())))

    assert len(desk.take_all().split()) == 20
    assert desk.intake.size == 1


def test_a_redelivery_of_unknown_outcome_is_alone_until_a_first_delivery_comes() -> None:
    desk = Desk(slots=20)
    for name in ("a", "b"):
        desk.offer(message(name, deliveries=2))
        assert desk.intake.room() == 0
        desk.take()
        assert desk.intake.room() == 0
        desk.settle(name)
        assert desk.intake.room() == 1

    desk.offer("new")
    assert desk.intake.room() == 19


def test_a_redelivery_that_is_known_to_be_harmless_takes_no_slot_away() -> None:
    desk = Desk(slots=20)
    desk.explained = {"back"}
    desk.offer(message("back", deliveries=2))

    assert desk.intake.room() == 19


def test_what_its_handler_has_left_does_not_keep_the_next_redelivery_away() -> None:
    desk, seen = Desk(slots=3, largest=3), []
    for name in "abc":
        assert desk.intake.room() == 1
        desk.offer(message(name, deliveries=2))
        seen.append(desk.take())
        desk.intake.leave_unsettled(desk.in_hand(name))

    assert seen == list("abc")
    assert desk.intake.room() == 0


def test_beside_a_suspect_that_its_handler_has_left_others_begin() -> None:
    desk = Desk(slots=3)
    desk.suspects = {"a", "b"}
    desk.offer(message("a", deliveries=5))
    desk.take()
    desk.intake.leave_unsettled(desk.in_hand("a"))
    desk.offer(message("b", deliveries=5))

    assert desk.take() == "b"
    assert desk.intake.room() == 0


def test_behind_a_refused_message_the_slots_are_filled_one_by_one() -> None:
    desk = Desk(slots=3)
    desk.offer(*of("a", "a1"), *of("b", "b1"))
    desk.take_all()
    desk.release("a1", 1.0)
    desk.settle("a1")

    assert desk.intake.room() == 1
    desk.offer(*of("c", "c1"))
    assert desk.take() == "c1"
    assert desk.intake.room() == 1


def test_where_nothing_waits_behind_a_refused_message_every_slot_is_filled() -> None:
    desk = Desk(slots=3)
    desk.offer("1")
    desk.take()
    desk.release("1", 1.0)
    desk.settle("1")

    assert desk.intake.room() == 3


# -- held


def test_a_held_message_comes_when_it_is_due_and_not_before() -> None:
    desk = Desk()
    desk.offer("1")
    desk.take()
    desk.hold("1", 5.0)

    assert (desk.take(), desk.intake.next_due(desk.now)) == (None, 5.0)
    desk.now = 5.0
    assert (desk.take(), desk.intake.next_due(desk.now)) == ("1", None)


def test_the_held_message_is_the_same_delivery_undecided() -> None:
    desk = Desk()
    desk.offer(message("1", receipt="r", deliveries=3))
    desk.take()
    before = desk.in_hand("1")
    before.settled = before.explicit = True
    desk.hold("1", 5.0)
    desk.now = 5.0
    desk.take()

    again = desk.in_hand("1")
    assert (again.receipt, again.deliveries, again.settled, again.explicit) == ("r", 3, False, False)


def test_what_is_settled_already_is_not_held() -> None:
    desk = Desk()
    first = desk.offer("1")[0]
    desk.take()
    desk.settle("1")

    desk.intake.hold(first, 5.0)

    assert len(desk.intake) == 0


@pytest.mark.requirement("B-33")
@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize(
    ("options", "key", "partition"),
    [
        ({"ordered": True}, None, None),
        ({"blocks": "channel"}, None, None),
        ({}, "k", None),
        ({}, None, 0),
        ({}, "k", 0),
    ],
)
def test_nothing_from_behind_a_held_message_of_its_domain_begins(
    slots: int, options: Any, key: str | None, partition: int | None
) -> None:
    desk = Desk(slots=slots, **options)
    desk.offer(message("1", key=key, partition=partition))
    desk.take()
    desk.hold("1", 5.0)
    desk.offer(message("2", key=key, partition=partition), message("3", key=key, partition=partition))

    assert desk.take_all() == ""
    desk.now = 5.0
    assert desk.take_all() == "1"
    desk.settle("1")
    assert desk.take() == "2"


def test_another_key_of_the_partition_waits_too_until_the_held_one_is_settled() -> None:
    desk = Desk(slots=4, blocks="partition")
    desk.offer(*(message(name, key=name, partition=0) for name in ("5", "6")))
    desk.take_all()
    desk.offer(*(message(name, key=name, partition=0) for name in ("7", "8")))
    desk.hold("5", 1.0)
    desk.settle("6")

    assert desk.take_all() == ""
    desk.now = 1.0
    assert desk.take_all() == "5"  # in hand again, and no other message with it
    desk.hold("5", 2.0)
    desk.now = 2.0
    assert desk.take_all() == "5"
    desk.settle("5")
    assert desk.take_all() == "7 8"


def test_other_domains_go_on() -> None:
    desk = Desk(blocks="partition")
    desk.offer(message("1", partition=0))
    desk.take()
    desk.hold("1", 5.0)
    desk.offer(message("2", partition=0), message("3", partition=1))

    assert desk.take() == "3"


def test_where_nothing_blocks_a_held_message_stops_no_other() -> None:
    desk = Desk()
    desk.offer("1")
    desk.take()
    desk.hold("1", 5.0)
    desk.offer("2")

    assert desk.take() == "2"


def test_two_held_messages_of_a_domain_come_one_after_the_other() -> None:
    desk = Desk(slots=2, blocks="channel")
    desk.offer("1", "2")
    desk.take_all()
    desk.hold("1", 5.0)
    desk.hold("2", 1.0)
    desk.now = 1.0

    assert desk.take_all() == ""
    desk.now = 5.0
    assert desk.take_all() == "1"


def test_what_was_nacked_here_is_held_until_its_time_when_it_is_received_again() -> None:
    desk = Desk()
    desk.dues["1"] = 5.0
    desk.offer("1", "2")

    assert desk.take() == "2"
    desk.settle("2")
    assert desk.take() is None
    desk.now = 5.0
    assert desk.take() == "1"


# -- redeliveries


def test_a_redelivery_of_a_held_message_replaces_its_receipt_and_keeps_its_time() -> None:
    desk = Desk()
    desk.offer(leased("1", 1))
    desk.take()
    desk.hold("1", 5.0)
    (older,) = desk.intake.waiting
    desk.offer(leased("1", 2))

    assert [each.receipt for each in desk.intake.waiting] == [2]
    assert desk.take() is None
    assert older.lost


def test_a_redelivery_takes_the_place_of_what_still_waits() -> None:
    desk = Desk()
    desk.handle("a", "b")
    desk.offer(leased("1", 1), leased("2", 1))
    desk.offer(leased("1", 2))

    assert [each.receipt for each in desk.intake.waiting] == [2, 1]
    assert desk.dropped == ["1"]


def test_a_redelivery_that_came_before_the_hold_is_the_one_that_is_held() -> None:
    desk = Desk(slots=2)
    desk.offer(leased("1", 1))
    desk.take()
    desk.offer(leased("1", 2))
    desk.hold("1", 5.0)

    assert [each.receipt for each in desk.intake.waiting] == [2]
    assert desk.take() is None


def test_another_message_of_the_same_id_is_no_redelivery_and_neither_vanishes() -> None:
    desk = Desk()
    desk.offer(message("1", receipt="first"))
    desk.take()
    desk.hold("1", 5.0)
    desk.offer(message("1", receipt="second"))
    desk.take()
    desk.hold("1", 6.0)

    assert [each.receipt for each in desk.intake.waiting] == ["first", "second"]


# -- going back


@pytest.mark.parametrize("slots", [1, 3])
def test_the_successors_of_a_refused_message_go_back_before_it_in_order(slots: int) -> None:
    desk = Desk(slots=slots, ordered=True)
    desk.offer("1", "2", "3")
    desk.take()

    assert desk.release("1", 1.0) == "2 3"
    assert desk.waiting == ""
    assert len(desk.intake.in_hand) == 1


def test_only_successors_of_its_domain_go_back() -> None:
    desk = Desk()
    desk.offer(*of("a", "a1"), *of("b", "b1"), *of("a", "a2"))
    desk.take()

    assert desk.release("a1", 1.0) == "a2"
    assert desk.waiting == "b1"


def test_where_nothing_blocks_no_successor_goes_back() -> None:
    desk = Desk()
    desk.offer("1", "2")
    desk.take()

    assert desk.release("1", 1.0) == ""


def test_what_was_on_its_way_when_a_message_was_refused_goes_back_too() -> None:
    desk = Desk(ordered=True)
    desk.handle("a", "b")
    desk.offer("1", "2")
    desk.take()
    assert desk.intake.room() > 0  # the channel asks the broker now …
    assert desk.release("1", 1.0) == "2"
    desk.offer("3")  # … and the broker answered before the nacked message went back
    desk.settle("1")

    assert desk.take() is None
    assert desk.hand_back() == "3"
    assert desk.hand_back() == ""
    desk.offer("1", "2", "3")
    assert desk.take_all() == "1"


def test_what_comes_after_the_refused_message_in_one_answer_stays() -> None:
    desk = Desk(ordered=True)
    desk.offer("1")
    desk.take()
    desk.intake.room()
    desk.release("1", 1.0)
    desk.settle("1")
    desk.offer("1", "2")

    assert desk.hand_back() == ""
    assert desk.take_all() == "1"


def test_the_buffer_stays_at_one_until_the_refused_message_is_settled() -> None:
    desk = Desk(ordered=True)
    desk.handle("a", "b")
    desk.offer("1")
    desk.take()
    desk.release("1", 1.0)
    desk.settle("1")
    desk.handle("x", "y")
    assert desk.intake.size == 1

    desk.offer("1")
    desk.take()
    desk.settle("1")
    assert desk.intake.size == 1
    desk.handle("z")
    assert desk.intake.size == 2


@pytest.mark.parametrize("now", [1.0, 2.0])
def test_the_buffer_grows_again_once_somebody_else_has_the_refused_message(now: float) -> None:
    desk = Desk(ordered=True)
    desk.offer("1")
    desk.take()
    desk.release("1", 1.0)
    desk.settle("1")

    desk.now = now
    desk.handle("x", "y")

    assert desk.intake.size == 4


def test_nothing_begins_beside_a_refused_message_that_has_come_again() -> None:
    desk = Desk(slots=3, blocks="channel")
    desk.offer("1")
    desk.take()
    desk.release("1", 1.0)
    desk.settle("1")
    desk.offer("1")
    desk.now = 1.0
    desk.offer("2")

    assert desk.take_all() == "1"


def test_draining_gives_up_what_waits_held_first_and_keeps_what_is_in_hand() -> None:
    desk = Desk()
    desk.offer("1")
    desk.take()
    desk.hold("1", 5.0)
    desk.offer("2", "3", "4")
    desk.take()

    assert names(desk.intake.drain()) == "1 3 4"
    assert (len(desk.intake), names(desk.intake.in_hand)) == (1, "2")
