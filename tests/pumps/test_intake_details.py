"""Single promises of the Intake: what is on its way or came early, the accused, leases that end just now."""

from support.desk import Desk, leased, of


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
