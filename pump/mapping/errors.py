"""The error of a body or request that cannot be mapped, and what other libraries' errors become."""

from collections.abc import Callable
from typing import Final, NoReturn

from pump.errors import ConfigurationError, MessageAction, PumpError

_LONGEST_REASON: Final = 200


class MappingError(PumpError, ValueError):
    """A body is not a request of the type, or a request cannot be a body. Says where and why, never the value.

    A ValueError too: msgspec adds the path to those, so an error inside a nested pydantic model keeps its place.
    """


def mapping_error(reason: str, path: str = "") -> MappingError:
    """The error at this path of the body, such as `.lines[2].sku`; the empty path is the whole body."""
    return MappingError(f"${path}: {reason[:_LONGEST_REASON]}")


def refused(by: str, error: BaseException) -> MappingError:
    """The error for an exception of code that mapping has called, with that exception's own words."""
    mapped = mapping_error(f"{by} refused it: {type(error).__name__}: {error}")
    mapped.__cause__ = error
    return mapped


def raise_mapped(error: Exception, convert: Callable[[Exception], MappingError]) -> NoReturn:
    """Raise a decision of the program or a MappingError unchanged, and anything else converted.

    The library's own exception is not kept as the cause, since its text or its frames may show values of the body.
    """
    if isinstance(error, MappingError) or is_decision(error):
        raise error
    mapped = mapping_error("nested too deeply") if isinstance(error, RecursionError) else convert(error)
    raise mapped from mapped.__cause__


def is_decision(error: BaseException) -> bool:
    """Whether the program has decided what becomes of the message: alone or in a group of exceptions."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup((MessageAction, ConfigurationError)) is not None
    return isinstance(error, MessageAction | ConfigurationError)
