"""Makes text of any object that a program raises or gives. A failing `__str__` must not keep a message unsettled."""

from typing import Final

TEXT_LIMIT: Final = 1024
"""Bytes of one text in a header."""


def text_of(value: object) -> str:
    """The value as text; if its own `__str__` fails, its type and the error. None is the empty text."""
    if value is None:
        return ""
    try:
        return str(value)
    except Exception as error:
        return f"<{type(value).__name__}, whose text raised {type(error).__name__}>"


def printable(text: str) -> str:
    """The text with escapes for all that UTF-8 cannot write, so that a log file can hold it."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def bounded_text(value: object, limit: int = TEXT_LIMIT) -> str:
    """The value as text that fits a header: at most `limit` bytes, no NUL, and nothing that UTF-8 cannot write."""
    clean = text_of(value).encode("utf-8", "replace").replace(b"\0", b"?")
    return clean[: max(limit, 0)].decode("utf-8", "ignore")
