"""Everything that depends on nats-py's internals: publishing writes to the socket and reads the answers itself.

nats-py publishes in one task and reads an answer in another, with a queue and an object for each message. That takes
longer than all other work on the message. Tried with nats-py 2.16.0. If its internals are different, and over
websockets, its public methods are used, which are slower.
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
    """The headers as bytes of the protocol; empty if nats-py must check and encode them."""
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    block = "".join(lines).encode()
    return b"%b%b\r\n" % (_HEAD, block) if block.count(b"\n") == block.count(b"\r") == len(lines) else b""


def publish_frame(subject: str, inbox: str, block: bytes, body: bytes) -> bytes:
    """The bytes that publish a message with these headers; empty if nats-py must publish it."""
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
    """The function that writes to the client's socket at once; None if the client must publish by itself."""
    transport: Any = getattr(client, "_transport", None)
    is_as_known = type(client).publish is Client.publish and getattr(transport, "_io_writer", None) is not None
    return transport.write if is_as_known else None


def read_answers(client: Client, subscription: Subscription, take: Take) -> bool:
    """Have `take` called for each message of the subscription; False if nats-py's internals do not allow this."""
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
