"""What is acknowledged, and by how many frames."""

from hypothesis import given
from hypothesis import strategies as st

from pump.transports.rabbitmq.deliveries import AckFrame, AckFrames


def test_a_contiguous_prefix_is_one_frame() -> None:
    assert AckFrames().frames([1, 2, 3]) == [AckFrame(3, multiple=True)]


def test_one_delivery_is_acknowledged_alone() -> None:
    acks = AckFrames()

    assert acks.frames([1]) == [AckFrame(1, multiple=False)]
    assert acks.frames([2]) == [AckFrame(2, multiple=False)]


def test_what_is_behind_a_gap_is_acknowledged_alone_and_only_once() -> None:
    acks = AckFrames()

    assert acks.frames([2, 4]) == [AckFrame(2, multiple=False), AckFrame(4, multiple=False)]
    assert acks.frames([1, 3]) == [AckFrame(3, multiple=True)]


def test_the_frame_names_no_delivery_that_the_broker_has_forgotten() -> None:
    acks = AckFrames()
    acks.frames([3])
    acks.settle(4)

    assert acks.frames([1, 2]) == [AckFrame(2, multiple=True)]


class Broker:
    """Treats acknowledgements as RabbitMQ does: it closes the channel because of a tag that it does not know."""

    def __init__(self, deliveries: int) -> None:
        self.unsettled = set(range(1, deliveries + 1))

    def take(self, frame: AckFrame) -> set[int]:
        assert frame.tag in self.unsettled
        taken = {tag for tag in self.unsettled if tag < frame.tag} if frame.multiple else set()
        taken.add(frame.tag)
        self.unsettled -= taken
        return taken


@given(st.permutations(range(1, 13)), st.data())
def test_whatever_the_order_exactly_what_is_asked_for_is_acknowledged(order: list[int], data: st.DataObject) -> None:
    acks, broker = AckFrames(), Broker(len(order))
    while order:
        if data.draw(st.booleans()):
            tag = order.pop()
            broker.unsettled.discard(tag)  # a nack
            acks.settle(tag)
            continue
        size = data.draw(st.integers(1, len(order)))
        asked, order = order[:size], order[size:]

        taken = [broker.take(frame) for frame in acks.frames(asked)]

        assert set().union(*taken) == set(asked)
        assert sum(map(len, taken)) == len(asked)
