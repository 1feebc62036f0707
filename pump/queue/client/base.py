"""Code that the blocking and the awaiting client share: set-up, and making methods from conversations."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, get_args

import httpx

from pump.clock import Clock, SystemClock
from pump.colour import must_not_block, undone
from pump.conversation import run, run_async
from pump.duration import Duration, seconds
from pump.queue.client.calls import Ask, Calls, ClientEffect, Steps
from pump.queue.client.consuming import Consuming
from pump.queue.errors import QueueUnavailable

TIMEOUT: Final = 30.0

Arguments = ParamSpec("Arguments")
Method = TypeVar("Method", bound=Callable[..., object])
Result = TypeVar("Result")
Source = TypeVar("Source")
SourceOf_co = TypeVar("SourceOf_co", covariant=True)
Performed = TypeVar("Performed")
Performed_co = TypeVar("Performed_co", covariant=True)
Consumer = TypeVar("Consumer")
Http = TypeVar("Http")
Transport = TypeVar("Transport")


class Runner(Protocol[SourceOf_co, Performed_co]):
    """Runs the conversations of `calls`: `perform` performs one effect, at once or when its result is awaited."""

    @property
    def calls(self) -> SourceOf_co: ...  # noqa: D102 - as the class says
    def perform(self, effect: ClientEffect, /) -> Performed_co: ...  # noqa: D102 - as the class says


Blocking: TypeAlias = Runner[Source, object]
Awaiting: TypeAlias = Runner[Source, Awaitable[object]]


def blocking(
    method: Callable[Concatenate[Source, Arguments], Steps[Result]],
) -> Callable[Concatenate[Blocking[Source], Arguments], Result]:
    """A blocking method with the parameters and the docstring of a conversation."""

    @wraps(method)
    def call(self: Blocking[Source], /, *args: Arguments.args, **options: Arguments.kwargs) -> Result:
        name = f"{type(self).__name__}.{method.__name__}"
        must_not_block(name, f"Async{name}")
        return run(method(self.calls, *args, **options), self.perform)

    return _described(call, method)


def awaiting(
    method: Callable[Concatenate[Source, Arguments], Steps[Result]],
) -> Callable[Concatenate[Awaiting[Source], Arguments], Coroutine[Any, Any, Result]]:
    """An awaiting method with the parameters and the docstring of a conversation."""

    @wraps(method)
    async def call(self: Awaiting[Source], /, *args: Arguments.args, **options: Arguments.kwargs) -> Result:
        return await run_async(method(self.calls, *args, **options), self.perform)

    return _described(call, method)


def _described(call: Method, conversation: Callable[..., object]) -> Method:
    """Give the call the signature of the conversation, with the type of its result."""
    signature = inspect.signature(conversation)
    result = get_args(signature.return_annotation)[-1]
    vars(call)["__signature__"] = signature.replace(return_annotation=result)
    return call


def consumer_of(
    kind: Callable[[Consuming, Callable[[ClientEffect], Performed]], Consumer],
    consuming: Callable[Concatenate[Calls, Arguments], Consuming],
) -> Callable[Concatenate[Runner[Calls, Performed], Arguments], Consumer]:
    """Make a method that makes a consumer, with the parameters and the docstring of Consuming."""

    @wraps(consuming, assigned=["__doc__"])
    def consume(self: Runner[Calls, Performed], /, *args: Arguments.args, **options: Arguments.kwargs) -> Consumer:
        return kind(consuming(self.calls, *args, **options), self.perform)

    return consume


class ClientConsumerBase(Generic[Performed]):
    """The part that both consumers share."""

    def __init__(self, consuming: Consuming, perform: Callable[[ClientEffect], Performed]) -> None:
        self.calls: Final = consuming
        self.perform: Final = perform

    def stop(self) -> None:
        """End after the message that is being handled, or after the current long poll; from any thread."""
        self.calls.stopping.set()


class ClientBase(ABC, Generic[Http, Transport]):
    """The part that both clients share."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        clock: Clock | None = None,
        timeout: Duration = TIMEOUT,
        transport: Transport | None = None,
    ) -> None:
        self.clock: Final[Clock] = SystemClock() if clock is None else clock
        self.calls: Final = Calls(self.clock)
        self._base: Final = url.rstrip("/")
        self._timeout: Final = seconds(timeout)
        self._headers: Final = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http: Final = self._open(transport)

    @abstractmethod
    def _open(self, transport: Transport | None) -> Http: ...

    def _request(self, ask: Ask) -> dict[str, Any]:
        """The arguments for the HTTP client. The path is sent unchanged: a name in it may hold an encoded slash."""
        return {
            "method": ask.method,
            "url": httpx.URL(self._base + ask.path),
            "content": ask.body,
            "headers": self._headers if ask.body is None else {**self._headers, "Content-Type": "application/json"},
            "timeout": self._timeout + ask.wait,
        }


def done(result: object) -> object:
    """The handler's result; TypeError if it shows that the work was not done: then the message has failed."""
    if why := undone(result):
        raise TypeError(f"the handler {why}")
    return result


@contextmanager
def no_answer(ask: Ask) -> Iterator[None]:
    """Raise QueueUnavailable if there is no answer."""
    try:
        yield
    except httpx.HTTPError as error:
        raise QueueUnavailable(f"no answer to {ask.method} {ask.path}: {error!r}") from error
