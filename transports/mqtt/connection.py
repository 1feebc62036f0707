"""One connection: paho's client, the thread that serves its socket, and the callers that wait for answers.

The client never reconnects by itself: it would send again what its callers were told has failed. All of its errors
become ours here.
"""

import os
import select
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes

from pump.clock import Clock, Signal
from pump.errors import PumpError, SetupError, TransportError
from pump.text import text_of
from pump.transport_kit.settings import tls_context
from pump.transports.mqtt.messages import Packet, new_properties
from pump.transports.mqtt.settings import MqttServer, Will

NO_SUBSCRIBER: Final = 0x10
"""The broker has no subscriber for the message, and dropped it."""
FAILURES: Final = 0x80
"""Reason codes from this one on are refusals."""
TAKEN_OVER: Final = 0x8E
"""Another client has connected with this client id."""
NOT_ALLOWED: Final = frozenset({0x80, 0x87, 0x8F, 0x9E, 0xA2})
"""Reasons with which a subscription is always refused."""
LOGIN_REFUSED: Final = frozenset({0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C, 0x90})
"""Reasons with which a connection is always refused."""
MOST_IN_FLIGHT: Final = 1000
"""The most messages that are published before the first is confirmed, unless the broker allows fewer."""
BURST: Final = 64
"""The most messages that are read before acknowledgements are written."""
CLOSE_SECONDS: Final = 1.0
"""How long a connection that closes waits until the broker has read everything."""
TICK_SECONDS: Final = 0.5


class Answers:
    """The broker's answers to packets that were sent together, by position."""

    def __init__(self, count: int) -> None:
        self.reasons: Final[dict[int, int]] = {}
        """The reason codes of answered packets; 0 is success."""
        self.unsent: Final[set[int]] = set()
        """The packets that were certainly not sent."""
        self.failure: PumpError | None = None
        """Why some packets have no answer."""
        self.done: Final = Signal()
        self._count: Final = count

    def note(self, place: int, reason: int) -> None:
        """Note one answer."""
        self.reasons[place] = reason
        if len(self.reasons) >= self._count:
            self.done.set()

    def fail(self, error: PumpError) -> None:
        """Note that no more answers will come, and why."""
        self.failure = self.failure or error
        self.done.set()


class _ToPublish(NamedTuple):
    """A packet that is to be published."""

    packet: Packet
    retain: bool
    answers: Answers
    place: int


class MqttConnection:
    """A connection of one client id. `open` it once; when it has ended, make another."""

    def __init__(
        self,
        server: MqttServer,
        clock: Clock,
        *,
        client_id: str = "",
        receive_maximum: int = 0,
        will: Will | None = None,
        deliver: Callable[[MQTTMessage], object] | None = None,
        ended: Callable[[], object] | None = None,
    ) -> None:
        """With a `client_id` the session outlives the connection; without one it ends with it.

        `deliver` is called with each message, and `ended` when the connection breaks, by its own thread.
        """
        self.failure: PumpError | None = None
        """Why it has ended; None while it works."""
        self.largest_packet: int | None = server.largest_packet
        self._server: Final = server
        self._clock: Final = clock
        self._client_id: Final = client_id
        self._keeps: Final = bool(client_id)
        self._receive_maximum: Final = receive_maximum
        self._ended: Final = ended
        self._deliver: Final = deliver
        self._delivered = 0
        self._client: Final = self._made(client_id, will)
        self._connected: Final = Signal()
        self._acks: Final[deque[int]] = deque()
        self._subscribing: Final[deque[tuple[Sequence[str], Answers]]] = deque()
        self._publishing: Final[deque[_ToPublish]] = deque()
        """Packets for the thread to send. Only that thread uses the client."""
        self._asked: Final[dict[tuple[str, int], tuple[Answers, int]]] = {}
        """The callers that wait for answers, by packet."""
        self._in_flight = 0
        self._most_in_flight = MOST_IN_FLIGHT
        self._closing = False
        self._close_seconds = CLOSE_SECONDS
        self._woken = False
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.settimeout(0)
        self._wake_writer.settimeout(0)
        self._thread: threading.Thread | None = None

    # -- opening

    def open(self) -> None:
        """Connect and log in; TransportError if the broker is away, SetupError if it refuses the login."""
        try:
            self._connect()
        except BaseException:
            self._abandon()
            raise
        self._thread = threading.Thread(target=self._run, name="pump-mqtt", daemon=True)
        self._thread.start()
        if not self._clock.wait(self._connected, self._server.seconds) and self.failure is None:
            self._fail(TransportError(f"{self._server} did not answer in {self._server.seconds:g} s"))
        if self.failure is not None:
            failure = self.failure
            self.close(0.0)
            raise failure

    def _made(self, client_id: str, will: Will | None) -> Client:
        server, is_five = self._server, self._server.version == "5"
        client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            clean_session=None if is_five else not self._keeps,
            protocol=MQTTProtocolVersion.MQTTv5 if is_five else MQTTProtocolVersion.MQTTv311,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        client.connect_timeout = server.seconds
        client.max_inflight_messages_set(0)  # the client does not know the broker's limit
        client.max_queued_messages_set(0)
        if server.user:
            client.username_pw_set(server.user, server.password or None)
        if server.tls:
            files = {"ca_file": server.ca_file, "cert_file": server.cert_file, "key_file": server.key_file}
            context = tls_context("mqtt", **files)
            context.sslsocket_class = _SocketClosedOnFailure
            client.tls_set_context(context)
        if will is not None:
            client.will_set(will.topic, will.payload, qos=1)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        client.on_publish = lambda _client, _data, mid, reason, _properties: self._answer("publish", mid, reason.value)
        client.on_subscribe = lambda _client, _data, mid, reasons, _properties: self._answer(
            "subscribe", mid, max(reason.value for reason in reasons)
        )
        client.on_socket_open = lambda _client, _data, opened: _send_at_once(opened)
        client.on_socket_register_write = lambda *_: self.wake()
        return client

    def _connect(self) -> None:
        host, port = self._server.place
        options: dict[str, Any] = {}
        if self._server.version == "5":
            properties = new_properties(PacketTypes.CONNECT)
            if self._keeps:
                properties.SessionExpiryInterval = self._server.session_expiry
            if self._receive_maximum:
                properties.ReceiveMaximum = self._receive_maximum
            options = {"clean_start": not self._keeps, "properties": properties}
        try:
            self._client.connect(host, port, keepalive=self._server.keepalive, **options)
        except ssl.SSLCertVerificationError as error:
            raise SetupError(f"{self._server}: its certificate is not trusted: {error.verify_message}") from error
        except (OSError, ValueError) as error:
            raise TransportError(f"{self._server} cannot be reached: {text_of(error)}") from error

    def _on_connect(self, _client: object, _data: object, _flags: object, reason: Any, properties: Any) -> None:  # noqa: ANN401 - paho's
        if reason.is_failure:
            refused = SetupError if reason.value in LOGIN_REFUSED else TransportError
            self._fail(refused(f"{self._server} refuses the connection: {reason}"))
            return
        self._most_in_flight = min(getattr(properties, "ReceiveMaximum", MOST_IN_FLIGHT), MOST_IN_FLIGHT)
        largest: int | None = getattr(properties, "MaximumPacketSize", None)
        if largest is not None:
            self.largest_packet = min(largest, self.largest_packet or largest)
        self._connected.set()

    # -- using

    @property
    def works(self) -> bool:
        """Whether it is open, as far as is known."""
        return self.failure is None and not self._closing

    def subscribe(self, filters: Sequence[str]) -> None:
        """Subscribe with QoS 1; returns when the broker has done so."""
        answers = Answers(1)
        self._subscribing.append((filters, answers))
        self._wait(answers)
        if answers.failure is not None:
            raise answers.failure
        reason = answers.reasons[0]
        if reason >= FAILURES:
            refused = SetupError if reason in NOT_ALLOWED else TransportError
            raise refused(f"{self._server} refuses the subscription to {', '.join(filters)}: reason {reason:#x}")

    def publish(self, packets: Sequence[Packet], *, retain: bool = False) -> Answers:
        """Publish with QoS 1; returns when all are answered, or no more answers will come."""
        answers = Answers(len(packets))
        if packets:
            self._publishing.extend(_ToPublish(packet, retain, answers, place) for place, packet in enumerate(packets))
            self._wait(answers)
        return answers

    def acknowledge(self, mid: int) -> bool:
        """Acknowledge a message, without waiting; False if the connection has ended."""
        if self.failure is not None or self._closing:
            return False
        self._acks.append(mid)
        self.wake()
        return True

    def _wait(self, answers: Answers) -> None:
        """Wait for the answers to what was just queued. The time-out begins again with each answer."""
        self.wake()
        if self.failure is not None:  # the thread may have ended, and not see the queues any more
            self._fail_queued(self.failure)
        answered = -1
        while not answers.done.is_set() and answered < len(answers.reasons):
            answered = len(answers.reasons)
            self._clock.wait(answers.done, self._server.seconds)
        if not answers.done.is_set():
            answers.fail(TransportError(f"{self._server} did not answer in {self._server.seconds:g} s"))

    def _answer(self, kind: str, mid: int, reason: int) -> None:
        asked = self._asked.pop((kind, mid), None)
        if asked is not None:
            answers, place = asked
            self._in_flight -= kind == "publish"
            answers.note(place, reason)

    def _on_message(self, _client: object, _data: object, message: MQTTMessage) -> None:
        self._delivered += 1
        if self._deliver is not None:
            self._deliver(message)

    # -- its thread

    def wake(self) -> None:
        """Make the thread look at once for something to write."""
        if not self._woken:
            self._woken = True
            with suppress(OSError):  # the thread is awake already, or has ended
                self._wake_writer.send(b"\0")

    def _send(self) -> None:
        """Give the client as many queued packets as the broker allows."""
        client = self._client
        while self._acks:
            client.ack(self._acks.popleft(), 1)
        while self._subscribing:
            filters, answers = self._subscribing.popleft()
            self._note_sent("subscribe", client.subscribe([(each, 1) for each in filters])[1], answers, 0)
        while self._publishing and self._in_flight < self._most_in_flight:
            (topic, payload, properties), retain, answers, place = self._publishing.popleft()
            sent = client.publish(topic, payload, 1, retain, properties)
            self._in_flight += 1
            self._note_sent("publish", sent.mid if sent.rc == MQTTErrorCode.MQTT_ERR_SUCCESS else None, answers, place)

    def _note_sent(self, kind: str, mid: int | None, answers: Answers, place: int) -> None:
        if mid is None:
            answers.unsent.add(place)
            answers.fail(TransportError(f"{self._server}: the connection has ended"))
        else:
            self._asked[kind, mid] = (answers, place)

    def _run(self) -> None:
        try:
            while self.failure is None and not self._closing and self._serve():
                pass
            if self._closing and self.failure is None:
                self._finish()
        except Exception as error:  # so that no caller waits for an answer that never comes
            self._fail(TransportError(f"{self._server}: {type(error).__name__}: {text_of(error)}"))
        finally:
            self._fail(TransportError(f"{self._server}: the connection has ended"))
            self._abandon()

    def _serve(self) -> bool:
        """Wait for the socket, read and write; False once the connection has ended."""
        client = self._client
        connected = client.socket()
        if connected is None:
            return False
        self._woken = False  # packets that are queued from now on wake the poll; earlier ones are seen before it
        self._send()
        poll = select.poll()
        poll.register(self._wake_reader, select.POLLIN)
        poll.register(connected, select.POLLIN | (select.POLLOUT if client.want_write() else 0))
        pending = connected.pending() if isinstance(connected, ssl.SSLSocket) else 0
        events = dict(poll.poll(0 if pending or self._closing else TICK_SECONDS * 1000))
        self._woken = True  # it need not be woken before the next poll
        if self._wake_reader.fileno() in events:
            with suppress(BlockingIOError):
                self._wake_reader.recv(4096)
        if pending or events.get(connected.fileno(), 0) & ~select.POLLOUT:
            self._read()
            self._send()
        if client.want_write():
            client.loop_write()
        client.loop_misc()
        return client.socket() is not None

    def _read(self) -> None:
        for _ in range(BURST):
            before = self._delivered
            if self._client.loop_read() != MQTTErrorCode.MQTT_ERR_SUCCESS or self._delivered == before:
                return

    def _finish(self) -> None:
        """Send DISCONNECT, and read until the broker ends the connection: then it has read everything.

        Closing a socket with unread data resets it, and the broker may never read the last packets.
        """
        connected = self._client.socket()
        if connected is None:
            return
        deadline = self._clock.monotonic() + self._close_seconds
        descriptor = os.dup(connected.fileno())
        try:
            self._send()
            self._client.disconnect()
            while self._client.want_write() and _is_ready(
                descriptor, select.POLLOUT, deadline - self._clock.monotonic()
            ):
                self._client.loop_write()
            while _is_ready(descriptor, select.POLLIN, deadline - self._clock.monotonic()):
                if not os.read(descriptor, 65_536):
                    break
        except OSError:  # an error changes nothing: it has ended
            pass
        finally:
            os.close(descriptor)

    def _on_disconnect(self, _client: object, _data: object, flags: Any, reason: Any, _properties: object) -> None:  # noqa: ANN401 - paho's
        if self._closing:
            return
        if flags.is_disconnect_packet_from_server and reason.value == TAKEN_OVER:
            text = "another client connected with the same client id: each host needs its own name: set member="
            self._fail(TransportError(f"{self._server}: {text}"))
            return
        by = "was ended by the broker" if flags.is_disconnect_packet_from_server else "broke"
        whose = f" of client id {self._client_id}" if self._keeps else ""
        self._fail(TransportError(f"{self._server}: the connection{whose} {by}: {reason}"))

    def _fail(self, error: PumpError) -> None:
        """End the connection, and tell all callers that wait."""
        first = self.failure is None
        if first:
            self.failure = error
        self._fail_queued(self.failure or error)
        self._connected.set()
        if first and self._ended is not None and not self._closing:
            self._ended()
        self.wake()

    def _fail_queued(self, error: PumpError) -> None:
        """Tell all callers that wait; packets that were not sent never will be."""
        while self._publishing:
            with suppress(IndexError):  # another thread has taken it
                publishing = self._publishing.popleft()
                publishing.answers.unsent.add(publishing.place)
                publishing.answers.fail(error)
        while self._subscribing:
            with suppress(IndexError):
                self._subscribing.popleft()[1].fail(error)
        for answers, _ in tuple(self._asked.values()):
            answers.fail(error)

    # -- ending

    def begin_to_close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Begin to disconnect; `close` waits until that is done."""
        self._close_seconds = timeout
        self._closing = True
        self._woken = False
        self.wake()

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Disconnect when the broker has read everything, or after the time-out. The session stays."""
        if not self._closing:
            self.begin_to_close(timeout)
        thread = self._thread
        if thread is None:
            self._abandon()
        elif thread is not threading.current_thread():
            thread.join(timeout + TICK_SECONDS)

    def _abandon(self) -> None:
        """Close sockets that are still open."""
        connected = self._client.socket()
        if connected is not None:
            with suppress(Exception):
                self._client.disconnect()
                self._client.loop_write()
            with suppress(OSError):
                connected.close()
        self._wake_reader.close()
        self._wake_writer.close()


class _SocketClosedOnFailure(ssl.SSLSocket):
    """A socket that is closed if it cannot connect: the client would forget to."""

    def do_handshake(self, block: bool = False) -> None:  # noqa: FBT001, FBT002 - as in the base class
        try:
            super().do_handshake(block)
        except BaseException:
            self.close()
            raise


def _send_at_once(connected: Any) -> None:  # noqa: ANN401 - the client does not say what it is
    """Send small packets at once, without waiting until others are confirmed."""
    with suppress(OSError):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _is_ready(descriptor: int, event: int, timeout: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, event)
    return timeout > 0 and bool(poll.poll(timeout * 1000))
