"""What is read from URLs, and which parts of them are never shown."""

import ssl
from typing import Any

import pytest

from pump.errors import ConfigurationError
from pump.transport_kit.protocol import transport_from
from pump.transports.nats import NatsTransport
from pump.transports.nats.transport import url_options


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nats://", {"servers": ["nats://127.0.0.1:4222"]}),
        ("nats://broker", {"servers": ["nats://broker:4222"]}),
        ("nats://a:1,b/", {"servers": ["nats://a:1", "nats://b:4222"]}),
        ("nats://[::1]:7", {"servers": ["nats://[::1]:7"]}),
        ("nats://me:p%40ss%3A@h", {"servers": ["nats://h:4222"], "user": "me", "password": "p@ss:"}),
        ("nats://t0k%2Fen@h", {"servers": ["nats://h:4222"], "token": "t0k/en"}),
        (
            "nats://h/?name=shop&stream=SHOP&replicas=3&retry_base_ms=50",
            {"servers": ["nats://h:4222"], "name": "shop", "stream": "SHOP", "replicas": 3, "retry_base_ms": 50.0},
        ),
    ],
)
def test_a_url_says_where_and_as_whom(url: str, said: dict[str, Any]) -> None:
    assert url_options(url) == said


def test_a_url_may_ask_for_tls() -> None:
    context = url_options("tls+nats://h")["tls"]

    assert isinstance(context, ssl.SSLContext)
    assert context.verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize("scheme", ["nats", "tls+nats"])
def test_the_scheme_chooses_the_transport(scheme: str) -> None:
    assert isinstance(transport_from(f"{scheme}://h"), NatsTransport)


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("nats://h/?colour=blue", "colour"),
        ("nats://h/?replicas=many", "the option replicas cannot be 'many'"),
        ("nats://h/?name=a&name=b", "name is given twice"),
        ("nats://h/orders", "must not have a path"),
        ("nats://h/?name", "are not name=value"),
        ("nats://h#x", "has a #"),
        ("nats://h/?tls_ca=x", "tls_ca can be used only with TLS, as in tls+nats://"),
        ("tls+nats://h/?tls_ca=/nowhere/at/all", "certificate cannot be used"),
    ],
)
def test_a_url_that_makes_no_sense_is_a_configuration_error(url: str, word: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        url_options(url)

    assert word in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "nats://me:hush-hush@h:x/",
        "nats://me:hush-hush@h/?colour=blue",
        "nats://me:hush-hush",
        "nats://me:hush@hush-hush@h:99999",
        "nats://me:hush-hush@h/path",
        "tls+nats://me:hush-hush@h/?tls_ca=/nowhere",
    ],
)
def test_an_error_never_tells_the_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        url_options(url)

    assert "hush" not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("url", ["nats://me:hush@h", "nats://hush@h"])
def test_a_transport_does_not_show_its_password(url: str) -> None:
    transport = NatsTransport.from_url(url)

    assert "hush" not in repr(transport) + repr(vars(transport))
