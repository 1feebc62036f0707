"""Every route of the server, in the order in which they are looked through."""

from typing import Final

from starlette.responses import Response

from pump.queue.http import data as server_data
from pump.queue.http import health as server_health
from pump.queue.http import operators as server_operators
from pump.queue.http.call import Call, reply
from pump.queue.http.guard import Level
from pump.queue.http.openapi import NUMBER, OBJECT, STRING, Entry, Schema, array, document, members

_PAGE: Final = ("limit", "offset")
_POP: Final = (
    "batch",
    "wait",
    "timeout",
    "autoAck",
    "consumerGroup",
    "subscriptionMode",
    "subscriptionFrom",
    "partitions",
)
_SELECTION: Final = ("queue", "partition", "consumerGroup", "status", "from", "to", *_PAGE)

_MESSAGE: Final[Schema] = members(
    ["queue"],
    queue=STRING,
    partition=STRING,
    payload={},
    transactionId=STRING,
    traceId=STRING,
    delaySeconds=NUMBER,
    notBefore=STRING,
)
_PUSH: Final[Schema] = members(["items"], items=array(_MESSAGE))
_ACK: Final[Schema] = members(
    ["transactionId", "partitionId"],
    transactionId=STRING,
    partitionId=STRING,
    leaseId=STRING,
    status={"enum": ["completed", "success", "failed", "retry", "dlq"]},
    consumerGroup=STRING,
    error=STRING,
    reason=STRING,
    delaySeconds=NUMBER,
)
_ACKS: Final[Schema] = members(["acknowledgments"], acknowledgments=array(_ACK), consumerGroup=STRING)
_TRANSACTION: Final[Schema] = members(["operations"], operations=array(OBJECT), requiredLeases=array(STRING))
_CONFIGURE: Final[Schema] = members(["queue"], queue=STRING, namespace=STRING, task=STRING, options=OBJECT)
_SEEK: Final[Schema] = members(toEnd={"type": "boolean"}, timestamp=STRING)
_TRACE: Final[Schema] = members(
    ["transactionId", "partitionId", "data"],
    transactionId=STRING,
    partitionId=STRING,
    data={},
    consumerGroup=STRING,
    eventType=STRING,
    traceNames={"anyOf": [STRING, array(STRING)]},
)
_SUBSCRIPTION: Final[Schema] = members(["subscriptionTimestamp"], subscriptionTimestamp=STRING)
_BURIAL: Final[Schema] = members(consumerGroup=STRING, error=STRING)
_IDS: Final[Schema] = members(["ids"], ids=array(STRING))


async def openapi(_call: Call) -> Response:
    """This description."""
    return reply(document(ROUTES))


_QUEUE: Final = "/api/v1/resources/queues/{queue}"
_STATUS: Final = "/api/v1/status/queues/{queue}"
_ONE_MESSAGE: Final = "/api/v1/messages/{partition_id}/{transaction_id}"
_GROUP: Final = "/api/v1/consumer-groups/{group}"

_FOUND: Final = (200, 404)

_DATA: Final = (
    Entry("POST", "/api/v1/push", server_data.push, Level.WRITE, (201, 409, 429), body=_PUSH),
    Entry("POST", "/api/v1/ack", server_data.acknowledge, Level.WRITE, body=_ACK),
    Entry("POST", "/api/v1/ack/batch", server_data.acknowledge_many, Level.WRITE, body=_ACKS),
    Entry(
        "GET",
        "/api/v1/pop/queue/{queue}/partition/{partition}",
        server_data.pop,
        Level.WRITE,
        (200, 204, 404, 409),
        _POP,
    ),
    Entry("GET", "/api/v1/pop/queue/{queue}", server_data.pop, Level.WRITE, (200, 204, 404, 409), _POP),
    Entry("POST", "/api/v1/transaction", server_data.transaction, Level.WRITE, body=_TRANSACTION),
    Entry(
        "POST",
        "/api/v1/lease/{lease}/extend",
        server_data.extend,
        Level.WRITE,
        (200, 404, 409),
        body=members(seconds=NUMBER),
    ),
    Entry("POST", "/api/v1/configure", server_data.configure, Level.WRITE, (200, 409), body=_CONFIGURE),
    Entry("POST", "/api/v1/traces", server_operators.add_trace, Level.WRITE, (201, 404), body=_TRACE),
)
_SERVER: Final = (
    Entry("GET", "/health", server_health.health, Level.PUBLIC),
    Entry("GET", "/metrics", server_health.metrics, Level.READ),
    Entry("GET", "/metrics/prometheus", server_health.prometheus, Level.READ),
    Entry("GET", "/openapi.json", openapi, Level.PUBLIC),
)
_QUEUES: Final = (
    Entry("GET", "/api/v1/resources/overview", server_operators.overview, Level.READ),
    Entry("GET", "/api/v1/resources/queues", server_operators.queues, Level.READ, query=("search", *_PAGE)),
    Entry("GET", _QUEUE, server_operators.queue, Level.READ, _FOUND),
    Entry("DELETE", _QUEUE, server_operators.delete_queue, Level.ADMIN),
    Entry("GET", "/api/v1/resources/namespaces", server_operators.namespaces, Level.READ),
    Entry("GET", "/api/v1/resources/tasks", server_operators.tasks, Level.READ),
    Entry("GET", "/api/v1/resources/partitions", server_operators.partitions, Level.READ, query=("queue", *_PAGE)),
    Entry("DELETE", "/api/v1/queues/{queue}/clear", server_operators.clear_queue, Level.ADMIN, _FOUND, ("partition",)),
)
_MESSAGES: Final = (
    Entry("GET", "/api/v1/messages", server_operators.messages, Level.READ, query=_SELECTION),
    Entry("POST", f"{_ONE_MESSAGE}/retry", server_operators.retry_message, Level.ADMIN, _FOUND),
    Entry("POST", f"{_ONE_MESSAGE}/dlq", server_operators.bury_message, Level.ADMIN, (200, 404, 409), body=_BURIAL),
    Entry("GET", _ONE_MESSAGE, server_operators.message, Level.READ, _FOUND),
    Entry("DELETE", _ONE_MESSAGE, server_operators.delete_message, Level.ADMIN, _FOUND),
    Entry("GET", "/api/v1/dlq", server_operators.dead_letters, Level.READ, query=_SELECTION),
    Entry("POST", "/api/v1/dlq/redrive", server_operators.redrive, Level.ADMIN, body=_IDS),
    Entry("GET", "/api/v1/traces/names", server_operators.trace_names, Level.READ),
    Entry("GET", "/api/v1/traces/by-name/{name}", server_operators.traces, Level.READ, query=_PAGE),
    Entry("GET", "/api/v1/traces/{partition_id}/{transaction_id}", server_operators.traces, Level.READ, query=_PAGE),
)
_GROUPS: Final = (
    Entry("GET", "/api/v1/consumer-groups", server_operators.groups, Level.READ),
    Entry(
        "GET", "/api/v1/consumer-groups/lagging", server_operators.lagging_groups, Level.READ, query=("minLagSeconds",)
    ),
    Entry(
        "POST",
        f"{_GROUP}/queues/{{queue}}/partitions/{{partition}}/seek",
        server_operators.seek,
        Level.ADMIN,
        _FOUND,
        body=_SEEK,
    ),
    Entry("POST", f"{_GROUP}/queues/{{queue}}/seek", server_operators.seek, Level.ADMIN, _FOUND, body=_SEEK),
    Entry(
        "DELETE", f"{_GROUP}/queues/{{queue}}", server_operators.delete_group, Level.ADMIN, query=("deleteMetadata",)
    ),
    Entry("POST", f"{_GROUP}/subscription", server_operators.subscription, Level.ADMIN, _FOUND, body=_SUBSCRIPTION),
    Entry("GET", _GROUP, server_operators.group, Level.READ, _FOUND),
    Entry("DELETE", _GROUP, server_operators.delete_group, Level.ADMIN, query=("deleteMetadata",)),
)
_NUMBERS: Final = (
    Entry("GET", "/api/v1/status", server_operators.status, Level.READ, query=("queue",)),
    Entry("GET", "/api/v1/status/queues", server_operators.status_of_queues, Level.READ, query=("queue", *_PAGE)),
    Entry("GET", f"{_STATUS}/messages", server_operators.queue_messages, Level.READ, _FOUND, _SELECTION),
    Entry("GET", _STATUS, server_operators.queue, Level.READ, _FOUND),
    Entry("POST", "/api/v1/stats/refresh", server_operators.refresh, Level.READ),
)

ROUTES: Final = (*_DATA, *_SERVER, *_QUEUES, *_MESSAGES, *_GROUPS, *_NUMBERS)
"""What is asked most often stands first, and a route that says more stands before one that says less."""
