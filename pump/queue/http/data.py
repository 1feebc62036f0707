"""The routes of producers and consumers."""

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from starlette.responses import Response

from pump.queue.errors import BadRequest, QueueFull
from pump.queue.http.request import ClientDisconnected, QueueRequest, log
from pump.queue.http.responses import PopResponse, reply
from pump.queue.vocabulary import PopRequest, PopResult, Pushed, Settled, Settlement
from pump.queue.wire import replies, requests
from pump.queue.wire.queries import PopQuery
from pump.queue.work import NO_KEY

Result = TypeVar("Result")

_LARGE_BYTES: Final = 100_000
"""JSON larger than this is read and written on a thread, so that other requests do not wait for it."""


async def push(request: QueueRequest) -> Response:
    """Store messages."""
    body = await request.body()
    items = await _on_thread_if_large(len(body), partial(requests.pushes, body, request.producer))
    results = await request.batched.push(items)
    _count_pushed(request, results)
    if results and all(each.refused for each in results):
        raise BadRequest(NO_KEY) if results[0].refused == NO_KEY else QueueFull(results[0].refused)
    return reply(replies.pushed(results), 201)


async def pop(request: QueueRequest) -> Response:
    """Lease messages that are ready, or wait for one."""
    query, names = request.query(PopQuery), request.names
    pop_request = query.pop_request(names["queue"], names.get("partition"), create_group=request.state.create_groups)
    if request.is_disconnected():
        raise ClientDisconnected
    popped = await _pop(request, pop_request, query.wait_seconds())
    if not popped.messages:
        request.metrics.count("empty_pops")
        return Response(status_code=204)
    size = sum(len(each.payload) for each in popped.messages)
    take_back = partial(_take_back, request, pop_request, popped)
    try:
        body = await _on_thread_if_large(size, partial(replies.popped, pop_request, popped))
        request.metrics.count("popped_messages", len(popped.messages), queue=pop_request.queue)
    except BaseException:
        await take_back()
        raise
    return PopResponse(body, request.is_disconnected, take_back)


async def acknowledge(request: QueueRequest) -> Response:
    """Settle one message."""
    item = requests.acknowledgement(await request.body())
    return reply(replies.settled(await _settle(request, [item])))


async def acknowledge_many(request: QueueRequest) -> Response:
    """Settle several messages, each by its own status."""
    body = await request.body()
    items = await _on_thread_if_large(len(body), partial(requests.acknowledgements, body))
    return reply(replies.settled(await _settle(request, items)))


async def transaction(request: QueueRequest) -> object:
    """Settle and store together, or not at all."""
    body = await request.body()
    steps, places, leases = await _on_thread_if_large(len(body), partial(requests.transaction, body, request.producer))
    outcome = await request.call(request.engine.transaction, steps, leases)
    if outcome.success:
        _count_pushed(request, [each for each in outcome.results if isinstance(each, Pushed)])
        _count_settled(request, [each for each in outcome.results if isinstance(each, Settled)])
    return replies.committed(str(uuid.uuid4()), outcome, places)


async def extend(request: QueueRequest) -> Response:
    """Renew a lease."""
    seconds = requests.seconds_to_extend(await request.body())
    result = await request.call(request.engine.extend, request.names["lease"], seconds)
    status = 200 if result.success else 404 if result.error == "Lease not found" else 409
    return reply(replies.extended(result), status)


async def configure(request: QueueRequest) -> object:
    """Create a queue, or replace all of its options."""
    asked, options = requests.configuration(await request.body())
    namespace, task = asked.namespace or None, asked.task or None
    info = await request.call(request.engine.configure, asked.queue, options, namespace=namespace, task=task)
    return {
        "configured": True,
        "queueId": info.id,
        "partitionId": info.partitions[0].id if info.partitions else None,
        "queue": info.name,
        "namespace": info.namespace,
        "task": info.task,
        "options": requests.options_written(options),
    }


async def _pop(request: QueueRequest, pop_request: PopRequest, wait_seconds: float) -> PopResult:
    if wait_seconds <= 0 or request.state.closing:
        return await request.batched.pop(pop_request)
    with request.metrics.parked(pop_request.queue):
        popping = request.batched.pop(pop_request, wait_seconds)
        return await request.state.wait_for(popping, request.wait_until_disconnected()) or PopResult()


async def _take_back(request: QueueRequest, pop_request: PopRequest, popped: PopResult) -> None:
    """Give back messages that no client has received; no attempt is counted."""
    request.metrics.count("returned_messages", len(popped.messages), queue=pop_request.queue)
    log.info("queue %s: a consumer disconnected before it had its %d messages", pop_request.queue, len(popped.messages))
    await asyncio.shield(request.batched.release(pop_request, popped))


async def _settle(request: QueueRequest, items: Sequence[requests.SettlementOrResult]) -> Sequence[Settled]:
    """Carry out the settlements; returns the results in the order of the items."""
    settlements = [each for each in items if isinstance(each, Settlement)]
    results = await request.batched.settle(settlements) if settlements else []
    if len(settlements) < len(items):
        done = iter(results)
        results = [next(done) if isinstance(each, Settlement) else each for each in items]
    _count_settled(request, results)
    return results


def _count_pushed(request: QueueRequest, results: Sequence[Pushed]) -> None:
    kinds = Counter(
        [("refused" if each.refused else "duplicate" if each.duplicate else "pushed", each.queue) for each in results]
    )
    for (kind, queue), number in kinds.items():
        request.metrics.count(f"{kind}_messages", number, queue=queue)


def _count_settled(request: QueueRequest, results: Sequence[Settled]) -> None:
    kinds = Counter([(each.success, each.message, each.queue or "") for each in results])
    for (success, message, queue), number in kinds.items():
        if success:
            request.metrics.count("settled_messages", number, queue=queue, outcome=message)
        else:
            request.metrics.count("refused_settlements", number, why=message)


async def _on_thread_if_large(size: int, work: Callable[[], Result]) -> Result:
    return await asyncio.to_thread(work) if size > _LARGE_BYTES else work()
