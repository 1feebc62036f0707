"""The server's replies to producers and consumers: status and form."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from pump.queue.http.request import LARGEST_BODY_BYTES
from pump.queue.limits import LARGEST_PAYLOAD_BYTES, MOST_ITEMS
from support.queue_http import InProcess, as_body, data, told

A_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
UNKNOWN = "018f0000-0000-7000-8000-000000000000"

FALSY = ["0", "false", "null", '""', "[]", "{}"]
PECULIAR = [
    '{"b":1,"a":2}',
    '{"a":1,"a":2}',
    '{ "spaced" : [ 1 ,2 ] }',
    '"\\u0000"',
    '"é\\u00e9\\ud83d\\ude00"',
    "1.50",
    "1e999",
    "12345678901234567890123",
]


@pytest.fixture
def http(engine: Any) -> Iterator[InProcess]:
    """A server in this process, in front of each engine in turn."""
    with InProcess(engine) as server:
        yield server


# -- push


@pytest.mark.requirement("Q-69")
def test_a_push_says_of_each_message_where_it_is(http: InProcess) -> None:
    answer = http.post(
        "/api/v1/push",
        {"items": [{"queue": "orders", "payload": 1, "transactionId": "one"}, {"queue": "orders", "payload": 2}]},
    )

    assert answer.status == 201
    first, second = answer.json
    assert first | {"message_id": "", "partition_id": ""} == {
        "index": 0,
        "transaction_id": "one",
        "queueName": "orders",
        "status": "queued",
        "message_id": "",
        "partition_id": "",
        "trace_id": None,
    }
    assert second["index"] == 1
    assert second["transaction_id"]
    assert second["partition_id"] == first["partition_id"]


def test_a_duplicate_is_told_by_the_id_of_the_original(http: InProcess) -> None:
    [original] = http.push("orders", 1, transactionId="one")

    [again] = http.push("orders", 2, transactionId="one")

    assert again == {
        "index": 0,
        "transaction_id": "one",
        "queueName": "orders",
        "status": "duplicate",
        "message_id": original["message_id"],
    }
    assert data(http.pop("orders", batch=10)) == [1]


@pytest.mark.requirement("Q-58")
def test_queue_and_partition_come_into_being_with_their_first_message(http: InProcess) -> None:
    http.push("new", 1)
    http.push("new", 2, partition="other")

    assert {each["partition"] for each in http.pop("new", batch=10, partitions=10)} == {"Default", "other"}


def test_nothing_pushed_is_nothing_stored(http: InProcess) -> None:
    answer = http.post("/api/v1/push", {"items": []})

    assert (answer.status, answer.json) == (201, [])


@pytest.mark.parametrize("text", FALSY + PECULIAR)
def test_a_payload_comes_back_to_the_byte(http: InProcess, text: str) -> None:
    http.post("/api/v1/push", b'{"items":[{"queue":"q","payload": %s ,"partition":null}]}' % text.encode())

    answer = http.get("/api/v1/pop/queue/q")

    assert b'"data":%s}' % text.encode() in answer.body


def test_a_payload_under_its_other_name_is_not_lost(http: InProcess) -> None:
    http.post("/api/v1/push", {"items": [{"queue": "q", "data": {"a": 1}}, {"queue": "q"}]})

    assert data(http.pop("q", batch=2)) == [{"a": 1}, None]


def test_a_payload_that_is_no_json_comes_in_base64(http: InProcess, engine: Any) -> None:
    from pump.queue.vocabulary import Push

    engine.push([Push("q", b"\x00\xff"), Push("q", b"1")])

    first, second = http.pop("q", batch=2)

    assert (first["data"], first["dataEncoding"]) == ("AP8=", "base64")
    assert second["data"] == 1


@pytest.mark.requirement("Q-51")
def test_a_message_may_be_pushed_for_later(http: InProcess) -> None:
    [later] = http.push("q", "later", delaySeconds=3600)
    http.push("q", "now")

    assert later["status"] == "queued"
    assert later["scheduled"] is True
    assert data(http.pop("q", batch=10)) == ["now"]


@pytest.mark.requirement("Q-72", "Z-14")
@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "Empty request body"),
        (b"{", "Invalid JSON"),
        ([], "the body must be an object"),
        ({}, "items array is required"),
        ({"items": {}}, "items array is required"),
        ({"items": [1]}, "items[0] must be an object"),
        ({"items": [{"payload": 1}]}, "Queue must be a string"),
        ({"items": [{"queue": "", "payload": 1}]}, "Queue must be a string"),
        ({"items": [{"queue": 5, "payload": 1}]}, "Queue must be a string"),
        ({"items": [{"queue": "q", "partition": 5}]}, "Partition must be a string"),
        ({"items": [{"queue": "q", "transactionId": 5}]}, "TransactionId must be a string"),
        ({"items": [{"queue": "q", "traceId": 5}]}, "TraceId must be a string"),
        ({"items": [{"queue": "q", "traceId": "no"}]}, "TraceId must be a UUID"),
        ({"items": [{"queue": "q", "delaySeconds": -1}]}, "delaySeconds must be a number"),
        ({"items": [{"queue": "q", "delaySeconds": True}]}, "delaySeconds must be a number"),
        (b'{"items":[{"queue":"q","delaySeconds":1e999}]}', "delaySeconds must be a number"),
        ({"items": [{"queue": "q", "notBefore": "soon"}]}, "notBefore must be a time"),
        ({"items": [{"queue": "a\0b"}]}, "control characters"),
        ({"items": [{"queue": "q", "partition": "\n"}]}, "control characters"),
        ({"items": [{"queue": "q", "transactionId": "\0"}]}, "control characters"),
        ({"items": [{"queue": "x" * 256}]}, "longer than 255"),
        ({"items": [{"queue": "q", "transactionId": "é" * 128}]}, "longer than 255 bytes"),
        (b'{"items":[{"queue":"\\ud800"}]}', "half of a surrogate pair"),
        ({"items": [{"queue": "q", "payload": "x" * LARGEST_PAYLOAD_BYTES}]}, "payload must not be larger"),
        ({"items": [{"queue": "q"}] * (MOST_ITEMS + 1)}, f"at most {MOST_ITEMS} items"),
    ],
    ids=lambda case: repr(case)[:40],
)
def test_a_push_that_is_built_wrongly_stores_nothing(http: InProcess, body: object, why: str) -> None:
    answer = http.post("/api/v1/push", body)

    assert answer.status == 400
    assert why in answer.error
    assert http.get("/api/v1/resources/queues").json["queues"] == []
    assert http.get("/health").status == 200


def test_a_refused_push_names_the_item(http: InProcess) -> None:
    answer = http.post("/api/v1/push", {"items": [{"queue": "q"}, {"queue": "q"}, {"queue": 1}]})

    assert answer.error == "Queue must be a string (items[2])"
    assert http.pop("q") == []


@pytest.mark.parametrize("name", ["a/b", "50%", "%2F", "a b", "q?x=1", "ü", "partition", "a/partition/b", "+"])
def test_any_name_leads_to_its_queue(http: InProcess, name: str) -> None:
    from urllib.parse import quote

    http.push(name, "here", partition=name)
    path = f"/api/v1/pop/queue/{quote(name, safe='')}"

    found = http.get(f"{path}/partition/{quote(name, safe='')}")

    assert data(found.json["messages"]) == ["here"]
    assert http.get(path).status == 204


def test_a_slash_that_is_not_encoded_is_understood_where_it_can_be(http: InProcess) -> None:
    http.push("a/b", "here")

    assert data(http.pop("a/b")) == ["here"]


@pytest.mark.parametrize("path", ["%FF", "a%00b", "%0A"])
def test_a_path_that_is_no_name_is_refused(http: InProcess, path: str) -> None:
    assert http.get(f"/api/v1/pop/queue/{path}").status == 400


# -- pop


@pytest.mark.requirement("Q-10")
def test_a_message_carries_all_that_is_needed_to_settle_it(http: InProcess) -> None:
    [pushed] = http.push("orders", {"sku": "tea"}, transactionId="one", traceId=UNKNOWN)

    answer = http.get("/api/v1/pop/queue/orders", params={"consumerGroup": "billing"})

    found = answer.json
    [message] = found.pop("messages")
    assert A_TIME.fullmatch(found.pop("expiresAt"))
    assert A_TIME.fullmatch(message.pop("createdAt"))
    assert found == {
        "success": True,
        "queue": "orders",
        "partition": "Default",
        "partitionId": pushed["partition_id"],
        "leaseId": message["leaseId"],
        "consumerGroup": "billing",
        "partitionsClaimed": 1,
    }
    assert message == {
        "id": pushed["message_id"],
        "transactionId": "one",
        "traceId": UNKNOWN,
        "producerSub": None,
        "queue": "orders",
        "partitionId": pushed["partition_id"],
        "partition": "Default",
        "leaseId": message["leaseId"],
        "consumerGroup": "billing",
        "sequence": 1,
        "deliveries": 1,
        "retries": 0,
        "crashes": 0,
        "data": {"sku": "tea"},
    }


@pytest.mark.requirement("Q-04")
def test_without_auto_ack_a_message_stays_leased_until_it_is_settled(http: InProcess) -> None:
    http.push("q", 1)

    [message] = http.pop("q")

    assert http.pop("q") == []
    assert http.settle(message, "retry")["success"]
    assert data(http.pop("q")) == [1]


@pytest.mark.requirement("Q-06")
def test_with_auto_ack_at_most_a_batch_comes_and_is_done_with(http: InProcess) -> None:
    http.push("q", *range(12))

    first = http.get("/api/v1/pop/queue/q?autoAck=true&batch=10")
    rest = http.get("/api/v1/pop/queue/q?autoAck=true&batch=10")

    assert first.json["leaseId"] == ""
    assert {each["leaseId"] for each in first.json["messages"]} == {""}
    assert data(first.json["messages"]) == list(range(10))
    assert data(rest.json["messages"]) == [10, 11]
    assert http.get("/api/v1/pop/queue/q").status == 204


@pytest.mark.requirement("Q-69")
def test_where_nothing_is_ready_there_is_no_body(http: InProcess) -> None:
    answer = http.get("/api/v1/pop/queue/nowhere")

    assert (answer.status, answer.body) == (204, b"")


@pytest.mark.requirement("Q-60")
@pytest.mark.parametrize(
    ("query", "why"),
    [
        ({"batch": "0"}, "batch must be a whole number, 1 or more"),
        ({"batch": "-1"}, "batch must be"),
        ({"batch": "ten"}, "batch must be"),
        ({"batch": "9" * 5000}, "batch must be"),
        ({"batch": "²"}, "batch must be"),
        ({"partitions": "0"}, "partitions must be"),
        ({"timeout": "soon"}, "timeout must be"),
        ({"wait": "maybe"}, "wait must be true or false"),
        ({"autoAck": "yes!"}, "autoAck must be true or false"),
        ({"subscriptionFrom": "yesterday"}, "subscriptionFrom must be a time"),
        ({"subscriptionFrom": "0001-01-01"}, "subscriptionFrom must be"),
        ({"consumerGroup": "x" * 256}, "longer than 255"),
        ({"consumerGroup": "a\0"}, "control characters"),
        ({"consumerGroup": "x" * 256, "wait": "true"}, "longer than 255"),
    ],
)
def test_a_pop_that_is_built_wrongly_is_refused(http: InProcess, query: dict[str, str], why: str) -> None:
    answer = http.get("/api/v1/pop/queue/q", params=query)

    assert answer.status == 400
    assert why in answer.error


def test_a_query_that_is_not_utf_8_is_refused(http: InProcess) -> None:
    assert http.get("/api/v1/pop/queue/q?consumerGroup=%FF").status == 400


@pytest.mark.parametrize("start", ["now", "new", "new-only"])
def test_a_group_may_begin_with_what_is_new(http: InProcess, start: str) -> None:
    http.push("q", "old")
    query = {"subscriptionFrom": start} if start == "now" else {"subscriptionMode": start}

    assert http.pop("q", consumerGroup="late", **query) == []
    http.push("q", "new")

    assert data(http.pop("q", consumerGroup="late", batch=10)) == ["new"]


def test_a_batch_is_held_down_to_what_one_reply_may_carry(http: InProcess) -> None:
    http.push("q", 1)

    assert data(http.pop("q", batch=10**9, partitions=10**9)) == [1]


def test_asking_for_the_head_of_a_pop_takes_nothing(http: InProcess) -> None:
    http.push("q", 1)

    assert http.ask("HEAD", "/api/v1/pop/queue/q?autoAck=true").status == 405
    assert data(http.pop("q")) == [1]


# -- settling


@pytest.mark.requirement("Q-11", "Q-15")
def test_a_settlement_is_answered_as_an_array_of_one(http: InProcess) -> None:
    http.push("q", 1)
    [message] = http.pop("q")

    answer = http.post(
        "/api/v1/ack",
        {
            "transactionId": message["transactionId"],
            "partitionId": message["partitionId"],
            "leaseId": message["leaseId"],
            "error": None,
            "consumerGroup": None,
        },
    )

    assert (answer.status, answer.json) == (
        200,
        [
            {
                "index": 0,
                "transactionId": message["transactionId"],
                "success": True,
                "message": "acknowledged",
                "error": None,
                "queueName": "q",
                "partitionName": "Default",
                "leaseReleased": True,
                "dlq": False,
            }
        ],
    )


@pytest.mark.requirement("Q-11")
def test_a_settlement_may_say_all_there_is_to_say(http: InProcess) -> None:
    http.push("q", 1)
    [message] = http.pop("q", consumerGroup="g")

    told_of = http.settle(message, "success", consumerGroup="g", error="none", delaySeconds=0, reason="")

    assert told_of["success"]


@pytest.mark.requirement("Q-20")
def test_a_failure_says_whether_the_message_comes_again(http: InProcess) -> None:
    http.post("/api/v1/configure", {"queue": "q", "options": {"retryLimit": 1, "retryDelay": 0}})
    http.push("q", 1)

    outcomes = [http.settle(http.pop("q")[0], "failed", error="bad") for _ in range(2)]

    assert [(each["success"], each["message"], each["dlq"]) for each in outcomes] == [
        (True, "failed_retry", False),
        (True, "failed_dlq", True),
    ]


def test_a_message_that_is_given_back_may_come_later(http: InProcess) -> None:
    http.push("q", 1)
    [message] = http.pop("q")

    assert http.settle(message, "retry", delaySeconds=3600)["success"]

    assert http.pop("q") == []


@pytest.mark.parametrize("error", ["a\0b", {"code": 5}, ["x"], 7, "\U0001f600" * 10_000])
def test_whatever_is_said_of_an_error_the_message_is_settled(http: InProcess, error: object) -> None:
    http.push("q", 1)
    [message] = http.pop("q")

    assert http.settle(message, "dlq", error=error)["dlq"] is True


@pytest.mark.requirement("Q-08")
@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"transactionId": "t"}, "partitionId is required to ensure message uniqueness"),
        ({"transactionId": "t", "partitionId": None}, "partitionId is required to ensure message uniqueness"),
        ({"transactionId": "t", "partitionId": 7}, "partitionId is required to ensure message uniqueness"),
        ({"partitionId": UNKNOWN}, "transactionId is required"),
        ({"transactionId": "t", "partitionId": UNKNOWN, "leaseId": 5}, "leaseId must be a string"),
        ({"transactionId": "t", "partitionId": UNKNOWN, "leaseId": "\0"}, "control characters"),
        ({"transactionId": "\0", "partitionId": UNKNOWN}, "control characters"),
        ({"transactionId": "t", "partitionId": "\0"}, "control characters"),
        ({"transactionId": "t", "partitionId": UNKNOWN, "status": 5}, "status must be a string"),
        ({"transactionId": "t", "partitionId": UNKNOWN, "consumerGroup": 5}, "consumerGroup must be a string"),
        ({"transactionId": "t", "partitionId": UNKNOWN, "delaySeconds": -5}, "delaySeconds must be a number"),
        (b"", "Empty request body"),
    ],
)
def test_a_settlement_that_is_built_wrongly_is_refused(http: InProcess, body: object, why: str) -> None:
    answer = http.post("/api/v1/ack", body)

    assert answer.status == 400
    assert why in answer.error


@pytest.mark.parametrize(
    ("change", "message", "error"),
    [
        ({"partitionId": "not a uuid"}, "not_found", "Message not found"),
        ({"partitionId": UNKNOWN}, "not_found", "Message not found"),
        ({"transactionId": "another"}, "not_found", "Message not found"),
        ({"transactionId": "x" * 5000}, "not_found", "Message not found"),
        ({"leaseId": UNKNOWN}, "invalid_lease", "Invalid or expired lease"),
        ({"leaseId": "no lease"}, "invalid_lease", "Invalid or expired lease"),
        ({"leaseId": None}, "invalid_lease", "Invalid or expired lease"),
        ({"leaseId": ""}, "invalid_lease", "Invalid or expired lease"),
        ({"consumerGroup": "another"}, "invalid_lease", "Invalid or expired lease"),
        ({"status": "done"}, "unknown_status", "Unknown status 'done'"),
    ],
)
def test_what_names_nothing_is_answered_and_changes_nothing(
    http: InProcess, change: dict[str, object], message: str, error: str
) -> None:
    http.push("q", 1)
    [popped] = http.pop("q")

    outcome = http.settle(popped | change, **({"status": change["status"]} if "status" in change else {}))  # type: ignore[arg-type]

    assert (outcome["success"], outcome["message"], outcome["error"]) == (False, message, error)
    assert http.settle(popped)["success"]


@pytest.mark.requirement("Q-23")
def test_a_batch_is_answered_in_order_whatever_its_partitions(http: InProcess) -> None:
    http.push("q", 1, 2, partition="a")
    http.push("q", 3, partition="b")
    messages = http.pop("q", batch=10, partitions=2, consumerGroup="g")
    statuses = ["completed", "done", "dlq"]

    answer = http.post(
        "/api/v1/ack/batch",
        {
            "consumerGroup": "g",
            "acknowledgments": [
                {**told(each), "status": status, "consumerGroup": None}
                for each, status in zip(messages, statuses, strict=True)
            ],
        },
    )

    assert answer.status == 200
    assert [each["index"] for each in answer.json] == [0, 1, 2]
    assert [each["transactionId"] for each in answer.json] == [each["transactionId"] for each in messages]
    assert [each["success"] for each in answer.json] == [True, False, True]


@pytest.mark.requirement("Q-23", "Z-10")
def test_an_empty_batch_is_answered_with_nothing(http: InProcess) -> None:
    answer = http.post("/api/v1/ack/batch", {"acknowledgments": []})

    assert (answer.status, answer.json) == (200, [])


@pytest.mark.requirement("Q-08")
@pytest.mark.parametrize(
    ("item", "why"),
    [
        ({"transactionId": "t"}, "Each acknowledgment must have a valid partitionId string"),
        ({"partitionId": UNKNOWN}, "Each acknowledgment must have a valid transactionId string"),
        (7, "acknowledgments[1] must be an object"),
    ],
)
def test_a_batch_with_one_item_built_wrongly_settles_nothing(http: InProcess, item: object, why: str) -> None:
    http.push("q", 1)
    [message] = http.pop("q")

    answer = http.post("/api/v1/ack/batch", {"acknowledgments": [told(message), item]})

    assert answer.status == 400
    assert why in answer.error
    assert "acknowledgments[1]" in answer.error
    assert http.settle(message)["message"] == "acknowledged"


def test_a_batch_without_its_array_is_refused(http: InProcess) -> None:
    assert http.post("/api/v1/ack/batch", {}).error == "acknowledgments array is required"


@pytest.mark.requirement("Q-71", "Z-11")
def test_bad_data_of_one_client_fails_nobody_else(http: InProcess) -> None:
    http.push("q", *range(35))
    messages = http.pop("q", batch=35)
    good = [http.begin("POST", "/api/v1/ack", content=as_body(told(each))) for each in messages]
    bad = [
        http.begin("POST", "/api/v1/ack", content=as_body({"transactionId": "t", "partitionId": "no uuid"}))
        for _ in range(5)
    ]
    pushed = [
        http.begin("POST", "/api/v1/push", content=as_body({"items": [{"queue": "other", "payload": number, **more}]}))
        for number, more in enumerate([{}, {"traceId": "no uuid"}, {}])
    ]

    assert [each.result().json[0]["success"] for each in good] == [True] * 35
    assert [each.result().json[0]["success"] for each in bad] == [False] * 5
    assert [each.result().status for each in pushed] == [201, 400, 201]


# -- leases


@pytest.mark.requirement("Q-31")
def test_a_renewal_without_any_body_gives_the_time_that_its_queue_gives(http: InProcess) -> None:
    http.push("q", 1)
    lease = http.pop("q")[0]["leaseId"]

    answer = http.post(f"/api/v1/lease/{lease}/extend")

    assert answer.status == 200
    assert A_TIME.fullmatch(answer.json["expiresAt"])
    assert answer.json == {
        "leaseId": lease,
        "success": True,
        "error": None,
        "expiresAt": answer.json["expiresAt"],
        "newExpiresAt": answer.json["expiresAt"],
    }


@pytest.mark.requirement("Q-31")
@pytest.mark.parametrize("lease", [UNKNOWN, "no lease"])
def test_a_lease_that_there_is_not_cannot_be_renewed(http: InProcess, lease: str) -> None:
    answer = http.post(f"/api/v1/lease/{lease}/extend", {"seconds": 60})

    assert answer.status == 404
    assert answer.json["success"] is False
    assert answer.error == "Lease not found"


@pytest.mark.requirement("Q-31")
def test_a_lease_that_has_ended_cannot_be_renewed(http: InProcess, engine: Any) -> None:
    http.push("q", 1)
    lease = http.pop("q")[0]["leaseId"]
    engine.clock_offset += 301

    answer = http.post(f"/api/v1/lease/{lease}/extend", {"seconds": 60})

    assert (answer.status, answer.error) == (409, "Lease already expired")


@pytest.mark.parametrize("seconds", [0, -1, "x", True, 10**9])
def test_a_lease_is_not_renewed_for_a_time_that_is_none(http: InProcess, seconds: object) -> None:
    http.push("q", 1)
    lease = http.pop("q")[0]["leaseId"]

    assert http.post(f"/api/v1/lease/{lease}/extend", {"seconds": seconds}).status == 400


# -- options


DEFAULTS = {
    "ordered": True,
    "leaseTime": 300,
    "retryLimit": 3,
    "retryDelay": 1000,
    "maxSize": 0,
    "ttl": 3600,
    "priority": 0,
    "deadLetterQueue": True,
    "dlqAfterMaxRetries": True,
    "delayedProcessing": 0,
    "windowBuffer": 0,
    "maxWaitTimeSeconds": 0,
    "retentionEnabled": False,
    "retentionSeconds": 0,
    "completedRetentionSeconds": 0,
    "encryptionEnabled": False,
}


@pytest.mark.requirement("Q-67")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ordered", False),
        ("leaseTime", 12),
        ("retryLimit", 0),
        ("retryDelay", 1500),
        ("maxSize", 7),
        ("ttl", 60),
        ("priority", 5),
        ("deadLetterQueue", False),
        ("dlqAfterMaxRetries", False),
        ("delayedProcessing", 2),
        ("windowBuffer", 3),
        ("maxWaitTimeSeconds", 4),
        ("retentionEnabled", True),
        ("retentionSeconds", 90),
        ("completedRetentionSeconds", 80),
    ],
)
def test_an_option_is_kept_and_the_next_configuration_resets_it(http: InProcess, name: str, value: object) -> None:
    first = http.post("/api/v1/configure", {"queue": "q", "namespace": None, "task": None, "options": {name: value}})
    kept = http.get("/api/v1/resources/queues/q").json["options"]
    second = http.post("/api/v1/configure", {"queue": "q"})

    assert (first.status, first.json["configured"], first.json["queue"]) == (200, True, "q")
    assert first.json["options"] == kept == DEFAULTS | {name: value}
    assert second.json["options"] == http.get("/api/v1/resources/queues/q").json["options"] == DEFAULTS


def test_a_lease_time_of_none_is_a_minute(http: InProcess) -> None:
    answer = http.post("/api/v1/configure", {"queue": "q", "options": {"leaseTime": 0, "retryLimit": None}})

    assert answer.json["options"] == DEFAULTS | {"leaseTime": 60}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({}, "queue is required"),
        ({"queue": ""}, "queue is required"),
        ({"queue": "q", "options": []}, "options must be an object"),
        ({"queue": "q", "options": {"leseTime": 5}}, "there is no option 'leseTime'"),
        ({"queue": "q", "options": {"leaseTime": "5"}}, "leaseTime must be a number"),
        ({"queue": "q", "options": {"leaseTime": -5}}, "leaseTime must be a number of seconds, 0 or more"),
        ({"queue": "q", "options": {"leaseTime": 10**9}}, "leaseTime must be more than 0 and at most"),
        ({"queue": "q", "options": {"retryLimit": 1.5}}, "retryLimit must be a whole number"),
        ({"queue": "q", "options": {"retryLimit": -1}}, "retryLimit must be a whole number, 0 or more"),
        ({"queue": "q", "options": {"retryDelay": "5"}}, "retryDelay must be a number of milliseconds"),
        (b'{"queue":"q","options":{"ttl":1,"ttl":2}}', "'ttl' stands twice"),
        ({"queue": "q", "options": {"maxSize": True}}, "maxSize must be a whole number"),
        (b'{"queue":"q","options":{"maxSize":1e999}}', "maxSize must be a number in range"),
        ({"queue": "q", "options": {"retentionEnabled": 1}}, "retentionEnabled must be true or false"),
        ({"queue": "q", "namespace": 5}, "namespace must be a string"),
    ],
    ids=lambda case: repr(case)[:50],
)
def test_a_configuration_that_is_built_wrongly_changes_nothing(http: InProcess, body: object, why: str) -> None:
    answer = http.post("/api/v1/configure", body)

    assert answer.status == 400
    assert why in answer.error
    assert http.get("/api/v1/resources/queues/q").status == 404


@pytest.mark.requirement("Q-69")
def test_a_mode_does_not_change_while_messages_are_leased(http: InProcess) -> None:
    http.push("q", 1)
    http.pop("q")

    answer = http.post("/api/v1/configure", {"queue": "q", "options": {"ordered": False}})

    assert answer.status == 409


def test_encryption_is_refused_where_there_is_no_key(http: InProcess) -> None:
    answer = http.post("/api/v1/configure", {"queue": "q", "options": {"encryptionEnabled": True}})

    assert answer.status == 400
    assert "key" in answer.error


def test_a_full_queue_says_so_before_anything_is_stored(http: InProcess) -> None:
    http.post("/api/v1/configure", {"queue": "q", "options": {"maxSize": 1}})

    first = http.post("/api/v1/push", {"items": [{"queue": "q", "payload": 1}, {"queue": "q", "payload": 2}]})
    second = http.post("/api/v1/push", {"items": [{"queue": "q", "payload": 3}]})

    assert first.status == 201
    assert [each["status"] for each in first.json] == ["queued", "failed"]
    assert first.json[1]["error"] == "queue is full"
    assert (second.status, second.error) == (429, "queue is full")
    assert int(second.headers["retry-after"]) > 0
    assert data(http.pop("q", batch=10)) == [1]


# -- transactions


def operations(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    """Acknowledgements as old clients send them: without their leases."""
    return [
        {
            "type": "ack",
            "transactionId": each["transactionId"],
            "partitionId": each["partitionId"],
            "status": "completed",
        }
        for each in messages
    ]


@pytest.mark.requirement("Q-49")
def test_a_transaction_acknowledges_and_pushes_together(http: InProcess) -> None:
    http.push("in", 1)
    [message] = http.pop("in")
    push = {"type": "push", "items": [{"queue": "out", "payload": {"a": 1, "b": None}}, {"queue": "out", "payload": 0}]}

    answer = http.post(
        "/api/v1/transaction",
        {"operations": [*operations(message), push], "requiredLeases": [message["leaseId"]]},
    )

    assert answer.status == 200
    assert answer.json["success"] is True
    assert answer.json["transactionId"]
    assert [(each["index"], each["type"], each["success"]) for each in answer.json["results"]] == [
        (0, "ack", True),
        (1, "push", True),
        (1, "push", True),
    ]
    assert data(http.pop("out", batch=10)) == [{"a": 1, "b": None}, 0]
    assert http.settle(message)["message"] == "already_acknowledged"


@pytest.mark.requirement("Q-49", "Z-09")
@pytest.mark.parametrize("leases", [[], [UNKNOWN], None])
def test_a_transaction_without_a_live_lease_does_nothing_and_says_so(http: InProcess, leases: object) -> None:
    http.push("in", 1)
    [message] = http.pop("in")
    push = {"type": "push", "items": [{"queue": "out", "payload": 1}]}

    answer = http.post("/api/v1/transaction", {"operations": [push, *operations(message)], "requiredLeases": leases})

    assert answer.status == 200
    assert answer.json["success"] is False
    assert answer.error
    assert [each["success"] for each in answer.json["results"]] == [False] * len(answer.json["results"])
    assert http.pop("out") == []
    assert http.settle(message)["message"] == "acknowledged"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({}, "operations array required"),
        ({"operations": []}, "operations array cannot be empty"),
        ({"operations": [{"type": "pop"}]}, "type must be push or ack (operations[0])"),
        ({"operations": [{"type": "push"}]}, "items array is required (operations[0])"),
        ({"operations": [{"type": "push", "items": [{}]}]}, "Queue must be a string (operations[0].items[0])"),
        ({"operations": [{"type": "ack", "transactionId": "t"}]}, "partitionId is required"),
        (
            {"operations": [{"type": "ack", "transactionId": "t", "partitionId": UNKNOWN, "status": "done"}]},
            "Unknown status 'done' (operations[0])",
        ),
        ({"operations": [1]}, "operations[0] must be an object"),
        ({"operations": operations({"transactionId": "t", "partitionId": "p"}), "requiredLeases": 5}, "requiredLeases"),
    ],
    ids=lambda case: repr(case)[:50],
)
def test_a_transaction_that_is_built_wrongly_is_refused(http: InProcess, body: object, why: str) -> None:
    answer = http.post("/api/v1/transaction", body)

    assert answer.status == 400
    assert why in answer.error


# -- limits and routes


@pytest.mark.requirement("Z-10")
@pytest.mark.parametrize("known", [True, False], ids=["length", "chunks"])
def test_a_request_that_is_too_large_is_refused(http: InProcess, known: bool) -> None:
    body = b" " * (LARGEST_BODY_BYTES + 1)

    async def chunks() -> Any:
        for start in range(0, len(body), 1_000_000):
            yield body[start : start + 1_000_000]

    answer = http.post("/api/v1/push", body) if known else http.ask("POST", "/api/v1/push", content=chunks())

    assert answer.status == 413
    assert str(LARGEST_BODY_BYTES) in answer.error


def test_a_large_batch_goes_in_and_comes_out(http: InProcess) -> None:
    payloads = [{"number": number, "text": "x" * 100} for number in range(3000)]

    http.push("q", *payloads)

    assert data(http.pop("q", batch=3000)) == payloads


@pytest.mark.requirement("Z-10", "Q-69")
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/api/v1/pop", 404),
        ("GET", "/api/v1/pop/queue/", 404),
        ("GET", "/api/v1/push/", 404),
        ("POST", "/api/v1/nowhere", 404),
        ("GET", "/api/v1/push", 405),
        ("PUT", "/api/v1/ack", 405),
        ("OPTIONS", "/api/v1/push", 405),
        ("GET", "/api/v1/system/maintenance", 404),
        ("POST", "/streams/v1/queries", 404),
    ],
)
def test_what_there_is_no_route_for_is_answered_in_json(http: InProcess, method: str, path: str, status: int) -> None:
    answer = http.ask(method, path)

    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    assert json.loads(answer.body)["success"] is False
