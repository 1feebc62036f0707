"""Brokers that are away, silent, or not as they should be; and what is told of that."""

import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from brokers.certificates import Certificates
from brokers.kafka import Kafka
from pump import Dispatcher, Publication, Subscription
from pump.errors import ConfigurationError, PublishError, SetupError, TransportError
from pump.message import Header, Message
from pump.transport_kit.protocol import transport_from
from pump.transports.kafka import Cluster, KafkaTransport, consumer
from pump.transports.kafka.member import GroupMember
from pump.transports.kafka.partitions import AssignedPartition
from pump.transports.kafka.producer import Failures, RecordStore
from pump.transports.kafka.records import KafkaMessage, KafkaRecord, read_message
from pump.transports.kafka.topics import RetryTopics
from support.kafka_works import Works
from support.programs import Program
from support.waiting import eventually
from support.works import Job

PATIENCE = 60.0
FAST = {"failure_backoff": (0.2, 1.0)}

Running = Callable[[Dispatcher], Dispatcher]


@pytest.fixture
def works(tmp_path: Path, own_kafka_broker: Kafka) -> Iterator[Works]:
    yield Works(tmp_path, own_kafka_broker.url)
    own_kafka_broker.unpause()
    own_kafka_broker.come_up()


def test_after_an_outage_work_goes_on_by_itself_and_one_line_is_logged_at_each_end(
    works: Works, own_kafka_broker: Kafka, running: Running, caplog: pytest.LogCaptureFixture, *, awaiting: bool
) -> None:
    running(works.dispatcher(awaiting=awaiting, **FAST))
    works.post(Job("before"))
    eventually(lambda: works.noted("done") == ["before"], PATIENCE)

    own_kafka_broker.go_down()
    eventually(lambda: said(caplog, "cannot be reached") == 2, PATIENCE)  # one for each of the channel's groups
    time.sleep(1.0)
    own_kafka_broker.come_up()
    works.post(Job("after"))

    eventually(lambda: works.noted("done") == ["before", "after"], PATIENCE)
    eventually(lambda: said(caplog, "can be reached again") == 2, PATIENCE)
    assert said(caplog, "cannot be reached") == 2


def said(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum("kafka: group" in line and text in line for line in caplog.messages)


def test_a_broker_that_was_silent_for_longer_than_the_session_is_worked_with_again(
    works: Works, own_kafka_broker: Kafka, running: Running
) -> None:
    running(works.dispatcher(**FAST))
    works.post(Job("before"))
    eventually(lambda: works.noted("done") == ["before"], PATIENCE)

    own_kafka_broker.pause()
    time.sleep(3.0)
    own_kafka_broker.unpause()
    works.post(Job("after"))

    eventually(lambda: "after" in works.noted("done"), PATIENCE)


def test_a_stop_waits_neither_for_a_silent_broker_nor_for_a_stuck_handler(
    works: Works, own_kafka_broker: Kafka, *, awaiting: bool
) -> None:
    works.post(Job("stuck", "k", "stuck" if not awaiting else "done", seconds=600.0 if awaiting else 0.0))

    with Program(works.command(awaiting=awaiting, grace=1.0), works.folder) as program:
        eventually(lambda: works.noted("began") == ["stuck"], PATIENCE)
        own_kafka_broker.pause()
        began = time.monotonic()
        program.send(signal.SIGTERM)
        program.ends()
        took = time.monotonic() - began

    assert took < 1.0 + 2.0 + 3.0, "grace, two seconds, and what a loaded machine may add"


def test_what_cannot_be_stored_in_time_is_an_error_for_its_sender(own_kafka_broker: Kafka) -> None:
    transport = transport_from(f"{own_kafka_broker.url}&timeout=4")
    assert isinstance(transport, KafkaTransport)
    producer = transport.producer()
    message = Message(Header("1", topic="fault-posts"), b"")
    producer.send([message])
    own_kafka_broker.go_down()
    try:
        with pytest.raises(PublishError) as refused:
            producer.send([message])
        assert (refused.value.sent, refused.value.retriable) == (None, True)
    finally:
        own_kafka_broker.come_up()
    eventually(lambda: sent(producer.send, message), PATIENCE)
    producer.close()


def sent(send: Callable[[list[Message]], None], message: Message) -> bool:
    try:
        send([message])
    except PublishError:
        return False
    return True


def test_a_client_that_has_failed_for_good_is_replaced(
    works: Works, running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    members: list[GroupMember] = []

    class Noted(GroupMember):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            members.append(self)

    monkeypatch.setattr(consumer, "GroupMember", Noted)
    running(works.dispatcher(**FAST))
    works.post(Job("before"))
    eventually(lambda: works.noted("done") == ["before"], PATIENCE)

    members[1]._fail(TransportError("the client has failed"))
    works.post(Job("after"))

    eventually(lambda: works.noted("done") == ["before", "after"], PATIENCE)
    assert len(members) == 4


# -- before anything flows


class Listener:
    """Something on a port that is no Kafka."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._context = context
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                try:
                    if self._context is not None:
                        self._context.wrap_socket(connection, server_side=True).close()
                except OSError:
                    pass

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


SUBSCRIPTION = Subscription(Job, topic="q", channel="q")


def test_brokers_that_cannot_be_reached_are_named(unused_port: int) -> None:
    transport = KafkaTransport(Cluster(servers=(f"127.0.0.1:{unused_port}",), timeout=0.5))

    with pytest.raises(TransportError, match=f"127.0.0.1:{unused_port}"):
        transport.prepare([SUBSCRIPTION], [])


@pytest.fixture
def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def test_a_certificate_that_is_not_trusted_is_a_mistake_of_the_set_up(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    ours.mkdir()
    certificates = Certificates(theirs)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)
    listener = Listener(context)
    try:
        url = f"kafka+tls://u:geheim@127.0.0.1:{listener.port}?ca_file={Certificates(ours).authority}&timeout=3"
        with pytest.raises(SetupError) as refused:
            transport_from(url).prepare([SUBSCRIPTION], [])  # type: ignore[attr-defined]
    finally:
        listener.close()

    assert "certificate" in str(refused.value)
    assert "geheim" not in str(refused.value)


def test_a_topic_that_cannot_be_created_is_named(own_kafka_broker: Kafka) -> None:
    transport = KafkaTransport(Cluster(servers=(own_kafka_broker.server,), timeout=1.0))

    with pytest.raises(SetupError, match=r"topic 'never-made' cannot be created.*create=on-use"):
        transport.prepare([], [Publication(Job, topic="never-made")])


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("kafka://h?timeout=0", "timeout"),
        ("kafka://h?nonsense=1", "nonsense"),
        ("kafka://h?enable.auto.commit=true", "enable.auto.commit"),
        ("kafka://h?auto.offset.reset=latest", "auto.offset.reset"),
        ("kafka://h?create=perhaps", "create"),
        ("kafka://h?ca_file=x", "kafka\\+tls"),
        ("kafka://h?session=0.1", "session"),
        ("kafka://h?partitions=0", "partitions"),
        ("kafka://h?replicas=-2", "replicas"),
        ("kafka://h?retry_delays=inf", "retry_delays"),
        ("kafka://h/path", "path"),
        ("kafka://u:geheim/x@h", "port"),
    ],
)
def test_a_url_that_cannot_be_used_is_told_without_its_password(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as refused:
        transport_from(url)

    assert "geheim" not in str(refused.value)


def test_a_setting_that_the_client_does_not_know_is_a_mistake_of_the_configuration() -> None:
    with pytest.raises(ConfigurationError, match=r"no\.such"):
        transport_from("kafka://h?no.such=1").prepare([SUBSCRIPTION], [])  # type: ignore[attr-defined]


def test_a_url_names_brokers_user_and_settings() -> None:
    transport = transport_from("kafka+tls://u:p%40ss@a:1,b,[::1]:3?mechanism=SCRAM-SHA-512&client.rack=r1&session=20")
    assert isinstance(transport, KafkaTransport)
    settings = transport.cluster.settings()

    assert settings["bootstrap.servers"] == "a:1,b:9092,[::1]:3"
    assert settings["security.protocol"] == "sasl_ssl"
    assert (settings["sasl.username"], settings["sasl.password"]) == ("u", "p@ss")
    assert (settings["sasl.mechanism"], settings["client.rack"]) == ("SCRAM-SHA-512", "r1")
    assert "p@ss" not in f"{transport!r} {transport.place} {transport.cluster!r}"


def test_a_name_that_no_topic_can_have_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'a b'"):
        KafkaTransport().consumer(Subscription(Job, topic="a b"))


# -- what needs no broker


def test_what_the_client_cannot_take_is_said_of_its_message_alone() -> None:
    store = RecordStore(KafkaTransport(Cluster(servers=("127.0.0.1:1",), timeout=0.5)))
    told: list[Failures] = []
    names = ("a\0b", "fine", "a\ud800b")
    try:
        store.store([KafkaRecord(name, None, b"", ()) for name in names], told.append)
        eventually(lambda: told, PATIENCE)
    finally:
        store.close()

    assert {place: failure.sent for place, failure in told[0].items()} == {0: False, 1: None, 2: False}


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"])
def test_a_header_whose_name_cannot_be_written_is_refused(name: str) -> None:
    producer = KafkaTransport().producer()
    try:
        with pytest.raises(PublishError, match="cannot be written") as refused:
            producer.send([Message(Header("1", topic="t", headers={name: "1"}), b"")])
    finally:
        producer.close()

    assert refused.value.sent is False


def test_a_copy_waits_in_the_topic_of_the_shortest_delay_that_is_long_enough() -> None:
    topics = RetryTopics("q", (5.0, 1.0, 60.0))

    assert topics.names == ("q.retry-1s", "q.retry-5s", "q.retry-60s")
    assert topics.place(0.0) == ("q.retry-1s", 0.0)
    assert topics.place(1.5) == ("q.retry-5s", 1.5)
    assert topics.place(86_400.0) == ("q.retry-60s", 60.0)


class Record:
    """What the client library would have received."""

    def __init__(self, offset: int = 0, **headers: bytes | None) -> None:
        self._offset = offset
        self._headers = [(f"pump-{name.replace('_', '-')}", value) for name, value in headers.items()]

    def headers(self) -> list[tuple[str, bytes | None]]:
        return self._headers

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"{}"

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, 5000


def received(offset: int, partition: AssignedPartition) -> KafkaMessage:
    return read_message(Record(offset), partition, 1)


def test_what_says_that_it_waits_is_believed_as_far_as_its_topic_has_copies_wait() -> None:
    partition = AssignedPartition("q", 0)

    def bounded(wait: bytes, longest: float) -> tuple[float, float]:
        message = read_message(Record(due=wait, wait_until=wait), partition, 1).bounded(1000.0, longest)
        return message.due, message.wait

    assert bounded(b"9e99", 0.0) == (0.0, 0.0)
    assert bounded(b"9e99", 60.0) == (9e99, 1060.0)
    assert bounded(b"1002.0", 60.0) == (1002.0, 1002.0)
    assert bounded(b"inf", 60.0) == (0.0, 0.0)


def test_the_headers_that_every_message_of_ours_has_are_read_like_any_others() -> None:
    partition = AssignedPartition("q", 0)

    message = read_message(Record(7, id=b"1", type=b"Job", time=b"12.5", kind=b"event", odd=b"x"), partition, 1)
    strange = read_message(Record(8, id=b"\xff", type=None, time=b"nan", kind=b"?"), partition, 1)

    assert message.header == Header("1", "q", "Job", kind="event", key="k", timestamp=12.5, headers={"pump-odd": "x"})
    assert (message.identity, message.position, message.fault) == ("q/0/7@5000", "q/0/7", "")
    assert strange.header == Header("", "q", key="k", timestamp=5.0, headers={"pump-time": "nan"})
    assert strange.raw_headers == {"pump-id": b"\xff", "pump-type": None}
    assert "pump-kind" in strange.fault


def test_of_a_partition_only_what_is_settled_without_a_gap_may_be_committed() -> None:
    partition = AssignedPartition("q", 0)
    messages = [received(offset, partition) for offset in (10, 11, 14)]
    for message in messages:
        assert partition.read(message)

    messages[1].done = True
    assert partition.to_commit() is None
    messages[0].done = True
    assert partition.to_commit() == 12
    assert partition.to_commit() is None
    partition.was_not_committed()
    messages[2].done = True
    assert partition.to_commit() == 15


def test_a_topic_that_was_made_anew_inherits_nothing() -> None:
    partition = AssignedPartition("q", 0)
    old, held, new = (received(offset, partition) for offset in (7, 8, 0))
    partition.read(old)
    old.done = True
    partition.read(held)

    assert not partition.read(new)

    assert held.lost
    assert partition.to_commit() is None
    new.done = True
    assert partition.to_commit() == 1


def test_what_was_lost_is_not_committed() -> None:
    partition = AssignedPartition("q", 0)
    message = received(3, partition)
    partition.read(message)

    partition.lose()
    message.done = True

    assert message.lost
    assert partition.to_commit() is None


def test_what_is_held_is_lost_together_with_what_was_received() -> None:
    partition = AssignedPartition("q", 0)
    message = received(3, partition)
    partition.read(message)
    message.handler = "Worker"
    held = message.again().again()
    interrupted: list[bool] = []

    before = (partition.is_blocked, message.has_begun)
    held.interrupt = lambda: interrupted.append(True)
    runs = (partition.is_blocked, message.has_begun, message.interrupt is held.interrupt)
    partition.lose()

    assert before == (True, False)
    assert runs == (True, True, True)
    assert (partition.is_blocked, held.lost) == (False, True)
