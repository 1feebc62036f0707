"""Subjects and names, as NATS has them. Pure."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from pump.errors import ConfigurationError

_SPECIAL: Final = re.compile(r"[^A-Za-z0-9_-]")
"""NATS allows more, but what it does not trip over has differed from release to release."""

SUBJECT: Final = "<subject>"
"""In the name of a dead-letter subject: the subject of the message that is given up."""
DEFAULT_GRAVE: Final = f"{SUBJECT}.dlq"


def name_of(text: str) -> str:
    """The name of a stream or durable: the text, where all but letters, digits, - and _ is written like =2E."""
    return _SPECIAL.sub(lambda found: "".join(f"={byte:02X}" for byte in found[0].encode()), text)


def checked(subject: str, *, wildcards: bool = False) -> str:
    """The subject; a ConfigurationError where it is none."""
    tokens = subject.split(".")
    wrong = not subject.isprintable() or " " in subject or not all(tokens)
    if wrong or (not wildcards and has_wildcard(subject)) or ">" in tokens[:-1]:
        what = "subject" if wildcards else "subject to post to"
        raise ConfigurationError(f"{subject!r} is no {what} of NATS: words with dots between them, without spaces")
    return subject


def has_wildcard(subject: str) -> bool:
    """Whether it stands for many subjects."""
    return any(token in {"*", ">"} for token in subject.split("."))


def overlap(first: str, second: str) -> bool:
    """Whether some subject is meant by both."""
    ours, theirs = first.split("."), second.split(".")
    for one, other in zip(ours, theirs, strict=False):
        if ">" in {one, other}:
            return True
        if "*" not in {one, other} and one != other:
            return False
    return len(ours) == len(theirs)


def covers(wide: str, subject: str) -> bool:
    """Whether the first means everything that the second means."""
    words, patterns = subject.split("."), wide.split(".")
    for place, pattern in enumerate(patterns):
        if pattern == ">":
            return len(words) > place
        if place >= len(words) or words[place] == ">" or pattern not in {"*", words[place]}:
            return False
    return len(words) == len(patterns)


def graves(pattern: str, subjects: Sequence[str]) -> Iterator[str]:
    """Where what is rejected of these subjects goes, as a stream has to know it."""
    if SUBJECT not in pattern:
        yield checked(pattern)
        return
    for subject in subjects:
        if subject.endswith(">") and not pattern.endswith(SUBJECT):
            raise ConfigurationError(
                f"there is no dead-letter subject {pattern.replace(SUBJECT, subject)!r} for everything beneath "
                f"{subject!r}: say dead_letter=, a subject that the consumer does not receive"
            )
        yield checked(pattern.replace(SUBJECT, subject), wildcards=True)


def grave(pattern: str, subject: str) -> str:
    """Where a message of this subject goes."""
    return pattern.replace(SUBJECT, subject)
