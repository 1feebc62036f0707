"""What is a delay and what is none: refused where it is raised, so that no broker is ever asked for it."""

from datetime import timedelta
from math import inf, nan
from typing import Any

import pytest

from pump import Dispatcher, Publication
from pump.duration import LONGEST_DELAY, delay_seconds
from pump.errors import ConfigurationError, DeferMessageAction
from support.pump_fixtures import Pumping
from support.pumps import Order, Outcomes

NO_DELAYS: tuple[Any, ...] = (
    inf,
    -inf,
    nan,
    -1,
    -0.001,
    "5",
    "soon",
    True,
    LONGEST_DELAY * 2,
    timedelta(days=-1),
    timedelta.max,
)


@pytest.mark.parametrize("delay", NO_DELAYS, ids=repr)
def test_what_is_no_delay_is_refused_where_it_is_raised(delay: Any) -> None:
    with pytest.raises(ValueError, match="a delay"):
        DeferMessageAction(delay)


@pytest.mark.parametrize("delay", NO_DELAYS, ids=repr)
def test_nothing_is_posted_for_such_a_time(delay: Any) -> None:
    dispatcher = Dispatcher("memory://", publications=[Publication(Order)])

    with dispatcher.publishing(), pytest.raises(ConfigurationError, match="a delay"):
        dispatcher.post(Order(), delay=delay)


@pytest.mark.parametrize(
    ("delay", "length"), [(0, 0.0), (1.5, 1.5), (timedelta(minutes=1), 60.0), (LONGEST_DELAY, LONGEST_DELAY)]
)
def test_every_other_is_one(delay: Any, length: float) -> None:
    assert delay_seconds(delay) == length
    assert DeferMessageAction(delay).delay == length


def test_a_handler_that_asks_for_no_delay_fails_like_any_other(pumping: Pumping) -> None:
    def body(_: Order) -> None:
        raise DeferMessageAction(inf)

    bench = pumping(body)
    bench.post_orders(1, 2)

    bench.run()

    assert [letter.reason for letter in bench.dead_letters] == ["attempts exhausted"] * 2
    assert "a hundred years" in bench.dead_letters[0].headers["pump-error"]


class Endless(DeferMessageAction):
    """Asks for what the base would have refused."""

    def __init__(self) -> None:
        self.delay = inf


def test_what_a_subclass_made_of_its_delay_is_the_back_off_where_it_is_none(pumping: Pumping) -> None:
    bench = pumping(Outcomes(Endless(), None))
    bench.post_orders(1)

    bench.run()

    assert [call.delay for call in bench.calls] == [1.0, None]
    assert len(bench.acknowledged) == 1
