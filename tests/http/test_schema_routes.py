"""The schema registry over HTTP: what Confluent's client asks and how it is answered, and GoQueue's routes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from assay.reference_broker.broker import Broker
from assay.reference_broker.config import BrokerConfig, QueueConfig, QueuesConfig, SchemaCheckConfig
from tests.http.conftest import Served, serve
from tests.schemas.test_registry import A_NEEDED, A, B

KIND = "application/vnd.schemaregistry.v1+json"


@pytest.fixture
def registry() -> Iterator[httpx.Client]:
    """A fresh broker, asked as Confluent's client asks."""
    with serve(BrokerConfig()) as broker:
        served = Served(broker)
        yield served.client(0, **{"accept": KIND, "content-type": KIND})
        served.close()


def json(schema: str, **more: Any) -> dict[str, Any]:
    return {"schema": schema, "schemaType": "JSON", **more}


def told(response: httpx.Response) -> Any:
    """What it answered, or status and error code."""
    content = response.json()
    if response.is_success:
        return content
    assert content["message"] == content["error"] == content["detail"]
    return response.status_code, content["error_code"]


def test_the_life_of_a_subject(registry: httpx.Client) -> None:
    versions = "/subjects/s%2Fvalue/versions"
    assert told(registry.post(versions, json=json(A, references=None, metadata=None))) == {"id": 1}
    assert told(registry.post(f"{versions}?normalize=false", json=json(A))) == {"id": 1}
    assert told(registry.post(versions, json=json(A_NEEDED))) == (409, 409)
    whole = {"subject": "s/value", "version": 1, "id": 1, "schemaType": "JSON", "schema": A}
    assert told(registry.get(f"{versions}/latest")) == whole
    assert told(registry.get(f"{versions}/-1")) == whole
    assert told(registry.post("/subjects/s%2Fvalue", json=json(A))) == whole
    assert told(registry.get("/schemas")) == [whole]
    assert told(registry.get("/schemas/ids/1?fetchMaxId=true")) == {"schemaType": "JSON", "schema": A, "maxId": 1}
    assert registry.get("/schemas/ids/1/schema").text == registry.get(f"{versions}/1/schema").text == A
    assert told(registry.get("/schemas/ids/1/subjects")) == ["s/value"]
    assert told(registry.get("/schemas/ids/1/versions")) == [{"subject": "s/value", "version": 1}]
    assert told(registry.get("/schemas/types")) == ["JSON"]
    assert told(registry.get(f"{versions}/1/referencedby")) == []
    assert told(registry.get("/subjects?subjectPrefix=t")) == []
    assert told(registry.delete(f"{versions}/1?permanent=true")) == (404, 40407)
    assert told(registry.delete(f"{versions}/1")) == 1
    assert told(registry.get(versions)) == (404, 40401)
    assert told(registry.get(f"{versions}?deleted=true")) == [1]
    assert told(registry.delete("/subjects/s%2Fvalue?permanent=true")) == [1]
    assert told(registry.get("/schemas/ids/1")) == (404, 40403)
    assert told(registry.get("/api/v1/subjects")) == told(registry.get("/v1/subjects")) == []


def test_compatibility_levels_and_modes(registry: httpx.Client) -> None:
    registry.post("/subjects/s/versions", json=json(A))
    place = "/compatibility/subjects/s/versions"
    assert told(registry.post(f"{place}/latest", json=json(A_NEEDED))) == {"is_compatible": False}
    verbose = told(registry.post(f"{place}?verbose=true", json=json(A_NEEDED)))
    assert "REQUIRED_ADDED" in verbose["messages"][0]
    assert told(registry.post(f"{place}/2", json=json(A))) == (404, 40402)
    assert told(registry.get("/config")) == {"compatibilityLevel": "BACKWARD"}
    assert told(registry.get("/config/s")) == (404, 40408)
    assert told(registry.get("/config/s?defaultToGlobal=true")) == {"compatibilityLevel": "BACKWARD"}
    assert told(registry.put("/config/s", json={"compatibility": "FORWARD"})) == {"compatibility": "FORWARD"}
    assert told(registry.put("/config", json={"compatibility": "SIDEWARD"})) == (422, 42203)
    assert told(registry.post(f"{place}/latest", json=json(A_NEEDED))) == {"is_compatible": True}
    assert told(registry.delete("/config/s")) == "FORWARD"
    assert told(registry.get("/mode")) == {"mode": "READWRITE"}
    assert told(registry.get("/mode/s")) == (404, 40409)
    assert told(registry.put("/mode", json={"mode": "READONLY"})) == {"mode": "READONLY"}
    assert told(registry.post("/subjects/s/versions", json=json(B))) == (422, 42205)
    assert told(registry.put("/mode/s", json={"mode": "IMPORT"})) == (422, 42204)
    assert told(registry.delete("/mode/s")) == (404, 40409)
    assert told(registry.put("/mode/s", json={"mode": "READWRITE"})) == {"mode": "READWRITE"}
    assert told(registry.delete("/mode/s")) == {"mode": "READWRITE"}


@pytest.mark.parametrize(
    "body",
    [{"schema": A}, {"schema": A, "schemaType": "PROTOBUF"}, json(A, references=[{"name": "x"}]), json("{")],
)
def test_what_is_no_json_schema_is_refused(registry: httpx.Client, body: dict[str, Any]) -> None:
    assert told(registry.post("/subjects/s/versions", json=body)) == (422, 42201)
    assert told(registry.get("/subjects/s/versions/0")) == (422, 42202)


def test_as_goqueue_asks(registry: httpx.Client) -> None:
    place = "/schemas/subjects/s"
    assert told(registry.post(f"{place}/versions", json={"schema": A})) == {"id": 1, "version": 1}
    assert told(registry.post(f"{place}/versions", json={"schema": A_NEEDED})) == (409, 409)
    assert told(registry.post(f"{place}/versions", json={"schema": "{"})) == (422, 42201)
    assert told(registry.get("/schemas/subjects")) == ["s"]
    assert told(registry.get(place)) == told(registry.get(f"{place}/versions")) == [1]
    assert told(registry.get(f"{place}/versions/latest"))["schemaType"] == "JSON"
    compatible = "/schemas/compatibility/subjects/s/versions/1"
    assert told(registry.post(compatible, json={"schema": A_NEEDED})) == {"is_compatible": False}
    assert told(registry.get("/schemas/config")) == {"compatibility": "BACKWARD"}
    for suffix in ("", "/s"):
        assert told(registry.put(f"/schemas/config{suffix}", json={"compatibility": "NONE"})) == {
            "compatibility": "NONE"
        }
        assert told(registry.get(f"/schemas/config{suffix}")) == {"compatibility": "NONE"}
    assert told(registry.get("/schemas/stats")) == {
        "subjects": 1,
        "versions": 1,
        "schemas": 1,
        "validations": 0,
        "validation_failures": 0,
    }
    assert told(registry.delete(f"{place}/versions/1")) == 1
    assert told(registry.delete(f"{place}?permanent=true")) == [1]


def test_who_may(guarded: Served) -> None:
    def asked(token: str, method: str, path: str, **more: Any) -> int:
        return guarded.client(1, authorization=f"Bearer assay_{token}").request(method, path, **more).status_code

    assert asked("reader", "GET", "/subjects") == 200
    assert asked("reader", "POST", "/subjects/s/versions", json=json(A)) == 403
    assert asked("writer", "PUT", "/config", json={"compatibility": "NONE"}) == 403
    assert asked("admin", "PUT", "/config", json={"compatibility": "FULL"}) == 200
    assert guarded.client(1).get("/subjects").status_code == 401
    tenant = httpx.BasicAuth("tom", "hidden")
    assert guarded.client(1).get("/subjects", auth=tenant).status_code == 403


def test_a_registry_survives_a_restart_and_its_queues_hold_to_it(tmp_path: Path) -> None:
    queue = QueueConfig(name="q", schema=SchemaCheckConfig(subject="s"))
    config = BrokerConfig(data_dir=str(tmp_path), queues=QueuesConfig(configured=(queue,)))
    with serve(config) as broker:
        assert _http(broker).post("/subjects/s/versions", json=json(A)).json() == {"id": 1}
    with serve(config) as broker:
        assert _http(broker).get("/subjects/s/versions/1").json()["schema"] == A
        assert [_publish(broker, payload) for payload in ('{"a": 1}', '{"a": ""}')] == [None, "misfit"]


def _http(broker: Broker) -> httpx.Client:
    return Served(broker).client()


def _publish(broker: Broker, payload: str) -> str | None:
    response = _http(broker).post("/api/v1/queues/q/messages", json={"messages": [{"payload": payload}]})
    (result,) = response.json()["results"]
    code: str | None = result.get("error", {}).get("code")
    return code
