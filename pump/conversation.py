"""One algorithm for blocking and awaiting callers: a generator yields what has to be done, and a driver does it.

    class Ask(Effect[Answer]):
        ...

    def name_of(user: int) -> Conversation[Ask, str]:
        answer = yield from Ask(f"/users/{user}")
        return answer.text

    run(name_of(7), perform)                    # perform(effect) returns the result, or raises
    await run_async(name_of(7), perform_async)  # the same, awaited

A conversation does no input or output itself. An error of an effect is raised where the effect was yielded, so that
`try`, `finally` and `with` work as in any function; a cancellation of the awaiting driver is raised there too.
"""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, Self, TypeAlias, TypeVar

Result = TypeVar("Result")
EffectT = TypeVar("EffectT")


class Effect(Generic[Result]):
    """Something to do outside of the conversation. `yield from effect` returns its result."""

    __slots__ = ()

    def __iter__(self) -> Generator[Self, Result, Result]:
        return (yield self)


Conversation: TypeAlias = Generator[EffectT, Any, Result]
"""Yields effects of one kind, and returns a result."""


def run(conversation: Conversation[EffectT, Result], perform: Callable[[EffectT], object]) -> Result:
    """Perform every effect, blocking; returns what the conversation returns."""
    try:
        effect = next(conversation)
        while True:
            try:
                outcome = perform(effect)
            except BaseException as error:  # the conversation decides what an error means
                effect = conversation.throw(error)
            else:
                effect = conversation.send(outcome)
    except StopIteration as end:
        result: Result = end.value
        return result


async def run_async(
    conversation: Conversation[EffectT, Result], perform: Callable[[EffectT], Awaitable[object]]
) -> Result:
    """The same, awaiting."""
    try:
        effect = next(conversation)
        while True:
            try:
                outcome = await perform(effect)
            except BaseException as error:  # the conversation decides what an error means
                effect = conversation.throw(error)
            else:
                effect = conversation.send(outcome)
    except StopIteration as end:
        result: Result = end.value
        return result
