"""Typical mistakes: each is refused where it is made, and the text names the thing and says what to write."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path
from types import new_class
from typing import Any

import msgspec
import pytest

from pump import (
    Attribute,
    Command,
    ConfigurationError,
    Delivery,
    Dispatcher,
    JsonMapper,
    Publication,
    RequestHandler,
    Rest,
    Steps,
    Subscription,
)
from pump.handlers import (
    CircuitBreaker,
    DeferMessageOnError,
    DontAckOnError,
    Fallback,
    FeatureSwitch,
    RateLimit,
    RejectMessageOnError,
    RequestLogging,
    Retry,
    Timeout,
    Validate,
)
from pump.transports.memory import MemoryTransport
from support.programs import pump_run


@dataclass(frozen=True)
class A(Command):
    n: int = 0


@dataclass(frozen=True)
class B(Command):
    n: int = 0


class Packed(msgspec.Struct):
    customer: str


class H(RequestHandler[A]):
    def handle(self, request: A, /) -> None: ...


class HB(RequestHandler[B]):
    def handle(self, request: B, /) -> None: ...


class Mine(Attribute):
    def around(self, request: object, rest: Rest) -> Steps:
        return (yield from rest(request))


def made(transport: Any = "memory://", **settings: Any) -> Dispatcher:
    every: dict[str, Any] = {"handlers": [H], "subscriptions": [Subscription(A)], "publications": [Publication(A)]}
    return Dispatcher(transport, **every | settings)


def options(**given: Any) -> Callable[[], object]:
    return lambda: Subscription(A, **given)


def settings(**given: Any) -> Callable[[], object]:
    return lambda: made(**given)


def handling(handle: Any, *bases: Any) -> Callable[[], object]:
    return lambda: made(handlers=[new_class("Own", bases, {}, lambda names: names.update(handle=handle))])


def one_too_few(request: A) -> None: ...
def typed_otherwise(self: Any, request: B) -> None: ...
def typed_by_a_list(self: Any, request: list[int]) -> None: ...


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    # -- the transport
    "no URL": (lambda: made(None), "transport must be a URL, such as sqlite:///shop.db, .*not None"),
    "a transport's class": (lambda: made(MemoryTransport), "not the class MemoryTransport: make one"),
    "something else": (lambda: made(3), "transport must be a URL.*not 3"),
    "a scheme misspelt": (lambda: made("memry://"), "no transport is installed for memry://; did you mean memory://?"),
    "an unknown scheme": (lambda: made("xyz://"), "no transport is installed for xyz://; there are .*memory://"),
    "one slash": (lambda: made("memory:/x"), "begins with a scheme and ://, such as memory:// or amqp://"),
    # -- lists
    "one handler": (settings(handlers=H), "Dispatcher: handlers is a list: write [H]"),
    "one subscription": (settings(subscriptions=Subscription(A)), "subscriptions is a list: write [Subscription(…)]"),
    "one publication": (settings(publications=Publication(A)), "publications is a list: write [Publication(…)]"),
    "one listener": (settings(listeners=print), "listeners is a list: write ["),
    "one handler of a subscription": (options(handlers=H), "Subscription of A: handlers is a list: write [H]"),
    "a type for a subscription": (settings(subscriptions=[A]), "made of Subscription(…).*write Subscription(A)"),
    "a type for a publication": (settings(publications=[A]), "made of Publication(…).*write Publication(A)"),
    "the wrong one of the two": (settings(publications=[Subscription(A)]), "that is a Subscription"),
    "a handler for a type": (
        lambda: Subscription(H),
        "Subscription(H): that is a handler. Give the type of request that it takes, .*to Dispatcher(handlers=[H])",
    ),
    # -- what else a dispatcher is given
    "a name": (settings(name=3), "Dispatcher: name must be text, not 3"),
    "a factory": (settings(factory=3), "factory must be a function that takes a handler class and makes one, not 3"),
    "switches": (settings(switches=["a"]), "switches must be a mapping of names to True or False"),
    "a listener": (settings(listeners=[3]), "listeners must be a function that takes an event's name and its fields"),
    "a mapper's class": (settings(mappers={A: JsonMapper}), "has the class JsonMapper for A: make one, JsonMapper(…)"),
    "no mapper": (settings(mappers={A: 3}), "mappers has 3 for A, which has no encode and decode"),
    "a mapper by name": (settings(mappers={"A": JsonMapper(A)}), "mappers has the key 'A', where a request type"),
    "mappers in a list": (settings(mappers=[JsonMapper(A)]), "mappers must be a mapping of request types to mappers"),
    # -- numbers and names
    "text for a number": (options(performers="2"), "Subscription of A: performers must be a whole number, not '2'"),
    "a broken number": (options(performers=2.5), "performers must be a whole number, not 2.5"),
    "a truth for a number": (options(buffer_size=True), "buffer_size must be a whole number, not True"),
    "text for attempts": (options(max_attempts="3"), "max_attempts must be a whole number, or None for no limit"),
    "text for a limit": (options(unacceptable_limit="3"), "unacceptable_limit must be a whole number"),
    "text for a time": (options(grace="10s"), "grace must be a number of seconds or a timedelta, not '10s'"),
    "a time that is none": (options(grace=nan), "grace must be a number of seconds or a timedelta, not nan"),
    "a time without end": (options(dont_ack_delay=inf), "dont_ack_delay must be a number of seconds or a timedelta"),
    "a lease that is none": (options(lease=nan), "lease must be a number of seconds or a timedelta, not nan"),
    "a limit of 0": (options(dont_ack_longest_delay=0), "dont_ack_longest_delay must be longer than 0 s, not 0"),
    "one back-off": (options(requeue_backoff=5), "requeue_backoff must be (first, longest), two numbers"),
    "three back-offs": (options(failure_backoff=(1, 2, 3)), "failure_backoff must be (first, longest), two numbers"),
    "text for a back-off": (options(requeue_backoff=("1", 2)), "requeue_backoff must be (first, longest), two numbers"),
    "text for a truth": (options(ordered="no"), "ordered must be True or False, not 'no'"),
    "a number for a channel": (options(channel=3), "channel must be text, not 3"),
    "a number for a topic": (options(topic=3), "topic must be text, not 3"),
    "no dead letters": (options(dead_letter=False), "dead_letter must be a channel's name, or None to drop what"),
    "dead letters without a name": (options(dead_letter=""), "dead_letter must be a channel's name, or None to drop"),
    "no invalid messages": (options(invalid=False), "invalid must be a channel's name, or None for the dead letters"),
    "a topic to post to": (lambda: Publication(A, topic=3), "Publication of A: topic must be text, not 3"),  # type: ignore[arg-type]
    "a key that is no field": (lambda: Publication(A, key="m"), "of A: key='m' is no field of it; it has 'n'"),
    "a key misspelt": (lambda: Publication(Packed, key="custmer"), "is no field of it; did you mean 'customer'?"),
    "a key that is nothing": (lambda: Publication(A, key=3), "key is a field's name or a function, not 3"),  # type: ignore[arg-type]
    # -- handlers
    "a handler of another type": (
        settings(handlers=[], subscriptions=[Subscription(A, handlers=[HB])]),
        "channel A receives A, and its handler HB takes B: make them the same, or give the handler a Subscription",
    ),
    "a contradiction": (
        handling(typed_otherwise, RequestHandler[A]),
        "Own is a RequestHandler[A], and its parameter request is B: make them the same",
    ),
    "a contradiction with a list": (
        handling(typed_by_a_list, RequestHandler[list[str]]),
        "Own is a RequestHandler[list[str]], and its parameter request is list[int]",
    ),
    "a contradiction with a delivery": (
        handling(typed_otherwise, RequestHandler[Delivery[B]]),
        "Own is a RequestHandler[pump.handling.delivery.Delivery[",
    ),
    "self forgotten": (handling(one_too_few), "Own.handle lacks self: write def handle(self, request)"),
    "a static method": (
        handling(staticmethod(one_too_few)),
        "Own.handle is a staticmethod: each message has an instance of its own; write def handle(self, request)",
    ),
    "a class method": (handling(classmethod(typed_otherwise)), "Own.handle is a classmethod: each message has"),
    # -- options of attributes
    "attempts as text": (lambda: Retry("3"), "Retry: attempts must be a whole number, not '3'"),  # type: ignore[arg-type]
    "a time as text": (lambda: Timeout("5s"), "Timeout: duration must be a number of seconds or a timedelta"),  # type: ignore[arg-type]
    "a rate as text": (lambda: RateLimit("5"), "RateLimit: rate must be a number, not '5'"),  # type: ignore[arg-type]
    "a rate of 0": (lambda: RateLimit(0), "RateLimit: rate must be above 0, not 0"),
    "a burst of less than 1": (lambda: RateLimit(5, burst=0.5), "RateLimit: burst must be at least 1, not 0.5"),
    "failures as text": (lambda: CircuitBreaker("5"), "CircuitBreaker: failures must be a whole number"),  # type: ignore[arg-type]
    "an error that is none": (lambda: Retry(on="ValueError"), "Retry: on must be a type of exceptions, or a tuple"),  # type: ignore[arg-type]
    "errors in a list": (lambda: DontAckOnError(only=[OSError]), "DontAckOnError: only must be a type of exceptions"),  # type: ignore[arg-type]
    "a switch without a name": (lambda: FeatureSwitch(""), "FeatureSwitch: name must not be empty"),
    "a reason that is no text": (lambda: RejectMessageOnError(3), "RejectMessageOnError: reason must be text"),  # type: ignore[arg-type]
    "a level by name": (lambda: RequestLogging("INFO"), "RequestLogging: level must be a whole number, not 'INFO'"),  # type: ignore[arg-type]
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_mistake_is_refused_with_its_name_and_what_to_write(name: str) -> None:
    make, text = REFUSED[name]

    with pytest.raises(ConfigurationError) as refused:
        make()

    assert re.search(re.escape(text).replace(r"\.\*", ".*"), str(refused.value)), str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"key": 5}, "post: key must be text, not 5"),
        ({"id": 5}, "post: id must be text, not 5"),
        ({"headers": [("a", "b")]}, "post: headers must be a mapping of names to texts, not [('a', 'b')]"),
        ({"headers": {"a": 5}}, "headers are text: 'a' is int"),
    ],
)
def test_what_is_posted_wrongly_is_refused(options: dict[str, Any], text: str) -> None:
    with made().publishing() as dispatcher, pytest.raises(ConfigurationError, match=re.escape(text)):
        dispatcher.post(A(), **options)


WITHOUT_PARENTHESES: dict[type[Attribute], str] = {
    CircuitBreaker: "@CircuitBreaker()",
    DeferMessageOnError: "@DeferMessageOnError()",
    DontAckOnError: "@DontAckOnError()",
    Fallback: "@Fallback(alternative)",
    FeatureSwitch: "@FeatureSwitch(name)",
    RateLimit: "@RateLimit(rate)",
    RejectMessageOnError: "@RejectMessageOnError()",
    RequestLogging: "@RequestLogging()",
    Retry: "@Retry()",
    Timeout: "@Timeout(duration)",
    Validate: "@Validate()",
    Mine: "@Mine()",
}


@pytest.mark.parametrize("attribute", WITHOUT_PARENTHESES, ids=lambda attribute: attribute.__name__)
@pytest.mark.parametrize("awaits", [False, True], ids=["def", "async def"])
@pytest.mark.parametrize("of_class", [False, True], ids=["function", "method"])
def test_an_attribute_without_parentheses_is_refused(attribute: Any, *, awaits: bool, of_class: bool) -> None:
    def handle(request: A) -> None: ...
    async def handle_async(request: A) -> None: ...
    def method(self: Any, request: A) -> None: ...
    async def method_async(self: Any, request: A) -> None: ...

    function = (method_async if awaits else method) if of_class else (handle_async if awaits else handle)

    def program() -> None:
        marked = attribute(function)
        made(handlers=[type("Own", (), {"handle": marked}) if of_class else marked])

    with pytest.raises(ConfigurationError) as refused:
        program()

    assert WITHOUT_PARENTHESES[attribute] in str(refused.value)
    assert "without parentheses" in str(refused.value) or "with parentheses" in str(refused.value)


def test_an_attribute_that_takes_a_function_takes_one() -> None:
    def check(request: A) -> None: ...

    class Checking(Attribute):
        def __init__(self, function) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001 - as some are written
            self.function = function

    assert Validate(check).check is check
    assert Fallback(check).alternative is check
    assert Checking(check).function is check


def test_an_attribute_of_ones_own_without_options_takes_none() -> None:
    with pytest.raises(TypeError, match=r"Mine\(\) takes no arguments"):
        Mine(3)  # type: ignore[call-arg]


def test_a_handler_without_a_subscription_is_warned_of() -> None:
    alone = Dispatcher("memory://", handlers=[H, HB])

    (warning,) = made(handlers=[H, HB]).check()

    assert str(warning) == (
        "warning: HB takes B, and no Subscription does: only send and publish run it. Add Subscription(B)"
    )
    assert alone.check() == []


def test_a_handler_may_take_a_base_of_what_it_is_declared_for() -> None:
    class OfAnything(RequestHandler[A]):
        def handle(self, request: Command, /) -> None: ...

    assert made(handlers=[OfAnything]).check() == []


@pytest.mark.requirement("P-20")
@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("Dispatcher('memory://', handlers=H)", "handlers is a list: write [H] (shop.py, line 9)"),
        ("Dispatcher('memory://', subscriptions=[Subscription(A, grace='1')])", "grace must be a number of seconds"),
        ("Dispatcher(None)", "transport must be a URL"),
    ],
)
def test_check_says_it_in_one_line(tmp_path: Path, program: str, text: str) -> None:
    (tmp_path / "shop.py").write_text(
        "from dataclasses import dataclass\nfrom pump import *\n@dataclass\nclass A(Command):\n    n: int\n"
        f"class H(RequestHandler[A]):\n    def handle(self, request: A) -> None: ...\n\ndispatcher = {program}\n"
    )

    ended = pump_run("check", "shop:dispatcher", folder=tmp_path)

    (line,) = ended.stderr.splitlines()
    assert (ended.returncode, ended.stdout) == (2, "")
    assert line.startswith("pump: shop cannot be imported: ")
    assert text in line
