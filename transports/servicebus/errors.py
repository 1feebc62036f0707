"""Turns every error of the vendor's client into one of ours."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError, ServiceRequestError
from azure.servicebus import exceptions as vendor

from pump.errors import LeaseLost, PublishError, PumpError, SetupError, TransportError
from pump.text import bounded_text, text_of

LOST: Final = (vendor.MessageLockLostError, vendor.SessionLockLostError)
REFUSED: Final = (vendor.ServiceBusAuthenticationError, vendor.ServiceBusAuthorizationError)
NEVER_SENT: Final = (*REFUSED, vendor.MessagingEntityNotFoundError, vendor.MessageSizeExceededError)
PERMANENT: Final = (vendor.MessageSizeExceededError,)
"""Errors with which sending the same message again would not help."""
UNAUTHORIZED: Final = (401, 403)


class Refused(TransportError):  # noqa: N818 - it says what happened
    """The namespace refuses the login, or there is no such entity. It does not pass by itself, unlike an outage."""


def error_text(error: BaseException) -> str:
    """The text of the vendor's error, on one line and of limited length."""
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return "no answer came in time"
    return bounded_text(" ".join(text_of(error).split()) or type(error).__name__, 300)


def passes(error: BaseException) -> bool:
    """Whether Azure said no to one call only: a link, and with it the lock of a session, is as good as before."""
    return isinstance(error.__cause__, (vendor.ServiceBusServerBusyError, vendor.MessageAlreadySettled))


@contextmanager
def outages(doing: str) -> Iterator[None]:
    """Raise a TransportError, LeaseLost or Refused for any error of the client in the block."""
    try:
        yield
    except PumpError:
        raise
    except LOST as error:
        raise LeaseLost(f"{doing} came too late: {error_text(error)}") from error
    except vendor.MessageAlreadySettled as error:
        raise LeaseLost(f"{doing}: it was already settled") from error
    except (*REFUSED, vendor.MessagingEntityNotFoundError, vendor.MessagingEntityDisabledError) as error:
        raise Refused(f"{doing} failed: {error_text(error)}") from error
    except Exception as error:
        raise TransportError(f"{doing} failed: {error_text(error)}") from error


def publish_error(error: Exception, what: str) -> PublishError:
    """The PublishError for messages whose sending raised this."""
    if isinstance(error, PublishError):
        return error
    never = isinstance(error, NEVER_SENT) or (isinstance(error, ValueError) and not isinstance(error, AzureError))
    known = "nothing was sent" if never else "it is not known whether it was stored"
    retriable = not isinstance(error, (*PERMANENT, ValueError))
    failure = PublishError(f"{known}: {what}: {error_text(error)}", sent=False if never else None, retriable=retriable)
    failure.__cause__ = error
    return failure


@contextmanager
def set_up(where: object, what: str) -> Iterator[None]:
    """Raise a SetupError that names what is wrong, or a TransportError if nothing answers."""
    try:
        yield
    except PumpError:
        raise
    except HttpResponseError as error:
        if isinstance(error, ClientAuthenticationError) or error.status_code in UNAUTHORIZED:
            why = "it needs the claim Manage; with missing='assume' nothing is asked for"
            raise SetupError(f"{where} does not accept this key or credential: {what} failed: {why}") from error
        raise TransportError(f"{where}: {what} failed: {error_text(error)}") from error
    except ServiceRequestError as error:
        raise TransportError(f"{where} cannot be reached: {error_text(error)}") from error
    except Exception as error:
        raise TransportError(f"{where}: {what} failed: {error_text(error)}") from error
