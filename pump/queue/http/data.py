"""What producers and consumers ask of the server."""

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from starlette.responses import Response

from pump.queue.errors import QueueFull
from pump.queue.http.call import Call, Handing, HungUp, json_bytes, log, nothing, reply
from pump.queue.vocabulary import Pushed, Settled, Settlement, Taken, Want
from pump.queue.wire import options as wire_options
from pump.queue.wire import replies as wire_replies
from pump.queue.wire import requests as wire

Read = TypeVar("Read")

_LARGE_BYTES: Final = 100_000
"""Above this, text is read and written on a thread, so that others need not wait for it."""


async def push(call: Call) -> Response:
    """Store messages."""
    body = await call.body()
    items = await _apart(len(body), partial(wire.pushes, body, call.producer))
    results = await call.desk.push(items)
    _count_pushed(call, results)
    if results and all(each.refused for each in results):
        raise QueueFull(results[0].refused)
    return json_bytes(wire_replies.pushed(results), 201)


async def pop(call: Call) -> Response:
    """Lease what is ready, or wait for it."""
    asked = call.query()
    want = wire.want(call.names["queue"], call.names.get("partition"), asked, create_group=call.house.create_groups)
    if call.hung_up():
        raise HungUp
    taken = await _taken(call, want, wire.wait_seconds(asked))
    if not taken.messages:
        call.metrics.count("empty_pops")
        return nothing()
    size = sum(len(each.payload) for each in taken.messages)
    take_back = partial(_take_back, call, want, taken)
    try:
        body = await _apart(size, partial(wire_replies.popped, want, taken))
        call.metrics.count("popped_messages", len(taken.messages), queue=want.queue)
    except BaseException:
        await take_back()
        raise
    return Handing(body, call.hung_up, take_back)


async def acknowledge(call: Call) -> Response:
    """Settle one message."""
    asked = wire.acknowledgement(await call.body())
    return json_bytes(wire_replies.settled(await _settle(call, [asked])))


async def acknowledge_many(call: Call) -> Response:
    """Settle several messages, each as it says."""
    body = await call.body()
    asked = await _apart(len(body), partial(wire.acknowledgements, body))
    return json_bytes(wire_replies.settled(await _settle(call, asked)))


async def transaction(call: Call) -> Response:
    """Settle and store together, or not at all."""
    body = await call.body()
    asked = await _apart(len(body), partial(wire.transaction, body, call.producer))
    outcome = await call.desk.call(call.engine.transaction, asked.steps, asked.leases)
    if outcome.success:
        _count_pushed(call, [each for each in outcome.results if isinstance(each, Pushed)])
        _count_settled(call, [each for each in outcome.results if isinstance(each, Settled)])
    return reply(wire_replies.committed(str(uuid.uuid4()), outcome, asked.places))


async def extend(call: Call) -> Response:
    """Renew a lease."""
    seconds = wire.seconds_to_extend(await call.body())
    result = await call.desk.call(call.engine.extend, call.names["lease"], seconds)
    status = 200 if result.success else 404 if result.error == "Lease not found" else 409
    return reply(wire_replies.extended(result), status)


async def configure(call: Call) -> Response:
    """Create a queue, or tell it all its options anew."""
    asked = wire_options.configuration(await call.body())
    info = await call.desk.call(
        call.engine.configure, asked.queue, asked.options, namespace=asked.namespace, task=asked.task
    )
    first = info.partitions[0].id if info.partitions else None
    return reply(
        {
            "configured": True,
            "queueId": info.id,
            "partitionId": first,
            "queue": info.name,
            "namespace": info.namespace,
            "task": info.task,
            "options": wire_options.written(asked.options),
        }
    )


async def _taken(call: Call, want: Want, wait_seconds: float) -> Taken:
    if wait_seconds <= 0 or call.house.closing:
        return await call.desk.pop(want)
    call.metrics.park(want.queue)
    try:
        return await call.house.wait_for(call.desk.pop(want, wait_seconds), call.until_hung_up()) or Taken()
    finally:
        call.metrics.unpark(want.queue)


async def _take_back(call: Call, want: Want, taken: Taken) -> None:
    """Nobody has these: they go back as if they had not been handed out."""
    call.metrics.count("returned_messages", len(taken.messages), queue=want.queue)
    log.info("queue %s: a consumer hung up before it had its %d messages", want.queue, len(taken.messages))
    await asyncio.shield(call.desk.release(want, taken))


async def _settle(call: Call, asked: Sequence[wire.Asked]) -> Sequence[Settled]:
    """Carry out what can be, and put the answers in the order of what was asked."""
    wanted = [each for each in asked if isinstance(each, Settlement)]
    results = await call.desk.settle(wanted) if wanted else []
    if len(wanted) < len(asked):
        done = iter(results)
        results = [next(done) if isinstance(each, Settlement) else each for each in asked]
    _count_settled(call, results)
    return results


def _count_pushed(call: Call, results: Sequence[Pushed]) -> None:
    kinds = Counter(
        [("refused" if each.refused else "duplicate" if each.duplicate else "pushed", each.queue) for each in results]
    )
    for (kind, queue), number in kinds.items():
        call.metrics.count(f"{kind}_messages", number, queue=queue)


def _count_settled(call: Call, results: Sequence[Settled]) -> None:
    kinds = Counter([(each.success, each.message, each.queue or "") for each in results])
    for (success, message, queue), number in kinds.items():
        if success:
            call.metrics.count("settled_messages", number, queue=queue, outcome=message)
        else:
            call.metrics.count("refused_settlements", number, why=message)


async def _apart(size: int, read: Callable[[], Read]) -> Read:
    return await asyncio.to_thread(read) if size > _LARGE_BYTES else read()
