"""What the Intake does while a message that it released is not settled yet, and messages are on their way here."""

from support.desk import Desk, of


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
