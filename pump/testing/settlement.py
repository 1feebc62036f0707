"""The second part of the contract: the meaning of acknowledge, nack, requeue and reject on every transport."""

# ruff: noqa: D102, PLR2004 - a test's name is its sentence, and its numbers are its data

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import pytest

from pump.dead_letter import PROVENANCE, Rejection, dead_letter
from pump.errors import LeaseLost, PumpError
from pump.message import Header, Message
from pump.testing.driver import ChannelDriver, ContractBase, TransportDriver

EVERY_BYTE: Final = bytes(range(256))
GIVEN_UP: Final = Rejection(
    "delivery error",
    "OutOfTea",
    "described with an ü",
    error=ValueError("no tea left"),
    handler="PlaceOrderHandler",
    attempts=3,
    first_failure=1_700_000_000.25,
    last_failure=1_700_000_060.5,
)
UNACCEPTABLE: Final = replace(GIVEN_UP, kind="unacceptable", reason="Unreadable")

RELEASES: Final = 3
"""How often a released message may come too late, before that counts: a busy machine is late at times."""

SETTLEMENTS: Final[dict[str, Callable[[ChannelDriver, Message], None]]] = {
    "acknowledge": ChannelDriver.acknowledge,
    "nack": ChannelDriver.nack,
    "requeue": ChannelDriver.requeue,
    "reject": lambda channel, message: channel.reject(message, GIVEN_UP),
}


class Unprintable:
    """Something that cannot be shown as text."""

    def __str__(self) -> str:
        raise ValueError("no text")


class UnprintableError(Exception):
    """An error that cannot be shown as text."""

    __str__ = Unprintable.__str__


class SettlementContract(ContractBase):
    """A part of TransportContract; inherit from that."""

    # -- acknowledging and leaving

    def test_an_acknowledged_message_never_comes_again(self, driver: TransportDriver) -> None:
        channel = self.open_with(driver, "1")

        self.expect_bodies(channel, "1")

        self.expect_nothing_left(driver, channel)

    def test_what_was_not_settled_when_its_channel_closed_comes_again(self, driver: TransportDriver) -> None:
        channel = self.open_with(driver, "1")
        received = self.expect(channel)

        channel.close()
        with pytest.raises(PumpError):
            channel.acknowledge(received)

        second = driver.open(channel.subscription)
        again = self.expect(second, self.lease_seconds + self.arrives_within_seconds)
        assert (again.header, again.body, again.identity) == (received.header, received.body, received.identity)
        assert again.deliveries == (2 if driver.capabilities.counts_deliveries else 1)
        second.acknowledge(again)
        self.expect_nothing(second)

    @pytest.mark.requirement("B-21", "B-25")
    def test_a_nacked_message_comes_again_itself_as_often_as_it_is_nacked(self, driver: TransportDriver) -> None:
        channel, dead_letters = self.open_both(driver, "1")

        first = message = self.expect(channel)
        # A held message is not delivered again.
        rises = driver.capabilities.counts_deliveries and not self.nack_holds(driver)
        for delivery in range(2, 7):
            channel.nack(message)
            message = self.expect(channel)
            assert (message.header, message.body, message.identity) == (first.header, b"1", first.identity)
            assert message.deliveries == (delivery if rises else 1)
            assert message.attempts == 0

        channel.acknowledge(message)
        self.expect_nothing(dead_letters)
        self.expect_nothing_left(driver, channel)

    @pytest.mark.requirement("B-08", "B-24")
    def test_a_released_message_is_anothers_at_once(self, driver: TransportDriver) -> None:
        self.skip_if(self.nack_holds(driver), "nack holds")
        channel = self.open(driver)
        second = driver.open(channel.subscription)
        self.expect_nothing(second)
        took = [self.released_to(driver, channel, second)]
        while took[-1] > self.released_within_seconds and len(took) < RELEASES:
            took.append(self.released_to(driver, channel, second))

        assert min(took) <= self.released_within_seconds, f"it took {took} s"
        self.expect_nothing(channel, second)

    def test_a_held_message_is_presented_here_after_the_delay_and_to_nobody_else(self, driver: TransportDriver) -> None:
        self.skip_if(not self.nack_holds(driver), "nack releases")
        channel = self.open(driver)
        second = driver.open(channel.subscription)
        self.send(driver, channel, "1")
        received = self.expect(channel)
        held = driver.clock.monotonic()

        channel.nack(received, self.delay_seconds)
        assert second.receive(self.delay_seconds / 2) is None
        again = self.expect(channel)

        self.assert_on_time(driver, held)
        assert again.id == received.id
        channel.acknowledge(again)
        self.expect_nothing(channel, second)

    @pytest.mark.requirement("B-33")
    def test_nothing_passes_a_nacked_message_where_nacking_blocks(self, driver: TransportDriver) -> None:
        self.skip_if(driver.capabilities.blocks == "nothing" and not self.ordered, "nacking blocks nothing")
        channel = self.open(driver)
        self.fetch_ahead(driver, channel)
        self.send(driver, channel, "1", "2", "3")

        for _ in range(4):
            message = self.expect(channel)
            assert message.body == b"1"
            channel.nack(message)

        self.expect_bodies(channel, "1", "2", "3")
        self.expect_nothing(channel)

    def test_a_nacked_message_holds_up_no_other_where_nacking_does_not_block(self, driver: TransportDriver) -> None:
        self.skip_if(driver.capabilities.blocks != "nothing" or self.ordered, "nacking blocks")
        channel = self.open(driver)
        driver.send(*(self.message(channel, body, Header("")) for body in (b"1", b"2", b"3")))

        nacked = self.expect(channel)
        channel.nack(nacked, self.delay_seconds)
        bodies = [nacked.body]
        while len(bodies) < 4:
            message = self.expect(channel)
            bodies.append(message.body)
            channel.acknowledge(message)

        assert sorted(bodies[1:]) == [b"1", b"2", b"3"]
        assert driver.capabilities.nack == "releases" or bodies[-1] == nacked.body
        self.expect_nothing(channel)

    @pytest.mark.requirement("B-33")
    def test_a_nacked_message_blocks_its_partition_or_the_whole_channel(self, driver: TransportDriver) -> None:
        blocks = driver.capabilities.blocks
        self.skip_if(blocks == "nothing" or self.ordered, "nacking blocks nothing, or order is kept")
        channel = self.open(driver)
        self.fetch_ahead(driver, channel)
        bodies = [b"%d" % number for number in range(10, 30)]
        for body in bodies:  # of their keys two, at least, are not of one partition
            key = body.decode() if blocks == "partition" else None
            driver.send(self.message(channel, body, Header("", type="Sample", key=key)))
        nacked = self.expect(channel)

        channel.nack(nacked, self.delay_seconds)
        done = [self.acknowledged(channel) for _ in bodies]

        assert sorted(done) == bodies
        if blocks == "partition":
            assert done[0] != nacked.body
        else:
            assert done[0] == nacked.body
        self.expect_nothing(channel)

    # -- deferring

    @pytest.mark.parametrize("later", [False, True])
    @pytest.mark.requirement("P-05")
    def test_a_requeued_message_comes_again_here_alone_when_it_is_due(
        self, driver: TransportDriver, *, later: bool
    ) -> None:
        channel, dead_letters = self.open_both(driver)
        other = self.open(driver, self.subscription(channel.subscription.topic))
        self.send(driver, channel, "1")
        self.expect_bodies(other, "1")
        first = self.expect(channel)
        requeued = driver.clock.monotonic()

        channel.requeue(first, self.delay_seconds if later else 0.0, attempts=1)
        again = self.expect(channel)

        self.assert_on_time(driver, requeued, self.delay_seconds if later else 0.0)
        assert (again.id, again.identity, again.body) == (first.id, first.identity, b"1")
        assert again.header.topic == first.header.topic
        assert again.attempts == int(driver.capabilities.carries_attempts or self.requeue(driver) == "hold")
        rises = driver.capabilities.counts_deliveries and self.requeue(driver) == "same"
        assert again.deliveries == (2 if rises else 1)
        channel.acknowledge(again)
        self.expect_nothing(other, dead_letters)
        self.expect_nothing_left(driver, channel)

    @pytest.mark.requirement("P-05")
    def test_a_requeued_message_outlives_its_consumer(self, driver: TransportDriver) -> None:
        channel = self.open_with(driver, "1")
        channel.requeue(self.expect(channel), self.delay_seconds, attempts=2)

        channel.close()

        second = driver.open(channel.subscription)
        again = self.expect(second, self.delay_seconds + self.lease_seconds + self.arrives_within_seconds)
        assert again.body == b"1"
        keeps = driver.capabilities.keeps_held_attempts if self.ordered else driver.capabilities.carries_attempts
        assert again.attempts == (2 if keeps else 0)
        second.acknowledge(again)
        self.expect_nothing(second)

    @pytest.mark.requirement("P-04")
    def test_a_held_message_goes_back_to_its_place_with_its_attempts_where_the_transport_keeps_them(
        self, driver: TransportDriver
    ) -> None:
        channel = self.open(driver, replace(self.subscription(), ordered=True))
        self.fetch_ahead(driver, channel)
        self.send(driver, channel, "1", "2", "3")
        channel.requeue(self.expect(channel), self.delay_seconds, attempts=2)  # held: order is kept

        channel.close()

        second = driver.open(channel.subscription)
        again = self.expect(second, self.lease_seconds + self.arrives_within_seconds)
        assert again.body == b"1"
        if driver.capabilities.keeps_held_attempts:
            assert (again.attempts, again.unexplained) == (2, 0)
        else:
            assert again.attempts == 0
        second.acknowledge(again)
        self.expect_bodies(second, "2", "3")
        self.expect_nothing_left(driver, second)

    def test_a_message_that_comes_later_lets_others_pass(self, driver: TransportDriver) -> None:
        self.skip_if(self.requeue(driver) == "hold", "what comes later is held here")
        channel = self.open_with(driver, "1", "2")

        channel.requeue(self.expect(channel), self.delay_seconds)

        self.expect_bodies(channel, "2", "1")

    def test_a_message_that_comes_later_keeps_back_those_behind_it_where_order_is_kept(
        self, driver: TransportDriver
    ) -> None:
        channel = self.open(driver, replace(self.subscription(), ordered=True))
        self.send(driver, channel, "1", "2")

        channel.requeue(self.expect(channel), self.delay_seconds)

        self.expect_bodies(channel, "1", "2")

    # -- giving up

    def test_a_rejected_message_is_a_dead_letter_that_says_where_it_comes_from(self, driver: TransportDriver) -> None:
        channel, dead_letters = self.open_both(driver)
        sent = self.message(channel, EVERY_BYTE, Header("", type="Sample", headers={"tenant": "t"}))
        driver.send(sent)
        rejected = self.expect(channel)

        channel.reject(rejected, GIVEN_UP)
        dead = self.expect(dead_letters)

        assert (dead.id, dead.header.type, dead.body) == (sent.id, "Sample", EVERY_BYTE)
        assert (dead.attempts, dead.deliveries) == (0, 1)
        assert dead.header.headers == dead_letter(rejected, GIVEN_UP).headers
        assert dead.header.headers["pump-attempts"] == "3"
        assert dead.header.headers["pump-origin"] == channel.subscription.channel
        assert set(PROVENANCE) - set(dead.header.headers) <= {"pump-position"}
        dead_letters.acknowledge(dead)
        self.expect_nothing(dead_letters)
        self.expect_nothing_left(driver, channel)

    def test_a_dead_letter_fits_however_much_there_is_to_say(self, driver: TransportDriver) -> None:
        channel, dead_letters = self.open_both(driver, "1")
        text = "ü" * 200_000

        channel.reject(self.expect(channel), replace(GIVEN_UP, description=text, error=ValueError(text)))

        dead = self.expect(dead_letters)
        assert (dead.body, dead.header.headers["pump-reason"]) == (b"1", "OutOfTea")
        dead_letters.acknowledge(dead)
        self.expect_nothing(channel)

    @pytest.mark.parametrize("text", [None, Unprintable(), "\ud800\0\r\n"], ids=["nothing", "unprintable", "odd"])
    def test_a_dead_letter_can_be_made_of_anything(self, driver: TransportDriver, text: object) -> None:
        channel, dead_letters = self.open_both(driver, "1")
        said: Any = text

        rejection = Rejection("delivery error", said or "given up", said, UnprintableError(said), said)
        channel.reject(self.expect(channel), rejection)

        dead = self.expect(dead_letters)
        assert dead.body == b"1"
        assert dead.header.headers["pump-reason"]
        assert dead.header.headers["pump-exception"].endswith(".UnprintableError")
        dead_letters.acknowledge(dead)
        self.expect_nothing_left(driver, channel)

    def test_the_attempts_of_a_dead_letter_are_told_and_begin_again(self, driver: TransportDriver) -> None:
        channel, dead_letters = self.open_both(driver, "1")
        channel.reject(self.expect(channel), GIVEN_UP)

        dead = self.expect(dead_letters)
        assert (dead.header.headers["pump-attempts"], dead.attempts) == ("3", 0)
        dead_letters.requeue(dead, 0.0, attempts=1)
        again = self.expect(dead_letters)

        assert again.header.headers["pump-attempts"] == "3"
        assert again.attempts == int(driver.capabilities.carries_attempts or driver.capabilities.requeue == "hold")
        dead_letters.acknowledge(again)
        self.expect_nothing(channel, dead_letters)

    def test_an_unacceptable_message_goes_to_the_invalid_channel(self, driver: TransportDriver) -> None:
        subscription = replace(self.subscription(), invalid=f"{self.unique_name()}-invalid")
        channel = self.open(driver, subscription)
        dead_letters = self.open_dead_letters(driver, channel)
        invalid = self.open(driver, self.dead_letter_subscription(subscription.invalid or ""))
        self.send(driver, channel, "1", "2")

        channel.reject(self.expect(channel), UNACCEPTABLE)
        channel.reject(self.expect(channel), GIVEN_UP)

        self.expect_bodies(invalid, "1")
        self.expect_bodies(dead_letters, "2")
        self.expect_nothing(dead_letters, invalid)
        self.expect_nothing_left(driver, channel)

    def test_an_unacceptable_message_is_a_dead_letter_where_there_is_no_invalid_channel(
        self, driver: TransportDriver
    ) -> None:
        channel, dead_letters = self.open_both(driver, "1")

        channel.reject(self.expect(channel), UNACCEPTABLE)

        self.expect_bodies(dead_letters, "1")
        self.expect_nothing(channel)

    def test_what_is_rejected_without_dead_letters_is_gone_and_logged(
        self, driver: TransportDriver, caplog: pytest.LogCaptureFixture
    ) -> None:
        channel = self.open(driver, replace(self.subscription(), dead_letter=None))
        self.send(driver, channel, "1")
        rejected = self.expect(channel)

        channel.reject(rejected, GIVEN_UP)

        self.expect_nothing_left(driver, channel)
        assert [each for each in caplog.records if each.levelname == "ERROR" and rejected.id in each.getMessage()]

    # -- settling at the wrong time

    @pytest.mark.parametrize("second", SETTLEMENTS)
    def test_a_second_settlement_has_no_effect(self, driver: TransportDriver, second: str) -> None:
        reaches = {"nack": driver.capabilities.nack, "requeue": self.requeue(driver)}
        self.skip_if("hold" in reaches.get(second, ""), f"{second} does not reach the transport")
        channel, dead_letters = self.open_both(driver, "1")
        message = self.expect(channel)
        channel.acknowledge(message)

        with suppress(LeaseLost):
            SETTLEMENTS[second](channel, message)

        self.expect_nothing(dead_letters)
        self.expect_nothing_left(driver, channel)

    @pytest.mark.requirement("P-03")
    def test_a_lapsed_lease_gives_the_message_to_another_and_the_late_settlement_to_nobody(
        self, driver: TransportDriver
    ) -> None:
        first, second = self.open_leased(driver)
        self.send(driver, first, "1")
        late = self.expect(first)

        again = self.expect(second, self.lease_seconds + self.arrives_within_seconds)
        for settle in SETTLEMENTS.values():
            with pytest.raises(LeaseLost):
                settle(first, late)

        assert again.id == late.id
        assert again.deliveries == (2 if driver.capabilities.counts_deliveries else 1)
        second.acknowledge(again)
        self.expect_nothing(first, second)

    @pytest.mark.requirement("P-03")
    def test_an_extended_lease_lasts(self, driver: TransportDriver) -> None:
        first, second = self.open_leased(driver)
        self.send(driver, first, "1")
        message = self.expect(first)

        for _ in range(5):
            assert second.receive(self.lease_seconds / 2) is None
            first.extend(message)

        first.acknowledge(message)
        self.expect_nothing(first, second)

    @pytest.mark.requirement("P-03")
    def test_a_channel_keeps_the_lease_of_what_is_in_hand(self, driver: TransportDriver) -> None:
        first, second = self.open_leased(driver, renew=True)
        self.send(driver, first, "1")
        message = self.expect(first)

        for _ in range(50):
            assert second.receive(self.lease_seconds / 10) is None
            assert driver.soon(lambda: self.lease_left(driver, message) > self.lease_seconds / 5)

        first.acknowledge(message)
        self.expect_nothing(first, second)

    def test_without_leases_a_message_is_its_consumers_until_it_is_settled(self, driver: TransportDriver) -> None:
        self.skip_if(driver.capabilities.leases, "there are leases")
        channel = self.open(driver)
        second = driver.open(channel.subscription)
        self.send(driver, channel, "1")
        message = self.expect(channel)

        assert message.lease_expires is None
        assert second.receive(2 * self.lease_seconds) is None
        channel.acknowledge(message)
        self.expect_nothing(channel, second)

    # -- tools

    def released_to(self, driver: TransportDriver, channel: ChannelDriver, second: ChannelDriver) -> float:
        """Nack a new message, and return after how many seconds the other consumer has it."""
        self.send(driver, channel, "1")
        received = self.expect(channel)
        released = driver.clock.monotonic()
        channel.nack(received, self.delay_seconds)
        again = self.expect(second)
        took = driver.clock.monotonic() - released
        assert again.id == received.id
        second.acknowledge(again)
        return took

    def acknowledged(self, channel: ChannelDriver) -> bytes:
        """The body of the next message, which is acknowledged."""
        message = self.expect(channel)
        channel.acknowledge(message)
        return message.body

    def open_leased(self, driver: TransportDriver, *, renew: bool = False) -> tuple[ChannelDriver, ChannelDriver]:
        """Two channels of one subscription with a short lease, where there are leases."""
        self.skip_if(not driver.capabilities.leases, "there are no leases")
        subscription = replace(self.subscription(), renew_lease=renew)
        return self.open(driver, subscription), driver.open(subscription)

    def nack_holds(self, driver: TransportDriver) -> bool:
        """Whether a nacked message stays with its consumer."""
        can = driver.capabilities
        return can.nack == "holds" or (self.ordered and not can.nack_keeps_place)

    def lease_left(self, driver: TransportDriver, message: Message) -> float:
        """How long the lease still lasts."""
        assert message.lease_expires is not None
        return message.lease_expires - driver.clock.monotonic()
