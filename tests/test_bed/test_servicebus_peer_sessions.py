"""The sessions of the Service Bus peer: what learn.microsoft.com/azure/service-bus-messaging/message-sessions says."""

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from azure import servicebus as vendor
from azure.servicebus import NEXT_AVAILABLE_SESSION
from azure.servicebus import exceptions as errors
from azure.servicebus.management import ServiceBusAdministrationClient
from test_bed.test_servicebus_peer import make, send, texts

from brokers.servicebus import ServiceBus


@pytest.fixture
def client(servicebus: ServiceBus) -> Iterator[vendor.ServiceBusClient]:
    with vendor.ServiceBusClient.from_connection_string(servicebus.connection_string, retry_total=0) as client:
        yield client


@pytest.fixture
def queue(servicebus: ServiceBus) -> str:
    return make(servicebus, requires_session=True, lock_duration=timedelta(seconds=5))


def next_session(client: vendor.ServiceBusClient, queue: str, wait: float = 10.0) -> vendor.ServiceBusReceiver:
    return client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=wait)


def first(receiver: vendor.ServiceBusReceiver) -> vendor.ServiceBusReceivedMessage:
    (message,) = receiver.receive_messages(1, max_wait_time=10)
    return message


def test_a_message_without_a_session_is_refused(client: vendor.ServiceBusClient, queue: str) -> None:
    with pytest.raises(errors.ServiceBusError, match="SessionId"):
        send(client, queue, "1")


def test_a_message_without_a_session_that_is_forwarded_is_a_dead_letter(
    servicebus: ServiceBus, client: vendor.ServiceBusClient, queue: str
) -> None:
    topic = f"{queue}-topic"
    with admin(servicebus) as manager:
        manager.create_topic(topic)
        manager.create_subscription(topic, "all", forward_to=queue)

    with client.get_topic_sender(topic) as sender:
        sender.send_messages([vendor.ServiceBusMessage("1"), vendor.ServiceBusMessage("2", session_id="a")])

    assert servicebus.command("count", entity=queue)["all"] == 1
    with client.get_subscription_receiver(topic, "all", sub_queue="deadletter") as receiver:
        assert first(receiver).dead_letter_reason == "Session ID is null"


def admin(broker: ServiceBus) -> ServiceBusAdministrationClient:
    from pump.transports.servicebus.entities import Entities
    from pump.transports.servicebus.settings import ServiceBusSettings

    settings = ServiceBusSettings.from_connection_string(broker.connection_string, management_port=broker.admin_port)
    return Entities(settings)._admin()


def test_a_queue_with_sessions_has_no_other_receiver_and_one_without_has_no_sessions(
    servicebus: ServiceBus, client: vendor.ServiceBusClient, queue: str
) -> None:
    with pytest.raises(errors.ServiceBusError, match="requires sessions"), client.get_queue_receiver(queue):
        pass
    with pytest.raises(errors.ServiceBusError, match="without sessions"), next_session(client, make(servicebus)):
        pass


def test_the_next_session_is_that_of_the_oldest_free_message_and_gives_only_its_own_in_order(
    client: vendor.ServiceBusClient, queue: str
) -> None:
    for session in ("a", "b", "a", "b"):
        send(client, queue, session, session_id=session)

    with next_session(client, queue) as one, next_session(client, queue) as two:
        assert (one.session.session_id, two.session.session_id) == ("a", "b")
        assert texts(one.receive_messages(5, max_wait_time=2)) == ["a", "a"]
        assert texts(two.receive_messages(5, max_wait_time=2)) == ["b", "b"]


def test_a_session_that_is_locked_is_nobody_elses_and_what_comes_later_is_its_holders(
    client: vendor.ServiceBusClient, queue: str
) -> None:
    send(client, queue, "1", session_id="a")
    with client.get_queue_receiver(queue, session_id="a") as holder:
        with pytest.raises(errors.SessionCannotBeLockedError), client.get_queue_receiver(queue, session_id="a"):
            pass
        began = time.monotonic()
        with pytest.raises(errors.OperationTimeoutError), next_session(client, queue, wait=0.5):
            pass
        assert 0.3 < time.monotonic() - began < 5.0
        holder.complete_message(first(holder))
        send(client, queue, "2", session_id="a")
        assert str(first(holder)) == "2"


def test_a_session_that_is_closed_counts_no_delivery_and_is_free_at_once(
    client: vendor.ServiceBusClient, queue: str
) -> None:
    send(client, queue, "1", "2", session_id="a")
    for _ in range(3):
        with next_session(client, queue) as receiver:
            assert [each.delivery_count for each in receiver.receive_messages(2, max_wait_time=10)] == [0, 0]


def test_a_session_whose_lock_ends_is_lost_and_its_messages_are_counted(
    servicebus: ServiceBus, client: vendor.ServiceBusClient, queue: str
) -> None:
    send(client, queue, "1", "2", session_id="a")
    with next_session(client, queue) as receiver:
        one, _ = receiver.receive_messages(2, max_wait_time=10)
        servicebus.command("expire", entity=queue)
        with pytest.raises(errors.SessionLockLostError):
            receiver.session.renew_lock()
        with pytest.raises(errors.SessionLockLostError):
            receiver.complete_message(one)
    with next_session(client, queue) as receiver:
        assert [each.delivery_count for each in receiver.receive_messages(2, max_wait_time=10)] == [1, 1]


def test_a_lock_that_is_renewed_is_that_of_all_messages_of_the_session(
    client: vendor.ServiceBusClient, servicebus: ServiceBus
) -> None:
    queue = make(servicebus, requires_session=True, lock_duration=timedelta(seconds=1))
    send(client, queue, "1", session_id="a")
    with next_session(client, queue) as receiver:
        message, before = first(receiver), receiver.session.locked_until_utc
        assert before is not None
        for _ in range(3):
            time.sleep(0.6)
            assert receiver.session.renew_lock() > before
        receiver.complete_message(message)
    assert servicebus.command("count", entity=queue)["all"] == 0


def test_an_abandoned_message_is_the_next_of_its_session(client: vendor.ServiceBusClient, queue: str) -> None:
    send(client, queue, "1", "2", session_id="a")
    with next_session(client, queue) as receiver:
        receiver.abandon_message(first(receiver))
        again = first(receiver)
        assert (str(again), again.delivery_count) == ("1", 1)


def test_a_session_keeps_its_state_until_it_is_taken_away(client: vendor.ServiceBusClient, queue: str) -> None:
    send(client, queue, "1", session_id="a")
    with next_session(client, queue) as receiver:
        assert receiver.session.get_state() is None
        receiver.session.set_state(b"half")
    with next_session(client, queue) as receiver:
        assert receiver.session.get_state() == b"half"
        receiver.session.set_state(None)
        assert receiver.session.get_state() is None


def test_dead_letters_have_no_sessions(client: vendor.ServiceBusClient, queue: str) -> None:
    send(client, queue, "1", session_id="a")
    with next_session(client, queue) as receiver:
        receiver.dead_letter_message(first(receiver), reason="no tea")
    with client.get_queue_receiver(queue, sub_queue="deadletter") as receiver:
        dead: Any = first(receiver)
        assert (dead.session_id, dead.dead_letter_reason) == ("a", "no tea")


@pytest.mark.parametrize("fault", ["detach", "close"])
def test_whoever_loses_the_link_of_a_session_loses_the_session(own_servicebus: ServiceBus, fault: str) -> None:
    queue = make(own_servicebus, requires_session=True)
    with vendor.ServiceBusClient.from_connection_string(own_servicebus.connection_string, retry_total=0) as client:
        send(client, queue, "1", session_id="a")
        with next_session(client, queue) as receiver:
            message = first(receiver)
            own_servicebus.command(fault)
            with pytest.raises((errors.SessionLockLostError, errors.ServiceBusConnectionError)):
                receiver.complete_message(message)
        with next_session(client, queue) as receiver:
            assert first(receiver).delivery_count == 0
