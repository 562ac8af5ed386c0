"""GoQueue's API: topics, settlements by receipt handle, groups, producers and transactions, at each of its places."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from tests.http.conftest import Served

_numbers = count()


@pytest.fixture
def topic(served: Served) -> str:
    """A new topic of two partitions."""
    name = f"t{next(_numbers)}"
    made = served.client().post("/topics", json={"name": name, "num_partitions": 2})
    assert (made.status_code, made.json()) == (201, {"name": name, "partitions": 2, "created": True})
    return name


def _ask(served: Served, method: str, path: str, body: object = None, status: int = 200, **query: Any) -> Any:
    answer = served.client().request(method, path, json=body, params=query)
    assert answer.status_code == status, answer.text
    return answer.json()


def _publish(served: Served, topic: str, *values: str, **more: object) -> list[Any]:
    messages = [{"value": value, **more} for value in values]
    return _ask(served, "POST", f"/topics/{topic}/messages", {"messages": messages})["results"]  # type: ignore[no-any-return]


def _join(served: Served, group: str, *topics: str, client_id: str = "c") -> Any:
    return _ask(served, "POST", f"/groups/{group}/join", {"client_id": client_id, "topics": list(topics)})


def _poll(served: Served, group: str, member: Any, **query: Any) -> Any:
    query = {"member_id": member["member_id"], "timeout": "10s", **query}
    return _ask(served, "GET", f"/groups/{group}/poll", **query)


@pytest.mark.parametrize("prefix", ["", "/v1", "/api/v1"])
def test_topics_stand_at_three_places(served: Served, topic: str, prefix: str) -> None:
    assert topic in _ask(served, "GET", f"{prefix}/topics")["topics"]
    assert _ask(served, "POST", f"{prefix}/topics", {"name": topic}, 409)["code"] == "exists"


def test_a_topic_and_its_messages(served: Served, topic: str) -> None:
    messages = [{"key": "k", "value": "a", "partition": 1, "priority": "high"}, {"value": "b", "partition": 5}]
    results = _ask(served, "POST", f"/topics/{topic}/messages", {"messages": messages}, 207)["results"]
    assert results[0] == {"partition": 1, "offset": 0, "priority": "high"}
    assert results[1]["problem"]["code"] == "bad_option"
    assert "partition" in results[1]["error"]
    _ask(served, "POST", f"/topics/{topic}/messages", {"messages": messages[1:]}, 400)
    described = _ask(served, "GET", f"/topics/{topic}")
    assert described["partition_offsets"] == {"0": {"earliest": 0, "latest": 0}, "1": {"earliest": 0, "latest": 1}}
    assert (described["name"], described["partitions"], described["total_messages"]) == (topic, 2, 1)
    (found,) = _ask(served, "GET", f"/topics/{topic}/partitions/1/messages")["messages"]
    assert (found["key"], found["value"], found["priority"], found["offset"]) == ("k", "a", "high", 0)
    page = _ask(served, "GET", f"/topics/{topic}/messages", partition=1, offset=1)
    assert page == {"messages": [], "next_offset": 1}
    assert [each["partition"] for each in _ask(served, "GET", f"/topics/{topic}/partitions")["partitions"]] == [0, 1]
    assert _ask(served, "DELETE", f"/topics/{topic}") == {"deleted": True, "name": topic}
    assert _ask(served, "GET", f"/topics/{topic}", status=404)["status"] == 404


def test_delayed_messages(served: Served, topic: str) -> None:
    first, second = _publish(served, topic, "a", "b", delay="1h")
    at = first["offset"]
    assert (first["delayed"], second["offset"]) == (True, at + 1)
    assert first["deliverAt"].endswith("Z")
    listed = _ask(served, "GET", f"/topics/{topic}/delayed", skip=1)
    assert [each["offset"] for each in listed["messages"]] == [at + 1]
    assert _ask(served, "GET", f"/topics/{topic}/delayed/{at}")["state"] == "pending"
    assert _ask(served, "DELETE", f"/topics/{topic}/delayed/0/{at}")["canceled"] is True
    assert _ask(served, "DELETE", f"/topics/{topic}/delayed/0/{at}", status=404)["code"] == "not_pending"
    assert _ask(served, "GET", f"/topics/{topic}/delayed/{at}", status=404)["code"] == "not_pending"
    (result,) = _publish(served, topic, "now", delay="-5s")
    assert "delayed" not in result


def test_a_group_polls_and_settles(served: Served, topic: str) -> None:
    member = _join(served, f"g{topic}", topic)
    group = f"g{topic}"
    assert (member["partitions"], member["members"]) == ([0, 1], [member["member_id"]])
    assert member["leader_id"] == member["member_id"]
    _publish(served, topic, "a", "b", "c", partition=0)
    found: list[Any] = []
    while len(found) < 3:
        found += _poll(served, group, member, generation=member["generation"])["messages"].get("0", [])
    assert [each["value"] for each in found] == ["a", "b", "c"]
    a, b, c = (each["receipt_handle"] for each in found)
    acked = _ask(served, "POST", "/messages/ack", {"receipt_handle": b})
    assert (acked["offset"], acked["committed_offset"], acked["offset_advanced"]) == (1, 0, False)
    assert acked["in_flight_count"] == 2
    acked = _ask(served, "POST", "/messages/ack", {"receipt_handle": a})
    assert (acked["committed_offset"], acked["offset_advanced"]) == (2, True)
    gone = _ask(served, "POST", "/messages/ack", {"receipt_handle": a}, 404)
    assert gone["title"] == "Message not found or already processed"
    assert _ask(served, "POST", "/messages/ack", {"receipt_handle": "x"}, 400)["code"] == "bad_address"
    extended = _ask(served, "POST", "/messages/visibility", {"receipt_handle": c, "extension_seconds": 60})
    assert extended["extended_by"] == 60
    nacked = _ask(served, "POST", "/messages/nack", {"receipt_handle": c})
    assert (nacked["action"], nacked["delivery_count"]) == ("requeued", 1)
    assert nacked["next_visible_at"] is not None
    (again,) = _poll(served, group, member)["messages"]["0"]
    _ask(served, "POST", "/messages/reject", {"receipt_handle": again["receipt_handle"], "reason": ""}, 400)
    body = {"receipt_handle": again["receipt_handle"], "reason": "poison"}
    assert _ask(served, "POST", "/messages/reject", body)["dlq_topic"] == f"{topic}.dlq"
    letters = _ask(served, "GET", f"/topics/{topic}.dlq")
    assert letters["total_messages"] == 1
    assert f"{topic}.dlq" in _ask(served, "GET", "/topics")["topics"]


def test_members_come_and_go(served: Served, topic: str) -> None:
    group = f"g{topic}"
    one = _join(served, group, topic, client_id="one")
    two = _join(served, group, topic, client_id="two")
    assert (two["partitions"], len(two["members"])) == ([1], 2)
    old = {"member_id": one["member_id"], "generation": one["generation"]}
    stale = _ask(served, "POST", f"/groups/{group}/heartbeat", old, 409)
    assert stale["code"] == "stale_generation"
    now = int(stale["details"]["generation"])
    alive = _ask(served, "POST", f"/groups/{group}/heartbeat", {**old, "generation": now})
    assert alive["assignments"] == {topic: [0]}
    listed = next(each for each in _ask(served, "GET", "/groups")["groups"] if each["id"] == group)
    assert (listed["members"], listed["topics"], listed["state"]) == (2, [topic], "Stable")
    described = _ask(served, "GET", f"/groups/{group}")
    assert {each["id"] for each in described["members"]} == {one["member_id"], two["member_id"]}
    assert _ask(served, "DELETE", f"/groups/{group}", status=409)["code"] == "in_use"
    assert _ask(served, "GET", f"/groups/{group}/rebalance/stats")["moving"] == {topic: []}
    for member in (one, two):
        _ask(served, "POST", f"/groups/{group}/leave", {"member_id": member["member_id"]})
    _ask(served, "POST", f"/groups/{group}/leave", {"member_id": one["member_id"]}, 404)
    assert _ask(served, "GET", f"/groups/{group}")["state"] == "Empty"
    assert _ask(served, "DELETE", f"/groups/{group}") == {"deleted": True, "group": group}
    assert _ask(served, "GET", f"/groups/{group}", status=404)["code"] == "unknown_group"


def test_a_member_of_several_topics_gets_all(served: Served, topic: str) -> None:
    other = f"{topic}-other"
    _ask(served, "POST", "/topics", {"name": other, "num_partitions": 1}, 201)
    member = _join(served, f"g{topic}", topic, other)
    assert member["assignments"] == {topic: [0, 1], other: [0]}
    _publish(served, topic, "a", partition=1)
    _publish(served, other, "b")
    found: dict[str, list[str]] = {}
    while len(found) < 2:
        for name, partitions in _poll(served, f"g{topic}", member)["topics"].items():
            for records in partitions.values():
                found.setdefault(name, []).extend(each["value"] for each in records)
    assert found == {topic: ["a"], other: ["b"]}


def test_offsets_are_committed(served: Served, topic: str) -> None:
    group = f"g{topic}"
    one = _join(served, group, topic)
    _publish(served, topic, "a", "b", partition=0)
    count_of = 0
    while count_of < 2:
        count_of += len(_poll(served, group, one)["messages"].get("0", []))
    body = {"member_id": one["member_id"], "offsets": {topic: {"0": 1}}}
    assert _ask(served, "POST", f"/groups/{group}/offsets", body)["offsets"] == {topic: {"0": 1}}
    assert _ask(served, "GET", f"/groups/{group}/offsets")["topics"] == {topic: {"0": 1, "1": 0}}
    too_far = {**body, "offsets": {topic: {"0": 9}}}
    assert _ask(served, "POST", f"/groups/{group}/offsets", too_far, 400)["code"] == "bad_cursor"
    two = _join(served, group, topic, client_id="two")
    theirs = {"member_id": one["member_id"], "offsets": {topic: {"1": 0}}}
    assert two["partitions"] == [1]
    assert _ask(served, "POST", f"/groups/{group}/offsets", theirs, 403)["code"] == "not_allowed"
    assert _ask(served, "POST", f"/groups/{group}/offsets", {**body, "offsets": {"x": {"0": 0}}}, 403)


def test_cooperative_groups_need_topics_that_are(served: Served, topic: str) -> None:
    wanted = {"client_id": "c", "topics": [topic]}
    refused = _ask(served, "POST", f"/groups/g{topic}/join/cooperative", wanted, 501)
    assert refused["code"] == "unsupported"
    _ask(served, "PATCH", f"/api/v1/queues/{topic}", {"group": {"protocol": "cooperative"}})
    member = _ask(served, "POST", f"/groups/g{topic}/join/cooperative", wanted)
    assert member["protocol"] == "cooperative"
    name = {"member_id": member["member_id"]}
    assert _ask(served, "GET", f"/groups/g{topic}/assignment", **name)["assignments"] == {topic: [0, 1]}
    assert _ask(served, "POST", f"/groups/g{topic}/revoke", name)["assignments"] == {topic: [0, 1]}
    beat = {**name, "generation": member["generation"]}
    _ask(served, "POST", f"/groups/g{topic}/heartbeat/cooperative", beat)
    assert _ask(served, "GET", f"/groups/g{topic}/cooperative")["generation"] == member["generation"]
    _ask(served, "POST", f"/groups/g{topic}/leave/cooperative", name)


def test_transactions_show_whole_or_not_at_all(served: Served, topic: str) -> None:
    producer = _ask(served, "POST", "/producers/init", {"transactional_id": topic, "transaction_timeout_ms": 60_000})
    assert _ask(served, "POST", f"/producers/{producer['producer_id']}/heartbeat", {"epoch": producer["epoch"]})
    begun = _ask(served, "POST", "/transactions/begin", producer)
    _ask(served, "POST", "/transactions/add-partition", {**producer, "topic": topic, "partition": 0})
    message = {**producer, "topic": topic, "partition": 0, "value": "a", "sequence": 0}
    first = _ask(served, "POST", "/transactions/publish", message)
    assert first == {"partition": 0, "offset": 0, "duplicate": False}
    assert _ask(served, "POST", "/transactions/publish", message) == {**first, "duplicate": True}
    assert _ask(served, "GET", f"/topics/{topic}/messages")["messages"] == []
    listed = _ask(served, "GET", "/transactions")["transactions"]
    assert begun["transaction_id"] in [each["transaction_id"] for each in listed]
    assert _ask(served, "GET", "/transactions/stats")["open"] >= 1
    ended = _ask(served, "POST", "/transactions/commit", producer)
    assert ended == {"transaction_id": begun["transaction_id"], "state": "committed", "success": True}
    assert [each["value"] for each in _ask(served, "GET", f"/topics/{topic}/messages")["messages"]] == ["a"]
    assert _ask(served, "POST", "/transactions/commit", producer, 409)["code"] == "transaction_state"
    _ask(served, "POST", "/transactions/begin", producer)
    _ask(served, "POST", "/transactions/publish", {**message, "sequence": 1, "value": "never"})
    _ask(served, "POST", "/transactions/abort", producer)
    assert len(_ask(served, "GET", f"/topics/{topic}/messages")["messages"]) == 1
    newer = _ask(served, "POST", "/producers/init", {"transactional_id": topic})
    assert newer["epoch"] == producer["epoch"] + 1
    assert _ask(served, "POST", "/transactions/begin", producer, 409)["code"] == "fenced"
    assert (
        _ask(served, "POST", "/transactions/begin", {**newer, "producer_id": 9_999_999}, 404)["code"]
        == "unknown_producer"
    )
    wrong = {**newer, "transactional_id": "another"}
    assert _ask(served, "POST", "/transactions/begin", wrong, 404)["code"] == "unknown_producer"
    late = {**message, "epoch": newer["epoch"], "sequence": 7}
    assert _ask(served, "POST", "/transactions/publish", late, 409)["code"] == "out_of_sequence"


def test_a_member_joins_for_a_bounded_number_of_topics(served: Served) -> None:
    body = {"client_id": "c", "topics": [f"x{index}" for index in range(101)]}
    assert _ask(served, "POST", "/groups/many/join", body, 400)["code"] == "bad_request"
