"""The signature of an error's text: the text without what differs from one message to the next."""

import re
from typing import Final

PARTS: Final = (
    (r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b", "<uuid>", "-"),
    (r"\b0[xX][0-9a-fA-F]+|\b(?=[a-fA-F]*[0-9])(?=[0-9]*[a-fA-F])[0-9a-fA-F]{8,}\b", "<hex>", ""),
    (r"\b\d{1,3}(?:\.\d{1,3}){3}\b", "<ip>", "."),
    (r"(?<!\w)'[^']*'|\"[^\"]*\"|`[^`]*`", "<text>", "'\"`"),
    (r"\d+", "<n>", ""),
)
"""What differs, what stands for it, and characters of which a text must have one to have it; in this order.

Java and Python read these expressions alike. To look for a character first takes much less time.
"""

LONGEST: Final = 500
"""How much of an error's text counts: what follows is mostly data."""

_COMPILED: Final = tuple((re.compile(pattern), stands_for) for pattern, stands_for, _ in PARTS)


def signature(text: str) -> str:
    """The text with everything replaced that differs from message to message."""
    text = text[:LONGEST]
    for pattern, stands_for in _COMPILED:
        text = pattern.sub(stands_for, text)
    return text


def error_group(text: str) -> str:
    """The group of an error's text: what stands before its first colon."""
    return text.partition(":")[0].strip()
