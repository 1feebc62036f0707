"""Everything that depends on how nats-py is made inside: publishing writes to its socket, and reads its own answers.

nats-py publishes by one task and reads an answer by another, with a queue and an object for each message, which takes
longer than all else that is done with it. Tried with nats-py 2.16.0; with one that is made in another way, and over
websockets, its public methods are used, which is slower.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.subscription import Subscription

Take = Callable[[str, bytes, bytes], None]
"""Called with the subject, the body and the headers of an answer."""

_HEAD: Final = b"NATS/1.0\r\n"
_subject: Final = re.compile(r"[!-~\x80-\U0010ffff]+")


@lru_cache(1024)
def _is_plain(subject: str) -> bool:
    return _subject.fullmatch(subject) is not None


def header_block(headers: Mapping[str, str]) -> bytes:
    """The headers as they travel; empty if nats-py has to look at them."""
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    block = "".join(lines).encode()
    return b"%b%b\r\n" % (_HEAD, block) if block.count(b"\n") == block.count(b"\r") == len(lines) else b""


def publish_frame(subject: str, inbox: str, block: bytes, body: bytes) -> bytes:
    """What is written to publish a message with these headers; empty if nats-py has to look at it."""
    if not block or not _is_plain(subject):
        return b""
    return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (
        subject.encode(),
        inbox.encode(),
        len(block),
        len(block) + len(body),
        block,
        body,
    )


def writer_of(client: Client) -> Callable[[bytes], object] | None:
    """What writes to the socket at once; None if the client has to do it."""
    transport: Any = getattr(client, "_transport", None)
    is_as_known = type(client).publish is Client.publish and getattr(transport, "_io_writer", None) is not None
    return transport.write if is_as_known else None


def read_answers(client: Client, subscription: Subscription, take: Take) -> bool:
    """Have `take` called for what comes to the subscription; False if nats-py is made in another way."""
    process = getattr(client, "_process_msg", None)
    number = getattr(subscription, "_id", None)
    if number is None or not inspect.iscoroutinefunction(process) or len(inspect.signature(process).parameters) != 5:  # noqa: PLR2004 - as below
        return False

    async def process_message(sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        if sid == number:
            take(subject.decode(), data, headers or b"")
        else:
            await process(sid, subject, reply, data, headers)

    client._process_msg = process_message  # type: ignore[method-assign]  # noqa: SLF001 - there is no public way
    return True
