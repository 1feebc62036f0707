"""The thread that receives outlives whatever fails on it, and whoever takes is told."""

from collections.abc import Sequence

import pytest

from pump.clock import SystemClock
from pump.message import Header, Message
from pump.transports.sqs.polling import SqsPoller
from support.waiting import eventually


def test_messages_that_cannot_be_given_back_fail_a_take_and_not_the_thread() -> None:
    failures = [LookupError("of nobody's making")]

    def fetch(_: int) -> Sequence[Message]:
        return [Message(Header("1"), b"")]

    def give_back(_: Sequence[Message]) -> None:
        if failures:
            raise failures.pop()

    poller = SqsPoller(fetch, give_back, SystemClock(), pause_seconds=0.0)
    assert poller._take(1) is None  # nobody takes what this brings

    eventually(lambda: poller._failure is not None)

    with pytest.raises(LookupError):
        poller.take(1, 0.0)
    assert len(poller.take(1, 30.0)) == 1
    poller.close()
