"""A stop of a dispatcher whose RabbitMQ does not answer any more."""

import time
from collections.abc import Iterator

import pytest

from brokers.rabbitmq import RabbitMQ
from pump.program.dispatcher import Dispatcher
from pump.subscription import Publication, Subscription
from support.pumps import PROACTOR, REACTOR, Kind, Order, Outcomes
from support.waiting import eventually


@pytest.fixture
def answering_again(rabbitmq: RabbitMQ) -> Iterator[None]:
    yield
    rabbitmq.unpause()


@pytest.mark.usefixtures("answering_again")
@pytest.mark.parametrize("kind", [REACTOR, PROACTOR], ids=["reactor", "proactor"])
def test_a_stop_is_in_time_and_tells_the_truth_though_the_broker_hangs(
    rabbitmq: RabbitMQ, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    body = Outcomes(None)
    dispatcher = Dispatcher(
        rabbitmq.url,
        handlers=[kind.handler(body)],
        subscriptions=[Subscription(Order, topic="stopping", grace=0.5, **kind.options)],
        publications=[Publication(Order, topic="stopping")],
    )
    dispatcher.start()
    dispatcher.post(Order(1))
    eventually(lambda: body.runs == 1, timeout=30)
    rabbitmq.pause()
    began = time.monotonic()
    dispatcher.stop()
    took = time.monotonic() - began

    assert took < 0.5 + 2
    assert "it waits for the broker, which does not answer" in caplog.text
    assert "handler" not in caplog.text
