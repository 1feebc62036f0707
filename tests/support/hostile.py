"""The worst errors and reasons that a program may raise: none of them may keep a message unsettled."""

import enum
from typing import Any


class Why(enum.Enum):
    SOLD_OUT = 1


class Unprintable:
    def __str__(self) -> str:
        raise ZeroDivisionError

    def __bool__(self) -> bool:
        raise ZeroDivisionError


class UnprintableError(Exception):
    __str__ = Unprintable.__str__
    __repr__ = Unprintable.__str__

    def __bool__(self) -> bool:
        return False


class BadlyNotedError(Exception):
    @property
    def __notes__(self) -> Any:  # type: ignore[override]
        raise ZeroDivisionError


ANYTHING: tuple[Any, ...] = (None, Why.SOLD_OUT, Unprintable(), b"\xff", 0, "\ud800\0", "ü" * 5000, [[]], object)
