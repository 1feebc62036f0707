"""No permit of a stream is ever lost, and no more messages are here than there are permits for."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pump.transports.pubsub.permits import PubSubPermits

MOST = 8


class Streams(RuleBasedStateMachine):
    """A consumer and a service. The service counts for each stream what it has sent and what of that is settled."""

    def __init__(self) -> None:
        super().__init__()
        self.permits = PubSubPermits(MOST)
        self.share = 0
        """What the service may have outstanding on the present stream; 0 if there is none."""
        self.of_the_stream = 0
        """Messages of the present stream that are here."""
        self.of_earlier_ones = 0

    @property
    def here(self) -> int:
        return self.of_the_stream + self.of_earlier_ones

    @precondition(lambda self: self.share == 0)
    @rule()
    def opens(self) -> None:
        self.share = self.permits.open(self.here)
        self.of_earlier_ones, self.of_the_stream = self.here, 0

    @precondition(lambda self: self.share > self.of_the_stream)
    @rule(data=st.data())
    def sends(self, data: st.DataObject) -> None:
        self.of_the_stream += data.draw(st.integers(1, self.share - self.of_the_stream))

    @precondition(lambda self: self.of_the_stream)
    @rule()
    def settles(self) -> None:
        self.of_the_stream -= 1

    @precondition(lambda self: self.of_earlier_ones)
    @rule()
    def settles_an_earlier_one(self) -> None:
        self.of_earlier_ones -= 1

    @precondition(lambda self: self.share)
    @rule()
    def breaks(self) -> None:
        self.permits.closed()
        self.share = 0

    @precondition(lambda self: self.permits.should_replace(self.here))
    @rule()
    def is_replaced(self) -> None:
        before = self.share
        self.breaks()
        self.opens()
        assert self.share > before, "else it would be replaced for ever"

    @invariant()
    def no_more_is_here_than_may_be(self) -> None:
        assert self.of_earlier_ones + max(self.share, self.of_the_stream) <= MOST

    @invariant()
    def no_permit_is_lost(self) -> None:
        """Once everything is settled, a stream has them all, or is replaced by one that has."""
        if self.here == 0 and self.share:
            assert self.share == MOST or self.permits.should_replace(0)

    @invariant()
    def at_least_half_of_what_is_free_may_come(self) -> None:
        free = MOST - self.here
        if self.share and free:
            assert 2 * self.share > free or self.permits.should_replace(self.here)


TestStreams = Streams.TestCase
