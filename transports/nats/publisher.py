"""Posting to streams: confirmed by a PubAck or reported; tried again where that may help, and known as the same."""

import asyncio
import json
import random
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final, NamedTuple

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.js import api

from pump.clock import Clock, Signal
from pump.errors import PublishError, PublishExhausted, SetupError, TransportError
from pump.telemetry import Telemetry
from pump.transports.nats.connection import Address, Link, log, nothing, said
from pump.transports.nats.headers import ids

WINDOW_MESSAGES: Final = 500
WINDOW_BYTES: Final = 4 * 2**20
"""So much is sent before its confirmations are waited for."""
JITTER: Final = 0.1
GIVE_UP_SECONDS: Final = 5.0
"""A connection that was lost so long ago is not waited for: a new one is tried with each posting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often a posting is tried, and how long each time."""

    max_retries: int = 3
    """All tries together, the first included."""
    retry_base_ms: float = 100.0
    """Before the second try; it doubles before each further one, and up to a tenth is added."""
    timeout: float = 5.0
    """For one try's confirmation, in seconds."""

    def delay(self, tries: int, chance: float) -> float:
        """How long to wait after so many tries, in seconds."""
        return float(self.retry_base_ms / 1000 * 2 ** (tries - 1) * (1 + JITTER * chance))


class Outgoing(NamedTuple):
    """One message on its way. Its headers tell the server whether it has it already."""

    subject: str
    body: bytes
    headers: Mapping[str, str]
    id: str

    @property
    def head(self) -> int:
        """How many bytes its headers have."""
        return sum(len(name) + len(value.encode()) + 4 for name, value in self.headers.items())

    @property
    def size(self) -> int:
        """How many bytes travel."""
        return len(self.body) + self.head


class Failure(NamedTuple):
    """Why a try failed."""

    kind: str
    """One of a few words, fit for a label."""
    retriable: bool
    sent: bool | None
    """False: it is not stored. None: nobody knows."""
    error: BaseException


class Denied(nats.errors.Error):
    """The server does not permit posting to the subject."""


RETRIED: Final = {"timeout": None, "connection_failed": None, "nats_unavailable": False, "unknown": None}
"""What may be tried again, and whether it is known that nothing was stored.

An unknown error is tried again: since a repetition is recognised, that can do no harm, and giving up might.
"""
FINAL: Final = frozenset({"invalid_format", "no_stream", "permission_denied"})

_NOT_SENT: Final = (
    nats.errors.ConnectionClosedError,
    nats.errors.ConnectionReconnectingError,
    nats.errors.ConnectionDrainingError,
    nats.errors.NoServersError,
    nats.errors.OutboundBufferLimitError,
)
_INVALID: Final = (nats.errors.BadSubjectError, nats.errors.MaxPayloadError, nats.js.errors.BadRequestError)
_KINDS: Final[tuple[tuple[str, tuple[type[BaseException], ...]], ...]] = (
    ("timeout", (asyncio.TimeoutError, nats.errors.TimeoutError)),
    ("connection_failed", (*_NOT_SENT, nats.errors.StaleConnectionError, TransportError, OSError)),
    ("permission_denied", (Denied, SetupError)),
    ("no_stream", (nats.js.errors.NoStreamResponseError, nats.errors.NoRespondersError)),
    ("invalid_format", (*_INVALID, nats.errors.BadHeaderError, UnicodeError)),
    ("nats_unavailable", (nats.js.errors.ServiceUnavailableError, nats.js.errors.ServerError)),
)


def classified(error: BaseException) -> Failure:
    """What kind of failure an error is, and what follows."""
    kind = next((name for name, types in _KINDS if isinstance(error, types)), "unknown")
    sent = False if kind in FINAL or isinstance(error, (*_NOT_SENT, TransportError)) else RETRIED[kind]
    return Failure(kind, kind in RETRIED, sent, error)


class Publisher:
    """Posts on a connection of its own, opened with the first posting, and anew when it is broken."""

    def __init__(
        self,
        address: Address,
        purpose: str,
        *,
        clock: Clock,
        retries: Retries,
        telemetry: Telemetry,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._address: Final = address
        self._purpose: Final = purpose
        self._clock: Final = clock
        self._retries: Final = retries
        self._telemetry: Final = telemetry
        self._chance: Final = chance
        self._closing: Final = Signal()
        self._opening: Final = asyncio.Lock()
        self._tokens: Final = count(1)
        self._waiting: Final[dict[str, tuple[str, asyncio.Future[BaseException | None]]]] = {}
        """By the inbox of its confirmation: a message's subject, and what becomes of it."""
        self._link: Link | None = None
        self._inbox = ""
        self._heard = 0.0

    async def send(self, outgoing: Sequence[Outgoing]) -> None:
        """Return when all are confirmed; PublishExhausted after the last try, PublishError where no try would help."""
        waiting, unknown = list(outgoing), False
        for tries in range(1, self._retries.max_retries + 1):
            results = await self._try(waiting)
            failed = [(each, failure) for each, failure in zip(waiting, results, strict=True) if failure is not None]
            for each, failure in zip(waiting, results, strict=True):
                if failure is None:
                    self._telemetry.tell(
                        "router_assignment_published_total", subject=each.subject, exemplar=ids(each.headers)
                    )
            if not failed:
                return
            unknown = unknown or any(failure.sent is None for _, failure in failed)
            hopeless = next((failure for _, failure in failed if not failure.retriable), None)
            if hopeless is not None or tries == self._retries.max_retries or self._closing.is_set():
                self._give_up(failed, hopeless, tries, sent=None if unknown else False)
            waiting = [each for each, _ in failed]
            delay = self._retries.delay(tries, self._chance())
            for each, failure in failed:
                self._tell_retry(each, failure, tries, delay)
            await self._clock.wait_async(self._closing, delay)

    async def close(self) -> None:
        """Let go of the connection; what is not confirmed yet is reported as unknown."""
        self._closing.set()
        link, self._link = self._link, None
        if link is not None:
            await link.close()
        self._fail_all(nats.errors.ConnectionClosedError())

    # -- one try

    async def _try(self, outgoing: Sequence[Outgoing]) -> list[Failure | None]:
        began = self._clock.monotonic()
        results: list[Failure | None] = []
        for window in _windows(outgoing):
            try:
                link = await self._working_link()
            except (TransportError, SetupError) as error:
                results += [classified(error)] * len(window)
                continue
            results += await self._send_window(link, window)
        silent = any(each is not None and each.kind == "timeout" for each in results) and self._heard < began
        if silent:
            await self._drop()  # it may be half open: the next try has a connection of its own
        return [await self._explained(each, result) for each, result in zip(outgoing, results, strict=True)]

    async def _send_window(self, link: Link, window: Sequence[Outgoing]) -> list[Failure | None]:
        futures = [await self._post(link, each) for each in window]
        pending = [each for each in futures if not each.done()]
        if pending:
            await asyncio.wait(pending, timeout=self._retries.timeout)
        for token in [token for token, (_, future) in self._waiting.items() if future in set(futures)]:
            del self._waiting[token]
        return [_outcome(each) for each in futures]

    async def _post(self, link: Link, each: Outgoing) -> "asyncio.Future[BaseException | None]":
        token = f"{self._inbox}.{next(self._tokens)}"
        future: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self._waiting[token] = each.subject, future
        try:
            await link.client.publish(each.subject, each.body, reply=token, headers=dict(each.headers))
        except Exception as error:
            _end(future, error)
        return future

    async def _on_answer(self, answer: Msg) -> None:
        self._heard = self._clock.monotonic()
        _, future = self._waiting.pop(answer.subject, ("", None))
        if future is None or future.done():
            return
        try:
            if (answer.headers or {}).get(api.Header.STATUS) == api.StatusCode.SERVICE_UNAVAILABLE.value:
                raise nats.js.errors.NoStreamResponseError  # noqa: TRY301 - as nats-py tells it
            said_so = json.loads(answer.data)
            if "error" in said_so:
                nats.js.errors.APIError.from_error(said_so["error"])
            if not said_so.get("stream") or not said_so.get("seq"):
                raise ValueError("what came is no confirmation of a stream")  # noqa: TRY301 - all is told in one place
        except Exception as error:
            _end(future, error)
        else:
            _end(future, None)

    async def _explained(self, each: Outgoing, failure: Failure | None) -> Failure | None:
        """Nobody answers where there is no stream, and also where JetStream is not ready yet: find out which it is."""
        if failure is None or failure.kind != "no_stream" or self._link is None:
            return failure
        try:
            found = (await self._link.ask("STREAM.NAMES", {"subject": each.subject})).get("streams")
        except Exception:
            found = True
        return Failure("nats_unavailable", True, False, failure.error) if found else failure  # noqa: FBT003 - named in the tuple

    # -- the connection

    async def _working_link(self) -> Link:
        async with self._opening:
            if self._link is not None and (self._link.closed or self._link.cut_for > GIVE_UP_SECONDS):
                await self._drop()
            if self._closing.is_set():
                raise TransportError("the producer is closed")
            if self._link is None:
                link = await Link.open(self._address, self._purpose)
                link.refused = self._on_refusal
                link.changed = self._on_change
                self._inbox = link.client.new_inbox()
                await link.client.subscribe(f"{self._inbox}.*", cb=self._on_answer)
                self._link = link
            return self._link

    async def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.changed = nothing  # its end is known here already
            await link.close()

    def _on_change(self) -> None:
        """Confirmations that were on their way are gone with the connection; the messages may have arrived."""
        if self._link is not None and not self._link.alive:
            self._fail_all(nats.errors.StaleConnectionError())

    def _on_refusal(self, text: str) -> None:
        for subject, future in self._waiting.values():
            if f'"{subject.lower()}"' in text.lower():
                _end(future, Denied(text))

    def _fail_all(self, error: BaseException) -> None:
        for _, future in self._waiting.values():
            _end(future, error)
        self._waiting.clear()

    # -- what is told

    def _tell_retry(self, each: Outgoing, failure: Failure, tries: int, delay: float) -> None:
        log.warning("posting to %s failed (%s); try %d follows in %.3f s", each.subject, failure.kind, tries + 1, delay)
        self._telemetry.tell(
            "router_assignment_retry_total",
            subject=each.subject,
            error_kind=failure.kind,
            retry=tries,
            delay=delay,
            exemplar=ids(each.headers),
        )

    def _give_up(
        self, failed: Sequence[tuple[Outgoing, Failure]], hopeless: Failure | None, tries: int, *, sent: bool | None
    ) -> None:
        for each, failure in failed:
            self._telemetry.tell(
                "router_assignment_publish_failures_total",
                error_kind=failure.kind,
                subject=each.subject,
                exemplar=ids(each.headers),
            )
            if hopeless is None:
                self._telemetry.tell(
                    "router_retry_exhausted_total", error_kind=failure.kind, retries=tries, exemplar=ids(each.headers)
                )
        each, failure = next((pair for pair in failed if pair[1] is hopeless), failed[0])
        others = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        text = f"message {each.id}{others} was not confirmed by {each.subject}: {failure.kind}, {said(failure.error)}"
        cause = failure.error if isinstance(failure.error, Exception) else None
        if hopeless is not None:
            raise PublishError(text, sent=sent, retriable=False) from cause
        raise PublishExhausted(f"{text}; tried {tries} times", kind=failure.kind, tries=tries, sent=sent) from cause


def minted(message_id: str) -> str:
    """What the server knows one posting by, over all of its tries."""
    return f"{message_id}.{secrets.token_hex(6)}"


def _windows(outgoing: Sequence[Outgoing]) -> Iterator[Sequence[Outgoing]]:
    window: list[Outgoing] = []
    size = 0
    for each in outgoing:
        if window and (len(window) >= WINDOW_MESSAGES or size + each.size > WINDOW_BYTES):
            yield window
            window, size = [], 0
        window.append(each)
        size += each.size
    if window:
        yield window


def _outcome(future: "asyncio.Future[BaseException | None]") -> Failure | None:
    if not future.done():
        future.cancel()
        return classified(nats.errors.TimeoutError())
    error = future.result()
    return None if error is None else classified(error)


def _end(future: "asyncio.Future[BaseException | None]", error: BaseException | None) -> None:
    if not future.done():
        future.set_result(error)
