"""Sends requests to handlers in this process, or posts them to the broker."""

import inspect
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypedDict, Unpack

from pump.colour import must_not_block
from pump.context import Context, enter_context, find_context, leave_context
from pump.duration import Duration, delay_seconds
from pump.errors import ConfigurationError, UnknownPublication
from pump.handling.dispatch import Bound, DispatchSettings, bind
from pump.handling.pipeline import done
from pump.handling.registry import Registry
from pump.message import NO_HEADERS, Header, Kind, Message
from pump.program.producers import Producers
from pump.request import Document, Event
from pump.subscription import Publication
from pump.wire_name import wire_type, wire_version

TRACE_PARENT: Final = "traceparent"
TRACE_STATE: Final = "tracestate"


class MessageOptions(TypedDict, total=False):
    """The options of one request that is posted, alone or among many."""

    id: str | None
    """The message's id; by default a new one."""
    key: str | None
    """Messages of one key keep their order; by default as the Publication says."""
    headers: Mapping[str, str] | None
    """Headers of the program's own, as text."""
    correlation_id: str | None
    """The id of the conversation; by default that of the message that is being handled."""
    reply_to: str | None
    """The topic for a reply."""


class PostOptions(MessageOptions, total=False):
    """The options of a request that is posted alone."""

    delay: Duration | None
    """Deliver it only after this time, where the transport can."""


class Post:
    """One request of `post_many` with its options: `Post(order, key="7", id="order-7", headers={…})`."""

    __slots__ = ("options", "request")

    def __init__(self, request: object, /, **options: Unpack[MessageOptions]) -> None:
        self.request: Final = request
        self.options: Final = options


class CommandProcessor:
    """`send` and `publish` run handlers here and now and need no connection; `post` gives the request to the broker."""

    def __init__(
        self,
        registry: Registry,
        publications: Sequence[Publication],
        settings: DispatchSettings,
        producers: Producers,
        request_stop: Callable[[], None],
    ) -> None:
        self.request_stop: Final = request_stop
        """Requests a stop of the dispatcher, as a signal does; returns at once, so a handler can call it."""
        self._registry: Final = registry
        self._settings: Final = settings
        self._producers: Final = producers
        self._publications: Final = {each.request: _Outgoing(each, settings) for each in publications}
        self._bound: Final[dict[type, tuple[Bound, ...]]] = {}

    # -- in this process

    def send(self, request: object, /) -> object:
        """Run the one handler of a request; returns what it returns, raises what it raises."""
        must_not_block("send", "send_async")
        return self._run(self._only(request), request, "send")

    async def send_async(self, request: object, /) -> object:
        """The same with an async handler. A blocking handler is run too, and blocks the loop."""
        return await self._run_async(self._only(request), request)

    def publish(self, event: object, /) -> None:
        """Run every handler of an event, one after another; their errors are raised as one group."""
        must_not_block("publish", "publish_async")
        errors: list[Exception] = []
        for bound in self._handlers(type(event)):
            try:
                self._run(bound, event, "publish")
            except Exception as error:
                errors.append(error)
        _raise_all(errors, event)

    async def publish_async(self, event: object, /) -> None:
        """The same with async handlers."""
        errors: list[Exception] = []
        for bound in self._handlers(type(event)):
            try:
                await self._run_async(bound, event)
            except Exception as error:
                errors.append(error)
        _raise_all(errors, event)

    def _only(self, request: object) -> Bound:
        handlers = self._handlers(type(request))
        if len(handlers) != 1:
            names = ", ".join(each.registration.name for each in handlers) or "none"
            raise ConfigurationError(
                f"{type(request).__name__} needs exactly one handler to be sent to, and has {names}: publish it, or "
                "add one"
            )
        return handlers[0]

    def _handlers(self, request: type) -> tuple[Bound, ...]:
        bound = self._bound.get(request)
        if bound is None:
            registrations = tuple(self._registry.handling(request))
            for each in registrations:
                if each.explicit:
                    raise ConfigurationError(
                        f"{each.name} settles a message from a broker: it cannot be called in the process"
                    )
            bound = self._bound[request] = tuple(bind(each, self._settings, "") for each in registrations)
        return bound

    def _context(self, bound: Bound) -> Context:
        outer = find_context()
        name = bound.registration.name
        return Context(self, name, clock=self._settings.clock) if outer is None else outer.nested(name)

    def _run(self, bound: Bound, request: object, called: str) -> object:
        name = bound.registration.name
        if bound.registration.colour == "awaiting":
            raise ConfigurationError(f"{name} is async: await {called}_async instead of calling {called}")
        token = enter_context(self._context(bound))
        try:
            return bound.run(request)
        finally:
            leave_context(token)

    async def _run_async(self, bound: Bound, request: object) -> object:
        token = enter_context(self._context(bound))
        try:
            result = bound.run(request)
            return done(await result) if inspect.isawaitable(result) else result
        finally:
            leave_context(token)

    # -- to the broker

    def post(self, request: object, /, **options: Unpack[PostOptions]) -> str:
        """Give a request to the broker; returns its id once the broker has confirmed it, or raises PublishError."""
        must_not_block("post", "post_async")
        message = self._message(request, **options)
        self._producers.send((message,), _delay(options.get("delay")))
        return message.id

    async def post_async(self, request: object, /, **options: Unpack[PostOptions]) -> str:
        """The same, awaited."""
        message = self._message(request, **options)
        await self._producers.send_async((message,), _delay(options.get("delay")))
        return message.id

    def post_many(self, requests: Iterable[object], /, *, delay: Duration | None = None) -> Sequence[str]:
        """Give many requests to the broker, each as it is or as a Post; returns their ids once all are confirmed.

        The `failures` of a PublishError say which are not confirmed.
        """
        must_not_block("post_many", "post_many_async")
        messages = self._messages(requests)
        self._producers.send(messages, _delay(delay))
        return [message.id for message in messages]

    async def post_many_async(self, requests: Iterable[object], /, *, delay: Duration | None = None) -> Sequence[str]:
        """The same, awaited."""
        messages = self._messages(requests)
        await self._producers.send_async(messages, _delay(delay))
        return [message.id for message in messages]

    def _messages(self, requests: Iterable[object]) -> Sequence[Message]:
        return [
            self._message(each.request, **each.options) if isinstance(each, Post) else self._message(each)
            for each in requests
        ]

    def _message(self, request: object, **options: Unpack[PostOptions]) -> Message:
        outgoing = self._publications.get(type(request))
        if outgoing is None:
            known = ", ".join(each.__name__ for each in self._publications) or "none"
            raise UnknownPublication(
                f"no Publication says where {type(request).__name__} goes (there is {known}): "
                f"add Publication({type(request).__name__}, topic=…) to the dispatcher"
            )
        if options:
            _check_options(options)
        return outgoing.message(request, self._settings.clock.wall(), **options)


class _Outgoing:
    """How one type of request becomes a message."""

    def __init__(self, publication: Publication, settings: DispatchSettings) -> None:
        self._publication: Final = publication
        self._topic: Final = publication.destination
        self._mapper: Final = settings.mapper(publication.request)
        self._type: Final = wire_type(publication.request)
        self._version: Final = self._mapper.version or wire_version(publication.request)
        self._kind: Final[Kind] = _kind(publication.request)

    def message(
        self,
        request: object,
        now: float,
        *,
        id: str | None = None,  # noqa: A002 - the header's own name for it
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: Duration | None = None,  # not in the message: the broker gets it separately
        correlation_id: str | None = None,
        reply_to: str | None = None,
    ) -> Message:
        context = find_context()
        if context is not None and context.has_message:
            # By default the handled message's correlation id, or else its id.
            correlation_id = correlation_id or context.message.header.correlation_id or context.message.id
            headers = _traced(headers or {}, context.headers)
        header = Header(
            id=id or uuid.uuid4().hex,
            topic=self._topic,
            type=self._type,
            version=self._version,
            kind=self._kind,
            content_type=self._mapper.content_type,
            key=self._key(request) if key is None else key,
            correlation_id=correlation_id or None,
            reply_to=reply_to,
            timestamp=now,
            headers=_checked(headers) if headers else NO_HEADERS,
        )
        return Message(header, self._mapper.encode(request))

    def _key(self, request: object) -> str | None:
        key = self._publication.key
        value = getattr(request, key) if isinstance(key, str) else None if key is None else key(request)
        return None if value is None else str(value)


def _check_options(options: PostOptions) -> None:
    for name in ("id", "key", "correlation_id", "reply_to"):
        value = options.get(name)
        if value is not None and not isinstance(value, str):
            raise ConfigurationError(f"post: {name} must be text, not {value!r}")
    headers = options.get("headers")
    if headers is not None and not isinstance(headers, Mapping):
        raise ConfigurationError(f"post: headers must be a mapping of names to texts, not {headers!r}")


def _checked(headers: Mapping[str, str]) -> Mapping[str, str]:
    for name, text in headers.items():
        if not isinstance(text, str):
            raise ConfigurationError(f"headers are text: {name!r} is {type(text).__name__}")
        if name.startswith("pump-"):
            raise ConfigurationError(
                f"the header {name!r} cannot be set: names that begin with pump- belong to the pump"
            )
    return MappingProxyType(dict(headers))


def _kind(request: type) -> Kind:
    if issubclass(request, Event):
        return "event"
    return "document" if issubclass(request, Document) else "command"


def _traced(headers: Mapping[str, str], handled: Mapping[str, str]) -> Mapping[str, str]:
    """The headers with the trace of the message that is being handled, unless they have a trace already."""
    if TRACE_PARENT in headers or TRACE_PARENT not in handled:
        return headers
    return {**{name: handled[name] for name in (TRACE_PARENT, TRACE_STATE) if name in handled}, **headers}


def _delay(delay: Duration | None) -> float:
    try:
        return 0.0 if delay is None else delay_seconds(delay)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def _raise_all(errors: Sequence[Exception], event: object) -> None:
    if errors:
        raise ExceptionGroup(f"{len(errors)} handlers of {type(event).__name__} failed", errors)
