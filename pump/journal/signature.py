"""The signature of an error's text: equal for texts that differ in ids, addresses, numbers and quoted words only."""

import re
from typing import Final

REPLACED: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"), "<id>"),
    (re.compile(r"'[^']*'|\"[^\"]*\""), "<text>"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"), "<address>"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b|\b(?=[a-fA-F]*\d)[0-9a-fA-F]{8,}\b"), "<id>"),
    (re.compile(r"\d+(?:\.\d+)?"), "<n>"),
)
"""What is replaced, in this order, and by what. Java reads these expressions as Python does."""


def signature(text: str) -> str:
    """The text with a placeholder for all that changes from one message to the next, on one line."""
    for pattern, placeholder in REPLACED:
        text = pattern.sub(placeholder, text)
    return " ".join(text.split())


def error_group(text: str) -> str:
    """The group of an error's text: what stands before its first colon."""
    return text.partition(":")[0].strip()
