"""A message is run as often as it may be, whatever happens meanwhile, and then is a dead letter."""

import json
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from brokers.kafka import Kafka
from pump import Dispatcher, Subscription
from pump.dead_letter import Rejection
from pump.errors import PublishError
from pump.message import Message
from pump.transport_kit.protocol import transport_from
from pump.transports.kafka import KafkaTransport
from pump.transports.kafka.consumer import KafkaConsumer
from support.kafka_works import Works
from support.programs import Program, lives
from support.waiting import eventually
from support.wilful import Wilful
from support.works import Job

PATIENCE = 60.0
FAST = {"requeue_backoff": (0.05, 0.05), "failure_backoff": (0.2, 1.0)}
TOO_LARGE = 10
"""The broker's error for a record that it does not take."""
NOT_ALLOWED = 31
"""The broker's error where somebody may not write, whatever it is."""

Running = Callable[[Dispatcher], Dispatcher]


class DeadLetters:
    """What was stored in the channel's dead letters, read by a consumer of its own."""

    def __init__(self, broker: Kafka, channel: str) -> None:
        self._topic = f"{channel}.dead"
        self._settings = broker.client(**{"group.id": "reader", "enable.auto.commit": False})

    def read(self, count: int) -> list[Any]:
        """The first records, of which so many are awaited; then whether there are more."""
        client: Any = Consumer(self._settings)
        found: list[Any] = []

        def read(wait: float) -> int:
            record = client.poll(wait)
            if record is not None and record.error() is None:
                found.append(record)
            return len(found)

        try:
            partitions = client.list_topics(self._topic, timeout=10).topics[self._topic].partitions
            client.assign([TopicPartition(self._topic, number, 0) for number in partitions])
            eventually(lambda: read(0.05) >= count, PATIENCE)
            read(0.5)
        finally:
            client.close()
        return found


@pytest.fixture
def dead_letters(kafka_broker: Kafka, works: Works) -> DeadLetters:
    return DeadLetters(kafka_broker, works.channel)


@pytest.fixture
def works(works: Works) -> Works:
    works.url += "&retry_delays=0.1,1"
    return works


def headers(record: Any) -> Mapping[str, bytes]:
    return dict(record.headers())


def name(record: Any) -> str:
    return str(json.loads(record.value())["name"])


def test_what_always_fails_runs_as_often_as_it_may_and_then_is_one_dead_letter(
    works: Works, running: Running, dead_letters: DeadLetters, *, awaiting: bool
) -> None:
    works.post(Job("bad", "k", "fails"), Job("good", "k"))

    running(works.dispatcher(awaiting=awaiting, **FAST))

    (record,) = dead_letters.read(1)
    assert name(record) == "bad"
    assert headers(record)["pump-attempts"] == b"3"
    assert record.key() == b"k"
    assert Counter(works.noted("began")) == {"bad": 3, "good": 1}


def test_attempts_are_counted_across_processes_that_are_killed(
    works: Works, running: Running, dead_letters: DeadLetters
) -> None:
    works.post(Job("bad", "k", "fails"))
    options = {"requeue_backoff": (0.6, 0.6), "max_attempts": 4}

    for runs in (1, 2):
        with Program(works.command(**options), works.folder) as program:
            eventually(lambda runs=runs: works.noted("began").count("bad") >= runs, PATIENCE)  # type: ignore[misc]
            eventually(lambda runs=runs: committed(works) >= runs, PATIENCE)  # type: ignore[misc]
            program.send(signal.SIGKILL)
            program.ends()
    running(works.dispatcher(**options))

    (record,) = dead_letters.read(1)
    assert headers(record)["pump-attempts"] == b"4"
    assert 4 <= works.noted("began").count("bad") <= 6, "a kill before a commit runs one again, without a charge"


def test_fifty_refusals_charge_no_attempt_over_a_restart_and_a_kill(
    tmp_path: Path, kafka_broker: Kafka, *, awaiting: bool
) -> None:
    wilful = Wilful(tmp_path, f"{kafka_broker.url}&retry_delays=0.1,1", awaiting=awaiting)

    wilful.is_run_over_a_kill_and_a_restart()
    with wilful.program():
        (record,) = DeadLetters(kafka_broker, wilful.channel).read(1)

    assert headers(record)["pump-attempts"] == b"3"
    wilful.assert_as_many_runs_as_there_may_be()


@pytest.mark.parametrize("ordered", [False, True])
def test_a_restart_in_good_order_gives_no_run_more(
    works: Works, running: Running, dead_letters: DeadLetters, *, ordered: bool, awaiting: bool
) -> None:
    works.post(Job("bad", "k", "fails"))
    options = {"awaiting": awaiting, "ordered": ordered}
    with Program(works.command(**options, requeue_backoff=(0.6, 0.6)), works.folder) as program:
        eventually(lambda: works.noted("began").count("bad") == 1, PATIENCE)
        program.send(signal.SIGTERM)
        assert program.ends() == 0

    running(works.dispatcher(**options, **FAST))

    (record,) = dead_letters.read(1)
    assert headers(record)["pump-attempts"] == b"3"
    assert works.noted("began").count("bad") == 3


def test_of_two_performers_the_one_with_the_innocent_message_does_not_suffer(
    works: Works, running: Running, dead_letters: DeadLetters
) -> None:
    keys = [f"k{number}" for number in range(12)]
    innocent = [Job(f"{key}-innocent", key, seconds=0.2) for key in keys]
    works.post(*innocent[:6], Job("killer", "killer", "kills", seconds=0.1), *innocent[6:])
    options = {"performers": 2, "max_attempts": 2, **FAST}

    for _ in range(8):
        with Program(works.command(**options), works.folder) as program:
            eventually(lambda program=program: not lives(program.pid) or given_up(works), PATIENCE)  # type: ignore[misc]
        if given_up(works):
            break
    running(works.dispatcher(**options))

    (record,) = dead_letters.read(1)
    assert name(record) == "killer"
    eventually(lambda: set(works.noted("done")) == {job.name for job in innocent}, PATIENCE)


def given_up(works: Works) -> bool:
    """Whether everything but the killer is done, and the killer is not run any more."""
    return committed(works) == 13


def committed(works: Works) -> int:
    """How many messages the channel's two groups have settled."""
    return sum(_committed(works, group) for group in (works.channel, f"{works.channel}.retry"))


def _committed(works: Works, group: str) -> int:
    client: Any = Consumer({"bootstrap.servers": works.url.split("/")[2].split("?")[0], "group.id": group})
    try:
        topics = client.list_topics(timeout=10).topics
        places = [
            TopicPartition(topic, number)
            for topic in topics
            if (topic == group if group == works.channel else topic.startswith(f"{group}-"))
            for number in topics[topic].partitions
        ]
        return sum(max(0, place.offset) for place in client.committed(places, timeout=10))
    finally:
        client.close()


def test_a_message_that_kills_its_process_is_given_up_and_its_neighbours_are_not(
    works: Works, running: Running, dead_letters: DeadLetters
) -> None:
    works.post(*(Job(f"job-{number}", f"k{number}", "kills" if number == 3 else "done") for number in range(12)))

    for _ in range(3):
        with Program(works.command(**FAST), works.folder) as program:
            assert program.ends() == -9
    running(works.dispatcher(**FAST))

    (record,) = dead_letters.read(1)
    assert name(record) == "job-3"
    eventually(lambda: len(set(works.noted("done"))) == 11, PATIENCE)
    assert works.noted("began").count("job-3") == 3


def test_a_dead_letter_that_cannot_be_stored_is_stored_later_and_its_handler_does_not_run_again(
    works: Works, kafka_broker: Kafka, running: Running, dead_letters: DeadLetters, *, awaiting: bool
) -> None:
    dead = f"{works.channel}.dead"
    running(works.dispatcher(awaiting=awaiting, max_attempts=1, **FAST))
    works.post(Job("first", "k"))
    eventually(lambda: committed(works) == 1, PATIENCE)
    kafka_broker.tell("refuse_topic", dead, 29)  # not allowed to write there

    stranger = Producer(kafka_broker.client())
    stranger.produce(works.channel, b'{"name": "bad", "fate": "fails"}')
    assert stranger.flush(30) == 0
    eventually(lambda: committed(works) >= 2, PATIENCE)  # put aside
    kafka_broker.tell("refuse_topic", dead, 0)

    (record,) = dead_letters.read(1)
    assert name(record) == "bad"
    assert works.noted("began") == ["first", "bad"]


def test_what_strangers_write_becomes_a_whole_dead_letter(
    works: Works, kafka_broker: Kafka, running: Running, dead_letters: DeadLetters, *, awaiting: bool
) -> None:
    running(works.dispatcher(awaiting=awaiting, **FAST))
    odd: list[tuple[str, str | bytes | None]] = [
        ("long", (2**63 - 1).to_bytes(8, "big")),
        ("bytes", bytes(range(256))),
        ("nothing", None),
        ("twice", b"1"),
        ("twice", b"2"),
        ("pump-carried-attempts", b"99999999999999999999"),
        ("pump-due", b"inf"),
        ("pump-wait-until", b"nan"),
        ("pump-time", b"yesterday"),
        ("", b"no name"),
    ]
    producer = Producer(kafka_broker.client(**{"message.max.bytes": 4_000_000}))
    producer.produce(works.channel, None, key=b"\xff\x00", headers=odd)
    producer.produce(works.channel, b"\xff not JSON", headers=odd)
    producer.produce(works.channel, bytes(2_000_000))
    assert producer.flush(30) == 0

    records = dead_letters.read(3)

    tombstone, text, large = sorted(records, key=lambda record: len(record.value()))
    assert (tombstone.value(), tombstone.key()) == (b"", b"\xff\x00")
    assert text.value() == b"\xff not JSON"
    kept = [pair for pair in text.headers() if pair in odd]
    assert kept == [pair for pair in odd if not pair[0].startswith(("pump-carried", "pump-due", "pump-wait"))]
    assert len(large.value()) == 2_000_000
    assert works.noted("began") == []
    works.post(Job("good"))
    eventually(lambda: works.noted("done") == ["good"], PATIENCE)


def test_a_stranger_cannot_have_a_topic_wait(works: Works, kafka_broker: Kafka, running: Running) -> None:
    running(works.dispatcher(**FAST))
    producer = Producer(kafka_broker.client())
    for waiting in ("pump-wait-until", "pump-due"):
        producer.produce(works.channel, b'{"name": "%s"}' % waiting.encode(), headers=[(waiting, b"9e99")])
    assert producer.flush(30) == 0

    eventually(lambda: sorted(works.noted("done")) == ["pump-due", "pump-wait-until"], PATIENCE)


def test_a_dead_letter_that_does_not_fit_is_cut_and_said_to_be(
    works: Works, kafka_broker: Kafka, running: Running, dead_letters: DeadLetters, caplog: pytest.LogCaptureFixture
) -> None:
    running(works.dispatcher(**FAST))
    kafka_broker.tell("refuse", 0, 0, TOO_LARGE, TOO_LARGE)  # the stranger's own record is taken
    producer = Producer(kafka_broker.client())
    producer.produce(works.channel, b"x" * 1000)
    assert producer.flush(30) == 0

    (record,) = dead_letters.read(1)

    assert record.value() == b"x" * 999
    assert b"1 of the 1000 bytes" in headers(record)["pump-description"]
    assert [
        each
        for each in caplog.records
        if each.levelname == "ERROR" and "is too large for the broker" in each.getMessage()
    ]


def test_a_dead_letter_that_is_refused_for_another_reason_than_its_size_is_stored_whole_later(
    works: Works, kafka_broker: Kafka, running: Running, dead_letters: DeadLetters
) -> None:
    running(works.dispatcher(**FAST))
    kafka_broker.tell("refuse", 0, 0, NOT_ALLOWED)  # the stranger's own record is taken
    producer = Producer(kafka_broker.client())
    producer.produce(works.channel, b"x" * 1000, headers=[("tenant", b"t-1")])
    assert producer.flush(30) == 0

    (record,) = dead_letters.read(1)

    assert record.value() == b"x" * 1000
    assert headers(record)["tenant"] == b"t-1"


@pytest.mark.parametrize("verdict", ["reject", "requeue"])
def test_nothing_is_settled_before_its_copy_is_confirmed(works: Works, kafka_broker: Kafka, verdict: str) -> None:
    transport = transport_from(works.url)
    assert isinstance(transport, KafkaTransport)
    rules = Subscription(Job, topic=works.channel, channel=works.channel)
    consumer = transport.consumer(rules)
    works.post(Job("first", "k"), Job("second", "k"))
    message, _ = received(consumer, 2)
    settle = {
        "reject": lambda: consumer.reject(message, Rejection("delivery error", "OutOfTea", attempts=1)),
        "requeue": lambda: consumer.requeue(message, 0.05, 1),
    }
    copies = {"reject": f"{works.channel}.dead", "requeue": f"{works.channel}.retry-0.1s"}
    kafka_broker.tell("refuse_topic", copies[verdict], NOT_ALLOWED)

    with pytest.raises(PublishError):
        settle[verdict]()
    consumer.close()

    kafka_broker.tell("refuse_topic", copies[verdict], 0)
    assert committed(works) == 0
    again = transport.consumer(rules)
    assert [each.identity for each in received(again, 2)][:1] == [message.identity]
    again.close()


def received(consumer: KafkaConsumer, count: int) -> list[Message]:
    """So many messages of a consumer that has just been opened."""
    found: list[Message] = []

    def have_come() -> bool:
        found.extend(consumer.receive(count - len(found), 0.2))
        return len(found) >= count

    eventually(have_come, PATIENCE)
    return found
