"""What every producer checks."""

from dataclasses import replace

import pytest

from pump.capabilities import Capabilities
from pump.errors import PublishError
from pump.message import Header, Message
from pump.transport_kit.sending import check_sizes, not_sent

SMALL = Capabilities(
    system="example",
    nack="releases",
    blocks="nothing",
    requeue="copy",
    counts_deliveries=False,
    carries_attempts=False,
    durable=False,
    durable_attempts=False,
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
