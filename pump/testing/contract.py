"""The promises of every transport, as tests that a transport's author inherits. No vendor is named here.

    class TestMyTransport(TransportContract):
        @pytest.fixture
        def transport(self) -> Transport:
            return MyTransport("mine://localhost")

Each behaviour is tested in both colours, on the channels that pumps use. The tests prove what `capabilities` declares,
and also what it denies.
"""

# ruff: noqa: D102, PLR2004 - a test's name is its sentence, and its numbers are its data

from contextlib import suppress
from dataclasses import replace
from itertools import cycle
from uuid import uuid4

import pytest

from pump.colour import Colour
from pump.errors import PublishError, PumpError, SetupError, TransportError
from pump.message import Header, Message
from pump.subscription import Publication
from pump.testing.child import Holding, holding
from pump.testing.driver import Sample, TransportDriver
from pump.testing.settlement import EVERY_BYTE, UNACCEPTABLE, SettlementContract
from pump.transport_kit.protocol import Transport


@pytest.mark.requirement("P-01")
class TransportContract(SettlementContract):
    """Inherit from it, and write the fixture `transport`. `ContractBase` has all that may be set besides."""

    # -- what travels

    def test_a_message_arrives_as_it_was_sent(self, driver: TransportDriver) -> None:
        channel = self.open(driver)
        headers = {"tenant": "é 日本 \U0001f375", "nothing": "", "trace-id": "a, b; c=d", "x_y": " "}
        header = Header(
            "",
            type="Sample",
            version="2",
            kind="event",
            content_type="application/octet-stream",
            key="ü/1",
            correlation_id="c 1",
            reply_to="replies",
            timestamp=1_700_000_000.125,
            headers=headers,
        )
        sent = self.message(channel, EVERY_BYTE, header)

        driver.send(sent)
        received = self.expect(channel)

        assert received.header == sent.header
        assert received.body == EVERY_BYTE
        assert (received.fault, received.attempts, received.unexplained, received.deliveries) == ("", 0, 0, 1)
        channel.acknowledge(received)

    def test_what_the_sender_did_not_say_is_not_said(self, driver: TransportDriver) -> None:
        channel = self.open(driver)
        for body in (b"", b"\0", "text ü".encode()):
            sent = self.message(channel, body, Header(""))

            driver.send(sent)
            received = self.expect(channel)

            assert (received.header, received.body) == (sent.header, body)
            channel.acknowledge(received)

    def test_a_large_message_arrives_whole(self, driver: TransportDriver) -> None:
        channel = self.open(driver)
        body = bytes(200_000) if driver.capabilities.largest_body is None else bytes(driver.capabilities.largest_body)

        driver.send(self.message(channel, body))
        received = self.expect(channel)

        assert received.body == body
        channel.acknowledge(received)

    @pytest.mark.parametrize("part", ["body", "headers"])
    def test_a_message_that_is_too_large_is_refused_and_nothing_else_is(
        self, driver: TransportDriver, part: str
    ) -> None:
        limit = driver.capabilities.largest_body if part == "body" else driver.capabilities.largest_headers
        if limit is None:
            pytest.skip(f"there is no limit to the {part}")
        channel = self.open_with(driver, "before")
        body, headers = (bytes(limit + 1), {}) if part == "body" else (b"", {"x": "y" * limit})

        with pytest.raises(PublishError) as refused:
            driver.send(self.message(channel, body, Header("", headers=headers)))

        assert (refused.value.sent, refused.value.retriable) == (False, False)
        self.send(driver, channel, "after")
        self.expect_bodies(channel, "before", "after")
        self.expect_nothing(channel)

    def test_what_cannot_be_parsed_arrives_whole_and_can_be_given_up(
        self, driver: TransportDriver, transport: Transport
    ) -> None:
        channel, dead_letters = self.open_both(driver)
        body = self.send_unparseable(transport, channel.subscription.topic)

        received = self.expect(channel)
        assert received.fault
        assert received.identity
        assert received.body == body
        channel.reject(received, replace(UNACCEPTABLE, description=received.fault))

        dead = self.expect(dead_letters)
        assert dead.body == body
        assert dead.header.headers["pump-reason"] == "Unreadable"
        dead_letters.acknowledge(dead)
        self.expect_nothing(channel)

    def test_two_messages_of_one_id_are_two_where_the_transport_tells_them_apart(self, driver: TransportDriver) -> None:
        channel = self.open(driver)
        first = self.message(channel, b"1")
        second = Message(first.header, b"2")

        driver.send(first)
        driver.send(second)
        received = [self.expect(channel)]
        again = channel.receive(self.silence_seconds)  # a broker that removes duplicates has removed it
        if again is not None:
            received.append(again)

        assert [each.id for each in received] == [first.id] * len(received)
        identities = {each.identity for each in received}
        assert len(identities) == (len(received) if driver.capabilities.tells_apart else 1)
        for each in received:
            channel.acknowledge(each)

    # -- to whom it goes

    def test_every_channel_of_a_topic_gets_a_message_and_no_other_does(self, driver: TransportDriver) -> None:
        first = self.open(driver)
        second = self.open(driver, self.subscription(first.subscription.topic))
        other = self.open(driver)

        self.send(driver, first, "1", "2")

        self.expect_bodies(second, "1", "2")
        self.expect_bodies(first, "1", "2")
        self.expect_nothing(other)

    def test_consumers_of_one_channel_share_its_messages(self, driver: TransportDriver) -> None:
        first = self.open(driver)
        second = driver.open(first.subscription)
        sent = sorted(str(number) for number in range(12))
        self.send(driver, first, *sent)

        received: list[str] = []
        deadline = driver.clock.monotonic() + self.arrives_within_seconds
        for channel in cycle((first, second)):
            message = channel.receive(self.silence_seconds / 10)
            if message is not None:
                channel.acknowledge(message)
                received.append(message.body.decode())
            if len(received) >= len(sent) or driver.clock.monotonic() > deadline:
                break

        assert sorted(received) == sent
        self.expect_nothing(first, second)

    def test_as_many_messages_as_may_be_in_hand_arrive_before_one_is_settled(self, driver: TransportDriver) -> None:
        channel = self.open(driver, replace(self.subscription(), in_flight=20, ordered=False))
        for each in range(20):
            driver.send(self.message(channel, b"%d" % each, Header("", type="Sample", key=f"k{each}")))

        in_hand = [self.expect(channel) for _ in range(20)]

        assert sorted(int(message.body) for message in in_hand) == list(range(20))
        for message in in_hand:
            channel.acknowledge(message)

    @pytest.mark.requirement("B-33")
    def test_consumers_of_an_ordered_channel_keep_the_order_of_a_key_where_the_transport_shards(
        self, driver: TransportDriver
    ) -> None:
        self.skip_if(not driver.capabilities.shards_by_key, "each of several consumers may have messages of any key")
        first = self.open(driver, replace(self.subscription(), ordered=True))
        second = driver.open(first.subscription)
        self.expect_nothing(first, second)
        self.send(driver, first, "1", "2", "3")
        in_hand, holder, other = self.expect_on_either(driver, first, second)
        assert in_hand.body == b"1"

        behind = other.receive(self.silence_seconds)

        assert behind is None
        holder.acknowledge(in_hand)
        for body in (b"2", b"3"):
            message, has_it, _ = self.expect_on_either(driver, first, second)
            assert message.body == body
            has_it.acknowledge(message)

    def test_messages_of_a_key_arrive_in_order(self, driver: TransportDriver) -> None:
        channel = self.open(driver)
        bodies = [str(number) for number in range(20)]

        self.send(driver, channel, *bodies[:10])
        self.send(driver, channel, *bodies[10:])

        self.expect_bodies(channel, *bodies)

    def test_an_empty_receive_waits_where_the_transport_can(self, driver: TransportDriver) -> None:
        channel = self.open(driver)
        channel.receive_once(0.0)
        began = driver.clock.monotonic()

        assert channel.receive_once(self.delay_seconds) is None

        waited = driver.clock.monotonic() - began
        if driver.capabilities.waits:
            assert waited >= self.delay_seconds - self.early_seconds
        else:
            assert waited < self.delay_seconds - self.early_seconds
        assert waited <= self.delay_seconds + self.late_seconds

    # -- posting for later

    def test_a_message_may_be_posted_for_later_where_the_transport_can(self, driver: TransportDriver) -> None:
        channel = self.open(driver)
        posted = driver.clock.monotonic()

        if driver.capabilities.delayed_publish:
            driver.send(self.message(channel, b"1"), delay=self.delay_seconds)
            message = self.expect(channel)
            self.assert_on_time(driver, posted)
            assert message.body == b"1"
            channel.acknowledge(message)
        else:
            with pytest.raises(PublishError) as refused:
                driver.send(self.message(channel, b"1"), delay=self.delay_seconds)
            assert (refused.value.sent, refused.value.retriable) == (False, False)
        self.expect_nothing(channel)

    # -- channels

    def test_a_purge_empties_the_channel_where_the_transport_can(self, driver: TransportDriver) -> None:
        channel = self.open_with(driver, "1", "2", "3")

        if driver.capabilities.purges:
            assert channel.purge() == 3
            self.expect_nothing(channel)
        else:
            with pytest.raises(PumpError):
                channel.purge()
            self.expect_bodies(channel, "1", "2", "3")
        self.send(driver, channel, "4")
        self.expect_bodies(channel, "4")

    def test_a_missing_channel_is_named_when_it_is_validated(self, driver: TransportDriver) -> None:
        subscription = replace(self.subscription(), missing="validate")

        with pytest.raises(SetupError) as refused:
            driver.prepare(subscription)

        assert subscription.channel in str(refused.value)
        self.open(driver, replace(subscription, missing="create"))
        driver.prepare(subscription)

    def test_a_missing_topic_is_named_when_its_publication_is_validated(self, driver: TransportDriver) -> None:
        publication = Publication(Sample, topic=self.unique_name(), missing="validate")

        with pytest.raises(SetupError) as refused:
            driver.prepare(publications=(publication,))

        assert publication.topic in str(refused.value)

    def test_without_a_topic_what_is_posted_meets_what_is_subscribed(self, driver: TransportDriver) -> None:
        request = type("Renamed", (Sample,), {"wire_type": self.unique_name()})
        subscription = replace(self.subscription(), request=request, topic="")
        publication = Publication(request)
        driver.prepare(subscription, publications=(publication,))
        channel = driver.open(subscription)

        driver.send(Message(Header(uuid4().hex, publication.destination, publication.destination), b"1"))

        self.expect_bodies(channel, "1")

    def test_a_missing_channel_is_an_outage_when_it_was_assumed(self, driver: TransportDriver) -> None:
        subscription = replace(self.subscription(), missing="assume")
        driver.prepare(subscription)
        channel = driver.open(subscription)

        if not self.makes_channels_on_use:
            with pytest.raises(TransportError):
                channel.receive_once(self.silence_seconds)
        self.open(driver, replace(subscription, missing="create"))
        self.send(driver, channel, "1")
        message = channel.receive(self.recovers_within_seconds, in_spite_of_errors=True)
        assert message is not None
        channel.acknowledge(message)

    # -- handing back

    def test_one_message_goes_back_alone_or_all_of_its_consumer_do(self, driver: TransportDriver) -> None:
        self.skip_if(self.ordered, "in order, the second may come when the first is settled")
        subscription = self.subscription()
        channel = self.open(driver, subscription)
        self.send(driver, channel, "1", "2")
        channel.close()
        first = driver.consumer(replace(subscription, in_flight=2))
        received = list(first.receive(2, self.arrives_within_seconds))
        if len(received) < 2:
            received += first.receive(1, self.arrives_within_seconds)
        assert [each.body for each in received] == [b"1", b"2"]

        first.hand_back(received[1])
        with suppress(PumpError):
            first.acknowledge(received[0])
        first.close()

        back = [b"2"] if driver.capabilities.hands_back == "each" else [b"1", b"2"]
        self.expect_bodies(driver.open(subscription), *(body.decode() for body in back))

    def test_what_nobody_has_begun_goes_back_at_a_pause_while_another_is_in_hand(self, driver: TransportDriver) -> None:
        can = driver.capabilities
        alone = can.nack == "releases" and can.hands_back == "each" and can.blocks != "partition"
        self.skip_if(not alone or self.ordered, "what is behind a message in hand stays with it")
        channel = self.open(driver)
        second = driver.open(channel.subscription)
        self.fetch_ahead(driver, channel)
        self.send(driver, channel, "1", "2", "3")
        in_hand = self.expect(channel)

        channel.pause()
        assert channel.receive(self.silence_seconds) is None

        self.expect_bodies(second, "2", "3")
        channel.acknowledge(in_hand)
        self.expect_nothing(second)

    # -- when it stops or breaks

    def test_a_stop_ends_a_receive_that_waits(self, driver: TransportDriver) -> None:
        channel = self.open(driver)
        self.expect_nothing(channel)
        waiting = driver.begin(lambda: channel.receive_once(60.0))

        channel.stop()

        assert waiting.result(self.wakes_within_seconds) is None
        self.send(driver, channel, "1")
        channel.close()
        second = driver.open(channel.subscription)
        assert self.expect(second, self.lease_seconds + self.arrives_within_seconds).body == b"1"

    def test_a_closing_channel_hands_back_in_order_what_it_had_fetched_ahead(self, driver: TransportDriver) -> None:
        channel = self.open(driver)
        self.fetch_ahead(driver, channel)
        self.send(driver, channel, "1", "2", "3", "4", "5")
        self.expect_bodies(channel, "1")

        channel.close()

        self.expect_bodies(driver.open(channel.subscription), "2", "3", "4", "5")

    def test_after_a_broken_connection_everything_unsettled_comes_again(
        self, driver: TransportDriver, transport: Transport
    ) -> None:
        channel = self.open(driver)
        self.fetch_ahead(driver, channel)
        self.send(driver, channel, "1", "2", "3")
        first = self.expect(channel)

        self.break_connection(transport)
        channel.receive(self.silence_seconds, in_spite_of_errors=True)
        missing = {"2", "3"}
        try:
            channel.acknowledge(first)
        except PumpError:
            missing.add("1")
        while missing:
            message = channel.receive(self.recovers_within_seconds, in_spite_of_errors=True)
            assert message is not None, f"{missing} did not come again"
            channel.acknowledge(message)
            missing.discard(message.body.decode())
        self.send(driver, channel, "4")
        last = channel.receive(self.recovers_within_seconds, in_spite_of_errors=True)
        assert last is not None
        assert last.body == b"4"
        channel.acknowledge(last)

    def test_what_a_killed_process_had_in_hand_comes_again(
        self, driver: TransportDriver, transport: Transport, colour: Colour
    ) -> None:
        make, subscription = self.in_another_process(transport), self.subscription()
        channel = self.open(driver, subscription)
        missing = {b"1", b"2", b"3", b"4", b"5"}
        driver.send(*(self.message(channel, body, Header("", type="Sample")) for body in sorted(missing)))

        if driver.capabilities.between_processes:
            messages = 1 if self.ordered else 3  # in order, the second begins when the first is settled
            with holding(Holding.of(make, colour, subscription, messages)):
                pass
        else:
            with holding(Holding.of(make, colour, subscription, messages=0)):
                self.expect_bodies(channel, *(body.decode() for body in sorted(missing)))
            missing.clear()

        while missing:
            message = channel.receive(self.recovers_within_seconds, in_spite_of_errors=True)
            assert message is not None, f"{missing} did not come again"
            channel.acknowledge(message)
            missing.remove(message.body)
        self.expect_nothing_left(driver, channel)

    def test_messages_outlive_the_broker_where_they_are_durable(
        self, driver: TransportDriver, transport: Transport
    ) -> None:
        channel = self.open_with(driver, "1", "2")

        self.restart_broker(transport)

        if not driver.capabilities.durable:
            assert channel.receive(self.silence_seconds, in_spite_of_errors=True) is None
            return
        for body in (b"1", b"2"):
            message = channel.receive(self.recovers_within_seconds, in_spite_of_errors=True)
            assert message is not None
            assert message.body == body
            channel.acknowledge(message)
