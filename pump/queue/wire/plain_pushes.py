"""Pushes as most clients write them, read at one go. Where a body is anything else, `wire` reads it by its members."""

import re
from typing import Final

from pump.queue import limits as names
from pump.queue.errors import BadRequest
from pump.queue.vocabulary import DEFAULT_PARTITION, Push
from pump.queue.wire.raw_json import PLAIN, holds_half_a_pair, span

_SPACE: Final = r"[ \t\n\r]*+"


def _member(name: str) -> str:
    return f'"{name}"{_SPACE}:{_SPACE}{PLAIN}{_SPACE}'


_HEAD: Final = re.compile(rf'{_SPACE}\{{{_SPACE}"items"{_SPACE}:{_SPACE}\[{_SPACE}')
_BEFORE: Final = re.compile(
    rf"\{{{_SPACE}{_member('queue')},{_SPACE}(?:{_member('partition')},{_SPACE})?+(?:{_member('transactionId')},{_SPACE})?+"
    rf'"payload"{_SPACE}:{_SPACE}'
)
_AFTER: Final = re.compile(
    rf"{_SPACE}(?:,{_SPACE}{_member('transactionId')})?+(?:,{_SPACE}{_member('traceId')})?+\}}{_SPACE}([,\]]){_SPACE}"
)
_TAIL: Final = re.compile(rf"\}}{_SPACE}")


def plain_pushes(body: bytes, producer: str | None) -> list[Push] | None:
    """All messages of a push that has no fault and nothing uncommon; None where it may have."""
    try:
        return _read(body.decode(), producer)
    except (BadRequest, ValueError, RecursionError):
        return None


def _read(text: str, producer: str | None) -> list[Push] | None:
    head = _HEAD.match(text)
    if head is None or holds_half_a_pair(text):
        return None
    here, mark, found = head.end(), ",", list[Push]()
    while mark == ",":
        before = _BEFORE.match(text, here)
        if before is None:
            return None
        payload, end = span(text, before.end())
        after = _AFTER.match(text, end)
        if after is None:
            return None
        queue, partition, transaction_id = before.groups()
        late_transaction_id, trace_id, mark = after.groups()
        if transaction_id is not None and late_transaction_id is not None:
            return None
        push = Push(
            queue,
            payload.encode(),
            partition or DEFAULT_PARTITION,
            transaction_id or late_transaction_id or "",
            trace_id,
            producer=producer,
        )
        names.check_push(push)
        found.append(push)
        here = after.end()
    names.check_number(found)
    return found if _TAIL.fullmatch(text, here) else None
