"""Every route of the server, in the order in which they are tried."""

from typing import Final

from pump.queue.http import data, health, operators
from pump.queue.http.guard import Level
from pump.queue.http.openapi import RouteSpec, document
from pump.queue.http.request import QueueRequest
from pump.queue.wire import queries, requests

PUBLIC, READ, WRITE, ADMIN = Level

_QUEUE: Final = "/api/v1/resources/queues/{queue}"
_STATUS: Final = "/api/v1/status/queues/{queue}"
_MESSAGE: Final = "/api/v1/messages/{partition_id}/{transaction_id}"
_GROUP: Final = "/api/v1/consumer-groups/{group}"
_GROUP_QUEUE: Final = f"{_GROUP}/queues/{{queue}}"
_GROUP_PARTITION: Final = f"{_GROUP_QUEUE}/partitions/{{partition}}"
_POP: Final = "/api/v1/pop/queue/{queue}"

_FOUND: Final = (200, 404)
_CHANGED: Final = (200, 404, 409)
_POPPED: Final = (200, 204, 404, 409)


async def openapi(_request: QueueRequest) -> object:
    """This description."""
    return document(ROUTES)


ROUTES: Final = (
    RouteSpec("POST", "/api/v1/push", data.push, WRITE, (201, 409, 429), body=requests.PushRequest),
    RouteSpec("POST", "/api/v1/ack", data.acknowledge, WRITE, body=requests.AckRequest),
    RouteSpec("POST", "/api/v1/ack/batch", data.acknowledge_many, WRITE, body=requests.AckBatchRequest),
    RouteSpec("GET", f"{_POP}/partition/{{partition}}", data.pop, WRITE, _POPPED, queries.PopQuery),
    RouteSpec("GET", _POP, data.pop, WRITE, _POPPED, queries.PopQuery),
    RouteSpec("POST", "/api/v1/transaction", data.transaction, WRITE, body=requests.TransactionRequest),
    RouteSpec("POST", "/api/v1/lease/{lease}/extend", data.extend, WRITE, _CHANGED, body=requests.ExtendRequest),
    RouteSpec("POST", "/api/v1/configure", data.configure, WRITE, (200, 409), body=requests.ConfigureRequest),
    RouteSpec("POST", "/api/v1/traces", operators.add_trace, WRITE, (201, 404), body=requests.TraceRequest),
    RouteSpec("GET", "/health", health.health, PUBLIC),
    RouteSpec("GET", "/metrics", health.metrics, READ),
    RouteSpec("GET", "/metrics/prometheus", health.prometheus, READ),
    RouteSpec("GET", "/openapi.json", openapi, PUBLIC),
    RouteSpec("GET", "/api/v1/resources/overview", operators.overview, READ),
    RouteSpec("GET", "/api/v1/resources/queues", operators.queues, READ, query=queries.QueuesQuery),
    RouteSpec("GET", _QUEUE, operators.queue, READ, _FOUND),
    RouteSpec("DELETE", _QUEUE, operators.delete_queue, ADMIN),
    RouteSpec("GET", "/api/v1/resources/namespaces", operators.namespaces, READ, query=queries.NamesQuery),
    RouteSpec("GET", "/api/v1/resources/tasks", operators.tasks, READ, query=queries.NamesQuery),
    RouteSpec("GET", "/api/v1/resources/partitions", operators.partitions, READ, query=queries.QueueQuery),
    RouteSpec("DELETE", "/api/v1/queues/{queue}/clear", operators.clear_queue, ADMIN, _FOUND, queries.ClearQuery),
    RouteSpec("GET", "/api/v1/messages", operators.messages, READ, query=queries.MessagesQuery),
    RouteSpec("POST", f"{_MESSAGE}/retry", operators.retry_message, ADMIN, _FOUND),
    RouteSpec("POST", f"{_MESSAGE}/dlq", operators.make_dead_letter, ADMIN, _CHANGED, body=requests.DeadLetterRequest),
    RouteSpec("GET", _MESSAGE, operators.message, READ, _FOUND),
    RouteSpec("DELETE", _MESSAGE, operators.delete_message, ADMIN, _FOUND),
    RouteSpec("GET", "/api/v1/dlq", operators.dead_letters, READ, query=queries.DeadLettersQuery),
    RouteSpec("POST", "/api/v1/dlq/redrive", operators.redrive, ADMIN, body=requests.RedriveRequest),
    RouteSpec("GET", "/api/v1/traces/names", operators.trace_names, READ, query=queries.NamesQuery),
    RouteSpec("GET", "/api/v1/traces/by-name/{name}", operators.traces, READ, query=queries.PageQuery),
    RouteSpec("GET", "/api/v1/traces/{partition_id}/{transaction_id}", operators.traces, READ, query=queries.PageQuery),
    RouteSpec("GET", "/api/v1/consumer-groups", operators.groups, READ, query=queries.NamesQuery),
    RouteSpec("GET", "/api/v1/consumer-groups/lagging", operators.lagging_groups, READ, query=queries.LaggingQuery),
    RouteSpec("POST", f"{_GROUP_PARTITION}/seek", operators.seek, ADMIN, _FOUND, body=requests.SeekRequest),
    RouteSpec("POST", f"{_GROUP_QUEUE}/seek", operators.seek, ADMIN, _FOUND, body=requests.SeekRequest),
    RouteSpec("DELETE", _GROUP_QUEUE, operators.delete_group, ADMIN, query=queries.DeleteGroupQuery),
    RouteSpec(
        "POST", f"{_GROUP}/subscription", operators.subscription, ADMIN, _FOUND, body=requests.SubscriptionRequest
    ),
    RouteSpec("GET", _GROUP, operators.group, READ, _FOUND, query=queries.NamesQuery),
    RouteSpec("DELETE", _GROUP, operators.delete_group, ADMIN, query=queries.DeleteGroupQuery),
    RouteSpec("GET", "/api/v1/status", operators.status, READ, query=queries.QueueQuery),
    RouteSpec("GET", "/api/v1/status/queues", operators.status_of_queues, READ, query=queries.QueueQuery),
    RouteSpec("GET", f"{_STATUS}/messages", operators.queue_messages, READ, _FOUND, queries.MessagesQuery),
    RouteSpec("GET", _STATUS, operators.queue, READ, _FOUND),
    RouteSpec("POST", "/api/v1/stats/refresh", operators.refresh, READ),
)
"""The busiest routes come first, and a more specific route comes before a less specific one."""
