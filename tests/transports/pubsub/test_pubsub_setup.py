"""Before anything flows: what is wrong is told in a sentence, names are checked, and the page's examples run."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brokers.certificates import Certificates
from brokers.ports import Port
from brokers.pubsub import PROJECT, PubSub
from pump.errors import ConfigurationError, PublishError, SetupError
from pump.subscription import Publication
from pump.transports.pubsub import PubSubSettings, PubSubTransport
from support.programs import Program, pump, runs
from support.pubsub_bench import PubSubBench, Sample, bodies, receive
from support.refused import refusal
from support.tree import ROOT
from support.waiting import eventually

EXAMPLES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", (ROOT / "docs" / "pubsub.md").read_text(), re.DOTALL))


# -- the page's examples


@pytest.fixture
def folder(pubsub_server: PubSub, tmp_path: Path) -> Path:
    for name, source in EXAMPLES.items():
        (tmp_path / name).write_text(source.replace("pubsub://my-project", pubsub_server.url))
    return tmp_path


@pytest.fixture
def shop(folder: Path) -> Iterator[Program]:
    with pump("run", "shop:dispatcher", folder=folder) as program:
        yield program


def test_the_shop_sells_what_is_ordered(pubsub_server: PubSub, shop: Program, folder: Path) -> None:
    assert set(EXAMPLES) == {"shop.py", "sell.py", "options.py"}
    shop.says("runs shop:dispatcher")

    runs("sell.py", folder)
    runs("options.py", folder)

    shop.says("2 × tea")
    eventually(lambda: pubsub_server.state("orders.dead")["unacknowledged"] == 1)
    shop.send(signal.SIGTERM)
    assert shop.ends() == 0


# -- what is wrong


def test_a_missing_channel_is_told_in_a_sentence_and_not_made(pubsub_server: PubSub, tmp_path: Path) -> None:
    line = refusal(tmp_path, pubsub_server.url, "orders-nowhere", "validate")

    assert "orders-nowhere" in line
    assert "missing='validate' does not create it" in line
    assert not pubsub_server.state("orders-nowhere")["exists"]


def test_a_server_that_is_not_there_is_told_in_a_sentence(tmp_path: Path) -> None:
    port = Port()

    line = refusal(tmp_path, f"pubsub://{PROJECT}?endpoint=127.0.0.1:{port.number}&plaintext=true")

    assert f"127.0.0.1:{port.number}" in line
    assert "UNAVAILABLE" in line
    port.release()


@pytest.mark.parametrize("code", ["PERMISSION_DENIED", "UNAUTHENTICATED"])
def test_who_may_not_do_it_is_told_in_a_sentence(own_bench: PubSubBench, tmp_path: Path, code: str) -> None:
    for method in ("GetTopic", "CreateTopic", "GetSubscription", "CreateSubscription"):
        own_bench.server.fault(method, code, times=1000)

    assert "these credentials do not permit it" in refusal(tmp_path, own_bench.url())


def test_a_certificate_that_is_not_trusted_is_told_in_a_sentence(tmp_path: Path) -> None:
    for name in ("ours", "others"):
        (tmp_path / name).mkdir()
    ours, others = Certificates(tmp_path / "ours"), Certificates(tmp_path / "others")
    with PubSub(ours) as server:
        where: dict[str, Any] = {"endpoint": f"localhost:{server.port}", "credentials": anonymous()}
        trusting = PubSubSettings(project=PROJECT, ca_file=str(ours.authority), **where)
        PubSubTransport(trusting).prepare([], [Publication(Sample, topic="trusted")])

        wrong = PubSubSettings(project=PROJECT, ca_file=str(others.authority), **where)
        with pytest.raises(SetupError, match="the certificate of the server is not trusted"):
            PubSubTransport(wrong).prepare([], [Publication(Sample, topic="trusted")])


def test_credentials_that_cannot_be_found_are_told(tmp_path: Path) -> None:
    broken = tmp_path / "secret.json"
    broken.write_text('{"type": "service_account", "private_key": "s3same"}')

    with pytest.raises(SetupError) as refused:
        PubSubTransport.from_url(f"pubsub://{PROJECT}?credentials_file={broken}").prepare(
            [], [Publication(Sample, topic="topic")]
        )

    assert "s3same" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "pubsub://",
        "pubsub://p/topic",
        "pubsub://user:s3same@p",
        "pubsub://a,b",
        "pubsub://p:8085",
        "pubsub://p?lease=5",
        "pubsub://p?lease=601",
        "pubsub://p?lease=nan",
        "pubsub://p?plaintext=maybe",
        "pubsub://p?delivery_limit=4",
        "pubsub://p?delivery_limit=101",
        "pubsub://p?retry_policy=9,3",
        "pubsub://p?retry_policy=1",
        "pubsub://p?timeout=0",
        "pubsub://p?plaintext=true&ca_file=x",
        "pubsub://p?colour=red",
        "pubsub://p?lease=20&lease=30",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_its_password(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST", raising=False)

    with pytest.raises(ConfigurationError) as refused:
        PubSubTransport.from_url(url)

    assert "s3same" not in str(refused.value)


def test_no_credentials_are_shown() -> None:
    transport = PubSubTransport(PubSubSettings(project="p1", credentials_file="/s3same", credentials="s3same"))

    assert "s3same" not in f"{transport!r} {transport.place} {transport.settings!r} {transport.settings}"


def test_the_environment_says_where_the_emulator_is(bench: PubSubBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", bench.server.endpoint)
    transport = PubSubTransport.from_url(f"pubsub://{PROJECT}")

    consumer = bench.consumer(transport)
    bench.post("1")

    assert bodies(receive(consumer, 1)) == ["1"]


# -- what is made


@pytest.mark.parametrize("name", ["ab", "1st", "goog-orders", "x" * 256])
def test_a_name_that_pubsub_does_not_take_is_refused(bench: PubSubBench, name: str) -> None:
    with pytest.raises(ConfigurationError, match="name"):
        bench.transport().prepare([bench.rules(topic=name, channel=name)], [])


@pytest.mark.parametrize("name", ["orders/eu/ü 1", "projects/test-project/topics/full-name"])
def test_other_names_are_written_as_pubsub_takes_them(bench: PubSubBench, name: str) -> None:
    bench.topic = name
    consumer = bench.consumer()

    bench.post("1")

    assert bodies(receive(consumer, 1)) == ["1"]


def config(bench: PubSubBench, name: str) -> Any:
    import grpc
    from google.pubsub_v1 import SubscriberClient
    from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

    with grpc.insecure_channel(bench.server.endpoint) as channel:
        client = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
        return client.get_subscription(subscription=bench.fully(name), timeout=5.0)


def test_a_channel_is_made_so_that_nothing_is_dropped(bench: PubSubBench) -> None:
    bench.transport(retry_policy=(2.0, 60.0)).prepare([bench.rules(lease=40.0)], [])

    main = config(bench, bench.channel)
    assert (main.ack_deadline_seconds, main.enable_message_ordering, main.filter) == (40, True, "")
    assert main.dead_letter_policy.dead_letter_topic == f"projects/{PROJECT}/topics/{bench.channel}.dead"
    assert main.dead_letter_policy.max_delivery_attempts == 100
    assert main.retry_policy.minimum_backoff.total_seconds() == 2
    for name in ("", ".dead", ".retry"):
        found = config(bench, bench.channel + name)
        assert not found.expiration_policy.ttl
        assert "expiration_policy" in found
    for name in (".dead", ".retry"):
        found = config(bench, bench.channel + name)
        assert found.message_retention_duration.days == 31
        assert not found.dead_letter_policy.dead_letter_topic


def test_without_a_policy_deliveries_are_not_counted(bench: PubSubBench) -> None:
    transport = bench.transport(delivery_limit=None)
    consumer = bench.consumer(transport)
    bench.post("1")
    (message,) = receive(consumer, 1)
    consumer.hand_back([message])

    (again,) = receive(consumer, 1)

    assert (again.deliveries, consumer.broker_limit, transport.capabilities.counts_deliveries) == (1, None, False)


def make(bench: PubSubBench, **options: Any) -> None:
    """A subscription that others made."""
    from pump.transports.pubsub.connection import PUBSUB, PubSubConnection

    connection = PubSubConnection(bench.transport().settings)
    topic = f"projects/{PROJECT}/topics/{options.pop('of', bench.topic)}"
    connection.call("CreateTopic", PUBSUB["Topic"](name=topic))
    config = PUBSUB["Subscription"](name=bench.fully(options.pop("name", bench.channel)), topic=topic, **options)
    connection.call("CreateSubscription", config)
    connection.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"of": "another-topic"}, "belongs to"),
        ({"push_config": {"push_endpoint": "https://example.com/push"}}, "pushes its messages elsewhere"),
        ({"bigquery_config": {"table": "p.d.t"}}, "pushes its messages elsewhere"),
        ({"detached": True}, "has lost its topic"),
    ],
)
def test_a_subscription_that_cannot_be_used_is_told(bench: PubSubBench, options: dict[str, Any], said: str) -> None:
    if "of" in options:
        options = {"of": f"another-{bench.topic}"}
    make(bench, **options)

    with pytest.raises(SetupError, match=said):
        bench.transport().prepare([bench.rules()], [])


def test_a_filter_that_would_drop_dead_letters_is_refused(bench: PubSubBench) -> None:
    name = f"{bench.channel}.dead"
    make(bench, of=name, name=name, filter='attributes.tenant = "t"')

    with pytest.raises(SetupError, match="would drop dead letters"):
        bench.transport().prepare([bench.rules()], [])


@pytest.mark.parametrize("missing", ["create", "validate"])
def test_dead_letters_that_would_expire_are_a_warning(
    bench: PubSubBench, missing: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bench.transport().prepare([bench.rules(dead_letter=f"{bench.channel}.kept")], [])
    make(bench, of=f"{bench.channel}.dead", name=f"{bench.channel}.dead")
    assert "expires" not in caplog.text

    bench.transport().prepare([bench.rules(missing=missing)], [])

    assert f"'{bench.channel}.dead' expires when nobody uses it for 31 days" in caplog.text


def test_a_subscription_of_others_is_used_as_it_is(bench: PubSubBench) -> None:
    policy = {"dead_letter_topic": f"projects/{PROJECT}/topics/theirs", "max_delivery_attempts": 7}
    make(bench, ack_deadline_seconds=20, dead_letter_policy=policy, enable_exactly_once_delivery=True)

    consumer = bench.consumer()
    bench.post("1")
    (message,) = receive(consumer, 1)

    assert (consumer.broker_limit, message.deliveries) == (7, 1)
    assert not consumer.acknowledge_soon(message)
    consumer.acknowledge(message)
    bench.ends()


@pytest.mark.parametrize("missing", ["validate", "assume"])
def test_who_may_not_look_may_consume(own_bench: PubSubBench, missing: str) -> None:
    own_bench.transport().prepare([own_bench.rules()], [])
    for method in ("GetSubscription", "GetTopic", "ListTopicSubscriptions"):
        own_bench.server.fault(method, "PERMISSION_DENIED", times=1000)

    consumer = own_bench.consumer(missing=missing)
    own_bench.post("1")

    assert bodies(receive(consumer, 1)) == ["1"]


# -- posting


@pytest.mark.requirement("Z-14")
def test_a_topic_that_nobody_is_subscribed_to_takes_nothing(bench: PubSubBench) -> None:
    bench.transport().prepare([], [Publication(Sample, topic=bench.topic)])

    with pytest.raises(PublishError, match="has no subscription") as refused:
        bench.post("1")
    assert (refused.value.sent, refused.value.retriable) == (False, True)

    bench.consumer()
    bench.post("1")


@pytest.mark.parametrize("keys", [1, 7])
def test_of_messages_posted_together_it_is_known_which_are_not_stored(bench: PubSubBench, keys: int) -> None:
    bench.consumer()
    producer = bench.transport().producer()
    bench.stack.callback(producer.close)
    producer.send([bench.message("first")])
    bench.server.fault("Publish", containing="number 30")

    messages = [bench.message(f"number {number}", key=f"k{number % keys}") for number in range(60)]
    with pytest.raises(PublishError) as refused:
        producer.send(messages)

    failed = set(refused.value.failures or range(60))
    assert 30 in failed
    assert bench.left() == 1 + 60 - len(failed)
    assert failed == {number for number in range(60) if number % keys == 30 % keys}


def test_messages_of_a_key_keep_their_order_over_many_requests(bench: PubSubBench) -> None:
    consumer = bench.consumer()
    bench.post(*map(str, range(2500)), key="k")

    seen: list[str] = []
    while len(seen) < 2500:
        messages = consumer.receive(1000, 1.0)
        seen += bodies(messages)
        for message in messages:
            consumer.acknowledge(message)

    assert seen == [str(number) for number in range(2500)]


def anonymous() -> Any:
    from google.auth.credentials import AnonymousCredentials

    return AnonymousCredentials()  # type: ignore[no-untyped-call,unused-ignore]
