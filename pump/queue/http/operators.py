"""What operators ask of the server: queues, messages, dead letters, consumer groups and notes about messages."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from starlette.responses import Response

from pump.queue.errors import Conflict, NotFound, QueueError
from pump.queue.http.call import Call, json_bytes, log, reply
from pump.queue.vocabulary import DeadLetter, Filter, GroupInfo, PartitionInfo, Pushed, QueueInfo
from pump.queue.wire import options as wire_options
from pump.queue.wire import replies as wire_replies
from pump.queue.wire import requests as wire

LISTED_MESSAGES: Final = 200
LISTED_OTHERS: Final = 100
LAGGING_SECONDS: Final = 3600
LARGEST_REPLY_BYTES: Final = 10_000_000
_AT_ONCE: Final = 20


# -- queues


async def overview(call: Call) -> Response:
    """All queues together."""
    found = await _whole_queues(call)
    _, dead = await call.desk.call(call.engine.dead_letters, Filter(limit=1))
    stats = wire_replies.stats(partition for queue in found for partition in queue.partitions)
    return reply(
        {
            "queues": len(found),
            "partitions": sum(len(queue.partitions) for queue in found),
            "namespaces": len(_labels(found, lambda queue: queue.namespace)),
            "tasks": len(_labels(found, lambda queue: queue.task)),
            "messages": {**stats, "deadLetter": dead},
        }
    )


async def queues(call: Call) -> Response:
    """All queues, without their partitions."""
    asked = call.query()
    found = [each for each in await call.desk.call(call.engine.queues) if asked.get("search", "") in each.name]
    limit, offset = wire.whole(asked, "limit", wire.MOST_LISTED), wire.whole(asked, "offset", 0)
    return reply({"queues": [_queue(each) for each in found[offset : offset + limit]], "total": len(found)})


async def queue(call: Call) -> Response:
    """One queue, with its options, its partitions and its groups."""
    return reply(await _queue_detail(call, call.names["queue"]))


async def delete_queue(call: Call) -> Response:
    """Remove a queue."""
    name = call.names["queue"]
    existed = await call.desk.call(call.engine.delete_queue, name)
    return reply({"deleted": True, "existed": existed, "queue": name})


async def clear_queue(call: Call) -> Response:
    """Remove all messages of a queue or of one of its partitions."""
    name, partition = call.names["queue"], call.query().get("partition")
    await _options(call, name)
    removed = await call.desk.call(call.engine.clear, name, partition)
    return reply({"success": True, "queue": name, "partition": partition, "removed": removed})


async def namespaces(call: Call) -> Response:
    """All namespaces, with their queues."""
    return reply({"namespaces": await _labelled(call, "namespace", lambda queue: queue.namespace)})


async def tasks(call: Call) -> Response:
    """All tasks, with their queues."""
    return reply({"tasks": await _labelled(call, "task", lambda queue: queue.task)})


async def partitions(call: Call) -> Response:
    """Partitions of all queues or of one."""
    asked = call.query()
    found = await _whole_queues(call, asked.get("queue"))
    limit, offset = wire.whole(asked, "limit", LISTED_OTHERS), wire.whole(asked, "offset", 0)
    every = [{**wire_replies.partition(each), "queue": queue.name} for queue in found for each in queue.partitions]
    return reply({"partitions": every[offset : offset + limit], "total": len(every)})


# -- messages and dead letters


async def messages(call: Call) -> Response:
    """Stored messages, newest first."""
    which = wire.selection(call.query(), LISTED_MESSAGES)
    found = await call.desk.call(call.engine.stored, which)
    return reply({"messages": [wire_replies.listed(each) for each in found], "mode": "queue"})


async def queue_messages(call: Call) -> Response:
    """Stored messages of one queue, newest first."""
    asked = {**call.query(), "queue": call.names["queue"]}
    await _options(call, asked["queue"])
    found = await call.desk.call(call.engine.stored, wire.selection(asked, LISTED_MESSAGES))
    return reply({"messages": [wire_replies.listed(each) for each in found], "queue": asked["queue"]})


async def message(call: Call) -> Response:
    """One message, with its payload."""
    found = await call.desk.call(call.engine.message, *_message_names(call))
    if found is None:
        raise NotFound("Message not found")
    options = await call.desk.call(call.engine.options, found.queue)
    return json_bytes(wire_replies.message(found, None if options is None else wire_options.written(options)))


async def delete_message(call: Call) -> Response:
    """Remove a message for all groups."""
    partition_id, transaction_id = _message_names(call)
    if not await call.desk.call(call.engine.delete_message, partition_id, transaction_id):
        raise NotFound("Message not found")
    return reply({"success": True, "deleted": True, "partitionId": partition_id, "transactionId": transaction_id})


async def retry_message(call: Call) -> Response:
    """Make a dead message pending again."""
    partition_id, transaction_id = _message_names(call)
    number = await call.desk.call(call.engine.retry, partition_id, transaction_id)
    if not number:
        raise NotFound("No dead letter of this message can be retried")
    return reply({"success": True, "groups": number, "partitionId": partition_id, "transactionId": transaction_id})


async def bury_message(call: Call) -> Response:
    """Make a dead letter of a message, for a group or for all that have not settled it."""
    partition_id, transaction_id = _message_names(call)
    of_group, error = wire.burial(await call.body())
    act = partial(call.engine.bury, partition_id, transaction_id, group=of_group, error=error)
    number = await call.desk.call(act)
    if not number:
        raise await _why_not_buried(call, of_group)
    return reply({"success": True, "groups": number, "partitionId": partition_id, "transactionId": transaction_id})


async def _why_not_buried(call: Call, of_group: str | None) -> QueueError:
    found = await call.desk.call(call.engine.message, *_message_names(call))
    if found is None:
        return NotFound("Message not found")
    if of_group is not None and of_group not in found.states:
        return NotFound(f"queue {found.queue!r} has no group {of_group!r}")
    return Conflict("The message is settled already")


async def dead_letters(call: Call) -> Response:
    """A page of dead letters, newest first."""
    which = wire.selection(call.query(), LISTED_OTHERS)
    found, total = await _dead_page(call, which)
    return json_bytes(wire_replies.dead_letters(found, total, which.limit, which.offset))


async def redrive(call: Call) -> Response:
    """Push dead letters again, each once."""
    ids = wire.ids(await call.body())
    results = await call.desk.call(call.engine.redrive, ids)
    return reply({"success": True, "results": list(map(_redriven, ids, results))})


# -- consumer groups


async def groups(call: Call) -> Response:
    """All groups of all queues."""
    return reply([wire_replies.group(each) for each in await call.desk.call(call.engine.groups)])


async def lagging_groups(call: Call) -> Response:
    """Those whose oldest message waits too long."""
    least = wire.whole(call.query(), "minLagSeconds", LAGGING_SECONDS)
    found = await call.desk.call(call.engine.groups)
    return reply([wire_replies.group(each) for each in found if each.lag and each.lag_seconds >= least])


async def group(call: Call) -> Response:
    """How far one group is in every partition of its queues."""
    name = call.names["group"]
    known = await _known_group(call, name)
    found = [info for each in known for info in await call.desk.call(call.engine.queues, each.queue)]
    return reply({queue.name: {"partitions": _progress(queue, name)} for queue in found})


async def delete_group(call: Call) -> Response:
    """Forget a group's progress, in one queue or in all."""
    name, of_queue = call.names["group"], call.names.get("queue")
    wire.flag(call.query(), "deleteMetadata", default=True)
    existed = await call.desk.call(call.engine.delete_group, name, of_queue)
    return reply({"success": True, "deleted": existed, "consumerGroup": name, "queueName": of_queue})


async def subscription(call: Call) -> Response:
    """Let a group begin again at a time, in all its queues."""
    name, to = call.names["group"], wire.subscription_time(await call.body())
    known = await _known_group(call, name)
    moved = [await call.desk.call(call.engine.seek, name, each.queue, to) for each in known]
    log.warning("consumer group %s was moved to %s in %d queues", name, wire_replies.time_text(to), len(known))
    return reply(
        {
            "success": True,
            "consumerGroup": name,
            "subscriptionTimestamp": wire_replies.time_text(to),
            "partitionsUpdated": sum(moved),
        }
    )


async def seek(call: Call) -> Response:
    """Move a group in a queue, or in one of its partitions."""
    target = wire.seek_target(await call.body())
    name, of_queue, partition = call.names["group"], call.names["queue"], call.names.get("partition")
    moved = await call.desk.call(call.engine.seek, name, of_queue, target, partition)
    return reply(
        {
            "success": True,
            "consumerGroup": name,
            "queueName": of_queue,
            "partition": partition,
            "toEnd": target is None,
            "timestamp": wire_replies.time_text(target),
            "partitionsUpdated": moved,
        }
    )


# -- notes about messages


async def add_trace(call: Call) -> Response:
    """Note something about a message."""
    note = wire.trace(await call.body())
    return reply({"success": True, "traceId": await call.desk.call(call.engine.add_trace, note)}, 201)


async def traces(call: Call) -> Response:
    """Notes about one message, or under one name, oldest first."""
    asked = call.query()
    search = partial(
        call.engine.traces,
        partition_id=call.names.get("partition_id"),
        transaction_id=call.names.get("transaction_id"),
        name=call.names.get("name"),
        limit=min(wire.whole(asked, "limit", LISTED_OTHERS), wire.MOST_LISTED),
        offset=wire.whole(asked, "offset", 0),
    )
    return json_bytes(wire_replies.traces(await call.desk.call(search)))


async def trace_names(call: Call) -> Response:
    """All names that notes were filed under."""
    return reply({"traceNames": list(await call.desk.call(call.engine.trace_names))})


# -- numbers


async def status(call: Call) -> Response:
    """All messages, queues and groups, as numbers."""
    found = await _whole_queues(call, call.query().get("queue"))
    stats = wire_replies.stats(partition for queue in found for partition in queue.partitions)
    known = await call.desk.call(call.engine.groups)
    return reply(
        {
            "queues": len(found),
            "messages": stats,
            "consumerGroups": len({each.name for each in known}),
            "totalLag": sum(each.lag for each in known),
            "counters": call.metrics.totals(),
        }
    )


async def status_of_queues(call: Call) -> Response:
    """Every queue with its numbers."""
    asked = call.query()
    found = await _whole_queues(call, asked.get("queue"))
    limit, offset = wire.whole(asked, "limit", LISTED_OTHERS), wire.whole(asked, "offset", 0)
    rows = [{**_queue(each), "messages": wire_replies.stats(each.partitions)} for each in found]
    return reply({"queues": rows[offset : offset + limit], "total": len(rows)})


async def refresh(_call: Call) -> Response:
    """Numbers are counted when they are asked for, so that there is nothing to refresh."""
    return reply({"success": True})


# -- what several of them need


async def _whole_queues(call: Call, name: str | None = None) -> Sequence[QueueInfo]:
    """Queues with their partitions."""
    listed = [name] if name is not None else [each.name for each in await call.desk.call(call.engine.queues)]
    return [info for each in listed for info in await call.desk.call(call.engine.queues, each)]


async def _queue_detail(call: Call, name: str) -> Mapping[str, object]:
    options = await _options(call, name)
    found = await call.desk.call(call.engine.queues, name)
    if not found:
        raise NotFound(f"there is no queue {name!r}")
    return {
        **_queue(found[0]),
        "options": options,
        "partitions": [wire_replies.partition(each) for each in found[0].partitions],
        "consumerGroups": [wire_replies.group(each) for each in found[0].groups],
        "stats": wire_replies.stats(found[0].partitions),
    }


async def _options(call: Call, name: str) -> Mapping[str, object]:
    options = await call.desk.call(call.engine.options, name)
    if options is None:
        raise NotFound(f"there is no queue {name!r}")
    return wire_options.written(options)


async def _known_group(call: Call, name: str) -> Sequence[GroupInfo]:
    known = await call.desk.call(call.engine.groups, name)
    if not known:
        raise NotFound(f"there is no consumer group {name!r}")
    return known


async def _labelled(call: Call, kind: str, label: Callable[[QueueInfo], str]) -> Sequence[Mapping[str, object]]:
    found = await call.desk.call(call.engine.queues)
    return [
        {kind: each, "queues": [queue.name for queue in found if label(queue) == each]}
        for each in _labels(found, label)
    ]


def _labels(found: Sequence[QueueInfo], label: Callable[[QueueInfo], str]) -> Sequence[str]:
    return sorted({label(queue) for queue in found} - {""})


def _queue(found: QueueInfo) -> Mapping[str, object]:
    return {
        "id": found.id,
        "name": found.name,
        "namespace": found.namespace,
        "task": found.task,
        "ordered": found.ordered,
        "createdAt": wire_replies.time_text(found.created_at),
    }


def _progress(queue: QueueInfo, name: str) -> Sequence[Mapping[str, object]]:
    """The partitions that the group is in."""
    return [_progress_in(each, name) for each in queue.partitions if name in {found.group for found in each.progress}]


def _progress_in(partition: PartitionInfo, name: str) -> Mapping[str, object]:
    found = next(each for each in partition.progress if each.group == name)
    return wire_replies.progress(partition.name, found)


async def _dead_page(call: Call, which: Filter) -> tuple[Sequence[DeadLetter], int]:
    """What is asked for, but not much more than a reply should carry: the page is shorter then."""
    found, size = list[DeadLetter](), 0
    while True:
        part = replace(which, limit=min(_AT_ONCE, which.limit - len(found)), offset=which.offset + len(found))
        letters, total = await call.desk.call(call.engine.dead_letters, part)
        found += letters
        size += sum(len(each.payload or b"") for each in letters)
        if len(letters) < _AT_ONCE or len(found) >= which.limit or size >= LARGEST_REPLY_BYTES:
            return found, total


def _redriven(dead_letter_id: str, pushed: Pushed | None) -> Mapping[str, object]:
    if pushed is None:
        return {"id": dead_letter_id, "redriven": False}
    return {
        "id": dead_letter_id,
        "redriven": True,
        "messageId": pushed.message_id,
        "transactionId": pushed.transaction_id,
    }


def _message_names(call: Call) -> tuple[str, str]:
    return call.names["partition_id"], call.names["transaction_id"]
