"""Queues over HTTP: created, changed, looked at, deleted."""

from __future__ import annotations

from tests.http.conftest import Served


def test_the_life_of_a_queue(served: Served) -> None:
    client = served.client()
    made = client.post("/api/v1/queues", json={"name": "tasks/images", "settings": {"partitions": 2}})
    assert made.status_code == 201
    assert made.json()["config"]["partitions"] == 2
    again = client.post("/api/v1/queues", json={"name": "tasks/images", "settings": {"partitions": 3}})
    assert (again.status_code, again.json()["code"]) == (409, "exists")
    assert "tasks/images" in client.get("/api/v1/queues", params={"prefix": "tasks"}).json()["queues"]
    place = "/api/v1/queues/tasks%2Fimages"
    changed = client.patch(place, json={"max_depth": 7, "retry": {"max_retries": 1}}).json()
    assert changed["config"]["max_depth"] == 7
    assert changed["settings"]["retry"] == {"max_retries": 1}
    assert client.get(place).json() == changed
    assert client.put(f"{place}/partitions", json={"count": 4}).json() == {"count": 4}
    assert client.get(f"{place}/stats").json()["partitions"] == 4
    assert client.post(f"{place}/purge", json={}).json() == {"purged": 0}
    assert client.delete(place).json() == {"deleted": "tasks/images"}
    gone = client.get(f"{place}/stats")
    assert (gone.status_code, gone.json()["code"], gone.json()["error"]) == (
        404,
        "unknown_queue",
        gone.json()["detail"],
    )


def test_what_is_wrong_is_named(served: Served) -> None:
    client = served.client()
    for body, part in (
        ({"nam": "q"}, "name"),
        ({"name": "q", "settings": {"partitions": 0}}, "partitions"),
        ({"name": "a//b"}, "empty level"),
        ({"name": 1}, "str"),
    ):
        answer = client.post("/api/v1/queues", json=body)
        assert answer.status_code == 400
        assert part in answer.json()["detail"]
    answer = client.post("/api/v1/queues", content=b"{", headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
    assert client.get("/api/v1/queues", params={"prefix": "x" * 600}).status_code == 400
