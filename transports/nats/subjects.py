"""The rules of NATS for subjects and names, without input or output."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from pump.errors import ConfigurationError
from pump.transport_kit.destinations import SUBJECT

_SPECIAL: Final = re.compile(r"[^A-Za-z0-9_-]")
"""NATS allows more characters in names, but which of them work has differed between its releases."""

DEFAULT_DEAD_LETTER_SUBJECT: Final = f"{SUBJECT}.dlq"


def escape_name(text: str) -> str:
    """The text as the name of a stream or durable: all but letters, digits, - and _ are written in the form =2E."""
    return _SPECIAL.sub(lambda found: "".join(f"={byte:02X}" for byte in found[0].encode()), text)


def check_subject(subject: str, *, wildcards: bool = False) -> str:
    """Return the subject; ConfigurationError if NATS would not take it."""
    tokens = subject.split(".")
    wrong = not subject.isprintable() or " " in subject or not all(tokens)
    if wrong or (not wildcards and not {"*", ">"}.isdisjoint(tokens)) or ">" in tokens[:-1]:
        what = "subject" if wildcards else "subject to post to"
        raise ConfigurationError(
            f"{subject!r} cannot be a {what} of NATS: it must be words with dots between them, without spaces"
        )
    return subject


def overlap(first: str, second: str) -> bool:
    """Whether there is a subject that matches both patterns."""
    ours, theirs = first.split("."), second.split(".")
    for one, other in zip(ours, theirs, strict=False):
        if ">" in {one, other}:
            return True
        if "*" not in {one, other} and one != other:
            return False
    return len(ours) == len(theirs)


def covers(wide: str, subject: str) -> bool:
    """Whether the first pattern matches everything that the second one matches."""
    words, patterns = subject.split("."), wide.split(".")
    for place, pattern in enumerate(patterns):
        if pattern == ">":
            return len(words) > place
        if place >= len(words) or words[place] == ">" or pattern not in {"*", words[place]}:
            return False
    return len(words) == len(patterns)


def dead_letter_subjects(patterns: Iterable[str], subjects: Sequence[str]) -> Sequence[str]:
    """The subjects, perhaps with wildcards, to which the dead letters of messages with these subjects go."""
    found: dict[str, None] = {}
    for pattern in patterns:
        if SUBJECT not in pattern:
            found[check_subject(pattern)] = None
            continue
        for subject in subjects:
            filled = pattern.replace(SUBJECT, subject)
            if subject.endswith(">") and not pattern.endswith(SUBJECT):
                raise ConfigurationError(
                    f"there is no dead-letter subject {filled!r} for everything beneath {subject!r}: give dead_letter= "
                    "a subject that the consumer does not receive"
                )
            found[check_subject(filled, wildcards=True)] = None
    return tuple(found)
