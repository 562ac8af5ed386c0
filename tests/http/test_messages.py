"""Messages over HTTP: published, consumed by long polls, settled, browsed and read."""

from __future__ import annotations

import base64
import socket
import threading
from itertools import count
from typing import Any

import httpx
import msgspec
import pytest

from assay.reference_broker.api import consumers
from assay.reference_broker.config import BrokerConfig, GroupConfig, QueueConfig, QueuesConfig
from assay.reference_broker.http.routes import messages, topics
from assay.reference_broker.queues.operations.browse import MAX_SKIPPED
from tests.http.conftest import Served, serve

_numbers = count()


@pytest.fixture
def queue(served: Served) -> str:
    """A new queue of one partition."""
    name = f"q{next(_numbers)}"
    settings = {"partitions": 1, "retry": {"max_retries": 2}}
    assert served.client().post("/api/v1/queues", json={"name": name, "settings": settings}).status_code == 201
    return name


def _post(served: Served, path: str, body: object, status: int = 200) -> Any:
    answer = served.client().post(f"/api/v1{path}", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def _publish(served: Served, queue: str, *payloads: str) -> list[Any]:
    messages = [{"payload": each} for each in payloads]
    return _post(served, f"/queues/{queue}/messages", {"messages": messages})["results"]  # type: ignore[no-any-return]


def _take(served: Served, queue: str, most: int = 10, wait_s: float = 0.0, **more: object) -> list[Any]:
    body = {"group": "g", "max_messages": most, "wait_s": wait_s, **more}
    return _post(served, f"/queues/{queue}/consume", body)["messages"]  # type: ignore[no-any-return]


def _settle(served: Served, queue: str, outcome: str, *taken: Any, status: int = 200, **more: object) -> Any:
    body = {"outcome": outcome, "receipts": [each["receipt"] for each in taken], **more}
    return _post(served, f"/queues/{queue}/settle", body, status)


def test_a_message_from_publish_to_settlement(served: Served, queue: str) -> None:
    wanted = {"payload": "é", "key": "k", "headers": {"a": "1"}, "content_type": "text/plain", "priority": "high"}
    raw = {"payload_base64": base64.b64encode(b"\xff\0").decode(), "routing_key": "eu/x"}
    results = _post(served, f"/queues/{queue}/messages", {"messages": [wanted, raw]})["results"]
    assert results == [
        {"message_id": f"{queue}:0:0", "partition": 0, "offset": 0},
        {"message_id": f"{queue}:0:1", "partition": 0, "offset": 1},
    ]
    first, second = _take(served, queue)
    assert (first["payload"], first["key"], first["headers"], first["content_type"]) == (
        "é",
        "k",
        {"a": "1"},
        "text/plain",
    )
    assert (first["priority"], first["delivery_count"], first["group"]) == (1, 1, "g")
    assert base64.b64decode(second["payload_base64"]) == b"\xff\0"
    assert ("routing_key" in first, second["routing_key"]) == (False, "eu/x")
    assert first["enqueued_at"] > 1.7e9
    assert _settle(served, queue, "accept", first, second) == {"settled": 2}
    again = _settle(served, queue, "accept", first, status=404)
    assert again["code"] == "not_pending"
    assert _take(served, queue) == []


def test_outcomes(served: Served, queue: str) -> None:
    _publish(served, queue, "fails", "waits", "is bad")
    failed, kept, bad = _take(served, queue)
    _settle(served, queue, "release", failed)
    (again,) = _take(served, queue)
    assert (again["message_id"], again["delivery_count"]) == (failed["message_id"], 1)
    assert _settle(served, queue, "accept", failed, status=409)["code"] == "stale_receipt"
    _settle(served, queue, "fail", again)
    (again,) = _take(served, queue)
    assert again["delivery_count"] == 2
    _settle(served, queue, "extend", kept, extend_s=100)
    _settle(served, queue, "reject", bad, reason="cannot be read")
    (letter,) = _take(served, f"dlq%2F{queue}", wait_s=10)
    assert letter["headers"]["_dlq_original_id"] == bad["message_id"]
    assert "cannot be read" in letter["headers"].values()
    assert _settle(served, queue, "accept", again, bad, status=404)["details"]["settled"] == "1"


def test_some_or_all_of_a_batch_are_refused(served: Served, queue: str) -> None:
    good, bad, other = {"payload": "x"}, {"payload": "x", "partition": 7}, {"payload": "x", "payload_base64": ""}
    path = f"/queues/{queue}/messages"
    results = _post(served, path, {"messages": [good, bad, other, {"payload": "y", "delay": "x"}]}, 207)["results"]
    assert [each.get("error", {}).get("code") for each in results] == [None, "bad_option", "bad_option", "bad_option"]
    assert _post(served, path, {"messages": [bad, other]}, 400)["results"][0]["error"]["status"] == 400
    assert len(_take(served, queue)) == 1


def test_a_batch_over_the_limit_is_refused(served: Served, queue: str) -> None:
    path = f"/queues/{queue}/messages"
    for batch in ([], [{"payload": ""}] * 1_001):
        assert _post(served, path, {"messages": batch}, 400)["code"] == "bad_request"
    assert (
        _post(served, f"/queues/{queue}/consume", {"group": "g", "max_messages": 1_001}, 400)["code"] == "bad_request"
    )
    assert _post(served, f"/queues/{queue}/consume", {"group": "g", "wait_s": 61}, 400)["code"] == "bad_request"


def test_delayed_messages_tell_what_cancels_them(served: Served, queue: str) -> None:
    body = {"messages": [{"payload": "later", "delay": "1h"}]}
    (result,) = _post(served, f"/queues/{queue}/messages", body)["results"]
    assert result.pop("delay_id").startswith(f"{queue}:delay:")
    assert not result
    assert _take(served, queue) == []


def test_a_long_poll_is_answered_when_something_comes(served: Served, queue: str) -> None:
    assert _take(served, queue) == []
    taken: list[Any] = []
    waiting = threading.Thread(target=lambda: taken.extend(_take(served, queue, wait_s=20)))
    waiting.start()
    served.until_waiting(1)
    assert _post(served, f"/queues/{queue}/consume", {"group": "g"}, 409)["code"] == "in_use"
    _publish(served, queue, "news")
    waiting.join()
    assert [each["payload"] for each in taken] == ["news"]


def test_a_long_poll_is_answered_when_its_consumer_is_sent_away() -> None:
    """Not when it would have sent its next heartbeat, in twenty minutes."""
    queue = QueueConfig(name="q", partitions=1, group=GroupConfig(session_timeout_s=3_600.0))
    with serve(BrokerConfig(queues=QueuesConfig(configured=(queue,)))) as broker:
        served = Served(broker)
        answers: list[Any] = []
        body = {"group": "g", "wait_s": 60}
        waiting = threading.Thread(target=lambda: answers.append(_post(served, "/queues/q/consume", body, 404)["code"]))
        waiting.start()
        served.until_waiting(1)
        driver = broker._get().driver

        def send_away() -> None:
            group, now = driver.node.engine._queues["q"].groups["g"], driver.clock.now()
            for consumer in list(group.consumers.values()):
                group.leave(consumer, now)

        driver.loop.call_soon_threadsafe(send_away)
        waiting.join()
        assert answers == ["unknown_member"]
        served.close()


def test_who_goes_while_it_waits_takes_nothing_along(served: Served, queue: str) -> None:
    body = msgspec.json.encode({"group": "g", "wait_s": 60})
    head = (
        f"POST /api/v1/queues/{queue}/consume HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    target = httpx.URL(served.urls[0])
    with socket.create_connection((target.host, target.port or 80), 20) as connection:
        connection.sendall(head.encode() + body)
        served.until_waiting(1)
    served.until_waiting(0)
    _publish(served, queue, "for the next")
    (taken,) = _take(served, queue, wait_s=10)
    assert taken["delivery_count"] == 1


def test_consumers_share_and_leave(served: Served, queue: str) -> None:
    _publish(served, queue, "a", "b")
    (first,) = _take(served, queue, 1, consumer="one")
    assert _post(served, f"/queues/{queue}/leave", {"group": "g", "consumer": "one"}) == {"left": True}
    assert _post(served, f"/queues/{queue}/leave", {"group": "g", "consumer": "one"}) == {"left": False}
    taken = _take(served, queue, consumer="two", wait_s=10)
    assert taken[0]["payload"] == first["payload"]
    assert taken[0]["delivery_count"] == 2


def test_automatic_acknowledgement_and_cursors(served: Served, queue: str) -> None:
    _publish(served, queue, "a", "b", "c")
    assert [each["payload"] for each in _take(served, queue, group="late", cursor="2", auto_ack=True)] == ["c"]
    assert _post(served, f"/queues/{queue}/consume", {"group": "x", "cursor": "soon"}, 400)["code"] == "bad_request"


def test_consumers_are_bounded() -> None:
    config = BrokerConfig(queues=QueuesConfig(configured=(QueueConfig(name="q", partitions=1),)))
    with serve(config, max_consumers=1) as broker:
        served = Served(broker)
        _take(served, "q", consumer="one")
        refused = _post(served, "/queues/q/consume", {"group": "g", "consumer": "two"}, 409)
        assert refused["code"] == "limit"
        _post(served, "/queues/q/leave", {"group": "g", "consumer": "one"})
        assert _take(served, "q", consumer="two") == []
        served.close()


def test_a_silent_consumer_is_removed() -> None:
    queues = tuple(
        QueueConfig(name=name, partitions=1, group=GroupConfig(session_timeout_s=timeout_s))
        for name, timeout_s in (("q", 0.05), ("empty", 1.0))
    )
    config = BrokerConfig(queues=QueuesConfig(configured=queues))
    with serve(config) as broker:
        served = Served(broker)
        _publish(served, "q", "a")
        assert _take(served, "q", consumer="silent")[0]["delivery_count"] == 1
        (again,) = _take(served, "q", consumer="other", wait_s=20)
        assert again["delivery_count"] == 2
        # Who waits longer than its session would last is there all the same.
        assert _take(served, "empty", consumer="patient", wait_s=1.1) == []
        served.close()


def test_browse_and_read(served: Served, queue: str) -> None:
    _publish(served, queue, *"abcde")
    _settle(served, queue, "accept", *_take(served, queue, 2))
    client = served.client()
    browsed = client.get(f"/api/v1/queues/{queue}/messages", params={"limit": 2}).json()["messages"]
    assert [each["payload"] for each in browsed] == ["c", "d"]
    place = f"/api/v1/queues/{queue}/partitions/0/messages"
    page = client.get(place, params={"limit": 2}).json()
    assert [each["payload"] for each in page["messages"]] == ["a", "b"]
    page = client.get(place, params={"from": page["next_offset"]}).json()
    assert [each["payload"] for each in page["messages"]] == ["c", "d", "e"]
    assert client.get(place, params={"from": "latest"}).json() == {"messages": [], "next_offset": 5}
    assert client.get(place, params={"from": "2020-01-01T00:00:00Z"}).json()["next_offset"] == 5
    assert client.get(f"/api/v1/queues/{queue}/partitions/1/messages").status_code == 400
    assert client.get("/api/v1/queues/nowhere/messages").status_code == 404


def test_a_read_passes_over_a_bounded_number(served: Served, queue: str) -> None:
    _publish(served, queue, "held, so that nothing behind it is freed")
    _take(served, queue)
    for _ in range(3):
        _post(served, f"/queues/{queue}/messages", {"messages": [{"payload": "", "ttl": "1ms"}] * 400})
    assert _publish(served, queue, "kept")[0]["offset"] == 1_201
    place, client = f"/api/v1/queues/{queue}/partitions/0/messages", served.client()
    for _ in range(100):  # until all have expired, which is at once
        if not (page := client.get(place, params={"from": 1, "limit": 1}).json())["messages"]:
            break
    assert page["next_offset"] == 1 + MAX_SKIPPED
    page = client.get(place, params={"from": page["next_offset"]}).json()
    assert [each["payload"] for each in page["messages"]] == ["kept"]


def test_an_answer_is_bounded_in_bytes(served: Served, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (consumers, messages, topics):
        monkeypatch.setattr(module, "MAX_ANSWER_BYTES", 100)
    _publish(served, queue, "x" * 60, "y" * 60, "z" * 200, "w")
    client = served.client()
    for place in (f"/api/v1/queues/{queue}/messages", f"/topics/{queue}/messages"):
        assert len(client.get(place).json()["messages"]) == 1
    taken: list[str] = []
    for size in (60, 60, 200, 1):
        (message,) = _take(served, queue, wait_s=10)
        taken.append(message["payload"])
        assert len(message["payload"]) == size


def test_tenants_have_names_of_their_own(guarded: Served) -> None:
    tom = guarded.client()
    tom.auth = ("tom", "hidden")
    results = tom.post("/api/v1/queues/orders/messages", json={"messages": [{"payload": "t"}]}).json()["results"]
    assert results[0]["message_id"] == "orders:0:0"
    (taken,) = tom.post("/api/v1/queues/orders/consume", json={"group": "g", "wait_s": 10}).json()["messages"]
    assert taken["receipt"].startswith("orders:0:0:1:")
    body = {"outcome": "accept", "receipts": [taken["receipt"]]}
    assert tom.post("/api/v1/queues/orders/settle", json=body).json() == {"settled": 1}
    assert [each["payload"] for each in tom.get("/api/v1/queues/orders/partitions/0/messages").json()["messages"]] == [
        "t"
    ]
    ann = guarded.client(1, authorization="Bearer assay_writer")
    for path, sent in (("messages", {"messages": [{"payload": "x"}]}), ("consume", {"group": "g"})):
        assert ann.post(f"/api/v1/queues/acme.orders/{path}", json=sent).status_code == 403
    assert ann.get("/api/v1/queues/acme.orders/messages").status_code == 403


def test_scopes_of_messages(guarded: Served) -> None:
    reader = guarded.client(1, authorization="Bearer assay_reader")
    assert reader.post("/api/v1/queues/orders/messages", json={"messages": [{"payload": "x"}]}).status_code == 403
    assert reader.post("/api/v1/queues/orders/consume", json={"group": "r"}).status_code == 200


@pytest.mark.parametrize(
    "more",
    [
        {"headers": {"h": "a\0b"}},
        {"headers": {"h": "x" * 65_536}},
        {"headers": {"é" * 32_768: "x"}},
        {"key": "a\0b"},
        {"content_type": "a\0b"},
        {"routing_key": "a\0b"},
        {"routing_key": "a/#"},
        {"routing_key": "x" * 65_536},
    ],
)
def test_what_no_consumer_of_mqtt_could_be_sent_is_refused(served: Served, more: dict[str, Any]) -> None:
    """Its delivery would be malformed, or would stop the turn that makes it."""
    client = served.client()
    answer = client.post(
        "/api/v1/queues/carried/messages", json={"messages": [{"payload": "a", **more}, {"payload": "b"}]}
    )
    assert answer.status_code == 207
    assert answer.json()["results"][0]["error"]["code"] in ("bad_option", "bad_address")
    bridged = {"topic": "a", "properties": {"h": "a\0b"}}, {"topic": "a\0b"}, {"topic": "x" * 65_536}
    assert [client.post("/publish", json=each).status_code for each in bridged] == [400, 400, 400]


def test_a_dead_letter_can_be_sent_to_anybody_whatever_was_said_of_it(served: Served) -> None:
    client = served.client()
    queue = "/api/v1/queues/letters"
    client.post(f"{queue}/messages", json={"messages": [{"payload": "a"}]})
    taken = client.post(f"{queue}/consume", json={"group": "g", "consumer": "c\0", "wait_s": 5}).json()["messages"][0]
    settled = {"outcome": "reject", "receipts": [taken["receipt"]], "reason": "no\0reason"}
    assert client.post(f"{queue}/settle", json=settled).status_code == 200
    (letter,) = client.get("/api/v1/queues/dlq%2Fletters/messages").json()["messages"]
    assert letter["headers"]["_dlq_reason"] == "no\N{REPLACEMENT CHARACTER}reason"
    assert "\0" not in str(letter["headers"])


@pytest.mark.parametrize("path", ["/api/v1/queues/full/messages", "/topics/full/messages"])
def test_a_publish_that_a_full_queue_refuses_says_when_to_come_back(served: Served, path: str) -> None:
    client = served.client()
    client.post("/api/v1/queues", json={"name": "full", "settings": {"partitions": 1, "max_depth": 1}})
    one = {"messages": [{"payload": "a"} if "queues" in path else {"value": "a"}]}
    client.post(path, json=one)
    refused = client.post(path, json=one)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
