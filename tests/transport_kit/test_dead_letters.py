"""Dead letters that fit, rejections that failed, and messages that are gone."""

import logging

import pytest

from pump.dead_letter import Rejection, dead_letter
from pump.message import Header, Message
from pump.transport_kit.dead_letters import (
    MINIMAL,
    copy_headers,
    cut_letters,
    dead_letter_headers,
    identified,
    must_be_parked,
    report_gone,
    report_kept,
)

log = logging.getLogger("pump.transports.example")
REJECTION = Rejection("delivery error", "broken", "x" * 5000, ValueError("y" * 5000), attempts=3)


def message(id: str = "m", **headers: str) -> Message:  # noqa: A002 - its name
    message = Message(Header(id, topic="orders", headers=headers), b"body", identity="known-as", attempts=1)
    message.origin = "shop"
    return message


def size(header: Header) -> int:
    return sum(len(name) + len(text) for name, text in header.headers.items())


def test_a_dead_letter_says_all_first_and_the_least_last() -> None:
    rejected = message(colour="red")

    full, short, minimal = dead_letter_headers(rejected, REJECTION, (8192, 256))

    assert full == dead_letter(rejected, REJECTION)
    assert size(full) > size(short) > size(minimal)
    assert short.headers["colour"] == "red"
    assert minimal.headers == {"pump-attempts": "3", "pump-reason": "broken", "pump-origin": "shop"}
    assert set(minimal.headers) == set(MINIMAL)


def test_the_dead_letter_of_a_message_without_an_id_is_known_by_its_identity() -> None:
    assert identified(message("")).id == "known-as"
    assert identified(message("m")).id == "m"
    assert {header.id for header in dead_letter_headers(message(""), REJECTION)} == {"known-as"}


def test_a_copy_says_its_attempts_and_when_the_message_failed_first() -> None:
    assert copy_headers(message(), 2, 12.5) == {"pump-carried-attempts": "2", "pump-first-failure": "12.500"}
    assert copy_headers(message(**{"pump-first-failure": "1.000"}), 2, 12.5) == {"pump-carried-attempts": "2"}


@pytest.mark.parametrize(
    ("max_attempts", "attempts", "expected"), [(3, 3, True), (3, 2, False), (1, 3, False), (None, 3, False)]
)
def test_only_a_message_that_has_just_spent_its_attempts_is_parked(
    max_attempts: int | None,
    attempts: int,
    expected: bool,
) -> None:
    rejection = Rejection("delivery error", "broken", attempts=attempts)

    assert must_be_parked(message(), rejection, max_attempts) is expected


def test_what_is_gone_or_kept_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    report_gone(log, message(), "shop", REJECTION)
    report_gone(log, message(), "shop", REJECTION, what="stays in its stream", setting="on_undecodable='term'")
    report_kept(log, message(), "shop", OSError("full"))

    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("ERROR", "message m of shop is gone: it was rejected (broken), and its subscription says dead_letter=None"),
        (
            "ERROR",
            (
                "message m of shop stays in its stream: it was rejected (broken), "
                "and its subscription says on_undecodable='term'"
            ),
        ),
        ("WARNING", "message m of shop stays where it is: full"),
    ]


def test_a_body_that_does_not_fit_is_cut_again_and_again_to_nothing() -> None:
    header = Header("m", headers={"pump-reason": "broken", "pump-description": "why"})

    letters = list(cut_letters(header, b"0123456789", 4))

    assert [body for _, body, _ in letters] == [b"0123", b"01", b"0", b""]
    for cut, body, saying in letters:
        assert saying == f"{10 - len(body)} of the 10 bytes of its body are cut off"
        assert cut.headers == {"pump-reason": "broken", "pump-description": saying}
    assert header.headers["pump-description"] == "why"


@pytest.mark.parametrize(("room", "bodies"), [(100, [b"01", b"0", b""]), (0, [b""]), (-5, [])])
def test_a_cut_body_is_shorter_than_it_was_and_none_is_made_where_there_is_no_room(
    room: int, bodies: list[bytes]
) -> None:
    assert [body for _, body, _ in cut_letters(Header("m"), b"012", room)] == bodies


def test_a_body_is_cut_between_characters_and_other_bytes_anywhere() -> None:
    def first(body: bytes, room: int) -> bytes:
        return next(cut_letters(Header("m"), body, room))[1]

    for text in ("aé", "a€", "a😀"):
        body = text.encode() * 3
        for room in range(len(body)):
            cut = first(body, room)
            assert text.encode() * 3 == cut + body[len(cut) :]
            cut.decode()
            assert room - len(cut) < 4
    assert first(b"\xff\xff\xff\xff", 3) == b"\xff\xff"
    assert first(b"\x80\x80\x80\x80\x80", 4) == b"\x80\x80\x80\x80"
