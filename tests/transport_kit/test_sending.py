"""What every producer checks."""

from dataclasses import replace

import pytest

from pump.capabilities import Capabilities
from pump.errors import PublishError, PublishExhausted
from pump.message import Header, Message
from pump.transport_kit.sending import check_sizes, not_sent, portions, together

SMALL = Capabilities(
    system="example",
    nack="releases",
    blocks="nothing",
    requeue="copy",
    counts_deliveries=False,
    carries_attempts=False,
    durable=False,
    leases=False,
    delayed_publish=False,
    largest_body=4,
    largest_headers=10,
)


def message(body: bytes = b"1234", **headers: str) -> Message:
    return Message(Header("m", headers=headers), body)


def test_a_message_within_the_limits_may_be_sent() -> None:
    check_sizes(message(name="123456"), SMALL)
    check_sizes(message(b"12345", name="1234567"), replace(SMALL, largest_body=None, largest_headers=None))


@pytest.mark.parametrize(
    ("large", "headers_size", "words"),
    [
        (message(b"12345"), None, "the body of message m has 5 bytes, and 4 are allowed"),
        (message(name="é12345"), None, "the headers of message m have 11 bytes, and 10 are allowed"),
        (message(), 12, "the headers of message m have 12 bytes, and 10 are allowed"),
    ],
)
def test_a_larger_one_is_not_sent(large: Message, headers_size: int | None, words: str) -> None:
    with pytest.raises(PublishError) as refused:
        check_sizes(large, SMALL, headers_size)

    assert str(refused.value) == f"nothing was sent: {words}"
    assert (refused.value.sent, refused.value.retriable) == (False, False)


def test_whether_trying_again_may_help_is_said() -> None:
    assert (not_sent("closed", retriable=True).sent, not_sent("closed", retriable=True).retriable) == (False, True)


# -- several at once


def failure(text: str, *, sent: bool | None = False, retriable: bool = True) -> PublishError:
    return PublishError(text, sent=sent, retriable=retriable)


def test_one_error_says_which_of_several_messages_were_not_stored() -> None:
    error = together({place: failure("full") for place in (3, 7, 8, 9)}, 10)

    assert str(error) == "4 of 10 messages were not stored (positions 3, 7-9; the others are stored): full"
    assert (error.sent, error.retriable) == (None, True)
    assert list(error.failures) == [3, 7, 8, 9]


def test_none_was_stored_only_if_that_is_known_of_all() -> None:
    none, unknown = failure("full"), failure("cut", sent=None, retriable=False)

    assert together({0: none, 1: none}, 2).sent is False
    both = together({0: none, 1: unknown}, 2)
    assert (both.sent, both.retriable) == (None, False)
    assert str(both) == "2 of 2 messages were not confirmed: full; cut"
    assert both.failures[0].sent is False


def test_the_error_of_a_single_message_stays_as_it_is_and_many_reasons_are_cut_short() -> None:
    only = failure("full")
    many = together({place * 2: failure(f"reason {place}") for place in range(9)}, 20)

    assert together({0: only}, 1) is only
    assert str(many).endswith(
        "(positions 0, 2, 4, 6, 8 …; the others are stored): reason 0; reason 1; reason 2; and 6 more"
    )


def test_errors_of_one_kind_stay_of_it() -> None:
    tired = PublishExhausted("tired", kind="timeout", tries=3)

    error = together({0: tired, 4: tired.again()}, 5)

    assert isinstance(error, PublishExhausted)
    assert (error.kind, error.tries, error.sent) == ("timeout", 3, None)


def test_a_portion_is_few_and_light_enough_and_a_heavy_item_goes_alone() -> None:
    assert list(portions("abcdefg", lambda _: 1, 3, 99)) == ["abc", "def", "g"]
    assert list(portions([1, 2, 3, 9, 1, 1], lambda each: each, 9, 5)) == [[1, 2], [3], [9], [1, 1]]
    assert list(portions([], lambda _: 1, 3, 3)) == []
