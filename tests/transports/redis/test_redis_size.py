"""A body that is larger than this program's limit, sent by a program with a higher limit."""

from collections.abc import Callable
from dataclasses import replace

from pump.program.dispatcher import Dispatcher
from support.pumps import Order
from support.redis_bench import RedisBench
from support.waiting import eventually


def test_a_body_that_is_larger_than_taken_is_a_dead_letter(
    bench: RedisBench, running: Callable[[Dispatcher], Dispatcher]
) -> None:
    handled: list[Order] = []

    def handle(order: Order) -> None:
        handled.append(order)

    bench.prepare()
    bench.post('{"number":1}'.ljust(2000), '{"number":2}', type="Order")
    subscription = replace(bench.rules(), request=Order)
    running(Dispatcher(bench.transport(largest_body=1000), handlers=[handle], subscriptions=[subscription]))

    eventually(lambda: handled and bench.depth(bench.dead_letter) == 1 and bench.in_hand == 0)
    assert handled == [Order(2)]
