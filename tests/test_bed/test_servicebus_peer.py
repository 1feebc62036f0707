"""The Service Bus peer does what the vendor's documentation says, seen through the vendor's own client."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from azure import servicebus as vendor
from azure.servicebus import exceptions as errors

from brokers import processes
from brokers.servicebus import ServiceBus


@pytest.fixture
def client(servicebus: ServiceBus) -> Iterator[vendor.ServiceBusClient]:
    with vendor.ServiceBusClient.from_connection_string(servicebus.connection_string, retry_total=0) as client:
        yield client


def make(broker: ServiceBus, **rules: Any) -> str:
    """A queue, by the request that the management client sends."""
    from pump.transports.servicebus.entities import Entities
    from pump.transports.servicebus.settings import ServiceBusSettings

    name = f"peer-{uuid4().hex[:10]}"
    settings = ServiceBusSettings.from_connection_string(broker.connection_string, management_port=broker.admin_port)
    with Entities(settings)._admin() as admin:
        admin.create_queue(name, **rules)
    return name


def send(client: vendor.ServiceBusClient, name: str, *bodies: str, **options: Any) -> None:
    with client.get_queue_sender(name) as sender:
        sender.send_messages([vendor.ServiceBusMessage(body, **options) for body in bodies])


def texts(messages: list[vendor.ServiceBusReceivedMessage]) -> list[str]:
    return [str(each) for each in messages]


def test_it_listens_on_loopback_only(servicebus: ServiceBus) -> None:
    assert {port for _, port in servicebus.listening()} == {servicebus.port, servicebus.admin_port}
    assert all(processes.is_loopback(address) for address, _ in servicebus.listening())


def test_an_abandoned_message_is_back_in_its_place_and_counted(
    servicebus: ServiceBus, client: vendor.ServiceBusClient
) -> None:
    name = make(servicebus, max_delivery_count=3)
    send(client, name, "1", "2")
    with client.get_queue_receiver(name) as receiver:
        for count in range(3):
            (message,) = receiver.receive_messages(1, max_wait_time=10)
            assert (str(message), message.delivery_count) == ("1", count)
            receiver.abandon_message(message)
        (message,) = receiver.receive_messages(1, max_wait_time=10)
        assert str(message) == "2"
        receiver.complete_message(message)
    with client.get_queue_receiver(name, sub_queue="deadletter") as receiver:
        (dead,) = receiver.receive_messages(1, max_wait_time=10)
        assert (str(dead), dead.dead_letter_reason) == ("1", "MaxDeliveryCountExceeded")


def test_a_lock_ends_and_is_renewed(servicebus: ServiceBus, client: vendor.ServiceBusClient) -> None:
    name = make(servicebus, lock_duration=timedelta(seconds=3))
    send(client, name, "1")
    with client.get_queue_receiver(name) as receiver:
        (message,) = receiver.receive_messages(1, max_wait_time=10)
        before = message.locked_until_utc
        assert before is not None
        time.sleep(1.0)
        assert receiver.renew_message_lock(message) > before
        servicebus.command("expire", entity=name)
        with pytest.raises(errors.MessageLockLostError):
            receiver.renew_message_lock(message)
        with pytest.raises(errors.MessageLockLostError):
            receiver.complete_message(message)
        (again,) = receiver.receive_messages(1, max_wait_time=10)
        assert again.delivery_count == 1


def test_a_scheduled_message_comes_when_it_is_due_or_is_cancelled(
    servicebus: ServiceBus, client: vendor.ServiceBusClient
) -> None:
    name = make(servicebus)
    due = datetime.now(UTC) + timedelta(seconds=2)
    with client.get_queue_sender(name) as sender:
        (first, second) = sender.schedule_messages([vendor.ServiceBusMessage("1"), vendor.ServiceBusMessage("2")], due)
        sender.cancel_scheduled_messages(first)
        assert first != second
    with client.get_queue_receiver(name) as receiver:
        assert texts(receiver.receive_messages(2, max_wait_time=10)) == ["2"]
        assert datetime.now(UTC) >= due


def test_a_duplicate_is_confirmed_and_dropped(servicebus: ServiceBus, client: vendor.ServiceBusClient) -> None:
    name = make(servicebus, requires_duplicate_detection=True)

    send(client, name, "1", "2", message_id="same")

    assert servicebus.command("count", entity=name)["all"] == 1


def test_a_deferred_message_is_received_by_its_number(servicebus: ServiceBus, client: vendor.ServiceBusClient) -> None:
    name = make(servicebus)
    send(client, name, "1")
    with client.get_queue_receiver(name) as receiver:
        (message,) = receiver.receive_messages(1, max_wait_time=10)
        receiver.defer_message(message)
        assert receiver.receive_messages(1, max_wait_time=0.3) == []
        assert texts(receiver.peek_messages(5, sequence_number=message.sequence_number or 1)) == ["1"]
        assert message.sequence_number is not None
        (again,) = receiver.receive_deferred_messages(message.sequence_number)
        receiver.complete_message(again)
    assert servicebus.command("count", entity=name)["all"] == 0


def test_what_is_stored_outlives_its_process(own_servicebus: ServiceBus) -> None:
    name = make(own_servicebus)
    with vendor.ServiceBusClient.from_connection_string(own_servicebus.connection_string) as client:
        send(client, name, "1", "2", "3")
        with client.get_queue_receiver(name) as receiver:
            (message,) = receiver.receive_messages(1, max_wait_time=10)
            receiver.complete_message(message)

    own_servicebus.kill()
    own_servicebus.start()

    assert own_servicebus.command("count", entity=name)["all"] == 2


def test_whoever_uses_a_queue_that_is_deleted_is_told(servicebus: ServiceBus, client: vendor.ServiceBusClient) -> None:
    from pump.transports.servicebus import ServiceBusTransport

    name = make(servicebus)
    with client.get_queue_sender(name) as sender, client.get_queue_receiver(name) as receiver:
        sender.send_messages(vendor.ServiceBusMessage("1"))
        receiver.complete_message(receiver.receive_messages(1, max_wait_time=10)[0])
        with ServiceBusTransport.from_url(servicebus.url)._entities._admin() as manager:
            manager.delete_queue(name)
        with pytest.raises(errors.MessagingEntityNotFoundError):
            receiver.receive_messages(1, max_wait_time=10)
        with pytest.raises((errors.MessagingEntityNotFoundError, errors.ServiceBusConnectionError)):
            sender.send_messages(vendor.ServiceBusMessage("2"))
