"""Makes boto3's clients, and turns their errors into ours. No other module here imports boto3 or botocore."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import boto3
import botocore.exceptions
import botocore.parsers
from botocore.config import Config

from pump.duration import seconds
from pump.errors import LeaseLost, PumpError, SetupError, TransportError
from pump.transports.sqs.settings import Account

MOST_CONNECTIONS: Final = 64
MOST_ENTRIES: Final = 10
"""The most entries of one request."""
_DENIALS: Final = ("AccessDenied", "AuthorizationError")
_REFUSALS: Final = (
    "InvalidClientTokenId",
    "InvalidAccessKeyId",
    "UnrecognizedClientException",
    "SignatureDoesNotMatch",
    "InvalidSignature",
    "IncompleteSignature",
    "MissingAuthenticationToken",
    "InvalidSecurity",
    "OptInRequired",
)
_MISSING: Final = ("NonExistentQueue", "QueueDoesNotExist", "NotFound")
_LOST: Final = ("ReceiptHandleIsInvalid", "MessageNotInflight", "InvalidReceiptHandle")
_SETUP_EXCEPTIONS: Final = (
    botocore.exceptions.NoCredentialsError,
    botocore.exceptions.PartialCredentialsError,
    botocore.exceptions.CredentialRetrievalError,
    botocore.exceptions.NoRegionError,
    botocore.exceptions.ProfileNotFound,
    botocore.exceptions.InvalidRegionError,
    botocore.exceptions.InvalidConfigError,
    botocore.exceptions.TokenRetrievalError,
    botocore.exceptions.ConfigParseError,
)
_OUTAGES: Final = (
    botocore.exceptions.BotoCoreError,
    botocore.exceptions.HTTPClientError,
    botocore.parsers.ResponseParserError,
)
_UNTRUSTED: Final = "CERTIFICATE_VERIFY_FAILED"
"""Parts of the text of an SSLError that means wrong settings. Any other SSLError is an outage."""


class NoSuchQueue(TransportError):  # noqa: N818 - it says what is wrong
    """There is no such queue or topic. With missing="assume" it is treated as an outage."""


class SqsRefused(SetupError):  # noqa: N818 - it says what happened
    """The broker refuses the request: credentials or a permission are missing or wrong."""


class SqsDenied(SqsRefused):
    """The login is right, but a permission is missing."""


class SqsNotReached(TransportError):  # noqa: N818 - it says what happened
    """No connection was made: nothing was sent."""


class SqsError(TransportError):
    """The broker answered with an error; its code says which."""

    def __init__(self, text: str, code: str = "", *, is_ours: bool = False) -> None:
        super().__init__(text)
        self.code: Final = code
        self.is_ours: Final = is_ours
        """Whether the request itself is wrong, so that the same request would fail again."""


class SqsClients:
    """The clients of one account, made when they are first used. Any thread may use it."""

    def __init__(self, account: Account) -> None:
        self._account: Final = account
        self._lock: Final = threading.Lock()
        self._session: Any = None
        self._made: Final[dict[tuple[str, int], Any]] = {}

    def sqs(self, waits_seconds: int = 0) -> Any:  # noqa: ANN401 - boto3 has no types
        """A client for queues, whose requests may wait this many seconds at the broker."""
        return self._client("sqs", waits_seconds)

    def sns(self) -> Any:  # noqa: ANN401 - boto3 has no types
        """A client for topics."""
        return self._client("sns", 0)

    def _client(self, service: str, waits_seconds: int) -> Any:  # noqa: ANN401 - boto3 has no types
        with self._lock:
            made = self._made.get((service, waits_seconds))
            if made is None:
                with errors(f"a client for {service} cannot be created"):
                    made = self._made[service, waits_seconds] = self._make(service, waits_seconds)
            return made

    def _make(self, service: str, waits_seconds: int) -> Any:  # noqa: ANN401 - boto3 has no types
        account, timeout = self._account, seconds(self._account.timeout)
        if self._session is None:
            self._session = boto3.session.Session(profile_name=account.profile)
        return self._session.client(
            service,
            region_name=account.region,
            endpoint_url=account.endpoint,
            verify=account.ca_file,
            config=Config(
                connect_timeout=timeout,
                read_timeout=waits_seconds + timeout,
                max_pool_connections=MOST_CONNECTIONS,
                # The pump itself tries again, and knows how long that makes sense.
                retries={"mode": "standard", "total_max_attempts": 1},
                tcp_keepalive=True,
            ),
        )


@contextmanager
def errors(doing: str) -> Iterator[None]:
    """Turn boto3's errors into ours, which say what was being done, and show no credentials."""
    try:
        yield
    except botocore.exceptions.ClientError as error:
        raise _answered(error, doing) from None
    except (*_SETUP_EXCEPTIONS, ValueError) as error:
        raise SqsRefused(f"sqs: {doing}: {_first_line(error)}") from None
    except (botocore.exceptions.EndpointConnectionError, botocore.exceptions.ConnectTimeoutError) as error:
        raise SqsNotReached(f"sqs: {doing}: {_first_line(error)}") from None
    except botocore.exceptions.ParamValidationError as error:
        raise SqsError(f"sqs: {doing}: {_first_line(error)}", "ParamValidation", is_ours=True) from None
    except (*_OUTAGES, OSError) as error:
        if isinstance(error, botocore.exceptions.SSLError) and _UNTRUSTED in str(error):
            raise SqsRefused(f"sqs: {doing}: {_first_line(error)}") from None
        raise TransportError(f"sqs: {doing}: {_first_line(error)}") from None


def _answered(error: botocore.exceptions.ClientError, doing: str) -> PumpError:
    said: Mapping[str, Any] = error.response.get("Error", {})
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
    code, text = str(said.get("Code", "")), str(said.get("Message", ""))
    is_sender_fault = 400 <= status < 500 and "hrottl" not in code  # noqa: PLR2004 - as HTTP has it
    return answer_error(doing, code, text, is_ours=is_sender_fault)


def answer_error(doing: str, code: str, text: str, *, is_ours: bool) -> PumpError:
    """Our error for an error code of the broker, of a request or of one entry."""
    says = f"sqs: {doing}: {code}: {text}"
    if any(each in code for each in _LOST) or (is_ours and _is_about_receipt(text)):
        return LeaseLost(says)
    if any(each in code for each in _DENIALS):
        return SqsDenied(says)
    if any(each in code for each in _REFUSALS):
        # The text of a wrong signature shows how the request was signed.
        return SqsRefused(f"sqs: {doing}: {code}" if "Signature" in code else says)
    if any(each in code for each in _MISSING):
        return NoSuchQueue(says)
    return SqsError(says, code, is_ours=is_ours)


def _is_about_receipt(text: str) -> bool:
    """Whether the error says that a receipt has expired, or that a message cannot be kept longer."""
    lower = text.lower()
    return "receipt handle" in lower or "receipthandle" in lower or "visibilitytimeout for the message" in lower


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]


def batches(
    entries: Sequence[Mapping[str, Any]], request: Callable[..., Mapping[str, Any]], doing: str, **options: object
) -> Mapping[int, PumpError]:
    """Send entries, ten in each request; returns the errors of the failed ones, by position.

    After a request without an answer no other is sent, and all remaining entries have its error.
    """
    failures: dict[int, PumpError] = {}
    for begin in range(0, len(entries), MOST_ENTRIES):
        some = entries[begin : begin + MOST_ENTRIES]
        try:
            with errors(doing):
                reply = request(Entries=[{"Id": str(place), **entry} for place, entry in enumerate(some)], **options)
        except PumpError as error:
            failures.update(dict.fromkeys(range(begin, len(entries)), error))
            return failures
        for each in reply.get("Failed", ()):
            code, text, is_ours = each.get("Code", ""), each.get("Message", ""), bool(each.get("SenderFault"))
            failures[begin + int(each["Id"])] = answer_error(doing, code, text, is_ours=is_ours)
    return failures
