"""The routes of operators: queues, messages, dead letters, consumer groups and notes about messages."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from starlette.responses import Response

from pump.queue.errors import Conflict, NotFound
from pump.queue.http.request import QueueRequest, log
from pump.queue.http.responses import reply
from pump.queue.vocabulary import DeadLetter, Filter, GroupInfo, PartitionNumbers, QueueInfo, Stored
from pump.queue.wire import replies, requests
from pump.queue.wire.queries import (
    ClearQuery,
    DeadLettersQuery,
    DeleteGroupQuery,
    LaggingQuery,
    MessagesQuery,
    NamesQuery,
    PageQuery,
    QueueQuery,
    QueuesQuery,
)
from pump.queue.wire.replies import Reply
from pump.queue.wire.requests import OptionsRequest, options_written
from pump.queue.wire.times import time_text

LARGEST_REPLY_BYTES: Final = 10_000_000
_AT_ONCE: Final = 20


# -- queues


async def overview(request: QueueRequest) -> object:
    """All queues together."""
    found = await request.call(request.engine.queues)
    partitions = _partitions_of(await request.call(request.engine.numbers))
    dead = await request.call(request.engine.dead_letter_counts)
    return {
        "queues": len(found),
        "partitions": len(partitions),
        "namespaces": len({each.namespace for each in found} - {""}),
        "tasks": len({each.task for each in found} - {""}),
        "messages": {**replies.stats(partitions), "deadLetter": sum(dead.values())},
    }


async def queues(request: QueueRequest) -> object:
    """All queues, without their partitions."""
    query = request.query(QueuesQuery)
    found = [_queue(each) for each in await request.call(request.engine.queues) if query.search in each.name]
    return {"queues": query.part(found), "total": len(found)}


async def queue(request: QueueRequest) -> object:
    """One queue, with its options, its partitions and its groups."""
    name = request.names["queue"]
    options = await _options(request, name)
    found = await request.call(request.engine.queues, name)
    if not found:
        raise _no_queue(name)
    return {
        **_queue(found[0]),
        "options": options,
        "partitions": [replies.partition(each) for each in found[0].partitions],
        "consumerGroups": [replies.group(each) for each in found[0].groups],
        "stats": replies.stats(found[0].partitions),
    }


async def delete_queue(request: QueueRequest) -> object:
    """Remove a queue."""
    name = request.names["queue"]
    existed = await request.call(request.engine.delete_queue, name)
    return {"deleted": True, "existed": existed, "queue": name}


async def clear_queue(request: QueueRequest) -> object:
    """Remove all messages of a queue or of one of its partitions."""
    name, partition = request.names["queue"], request.query(ClearQuery).partition
    await _options(request, name)
    removed = await request.call(request.engine.clear, name, partition)
    return {"success": True, "queue": name, "partition": partition, "removed": removed}


async def namespaces(request: QueueRequest) -> object:
    """The namespaces of a page of queues, with these queues."""
    return {"namespaces": await _labelled(request, "namespace")}


async def tasks(request: QueueRequest) -> object:
    """The tasks of a page of queues, with these queues."""
    return {"tasks": await _labelled(request, "task")}


async def partitions(request: QueueRequest) -> object:
    """Partitions of all queues or of one."""
    query = request.query(QueueQuery)
    found = await _queues_with_partitions(request, query.queue)
    every = [{**replies.partition(each), "queue": queue.name} for queue in found for each in queue.partitions]
    return {"partitions": query.part(every), "total": len(every)}


# -- messages and dead letters


async def messages(request: QueueRequest) -> object:
    """Stored messages, newest first."""
    found = await request.call(request.engine.stored, request.query(MessagesQuery).filter())
    return {"messages": [replies.listed(each) for each in found], "mode": "queue"}


async def queue_messages(request: QueueRequest) -> object:
    """Stored messages of one queue, newest first."""
    name = request.names["queue"]
    await _options(request, name)
    found = await request.call(request.engine.stored, request.query(MessagesQuery).filter(name))
    return {"messages": [replies.listed(each) for each in found], "queue": name}


async def message(request: QueueRequest) -> object:
    """One message, with its payload."""
    found = await _message(request)
    options = await request.call(request.engine.options, found.queue)
    return replies.message(found, None if options is None else options_written(options))


async def delete_message(request: QueueRequest) -> object:
    """Remove a message for all groups."""
    ids = _message_ids(request)
    if not await request.call(request.engine.delete_message, *ids.values()):
        raise NotFound("Message not found")
    return {"success": True, "deleted": True, **ids}


async def retry_message(request: QueueRequest) -> object:
    """Make a dead message pending again."""
    ids = _message_ids(request)
    number = await request.call(request.engine.retry, *ids.values())
    if not number:
        raise NotFound("No dead letter of this message can be retried")
    return {"success": True, "groups": number, **ids}


async def make_dead_letter(request: QueueRequest) -> object:
    """Make a message a dead letter, for one group or for all groups that have not settled it."""
    ids = _message_ids(request)
    of_group, error = requests.dead_letter(await request.body())
    number = await request.call(request.engine.give_up, *ids.values(), group=of_group, error=error)
    if number:
        return {"success": True, "groups": number, **ids}
    found = await _message(request)
    if of_group is not None and of_group not in found.states:
        raise NotFound(f"queue {found.queue!r} has no group {of_group!r}")
    raise Conflict("The message is settled already")


async def dead_letters(request: QueueRequest) -> object:
    """A page of dead letters, newest first."""
    which = request.query(DeadLettersQuery).filter()
    found, total = await _dead_letters(request, which)
    return replies.dead_letters(found, total, which.limit, which.offset)


async def _dead_letters(request: QueueRequest, which: Filter) -> tuple[Sequence[DeadLetter], int]:
    """The page, cut short if the reply would become too large, and the total number."""
    found, size = list[DeadLetter](), 0
    while True:
        part = replace(which, limit=min(_AT_ONCE, which.limit - len(found)), offset=which.offset + len(found))
        letters, total = await request.call(request.engine.dead_letters, part)
        found += letters
        size += sum(len(each.payload or b"") for each in letters)
        if len(letters) < _AT_ONCE or len(found) >= which.limit or size >= LARGEST_REPLY_BYTES:
            return found, total


async def redrive(request: QueueRequest) -> object:
    """Push dead letters again, each only once."""
    ids = requests.redrive_ids(await request.body())
    results = await request.call(request.engine.redrive, ids)
    return {"success": True, "results": list(map(replies.redriven, ids, results))}


# -- consumer groups


async def groups(request: QueueRequest) -> object:
    """All groups of all queues."""
    page = request.query(NamesQuery)
    return [replies.group(each) for each in page.part(await request.call(request.engine.groups))]


async def lagging_groups(request: QueueRequest) -> object:
    """Groups whose oldest message has waited too long."""
    query = request.query(LaggingQuery)
    least = query.min_lag_seconds
    found = [each for each in await request.call(request.engine.groups) if each.lag and each.lag_seconds >= least]
    return [replies.group(each) for each in query.part(found)]


async def group(request: QueueRequest) -> object:
    """The progress of one group in every partition of its queues."""
    name = request.names["group"]
    page = set(request.query(NamesQuery).part([each.queue for each in await _known_group(request, name)]))
    found = await _queues_with_partitions(request, min(page) if len(page) == 1 else None)
    return {each.name: {"partitions": _progress_of(name, each)} for each in found if each.name in page}


async def delete_group(request: QueueRequest) -> object:
    """Delete a group's progress, in one queue or in all."""
    name, of_queue = request.names["group"], request.names.get("queue")
    request.query(DeleteGroupQuery)
    existed = await request.call(request.engine.delete_group, name, of_queue)
    return {"success": True, "deleted": existed, "consumerGroup": name, "queueName": of_queue}


async def subscription(request: QueueRequest) -> object:
    """Move a group to a time, in all its queues."""
    name, to = request.names["group"], requests.subscription_time(await request.body())
    known = await _known_group(request, name)
    moved = [await request.call(request.engine.seek, name, each.queue, to) for each in known]
    log.warning("consumer group %s was moved to %s in %d queues", name, time_text(to), len(known))
    return {
        "success": True,
        "consumerGroup": name,
        "subscriptionTimestamp": time_text(to),
        "partitionsUpdated": sum(moved),
    }


async def seek(request: QueueRequest) -> object:
    """Move a group in a queue, or in one of its partitions."""
    target = requests.seek_target(await request.body())
    name, of_queue, partition = request.names["group"], request.names["queue"], request.names.get("partition")
    moved = await request.call(request.engine.seek, name, of_queue, target, partition)
    return {
        "success": True,
        "consumerGroup": name,
        "queueName": of_queue,
        "partition": partition,
        "toEnd": target is None,
        "timestamp": time_text(target),
        "partitionsUpdated": moved,
    }


# -- notes about messages


async def add_trace(request: QueueRequest) -> Response:
    """Store a note about a message."""
    note = requests.trace(await request.body())
    return reply({"success": True, "traceId": await request.call(request.engine.add_trace, note)}, 201)


async def traces(request: QueueRequest) -> object:
    """Notes about one message, or under one name, oldest first."""
    limit, offset = request.query(PageQuery).page()
    return replies.traces(await request.call(request.engine.traces, **request.names, limit=limit, offset=offset))


async def trace_names(request: QueueRequest) -> object:
    """All names that notes were stored under."""
    page = request.query(NamesQuery)
    return {"traceNames": page.part(await request.call(request.engine.trace_names))}


# -- numbers


async def status(request: QueueRequest) -> object:
    """All messages, queues and groups, as numbers."""
    name = request.query(QueueQuery).queue
    found = await request.call(request.engine.queues)
    numbers = await request.call(request.engine.numbers, name)
    known = await request.call(request.engine.groups)
    return {
        "queues": sum(name in {None, each.name} for each in found),
        "messages": replies.stats(_partitions_of(numbers)),
        "consumerGroups": len({each.name for each in known}),
        "totalLag": sum(each.lag for each in known),
        "counters": request.metrics.totals(),
    }


async def status_of_queues(request: QueueRequest) -> object:
    """Every queue with its numbers."""
    query = request.query(QueueQuery)
    every = await request.call(request.engine.queues)
    found = [each for each in every if query.queue in {None, each.name}]
    numbers = await request.call(request.engine.numbers, query.queue)
    rows = [{**_queue(each), "messages": replies.stats(numbers.get(each.name, ()))} for each in query.part(found)]
    return {"queues": rows, "total": len(found)}


async def refresh(_request: QueueRequest) -> object:
    """Does nothing: numbers are always counted at the request."""
    return {"success": True}


# -- what several of them need


def _partitions_of(numbers: Mapping[str, Sequence[PartitionNumbers]]) -> Sequence[PartitionNumbers]:
    return [partition for partitions in numbers.values() for partition in partitions]


async def _queues_with_partitions(request: QueueRequest, name: str | None = None) -> Sequence[QueueInfo]:
    return await request.call(request.engine.queues, name, whole=True)


async def _options(request: QueueRequest, name: str) -> OptionsRequest:
    options = await request.call(request.engine.options, name)
    if options is None:
        raise _no_queue(name)
    return options_written(options)


def _progress_of(group: str, queue: QueueInfo) -> Sequence[Reply]:
    every = [(partition.name, each) for partition in queue.partitions for each in partition.progress]
    return [replies.progress(where, each) for where, each in every if each.group == group]


def _no_queue(name: str) -> NotFound:
    return NotFound(f"there is no queue {name!r}")


async def _known_group(request: QueueRequest, name: str) -> Sequence[GroupInfo]:
    known = await request.call(request.engine.groups, name)
    if not known:
        raise NotFound(f"there is no consumer group {name!r}")
    return known


async def _labelled(request: QueueRequest, kind: str) -> Sequence[Reply]:
    labelled = defaultdict[str, list[str]](list)
    for each in request.query(NamesQuery).part(await request.call(request.engine.queues)):
        labelled[getattr(each, kind)].append(each.name)
    return [{kind: label, "queues": names} for label, names in sorted(labelled.items()) if label]


def _queue(found: QueueInfo) -> Reply:
    return {
        "id": found.id,
        "name": found.name,
        "namespace": found.namespace,
        "task": found.task,
        "ordered": found.ordered,
        "createdAt": time_text(found.created_at),
    }


async def _message(request: QueueRequest) -> Stored:
    found = await request.call(request.engine.message, *_message_ids(request).values())
    if found is None:
        raise NotFound("Message not found")
    return found


def _message_ids(request: QueueRequest) -> Mapping[str, str]:
    return {"partitionId": request.names["partition_id"], "transactionId": request.names["transaction_id"]}
