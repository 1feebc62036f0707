"""The server's replies to operators: queues, messages, dead letters, groups, notes and numbers."""

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest

from support.queue_http import InProcess, data

UNKNOWN = "018f0000-0000-7000-8000-000000000000"


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def place(message: dict[str, Any]) -> str:
    """The path of one message."""
    return f"/api/v1/messages/{message['partitionId']}/{quote(message['transactionId'], safe='')}"


@pytest.fixture
def http(engine: Any) -> Iterator[InProcess]:
    """A server in this process, in front of each engine in turn."""
    with InProcess(engine) as server:
        yield server


# -- queues


def test_queues_are_listed_by_page_and_by_name(http: InProcess) -> None:
    for name in ("shop.orders", "shop.returns", "bank"):
        http.push(name, 1)

    every = http.get("/api/v1/resources/queues").json
    shop = http.get("/api/v1/resources/queues?search=shop&limit=1&offset=1").json

    assert [each["name"] for each in every["queues"]] == ["bank", "shop.orders", "shop.returns"]
    assert ([each["name"] for each in shop["queues"]], shop["total"]) == (["shop.returns"], 2)
    assert (every["queues"][1]["namespace"], every["queues"][1]["task"]) == ("shop", "orders")


def test_a_queue_is_told_with_its_partitions_and_numbers(http: InProcess) -> None:
    http.push("q", 1, 2, 3)
    http.push("q", 4, partition="other")
    http.settle(http.pop("q/partition/Default")[0])
    http.settle(http.pop("q/partition/Default")[0], "dlq")
    http.pop("q/partition/Default")

    found = http.get("/api/v1/resources/queues/q").json

    assert found["name"] == "q"
    assert found["stats"] == {
        "total": 4,
        "pending": 1,
        "processing": 1,
        "completed": 1,
        "failed": 0,
        "deadLetter": 1,
    }
    assert {each["name"]: each["stats"]["total"] for each in found["partitions"]} == {"Default": 3, "other": 1}
    assert [each["name"] for each in found["consumerGroups"]] == ["__QUEUE_MODE__"]


@pytest.mark.requirement("Q-69")
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/resources/queues/none"),
        ("GET", "/api/v1/status/queues/none"),
        ("GET", "/api/v1/status/queues/none/messages"),
        ("DELETE", "/api/v1/queues/none/clear"),
        ("GET", f"/api/v1/messages/{UNKNOWN}/none"),
        ("GET", "/api/v1/messages/none/none"),
        ("DELETE", f"/api/v1/messages/{UNKNOWN}/none"),
        ("POST", f"/api/v1/messages/{UNKNOWN}/none/retry"),
        ("POST", f"/api/v1/messages/{UNKNOWN}/none/dlq"),
        ("POST", "/api/v1/messages/none/none/dlq"),
        ("GET", "/api/v1/consumer-groups/none"),
        ("POST", "/api/v1/consumer-groups/none/queues/none/seek"),
    ],
)
def test_what_there_is_not_is_not_found(http: InProcess, method: str, path: str) -> None:
    answer = http.ask(method, path, content=b'{"toEnd":true}' if path.endswith("seek") else None)

    assert answer.status == 404
    assert answer.json["success"] is False


def test_a_queue_is_removed_once(http: InProcess) -> None:
    http.push("a/b", 1)

    first, second = (http.delete("/api/v1/resources/queues/a%2Fb").json for _ in range(2))

    assert first == {"deleted": True, "existed": True, "queue": "a/b"}
    assert second["existed"] is False
    assert http.get("/api/v1/resources/queues").json["total"] == 0


def test_a_queue_or_a_partition_is_cleared(http: InProcess) -> None:
    http.push("q", 1, 2)
    http.push("q", 3, 4, 5, partition="other")

    one = http.delete("/api/v1/queues/q/clear?partition=other").json
    rest = http.delete("/api/v1/queues/q/clear").json

    assert (one["removed"], rest["removed"]) == (3, 2)
    assert http.pop("q", batch=10) == []
    http.push("q", 6)
    assert data(http.pop("q")) == [6]


def test_namespaces_tasks_partitions_and_all_together(http: InProcess) -> None:
    http.push("shop.orders", 1)
    http.post("/api/v1/configure", {"queue": "x", "namespace": "shop", "task": "count"})

    assert http.get("/api/v1/resources/namespaces").json == {
        "namespaces": [{"namespace": "shop", "queues": ["shop.orders", "x"]}]
    }
    assert [each["task"] for each in http.get("/api/v1/resources/tasks").json["tasks"]] == ["count", "orders"]
    partitions = http.get("/api/v1/resources/partitions?queue=shop.orders").json["partitions"]
    assert [(each["queue"], each["name"]) for each in partitions] == [("shop.orders", "Default")]
    overview = http.get("/api/v1/resources/overview").json
    assert (overview["queues"], overview["messages"]["pending"]) == (2, 1)


# -- messages


def test_messages_are_listed_with_their_state_for_each_group(http: InProcess) -> None:
    http.push("q", 1)
    http.push("q", 2)
    http.settle(http.pop("q", consumerGroup="a")[0])
    http.pop("q", consumerGroup="b")

    newest, oldest = http.get("/api/v1/messages?queue=q").json["messages"]

    assert newest["groups"] == {"a": "pending", "b": "pending"}
    assert oldest["groups"] == {"a": "completed", "b": "processing"}
    assert oldest["status"] == "processing"
    assert oldest["busStatus"] == {"consumedBy": 1, "totalGroups": 2}
    assert "payload" not in oldest
    assert http.get("/api/v1/status/queues/q/messages?limit=1").json["messages"][0]["id"] == newest["id"]


def test_messages_are_selected_by_state_and_by_time(http: InProcess, engine: Any) -> None:
    http.push("q", 1)
    begun = time.time()
    engine.clock_offset += 60
    http.push("q", 2, partition="p")
    http.settle(http.pop("q/partition/p")[0])

    def numbers(**query: object) -> int:
        return len(http.get("/api/v1/messages", params={"queue": "q", **query}).json["messages"])

    assert numbers(status="completed") == 1
    assert numbers(status="pending") == 1
    assert numbers(**{"from": iso(begun + 1)}) == 1
    assert numbers(to=iso(begun + 1)) == 1
    assert numbers(partition="p") == 1
    assert http.get("/api/v1/messages?status=lost").status == 400
    assert http.get("/api/v1/messages?from=yesterday").status == 400


def test_a_message_is_shown_with_its_payload_and_its_queue_s_options(http: InProcess) -> None:
    http.post("/api/v1/push", b'{"items":[{"queue":"q","transactionId":"a/b c","payload":{"z":1, "z":2}}]}')
    [message] = http.pop("q")

    answer = http.get(place(message))

    assert b'"payload":{"z":1, "z":2}' in answer.body
    assert answer.json["transactionId"] == "a/b c"
    assert answer.json["queueConfig"]["leaseTime"] == 300
    assert answer.json["status"] == "processing"


def test_a_message_is_removed(http: InProcess) -> None:
    http.push("q", 1, transactionId="one")
    [listed] = http.get("/api/v1/messages?queue=q").json["messages"]

    assert http.delete(place(listed)).json["deleted"] is True
    assert http.delete(place(listed)).status == 404
    assert http.pop("q") == []


# -- dead letters


def dead_letter_of(http: InProcess, queue: str, payload: object, error: str = "bad", **members: Any) -> dict[str, Any]:
    """Push one message and let its consumer give it up."""
    group = members.pop("group", "__QUEUE_MODE__")
    http.push(queue, payload, **members)
    [message] = http.pop(queue, consumerGroup=group)
    assert http.settle(message, "dlq", error=error)["dlq"]
    found: dict[str, Any] = message
    return found


def test_a_dead_letter_says_what_became_of_its_message(http: InProcess) -> None:
    message = dead_letter_of(http, "q", {"sku": "tea"}, "ValueError: no tea", group="g")

    answer = http.get("/api/v1/dlq").json

    [dead] = answer["messages"]
    assert answer["total"] == 1
    assert answer["pagination"] == {"limit": 100, "offset": 0, "total": 1}
    assert {name: dead[name] for name in ("messageId", "transactionId", "partitionId", "queue", "partition")} == {
        "messageId": message["id"],
        "transactionId": message["transactionId"],
        "partitionId": message["partitionId"],
        "queue": "q",
        "partition": "Default",
    }
    assert (dead["consumerGroup"], dead["errorMessage"], dead["data"]) == ("g", "ValueError: no tea", {"sku": "tea"})
    assert dead["createdAt"] <= dead["failedAt"] == dead["movedToDlqAt"]
    assert dead["redrivenAt"] is None


@pytest.mark.requirement("Q-40")
def test_dead_letters_are_selected_by_everything_and_counted(http: InProcess, engine: Any) -> None:
    dead_letter_of(http, "a", 1, group="g")
    between = time.time() + 30
    engine.clock_offset += 60
    for number in range(3):
        dead_letter_of(http, "b", number, partition="p")

    def found(**query: object) -> tuple[int, int]:
        answer = http.get("/api/v1/dlq", params=query).json
        return len(answer["messages"]), answer["total"]

    assert found() == (4, 4)
    assert found(queue="a") == (1, 1)
    assert found(queue="none") == (0, 0)
    assert found(consumerGroup="g") == (1, 1)
    assert found(partition="p") == (3, 3)
    assert found(**{"from": iso(between)}) == (3, 3)
    assert found(to=iso(between)) == (1, 1)
    assert found(limit=2) == (2, 4)
    assert found(limit=2, offset=3) == (1, 4)
    assert http.get("/api/v1/dlq?limit=-1").status == 400
    assert http.get("/api/v1/dlq?offset=x").status == 400


def test_a_page_of_dead_letters_is_put_together_and_does_not_grow_without_bound(
    http: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    http.push("q", *range(50))
    for message in http.pop("q", batch=50):
        http.settle(message, "dlq")

    def page(limit: int, offset: int = 0) -> list[Any]:
        return data(http.get(f"/api/v1/dlq?limit={limit}&offset={offset}").json["messages"])

    every = page(1000)
    monkeypatch.setattr("pump.queue.http.operators.LARGEST_REPLY_BYTES", 30)

    assert sorted(every) == list(range(50))
    assert page(1000) == every[:20]
    assert page(1000, 20) == every[20:40]
    assert page(45)[:5] == every[:5]
    assert page(0) == []


@pytest.mark.requirement("Q-41")
def test_a_dead_letter_is_pushed_again_once(http: InProcess) -> None:
    message = dead_letter_of(http, "q", "again", transactionId="one")
    [dead] = http.get("/api/v1/dlq").json["messages"]

    first = http.post("/api/v1/dlq/redrive", {"ids": [dead["id"], UNKNOWN]}).json["results"]
    second = http.post("/api/v1/dlq/redrive", {"ids": [dead["id"]]}).json["results"]

    assert [each["redriven"] for each in first] == [True, False]
    assert first[0]["transactionId"] == "reprocess-one"
    assert [each["redriven"] for each in second] == [False]
    assert [(each["data"], each["transactionId"]) for each in http.pop("q", batch=5)] == [("again", "reprocess-one")]
    assert http.get("/api/v1/dlq").json["messages"][0]["redrivenAt"] is not None
    assert http.post("/api/v1/dlq/redrive", {"ids": "x"}).status == 400
    assert message["transactionId"] == "one"


def test_a_dead_message_is_made_pending_again_in_its_place(http: InProcess) -> None:
    message = dead_letter_of(http, "q", "again")

    answer = http.post(f"{place(message)}/retry")

    assert (answer.status, answer.json["groups"]) == (200, 1)
    assert data(http.pop("q")) == ["again"]
    assert http.post(f"{place(message)}/retry").status == 404


def test_a_message_is_given_up_for_a_group_or_for_all(http: InProcess) -> None:
    http.push("q", "one")
    (message,) = http.pop("q", consumerGroup="a")
    http.pop("q", consumerGroup="b")

    one = http.post(f"{place(message)}/dlq", {"consumerGroup": "a", "error": "poison"})
    rest = http.post(f"{place(message)}/dlq")
    again = http.post(f"{place(message)}/dlq")

    assert (one.status, one.json["success"], one.json["groups"]) == (200, True, 1)
    assert (rest.status, rest.json["groups"]) == (200, 1)
    assert (again.status, again.json["error"]) == (409, "The message is settled already")
    letters = http.get("/api/v1/dlq").json["messages"]
    assert {(each["consumerGroup"], each["errorMessage"]) for each in letters} == {("a", "poison"), ("b", "")}
    assert http.post(f"{place(message)}/dlq", {"consumerGroup": "nobody"}).status == 404
    assert http.post(f"{place(message)}/dlq", {"consumerGroup": 1}).status == 400


# -- consumer groups


@pytest.mark.requirement("Q-53")
def test_groups_are_told_with_exact_lags(http: InProcess, engine: Any) -> None:
    http.push("q", 1, 2, 3)
    http.push("q", 4, partition="other")
    http.settle(http.pop("q/partition/Default", consumerGroup="g")[0])
    engine.clock_offset += 400

    [found] = http.get("/api/v1/consumer-groups").json

    assert abs(found.pop("maxTimeLag") - 400) < 60
    assert found.pop("subscriptionCreatedAt")
    assert found == {
        "name": "g",
        "queueName": "q",
        "topics": ["q"],
        "members": 2,
        "partitionsWithLag": 2,
        "totalLag": 3,
        "state": "Lagging",
        "subscriptionMode": "all",
        "subscriptionTimestamp": None,
    }


def test_groups_that_lag_can_be_asked_for(http: InProcess, engine: Any) -> None:
    http.push("q", 1)
    http.pop("q", consumerGroup="g")
    engine.clock_offset += 100

    def lagging(seconds: int) -> list[Any]:
        found: list[Any] = http.get(f"/api/v1/consumer-groups/lagging?minLagSeconds={seconds}").json
        return found

    assert [each["name"] for each in lagging(60)] == ["g"]
    assert lagging(3600) == []


def test_a_group_is_told_partition_by_partition(http: InProcess) -> None:
    http.push("q", 1, 2, 3)
    http.settle(http.pop("q", consumerGroup="a/b")[0])
    [held] = http.pop("q", consumerGroup="a/b")

    found = http.get("/api/v1/consumer-groups/a%2Fb").json

    [partition] = found["q"]["partitions"]
    assert partition["leaseExpiresAt"] > held["createdAt"]
    assert {**partition, "timeLagSeconds": 0, "leaseExpiresAt": "", "lastConsumedAt": ""} == {
        "partition": "Default",
        "cursor": 1,
        "offsetLag": 2,
        "timeLagSeconds": 0,
        "leaseActive": True,
        "workerId": held["leaseId"],
        "leaseExpiresAt": "",
        "totalConsumed": 1,
        "deadLetters": 0,
        "lastConsumedAt": "",
    }


@pytest.mark.parametrize("path", ["/api/v1/consumer-groups/g", "/api/v1/consumer-groups/g/queues/q"])
def test_a_group_that_was_removed_begins_anew(http: InProcess, path: str) -> None:
    http.push("q", 1)
    http.settle(http.pop("q", consumerGroup="g")[0])

    answer = http.delete(f"{path}?deleteMetadata=true")

    assert (answer.status, answer.json["deleted"]) == (200, True)
    assert http.get("/api/v1/consumer-groups").json == []
    assert data(http.pop("q", consumerGroup="g")) == [1]


def test_a_group_is_moved(http: InProcess, engine: Any) -> None:
    http.push("q", 1)
    later = time.time() + 30
    engine.clock_offset += 60
    http.push("q", 2)
    http.push("q", 3, partition="p")
    [stale] = http.pop("q/partition/Default", consumerGroup="g")
    path = "/api/v1/consumer-groups/g/queues/q"

    to_end = http.post(f"{path}/seek", {"toEnd": True})
    nothing = http.pop("q", consumerGroup="g", batch=5, partitions=5)
    back = http.post(f"{path}/partitions/Default/seek", {"timestamp": iso(later)})

    assert (to_end.status, to_end.json["partitionsUpdated"]) == (200, 2)
    assert nothing == []
    assert back.json["partitionsUpdated"] == 1
    assert data(http.pop("q", consumerGroup="g", batch=5, partitions=5)) == [2]
    assert http.settle(stale, "failed")["message"] == "invalid_lease"


def test_a_group_begins_again_at_a_time(http: InProcess, engine: Any) -> None:
    begun = time.time() - 60
    for queue in "ab":
        http.push(queue, queue)
        http.settle(http.pop(queue, consumerGroup="g")[0])

    answer = http.post("/api/v1/consumer-groups/g/subscription", {"subscriptionTimestamp": iso(begun)})

    assert (answer.status, answer.json["partitionsUpdated"]) == (200, 2)
    assert [data(http.pop(queue, consumerGroup="g")) for queue in "ab"] == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        ("queues/q/seek", None, "Must specify either 'toEnd': true or 'timestamp'"),
        ("queues/q/seek", {"toEnd": False}, "Must specify either 'toEnd': true or 'timestamp'"),
        ("queues/q/seek", {"timestamp": "soon"}, "timestamp must be a time"),
        ("queues/q/seek", {"timestamp": 5}, "timestamp must be a time such as"),
        ("subscription", None, "Missing subscriptionTimestamp in request body"),
        ("subscription", {}, "Missing subscriptionTimestamp in request body"),
    ],
)
def test_a_move_that_says_not_where_to_is_refused(http: InProcess, path: str, body: object, why: str) -> None:
    answer = http.post(f"/api/v1/consumer-groups/g/{path}", body)

    assert answer.status == 400
    assert why in answer.error


# -- notes about messages


@pytest.mark.requirement("Q-66")
def test_notes_are_found_by_message_and_by_name(http: InProcess) -> None:
    http.push("q", 1, transactionId="a/b")
    [message] = http.pop("q")
    about = {name: message[name] for name in ("transactionId", "partitionId")}

    first = http.post("/api/v1/traces", {**about, "traceNames": ["tea", "pot"], "data": {"text": "begun"}})
    second = http.post("/api/v1/traces", {**about, "traceNames": "tea", "eventType": "error", "data": [1]})
    third = http.post("/api/v1/traces", {**about, "traceNames": None, "consumerGroup": None, "data": 0})

    assert [each.status for each in (first, second, third)] == [201, 201, 201]
    assert first.json["success"] is True
    assert first.json["traceId"]
    of_message = http.get(f"/api/v1/traces/{message['partitionId']}/a%2Fb").json["traces"]
    assert [(each["data"], each["eventType"]) for each in of_message] == [
        ({"text": "begun"}, "info"),
        ([1], "error"),
        (0, "info"),
    ]
    assert sorted(of_message[0]["traceNames"]) == ["pot", "tea"]
    assert [each["data"] for each in http.get("/api/v1/traces/by-name/tea").json["traces"]] == [{"text": "begun"}, [1]]
    assert [each["data"] for each in http.get("/api/v1/traces/by-name/tea?limit=1&offset=1").json["traces"]] == [[1]]
    assert sorted(http.get("/api/v1/traces/names").json["traceNames"]) == ["pot", "tea"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"transactionId": None}, "transactionId and partitionId are required"),
        ({"partitionId": 5}, "transactionId and partitionId are required"),
        ({"data": None}, "data is required"),
        ({"traceNames": [5]}, "traceNames must be an array of strings"),
        ({"traceNames": ["\0"]}, "control characters"),
        ({"eventType": "\n"}, "control characters"),
        ({"data": "x" * 1_000_001}, "data must not be larger"),
    ],
)
def test_a_note_that_is_built_wrongly_is_refused(http: InProcess, change: dict[str, object], why: str) -> None:
    body = {"transactionId": "one", "partitionId": UNKNOWN, "data": {}}

    answer = http.post("/api/v1/traces", {**body, **change})

    assert answer.status == 400
    assert why in answer.error


# -- numbers


def test_the_status_counts_all_messages_and_lags(http: InProcess) -> None:
    http.push("q", 1, 2)
    http.settle(http.pop("q")[0])

    found = http.get("/api/v1/status").json
    [row] = http.get("/api/v1/status/queues").json["queues"]

    assert (found["queues"], found["totalLag"]) == (1, 1)
    assert found["messages"]["completed"] == 1
    assert (row["name"], row["messages"]["pending"]) == ("q", 1)
    assert http.get("/api/v1/status/queues/q").json["stats"]["total"] == 2
    assert http.post("/api/v1/stats/refresh").json == {"success": True}


def test_metrics_count_what_was_done_and_not_more(http: InProcess) -> None:
    http.push('q"uo\\te', 1, 2)
    http.push("q", 1, transactionId="t")
    http.push("q", 1, transactionId="t")
    http.settle(http.pop("q")[0], "dlq")
    http.pop("q")
    http.post("/api/v1/ack", {"transactionId": "t", "partitionId": UNKNOWN})

    counters = http.get("/metrics").json["counters"]
    text = http.get("/metrics/prometheus")

    assert {name.removeprefix("pump_queue_"): number for name, number in counters.items() if number} == {
        "requests": 7,
        "pushed_messages_total": 3,
        "duplicate_messages_total": 1,
        "popped_messages_total": 1,
        "empty_pops_total": 1,
        "settled_messages_total": 1,
        "refused_settlements_total": 1,
    }
    assert text.headers["content-type"].startswith("text/plain")
    lines = text.body.decode().splitlines()
    assert 'pump_queue_pushed_messages_total{queue="q\\"uo\\\\te"} 2' in lines
    assert 'pump_queue_settled_messages_total{queue="q",outcome="failed_dlq"} 1' in lines
    assert 'pump_queue_dead_letters{queue="q"} 1' in lines
    assert 'pump_queue_lag_messages{queue="q",group="__QUEUE_MODE__"} 0' in lines
    assert "pump_queue_database_up 1" in lines
    assert 'pump_queue_request_seconds_count{route="/api/v1/push",status="201"} 3' in lines


def test_every_line_of_the_metrics_is_one_that_prometheus_reads(http: InProcess) -> None:
    http.push("ü/ß", 1)
    http.pop("%C3%BC%2F%C3%9F")
    sample = re.compile(r'[a-z_]+(\{([a-z]+="([^"\\\n]|\\.)*",?)*\})? [0-9.e+-]+')

    lines = http.get("/metrics/prometheus").body.decode().splitlines()

    assert [line for line in lines if not line.startswith("# ") and not sample.fullmatch(line)] == []
    kinds = [line.split()[2] for line in lines if line.startswith("# TYPE ")]
    assert len(kinds) == len(set(kinds))
