"""Administration of a queue over HTTP: dead letters, delayed messages, bindings, groups and what they have pending."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from tests.http.conftest import Served

_numbers = count()


@pytest.fixture
def queue(served: Served) -> str:
    """A new queue of one partition."""
    name = f"a{next(_numbers)}"
    made = served.client().post("/api/v1/queues", json={"name": name, "settings": {"partitions": 1}})
    assert made.status_code == 201
    return name


def _ask(served: Served, method: str, path: str, body: object = None, status: int = 200, **query: Any) -> Any:
    answer = served.client().request(method, f"/api/v1{path}", json=body, params=query)
    assert answer.status_code == status, answer.text
    return answer.json()


def _take(served: Served, queue: str, *payloads: str, **more: object) -> list[Any]:
    """Publish, and take for the group g."""
    if payloads:
        messages = [{"payload": each} for each in payloads]
        _ask(served, "POST", f"/queues/{queue}/messages", {"messages": messages})
    body = {"group": "g", "max_messages": 10, **more}
    return _ask(served, "POST", f"/queues/{queue}/consume", body)["messages"]  # type: ignore[no-any-return]


def test_dead_letters(served: Served, queue: str) -> None:
    taken = _take(served, queue, "a", "b", "c")
    receipts = [each["receipt"] for each in taken]
    _ask(served, "POST", f"/queues/{queue}/settle", {"outcome": "reject", "receipts": receipts})
    stats = _ask(served, "GET", f"/queues/{queue}/dlq")
    assert (stats["queue"], stats["current"], stats["total"]) == (f"$dlq/{queue}", 3, 3)
    letters = _ask(served, "GET", f"/queues/dlq%2F{queue}/messages")["messages"]
    assert [each["payload"] for each in letters] == ["a", "b", "c"]
    body = {"message_id": letters[1]["message_id"]}
    assert _ask(served, "POST", f"/queues/{queue}/dlq/replay", body) == {"replayed": 1, "skipped": 0, "failed": 0}
    assert [each["payload"] for each in _take(served, queue, wait_s=10)] == ["b"]
    assert _ask(served, "POST", f"/queues/{queue}/dlq/replay", body, 404)["code"] == "not_pending"
    assert _ask(served, "POST", f"/queues/{queue}/dlq/purge", {}) == {"purged": 2}
    assert _ask(served, "GET", f"/queues/{queue}/dlq")["current"] == 0


def test_delayed_messages(served: Served, queue: str) -> None:
    messages = [{"payload": "x", "delay": "1h"}] * 3
    results = _ask(served, "POST", f"/queues/{queue}/messages", {"messages": messages})["results"]
    ids = [each["delay_id"] for each in results]
    listed = _ask(served, "GET", f"/queues/{queue}/delayed", after=ids[0], limit=1)["messages"]
    assert [each["delay_id"] for each in listed] == ids[1:2]
    assert _ask(served, "DELETE", f"/queues/{queue}/delayed/{ids[1]}") == {"cancelled": True}
    assert _ask(served, "DELETE", f"/queues/{queue}/delayed/{ids[1]}", status=404)["code"] == "not_pending"


def test_bindings(served: Served, queue: str) -> None:
    wanted = {"topics": [f"shop/{queue}/#"]}
    assert _ask(served, "PUT", f"/queues/{queue}/bindings", wanted) == wanted
    assert _ask(served, "GET", f"/queues/{queue}/bindings") == wanted
    assert _ask(served, "PUT", f"/queues/{queue}/bindings", {"topics": ["a/#/b"]}, 400)["code"] == "bad_option"
    served.broker.publish(f"shop/{queue}/eu", b"captured")
    assert _take(served, queue, wait_s=10)[0]["payload"] == "captured"


def test_groups_and_what_they_have_pending(served: Served, queue: str) -> None:
    made = _ask(served, "POST", f"/queues/{queue}/groups", {"group": "early"}, 201)
    assert (made["group"], made["lag"]) == ("early", 0)
    _take(served, queue, "a", "b", "c")
    groups = {each["group"]: each for each in _ask(served, "GET", f"/queues/{queue}/groups")["groups"]}
    assert (groups["early"]["lag"], groups["g"]["lag"]) == (3, 0)
    (consumer,) = _ask(served, "GET", f"/queues/{queue}/consumers")["consumers"]
    assert (consumer["group"], consumer["in_flight"]) == ("g", 3)
    page = _ask(served, "GET", f"/queues/{queue}/groups/g/pending", limit=2)
    assert [(each["offset"], each["state"]) for each in page["entries"]] == [(0, "delivered"), (1, "delivered")]
    page = _ask(served, "GET", f"/queues/{queue}/groups/g/pending", limit=2, after=page["next"])
    assert ([each["offset"] for each in page["entries"]], page["next"]) == ([2], None)
    assert _ask(served, "GET", f"/queues/{queue}/groups/g/pending", status=400, after="x")["code"] == "bad_request"
    reset = _ask(served, "POST", f"/queues/{queue}/groups/early/reset", {"to": "latest"})
    assert reset == {"group": "early", "cursors": {"0": 3}}
    assert _ask(served, "GET", f"/queues/{queue}/groups/early")["lag"] == 0
    assert _ask(served, "DELETE", f"/queues/{queue}/groups/early") == {"deleted": "early"}
    assert _ask(served, "GET", f"/queues/{queue}/groups/early", status=404)["code"] == "unknown_group"


def test_claims(served: Served, queue: str) -> None:
    _take(served, queue, "a", "b", consumer="slow")
    body = {"group": "g", "consumer": "quick", "limit": 1}
    assert _ask(served, "POST", f"/queues/{queue}/claim", {**body, "min_idle_s": 3_600}, 404)["code"] == "not_pending"
    (claimed,) = _ask(served, "POST", f"/queues/{queue}/claim", body)["messages"]
    assert (claimed["payload"], claimed["delivery_count"]) == ("a", 2)
    (named,) = _ask(served, "POST", f"/queues/{queue}/claim", {**body, "partition": 0, "offset": 1})["messages"]
    assert named["payload"] == "b"
    assert _ask(served, "POST", f"/queues/{queue}/claim", {**body, "partition": 0}, 400)["code"] == "bad_request"
    assert _ask(served, "POST", f"/queues/{queue}/claim", {**body, "group": "none"}, 404)["code"] == "unknown_group"


def test_readers_look_and_do_no_more(guarded: Served) -> None:
    reader = guarded.client(1, authorization="Bearer assay_reader")
    writer = guarded.client(1, authorization="Bearer assay_writer")
    for path in ("consumers", "dlq", "delayed", "bindings", "groups", "stats", "messages"):
        assert reader.get(f"/api/v1/queues/orders/{path}").status_code == 200, path
    for path, body in (
        ("purge", {}),
        ("dlq/replay", {}),
        ("dlq/purge", {}),
        ("groups", {"group": "x"}),
        ("groups/x/reset", {"to": "latest"}),
    ):
        answer = writer.post(f"/api/v1/queues/orders/{path}", json=body)
        assert (answer.status_code, answer.json()["code"]) == (403, "not_allowed"), path
