"""Checks, splits and errors that are the same for every producer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, TypeVar

from pump.capabilities import Capabilities
from pump.errors import PublishError
from pump.message import Message

Item = TypeVar("Item")

MOST_REASONS: Final = 3
MOST_RANGES: Final = 5


def not_sent(why: str, *, retriable: bool = False) -> PublishError:
    """The error for messages if none of them was stored."""
    return PublishError(f"nothing was sent: {why}", sent=False, retriable=retriable)


def check_sizes(message: Message, capabilities: Capabilities, headers_size: int | None = None) -> None:
    """PublishError if the body or the headers are larger than the transport allows.

    `headers_size` is the size of the headers on the wire, in bytes; by default the size of the sender's own.
    """
    body_limit, headers_limit = capabilities.largest_body, capabilities.largest_headers
    if body_limit is not None and len(message.body) > body_limit:
        raise not_sent(f"the body of message {message.id} has {len(message.body)} bytes, and {body_limit} are allowed")
    if headers_limit is None:
        return
    if headers_size is None:
        headers_size = sum(len(name.encode()) + len(text.encode()) for name, text in message.header.headers.items())
    if headers_size > headers_limit:
        raise not_sent(
            f"the headers of message {message.id} have {headers_size} bytes, and {headers_limit} are allowed"
        )


def portions(items: Sequence[Item], weigh: Callable[[Item], int], most: int, heaviest: int) -> Iterator[Sequence[Item]]:
    """The items in order, in portions of at most `most` items and `heaviest` weight; a heavier item goes alone."""
    begin = weight = 0
    for place, item in enumerate(items):
        own = weigh(item)
        if place > begin and (place - begin >= most or weight + own > heaviest):
            yield items[begin:place]
            begin, weight = place, 0
        weight += own
    if begin < len(items):
        yield items[begin:]


def together(failures: Mapping[int, PublishError], count: int) -> PublishError:
    """One error for `count` messages that were sent together, made of the errors of single ones, by position."""
    first = next(iter(failures.values()))
    if count == 1:
        return first
    errors = list(failures.values())
    known = all(each.sent is False for each in errors)
    which = "" if len(errors) == count else f" (positions {_ranges(sorted(failures))}; the others are stored)"
    text = f"{len(errors)} of {count} messages were not {'stored' if known else 'confirmed'}{which}: {_reasons(errors)}"
    all_alike = all(type(each) is type(first) for each in errors)
    error = first.again() if all_alike else PublishError(text)
    error.args = (text,)
    error.sent = False if known and len(errors) == count else None
    error.retriable = all(each.retriable for each in errors)
    error.failures = failures
    return error


def _reasons(errors: Sequence[PublishError]) -> str:
    """A text such as "first; second", with at most a few reasons."""
    texts = list(dict.fromkeys(map(str, errors)))
    more = len(texts) - MOST_REASONS
    return "; ".join(texts[:MOST_REASONS]) + (f"; and {more} more" if more > 0 else "")


def failure_among(error: PublishError, begin: int, end: int) -> PublishError | None:
    """The part of the error that is about the messages from `begin` to `end`; None if they are stored."""
    if not error.failures:
        return error.again()
    own = {place - begin: each for place, each in error.failures.items() if begin <= place < end}
    return together(own, end - begin) if own else None


def _ranges(positions: Sequence[int]) -> str:
    """A text such as "3, 7-9", with at most a few ranges."""
    runs = [
        [position for _, position in run] for _, run in groupby(enumerate(positions), lambda each: each[1] - each[0])
    ]
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ", ".join(texts[:MOST_RANGES]) + (" …" if len(texts) > MOST_RANGES else "")
