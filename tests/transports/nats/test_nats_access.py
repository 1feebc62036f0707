"""Connecting: passwords, tokens, TLS, and servers that are missing or cannot be used."""

import asyncio
import json
import logging
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brokers.certificates import Certificates
from brokers.nats import Nats
from brokers.ports import Port
from pump.errors import PumpError, SetupError, TransportError
from pump.message import Header, Message
from pump.transport_kit.bridge import blocking
from pump.transports.nats import NatsTransport
from support.nats_wire import Seen, dispatcher_of, name, subscribed
from support.programs import pump_run
from support.pumps import PROACTOR

PASSWORD = "hush-hush"


class Guarded(Nats):
    """A server with other settings."""

    def __init__(self, **settings: object) -> None:
        self._settings = settings
        super().__init__()

    def _configured(self) -> str:
        return json.dumps({**json.loads(super()._configured()), **self._settings})

    async def _ask_jetstream(self) -> None:
        """Do nothing: the server refuses a login without password, and its answer is enough."""


@pytest.fixture(scope="module")
def guarded() -> Iterator[Nats]:
    with Nats(users={"me": PASSWORD}) as server:
        yield server


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Guarded, Certificates]]:
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    tls = {"cert_file": str(certificates.certificate), "key_file": str(certificates.key)}
    with Guarded(tls=tls, authorization={"user": "me", "password": PASSWORD}) as server:
        yield server, certificates


def works(transport: NatsTransport) -> bool:
    topic = name()
    rules = subscribed(PROACTOR, topic)
    blocking(transport).prepare([rules], [])
    producer = blocking(transport).producer()
    producer.send([Message(Header("1", topic), b"{}")])
    producer.close()
    consumer = blocking(transport).consumer(rules)
    received = consumer.receive(1, 5)
    consumer.acknowledge(received[0])
    consumer.close()
    return [each.id for each in received] == ["1"]


def refusal(transport: NatsTransport) -> PumpError:
    with pytest.raises(PumpError) as refused:
        dispatcher_of(transport, PROACTOR, Seen(), subscribed(PROACTOR, name())).__enter__()
    return refused.value


def is_one_clear_error(error: BaseException) -> bool:
    """Whether the error has no error of nats-py as its cause."""
    return error.__cause__ is None and error.__suppress_context__ and "\n" not in str(error)


def test_a_user_with_the_password_is_let_in(guarded: Nats) -> None:
    assert works(NatsTransport.from_url(guarded.url))
    assert works(NatsTransport(f"nats://127.0.0.1:{guarded.port}", user="me", password=PASSWORD))


@pytest.mark.parametrize("url", ["nats://me:wrong-one@{}", "nats://wrong-one@{}", "nats://{}"])
def test_whoever_is_not_let_in_is_told_so_in_one_error(
    guarded: Nats, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    began = time.monotonic()

    error = refusal(NatsTransport.from_url(url.format(f"127.0.0.1:{guarded.port}")))

    assert isinstance(error, SetupError)
    assert "check user and password" in str(error)
    assert f"127.0.0.1:{guarded.port}" in str(error)
    assert is_one_clear_error(error)
    assert "wrong-one" not in str(error) + caplog.text
    assert "Traceback" not in caplog.text
    assert time.monotonic() - began < 5


@pytest.mark.requirement("E-35")
@pytest.mark.parametrize(
    ("url", "where", "words"),
    [
        ("nats://me:wrong-one@127.0.0.1:{}", "subject='orders'", ["check user and password", "'me'"]),
        ("nats://me:hush-hush@127.0.0.1:{}", "stream='NOWHERE', consumer='nobody'", ["'NOWHERE'", "'nobody'"]),
    ],
)
def test_a_program_that_cannot_start_says_why_in_one_line(
    guarded: Nats, tmp_path: Path, url: str, where: str, words: list[str]
) -> None:
    (tmp_path / "shop.py").write_text(
        f"""
from pump import Dispatcher
from pump.transports.nats import NatsSubscription

def handle(order: dict[str, int]) -> None: ...

rules = NatsSubscription(dict[str, int], {where})
dispatcher = Dispatcher({url.format(guarded.port)!r}, handlers=[handle], subscriptions=[rules])
"""
    )

    ended = pump_run("run", "shop:dispatcher", folder=tmp_path)

    assert ended.returncode != 0
    told = [line for line in ended.stderr.splitlines() if all(word in line for word in words)]
    assert len(told) == 1
    assert "Traceback" not in ended.stdout + ended.stderr
    assert "wrong-one" not in ended.stdout + ended.stderr


def test_a_token_lets_in() -> None:
    with Guarded(authorization={"token": PASSWORD}) as server:
        assert works(NatsTransport.from_url(f"nats://{PASSWORD}@127.0.0.1:{server.port}"))
        assert works(NatsTransport(f"nats://127.0.0.1:{server.port}", token=PASSWORD))
        assert isinstance(refusal(NatsTransport(f"nats://127.0.0.1:{server.port}", token="other")), SetupError)


def test_jetstream_may_have_a_domain() -> None:
    with Guarded() as server:
        server.stop()
        settings = json.loads(server._configuration.read_text())
        settings["jetstream"]["domain"] = "hub"
        server._configuration.write_text(json.dumps(settings))
        server.start()

        assert works(NatsTransport.from_url(f"nats://127.0.0.1:{server.port}/?domain=hub"))
        assert isinstance(refusal(NatsTransport.from_url(f"nats://127.0.0.1:{server.port}/?domain=other")), SetupError)


def test_a_server_without_jetstream_is_told_in_one_error() -> None:
    with Guarded(jetstream=False) as server:
        error = refusal(NatsTransport(f"nats://127.0.0.1:{server.port}"))

    assert isinstance(error, SetupError)
    assert "without JetStream" in str(error)
    assert is_one_clear_error(error)


def test_a_server_that_is_not_there_is_told_in_one_error() -> None:
    port = Port()
    began = time.monotonic()

    error = refusal(NatsTransport(f"nats://127.0.0.1:{port.number}"))

    assert type(error) is TransportError
    assert f"no NATS server answers at nats://127.0.0.1:{port.number}" in str(error)
    assert is_one_clear_error(error)
    assert time.monotonic() - began < 5
    port.release()


def test_a_server_that_says_nothing_is_told_in_one_error(own_nats_server: Nats) -> None:
    own_nats_server.pause()
    began = time.monotonic()

    error = refusal(NatsTransport(own_nats_server.url))

    own_nats_server.unpause()
    assert type(error) is TransportError
    assert is_one_clear_error(error)
    assert time.monotonic() - began < 8


def test_of_several_servers_one_is_enough(guarded: Nats) -> None:
    port = Port()

    assert works(NatsTransport.from_url(f"nats://me:{PASSWORD}@127.0.0.1:{port.number},127.0.0.1:{guarded.port}"))
    port.release()


@pytest.mark.requirement("P-17")
def test_tls_is_checked_against_the_authority(encrypted: tuple[Guarded, Certificates]) -> None:
    server, certificates = encrypted
    place = f"me:{PASSWORD}@localhost:{server.port}"

    assert works(NatsTransport.from_url(f"tls+nats://{place}/?tls_ca={certificates.authority}"))
    error = refusal(NatsTransport.from_url(f"tls+nats://{place}"))
    assert isinstance(error, SetupError)
    assert "certificate" in str(error)
    assert PASSWORD not in str(error)


@pytest.mark.requirement("P-17")
@pytest.mark.parametrize("secret", ["password", "token", "credentials", "none"])
def test_nothing_is_said_to_a_server_that_does_not_encrypt(
    guarded: Nats, caplog: pytest.LogCaptureFixture, tmp_path: Path, secret: str
) -> None:
    said: list[bytes] = []
    login: dict[str, Any] = {
        "password": {"user": "me", "password": PASSWORD},
        "token": {"token": PASSWORD},
        "credentials": {"credentials": str(credentials(tmp_path))},
        "none": {},
    }[secret]

    async def eavesdrop() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(
                b'INFO {"server_id":"x","version":"2.11.0","headers":true,"max_payload":1048576,'
                b'"auth_required":true,"nonce":"b25jZQ"}\r\n'
            )
            said.append(await reader.read(1000))
            writer.write(b"PONG\r\n")
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        transport = NatsTransport(f"nats://127.0.0.1:{port}", tls=ssl.create_default_context(), **login)
        with pytest.raises(SetupError, match="does not use TLS") as refused:
            await transport.async_prepare([], [])
        assert is_one_clear_error(refused.value)
        server.close()

    asyncio.run(eavesdrop())

    assert b"".join(said) == b""
    assert PASSWORD not in caplog.text


@pytest.mark.requirement("P-17")
def test_a_server_that_does_not_encrypt_is_refused(guarded: Nats) -> None:
    error = refusal(NatsTransport.from_url(f"tls+nats://me:{PASSWORD}@127.0.0.1:{guarded.port}"))

    assert isinstance(error, SetupError)


def credentials(folder: Path) -> Path:
    """A credentials file; its key was made for this test, and opens nothing."""
    file = folder / "me.creds"
    seed = "SUANNPBPAM6SZNFJCO5CPPXAVCJJWIFWC7ARVKKIBEURXRNYFYQGVFMFLQ"
    file.write_text(
        f"-----BEGIN NATS USER JWT-----\n{PASSWORD}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
    return file


def test_nothing_in_the_log_of_a_working_pump_tells_the_password(
    guarded: Nats, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    transport = NatsTransport.from_url(guarded.url)

    assert works(transport)
    guarded.restart()
    assert works(transport)

    assert PASSWORD not in caplog.text
