"""Dead letters that fit, and messages that get none."""

import asyncio
import logging
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, TypeAlias

import pytest

from pump.dead_letter import Rejection, dead_letter
from pump.errors import PublishError, PumpError
from pump.message import Header, Message
from pump.transport_kit.dead_letters import (
    MINIMAL,
    LetterTries,
    copy_headers,
    cut_letters,
    dead_letter_headers,
    identified,
    letters_that_fit,
    report_gone,
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


def test_what_is_gone_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    report_gone(log, message(), "shop", REJECTION)
    report_gone(log, message(), "shop", REJECTION, what="stays in its stream", setting="on_undecodable='term'")

    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("ERROR", "message m of shop is gone: it was rejected (broken), and its subscription says dead_letter=None"),
        (
            "ERROR",
            (
                "message m of shop stays in its stream: it was rejected (broken), "
                "and its subscription says on_undecodable='term'"
            ),
        ),
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


class Letter(NamedTuple):
    """A dead letter of a broker that counts bodies twice."""

    header: Header
    body: bytes
    minimal: bool = False

    @property
    def size(self) -> int:
        return size(self.header) + 2 * len(self.body)


def letters(rejected: Message, largest: int, as_it_came: Letter | None = None) -> list[tuple[Letter, str]]:
    return list(
        letters_that_fit(
            rejected,
            REJECTION,
            write=Letter,
            write_least=lambda header, body: Letter(header, body, minimal=True),
            size=lambda letter: letter.size,
            largest=largest,
            as_it_came=lambda: as_it_came,
            body_share=0.5,
        )
    )


AS_IT_CAME = Letter(Header("m", headers={"colour": "red"}), b"x")


def test_dead_letters_have_less_and_less_of_the_message_and_of_the_reasons() -> None:
    rejected = message(colour="red")

    found = letters(rejected, 10_000, AS_IT_CAME)

    assert [each.body for each, _ in found] == [b"body"] * 3 + [b"x", b"bod", b"b", b""]
    assert [each.minimal for each, _ in found] == [False, False, True, False, True, True, True]
    assert [size(each.header) for each, _ in found[:3]] == sorted((size(each.header) for each, _ in found[:3]))[::-1]
    assert [left_out for _, left_out in found] == [
        *[""] * 3,
        "it is stored without the headers that say why",
        *(f"{lost} of the 4 bytes of its body are cut off" for lost in (1, 3, 4)),
    ]


def test_only_dead_letters_that_fit_are_tried() -> None:
    minimal = size(list(dead_letter_headers(message(), REJECTION))[-1])

    def sizes(largest: int) -> Sequence[int]:
        return [len(each.body) for each, _ in letters(message(), largest)]

    assert sizes(minimal + 8) == [4, 3, 1, 0]
    assert sizes(minimal + 7) == [3, 1, 0]
    assert sizes(minimal + 4) == [2, 1, 0]
    assert sizes(minimal) == [0]


Store: TypeAlias = Callable[[LetterTries[int], Callable[[int], None]], None]


def store(tries: LetterTries[int], one: Callable[[int], None]) -> None:
    for each in tries:
        with each:
            one(each.letter)


def store_async(tries: LetterTries[int], one: Callable[[int], None]) -> None:
    async def awaiting() -> None:
        for each in tries:
            with each:
                await asyncio.sleep(0)
                one(each.letter)

    asyncio.run(awaiting())


def store_steps(tries: LetterTries[int], one: Callable[[int], None]) -> None:
    def steps() -> Generator[None]:
        for each in tries:
            with each:
                yield
                one(each.letter)

    for _ in steps():
        pass


@pytest.fixture(params=[store, store_async, store_steps], ids=["blocking", "awaiting", "a conversation"])
def storing(request: pytest.FixtureRequest) -> Store:
    found: Store = request.param
    return found


class Broker:
    """Takes letters up to a size; anything else is too large, except that it never answers for the letter 7."""

    def __init__(self, largest: int) -> None:
        self.largest = largest
        self.asked: list[int] = []

    def take(self, letter: int) -> None:
        self.asked.append(letter)
        if letter == 7:
            raise PublishError("no answer")
        if letter > self.largest:
            raise PublishError(f"{letter} is too large", retriable=False)


def is_too_large(error: PumpError) -> bool:
    return isinstance(error, PublishError) and not error.retriable


def tries(*letters: tuple[int, str]) -> LetterTries[int]:
    return LetterTries(log, message(), "shop", REJECTION, letters, is_too_large=is_too_large)


def test_the_first_dead_letter_that_the_broker_takes_is_the_last_one_tried(
    storing: Store, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(5)

    storing(tries((9, ""), (6, ""), (5, ""), (4, "a lot")), broker.take)

    assert broker.asked == [9, 6, 5]
    assert caplog.records == []


def test_what_is_left_out_of_the_dead_letter_is_logged(storing: Store, caplog: pytest.LogCaptureFixture) -> None:
    storing(tries((9, ""), (6, "a little"), (5, "a lot")), Broker(5).take)

    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("ERROR", "the dead letter of message m of shop (broken) is too large for the broker: a lot")
    ]


def test_without_a_smaller_dead_letter_the_last_refusal_is_raised(storing: Store) -> None:
    with pytest.raises(PublishError, match="6 is too large"):
        storing(tries((9, ""), (6, "a little")), Broker(5).take)


def test_any_other_error_ends_the_tries(storing: Store) -> None:
    broker = Broker(5)

    with pytest.raises(PublishError, match="no answer"):
        storing(tries((9, ""), (7, ""), (5, "")), broker.take)
    assert broker.asked == [9, 7]


def test_where_no_dead_letter_is_small_enough_nothing_is_taken_for_stored(storing: Store) -> None:
    with pytest.raises(PublishError, match="no dead letter of message m is small enough for the broker") as error:
        storing(tries(), Broker(5).take)

    assert error.value.sent is False
