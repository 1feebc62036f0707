"""A gRPC channel to Pub/Sub. It turns all errors of the client library into ours.

Google's library supplies the channel, the credentials and the messages. The calls are made here, without its retries,
so that each can be waited for, cancelled and tried again as the pump decides.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import grpc
from google.auth import exceptions as auth_exceptions
from google.oauth2 import service_account
from google.pubsub_v1 import types
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport
from google.rpc import error_details_pb2, status_pb2

from pump.duration import seconds
from pump.errors import ConfigurationError, PumpError, SetupError, TransportError
from pump.transports.pubsub.settings import PubSubSettings

Request: TypeAlias = Any
"""A protobuf message of google.pubsub.v1."""
Answer: TypeAlias = Any
Call: TypeAlias = Any
"""A call that is under way."""

KEEPALIVE_ANSWER_SECONDS: Final = 5.0
LARGEST_ANSWER: Final = -1
_STATUS: Final = "grpc-status-details-bin"
_REFUSALS: Final = frozenset(("PERMISSION_DENIED", "UNAUTHENTICATED"))
_MISTAKES: Final = frozenset(("INVALID_ARGUMENT", "FAILED_PRECONDITION", "OUT_OF_RANGE", "UNIMPLEMENTED"))
_TLS_WORDS: Final = ("CERTIFICATE_VERIFY_FAILED", "certificate verify failed", "SSL_ERROR", "Ssl handshake failed")


class PubSubMissing(TransportError):  # noqa: N818 - it says what is the matter
    """The topic or the subscription does not exist."""


class PubSubExists(TransportError):  # noqa: N818 - it says what is the matter
    """It exists already."""


class PubSubNoAnswer(TransportError):  # noqa: N818 - it says what is the matter
    """There was no answer in time. For a pull this means that no message waits."""


class PubSubThrottled(TransportError):  # noqa: N818 - it says what is the matter
    """A quota is used up: nothing was done."""


class PubSubDenied(SetupError):  # noqa: N818 - it says what is the matter
    """The credentials do not permit the request."""


class PubSubRefused(SetupError):  # noqa: N818 - it says what is the matter
    """Pub/Sub refuses the request. For acknowledgement ids it may give a reason for each."""

    reasons: Mapping[str, str] = {}


_OUTAGES: Final[Mapping[str, type[TransportError]]] = {
    "NOT_FOUND": PubSubMissing,
    "ALREADY_EXISTS": PubSubExists,
    "DEADLINE_EXCEEDED": PubSubNoAnswer,
    "RESOURCE_EXHAUSTED": PubSubThrottled,
}


def message_type(name: str) -> Callable[..., Any]:
    """A protobuf class of google.pubsub.v1."""
    made: Callable[..., Any] = getattr(types, name).pb()
    return made


PUBSUB: Final = {
    name: message_type(name)
    for name in (
        "AcknowledgeRequest",
        "DeadLetterPolicy",
        "ExpirationPolicy",
        "GetSubscriptionRequest",
        "GetTopicRequest",
        "ListTopicSubscriptionsRequest",
        "ModifyAckDeadlineRequest",
        "PublishRequest",
        "PubsubMessage",
        "PullRequest",
        "RetryPolicy",
        "StreamingPullRequest",
        "Subscription",
        "Topic",
    )
}
STREAM: Final = "StreamingPull"
_PUBLISHER: Final = "/google.pubsub.v1.Publisher/"
_SUBSCRIBER: Final = "/google.pubsub.v1.Subscriber/"
_METHODS: Final = {
    # method: its service, its answer, and the field that Google's front end uses to route the request
    "CreateTopic": (_PUBLISHER, "Topic", "name"),
    "GetTopic": (_PUBLISHER, "Topic", "topic"),
    "ListTopicSubscriptions": (_PUBLISHER, "ListTopicSubscriptionsResponse", "topic"),
    "Publish": (_PUBLISHER, "PublishResponse", "topic"),
    "CreateSubscription": (_SUBSCRIBER, "Subscription", "name"),
    "GetSubscription": (_SUBSCRIBER, "Subscription", "subscription"),
    "Acknowledge": (_SUBSCRIBER, "", "subscription"),
    "ModifyAckDeadline": (_SUBSCRIBER, "", "subscription"),
    "Pull": (_SUBSCRIBER, "PullResponse", "subscription"),
    STREAM: (_SUBSCRIBER, "StreamingPullResponse", "subscription"),
}


class PubSubConnection:
    """A gRPC channel, opened when it is first needed. Any thread may use it."""

    def __init__(self, settings: PubSubSettings) -> None:
        self.timeout: Final = seconds(settings.timeout)
        self._settings: Final = settings
        self._lock: Final = threading.Lock()
        self._channel: Any = None
        self._methods: dict[str, Any] = {}
        self._closed = False

    def call(self, method: str, request: Request, timeout: float | None = None) -> Answer:
        """The answer to a request."""
        callee = self._method(method)
        try:
            return callee(
                request, timeout=self.timeout if timeout is None else timeout, metadata=_place(method, request)
            )
        except Exception as error:
            raise self.error_of(error) from error

    def begin(self, method: str, request: Request, timeout: float | None = None) -> Call:
        """Begin a call and return it at once; `result_of` waits for its end. It has grpc's `cancel` and callbacks."""
        callee = self._method(method)
        try:
            return callee.future(
                request, timeout=self.timeout if timeout is None else timeout, metadata=_place(method, request)
            )
        except Exception as error:  # the channel was closed meanwhile
            raise self.error_of(error) from error

    def stream(self, name: str, requests: Iterator[Request]) -> Call:
        """A streaming pull from a subscription. What it brings is iterated over; `error_of` says how it ended."""
        callee = self._method(STREAM)
        try:
            return callee(requests, metadata=_found_by("subscription", name))
        except Exception as error:  # the channel was closed meanwhile
            raise self.error_of(error) from error

    def result_of(self, call: Call, timeout: float | None = None) -> Answer:
        """The result of a call, after waiting for it at most this many seconds."""
        try:
            return call.result(timeout)
        except Exception as error:
            raise self.error_of(error) from error

    def close(self) -> None:
        """Disconnect without waiting: calls that are under way are cancelled."""
        with self._lock:
            channel, self._channel, self._closed = self._channel, None, True
            self._methods = {}
        if channel is not None:
            with suppress(Exception):  # an error changes nothing: it is closed
                channel.close()

    def error_of(self, error: Exception) -> PumpError:
        """The error of ours for one of the client library."""
        code, text = _code_of(error)
        told = f"{self._settings}: {text}"
        if code in _REFUSALS:
            return PubSubDenied(f"{told}: these credentials do not permit it")
        if code == "UNAVAILABLE" and any(word in text for word in _TLS_WORDS):
            return SetupError(f"{told}: the certificate of the server is not trusted, or the server does not use TLS")
        if code in _MISTAKES:
            refused = PubSubRefused(told)
            refused.reasons = _reasons(error)
            return refused
        return _OUTAGES.get(code, TransportError)(told)

    def _method(self, name: str) -> Any:  # noqa: ANN401 - as grpc has it
        found = self._methods.get(name)
        if found is not None:
            return found
        with self._lock:
            if self._closed:
                raise TransportError(f"{self._settings}: the connection is closed")
            if self._channel is None:
                self._channel = _open(self._settings)
            if not self._methods:
                self._methods = {each: _callee(self._channel, each) for each in _METHODS}
            return self._methods[name]


def deadline_request(name: str, ids: Sequence[str], deadline: int) -> Request:
    """The request that sets the deadline of deliveries; 0 gives them back."""
    return PUBSUB["ModifyAckDeadlineRequest"](subscription=name, ack_ids=ids, ack_deadline_seconds=deadline)


def _callee(channel: Any, name: str) -> Any:  # noqa: ANN401 - as grpc has it
    service, answer, _ = _METHODS[name]
    read: Any = message_type(answer) if answer else None
    make = channel.stream_stream if name == STREAM else channel.unary_unary
    return make(
        service + name,
        request_serializer=lambda request: request.SerializeToString(),
        response_deserializer=read.FromString if read else bytes,
    )


def _place(method: str, request: Request) -> Sequence[tuple[str, str]]:
    field = _METHODS[method][2]
    return _found_by(field, getattr(request, field))


def _found_by(field: str, name: str) -> Sequence[tuple[str, str]]:
    return (("x-goog-request-params", f"{field}={quote(name, safe='')}"),)


def _open(settings: PubSubSettings) -> Any:  # noqa: ANN401 - as grpc has it
    options = [
        ("grpc.max_send_message_length", LARGEST_ANSWER),
        ("grpc.max_receive_message_length", LARGEST_ANSWER),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1000),  # how long one attempt to connect may take
        ("grpc.max_reconnect_backoff_ms", 2000),
        ("grpc.keepalive_time_ms", round(seconds(settings.keepalive) * 1000)),
        ("grpc.keepalive_timeout_ms", round(KEEPALIVE_ANSWER_SECONDS * 1000)),
        ("grpc.http2.ping_timeout_ms", round(KEEPALIVE_ANSWER_SECONDS * 1000)),  # grpc waits a minute by default
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),  # not shared with other channels, as all transports promise
    ]
    endpoint, plaintext = settings.place()
    try:
        if plaintext:
            return grpc.insecure_channel(endpoint, options=options)
        more: dict[str, Any] = {"credentials": settings.credentials}
        if settings.credentials_file:
            account: Any = service_account.Credentials
            more["credentials"] = account.from_service_account_file(settings.credentials_file)
        if settings.ca_file:
            more["ssl_credentials"] = grpc.ssl_channel_credentials(Path(settings.ca_file).read_bytes())
        host = endpoint or SubscriberGrpcTransport.DEFAULT_HOST
        return SubscriberGrpcTransport.create_channel(host, options=options, **more)
    except auth_exceptions.GoogleAuthError as error:
        raise SetupError(f"{settings}: no usable credentials were found: {_first_line(error)}") from None
    except OSError as error:
        raise ConfigurationError(f"{settings}: a file cannot be read: {error}") from None
    except ValueError as error:
        raise ConfigurationError(f"{settings}: connecting is not possible: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:500]


def _code_of(error: Exception) -> tuple[str, str]:
    """The name of a status, and its text."""
    if isinstance(error, grpc.FutureTimeoutError):
        return "DEADLINE_EXCEEDED", "there was no answer in time"
    if isinstance(error, grpc.FutureCancelledError):
        return "CANCELLED", "it was cancelled"
    if isinstance(error, grpc.RpcError) and isinstance(error, grpc.Call):
        code = error.code()
        return code.name, f"{code.name}: {error.details() or ''}"[:1000]
    return "UNKNOWN", f"{type(error).__name__}: {_first_line(error)}"


def _reasons(error: Exception) -> Mapping[str, str]:
    """Why each acknowledgement id was refused; only exactly-once delivery tells that."""
    found: dict[str, str] = {}
    if isinstance(error, grpc.RpcError) and isinstance(error, grpc.Call):
        for name, value in error.trailing_metadata() or ():
            if name == _STATUS and isinstance(value, bytes):
                with suppress(Exception):  # reasons that cannot be read are left out
                    for each in status_pb2.Status.FromString(value).details:
                        info = error_details_pb2.ErrorInfo()
                        if each.Unpack(info):
                            found.update(info.metadata)
    return found
