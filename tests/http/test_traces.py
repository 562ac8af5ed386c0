"""Traces over HTTP: GoQueue's routes, who sees what, and docs/tracing.md as it stands."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from assay.reference_broker.broker import Broker
from assay.reference_broker.config import TracingConfig, parse_config
from assay.reference_broker.trace.files import read_trace
from assay.reference_broker.trace.schema import TraceKind
from assay.reference_broker.trace.yaml_text import read_yaml
from tests.http.conftest import Served, secured, serve

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tracing.md").read_text(encoding="utf-8")
PARENT = "00f067aa0ba902b7"


def _trace_id(number: int) -> str:
    return f"{number:032x}"


def _traceparent(number: int, flags: str = "01") -> str:
    return f"00-{_trace_id(number)}-{PARENT}-{flags}"


@pytest.fixture(scope="module")
def traced() -> Iterator[Served]:
    """With users, tenants and tokens, and tracing."""
    with serve(msgspec.structs.replace(secured(), tracing=TracingConfig(enabled=True))) as broker:
        made = Served(broker)
        yield made
        made.close()


def _ann(served: Served) -> Any:
    return served.client(1, authorization="Bearer assay_writer")


def _tom(served: Served) -> Any:
    return served.client(1, authorization="Basic dG9tOmhpZGRlbg==")


def _publish(client: Any, number: int, *, headers: dict[str, str] | None = None, flags: str = "01") -> None:
    body = {"messages": [{"payload": "m", "headers": headers or {}}]}
    answer = client.post(
        "/api/v1/queues/orders/messages", json=body, headers={"traceparent": _traceparent(number, flags)}
    )
    assert answer.status_code == 200, answer.text


def _take(client: Any, group: str) -> dict[str, Any]:
    (taken,) = client.post("/api/v1/queues/orders/consume", json={"group": group, "wait_s": 20}).json()["messages"]
    return taken  # type: ignore[no-any-return]


def test_a_request_and_its_message_are_one_trace(traced: Served) -> None:
    ann = _ann(traced)
    _publish(ann, 1)
    taken = _take(ann, "one")
    assert taken["headers"]["traceparent"] == _traceparent(1)
    trace = ann.get(f"/traces/{_trace_id(1)}").json()
    assert [span["event_type"] for span in trace["spans"]] == [
        "publish.received",
        "publish.persisted",
        "publish.confirmed",
        "consume.fetched",
    ]
    fetched = trace["spans"][-1]
    assert taken["headers"]["delivery-traceparent"] == f"00-{_trace_id(1)}-{fetched['span_id']}-01"
    assert (trace["status"], trace["topic"], fetched["consumer_group"]) == ("in_progress", "orders", "one")
    assert trace["spans"][0]["parent_span_id"] == PARENT
    ann.post("/api/v1/queues/orders/settle", json={"outcome": "accept", "receipts": [taken["receipt"]]})
    assert ann.get(f"/v1/traces/{_trace_id(1)}").json()["status"] == "completed"


def test_a_message_of_its_own_and_flags(traced: Served) -> None:
    """What a message says itself holds before what its request says; what cannot be read is not passed on."""
    ann = _ann(traced)
    _publish(ann, 2, headers={"traceparent": _traceparent(3)})
    assert ann.get(f"/traces/{_trace_id(3)}").status_code == 200
    assert ann.get(f"/traces/{_trace_id(2)}").json()["code"] == "unknown_trace"
    _publish(ann, 4, flags="00")
    assert ann.get(f"/traces/{_trace_id(4)}").status_code == 404
    wrong = {"traceparent": "00-nothing-01", "tracestate": "a=1"}
    ann.post("/api/v1/queues/orders/messages", json={"messages": [{"payload": "plain"}]}, headers=wrong)
    payloads: dict[str, dict[str, str]] = {}
    while "plain" not in payloads:
        taken = _take(ann, "flags")
        payloads[taken["payload"]] = taken.get("headers", {})
    assert payloads["plain"] == {}


def test_searching(traced: Served) -> None:
    ann = _ann(traced)
    _publish(ann, 10)
    _publish(ann, 11)
    latest = ann.get("/api/v1/traces", params={"limit": 2}).json()
    assert [trace["trace_id"] for trace in latest["traces"]] == [_trace_id(11), _trace_id(10)]

    def found(**query: Any) -> set[str]:
        answer = ann.get("/traces/search", params={"limit": 1_000, **query})
        assert answer.status_code == 200, answer.text
        return {trace["trace_id"] for trace in answer.json()["traces"]}

    everything = found()
    assert {_trace_id(10), _trace_id(11)} <= everything
    assert found(topic="orders") == everything
    assert (
        found(topic="other") == found(partition=7) == found(consumer_group="nobody") == found(status="error") == set()
    )
    assert found(start=latest["traces"][0]["start_time"]) == {_trace_id(11)}
    assert _trace_id(11) not in found(end=latest["traces"][0]["start_time"])
    assert found(start="2000-01-01T00:00:00Z", end="2000-01-02T00:00:00Z") == set()
    assert ann.get("/traces/search", params={"start": "yesterday"}).json()["code"] == "bad_request"
    stats = ann.get("/traces/stats").json()
    assert stats["enabled"]
    assert stats["traces"] == len(everything)


def test_nobody_sees_traces_of_queues_that_are_not_theirs(traced: Served) -> None:
    """Nor the names that others give to them."""
    ann, tom = _ann(traced), _tom(traced)
    _publish(tom, 20)
    assert tom.get(f"/traces/{_trace_id(20)}").json()["spans"][-1]["message_id"].startswith("orders:")
    assert {trace["topic"] for trace in tom.get("/traces").json()["traces"]} == {"orders"}
    assert ann.get(f"/traces/{_trace_id(20)}").status_code == 404
    _publish(ann, 21)
    assert tom.get(f"/traces/{_trace_id(21)}").status_code == 404
    # One trace that passes both: each sees its part.
    _publish(ann, 20)
    queues = [{span["topic"] for span in each.get(f"/traces/{_trace_id(20)}").json()["spans"]} for each in (ann, tom)]
    assert queues == [{"orders"}, {"orders"}]
    assert len(ann.get(f"/traces/{_trace_id(20)}").json()["spans"]) == 3


def test_where_nothing_is_traced_there_are_no_traces(served: Served) -> None:
    ask = served.client()
    assert ask.get("/traces/stats").json()["enabled"] is False
    for path in ("/traces", "/traces/search", f"/traces/{_trace_id(1)}"):
        assert ask.get(path).json()["code"] == "unsupported", "never a silent success"


def test_over_mqtt_properties_come_as_they_went_and_in_order(tmp_path: Path) -> None:
    """And the file of the spans is one of the trace's schema."""
    path = tmp_path / "trace.jsonl"
    sent = [("b", "1"), ("traceparent", _traceparent(30)), ("a", "2"), ("tracestate", "v=1"), ("b", "3")]
    with serve(
        config=msgspec.structs.replace(parse_config({}), tracing=TracingConfig(enabled=True, path=str(path)))
    ) as broker:
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="c", protocol=paho.MQTTv5)
        got: list[Any] = []
        ready: list[Any] = []
        client.on_message = lambda *arguments: got.append(arguments[-1])
        client.on_subscribe = lambda *arguments: ready.append(arguments)
        client.connect(broker.host, broker.port)
        client.subscribe([("$queue/orders/#", paho.SubscribeOptions(qos=1)), ("plain", paho.SubscribeOptions(qos=1))])
        while not ready:
            client.loop()
        properties = Properties(PacketTypes.PUBLISH)
        properties.UserProperty = sent
        client.publish("$queue/orders/eu", "m", qos=1, properties=properties)
        client.publish("plain", "m", qos=1, properties=properties)
        while len(got) < 2:
            client.loop()
        client.disconnect()
    by_topic = {message.topic: message.properties.UserProperty for message in got}
    assert by_topic["plain"] == sent
    told = by_topic["$queue/orders/eu"]
    assert [pair for pair in told if pair in sent] == sent
    spans = {span.kind: span for span in read_trace(path)[1]}
    assert dict(told)["delivery-traceparent"] == f"00-{_trace_id(30)}-{spans[TraceKind.DELIVERED].span_id}-01"
    assert spans[TraceKind.PUBLISHED].trace_state == "v=1"


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page uses curl")
def test_the_commands_of_the_page_work(tmp_path: Path) -> None:
    (configuration,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "broker.yaml"
    file.write_text(configuration, encoding="utf-8")
    config = parse_config(read_yaml(file))
    free = tuple(msgspec.structs.replace(listener, port=0) for listener in config.listeners)
    tracing = msgspec.structs.replace(config.tracing, path=str(tmp_path / config.tracing.path))
    with Broker(msgspec.structs.replace(config, listeners=free, tracing=tracing)) as broker:
        commands = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL))
        script = "set -eu\n" + commands.replace("http://127.0.0.1:8080", broker.addresses[1].url)
        finished = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    for part in ("delivery-traceparent", '"settled":1', '"consume.acked"', '"status":"completed"', '"enabled":true'):
        assert part in finished.stdout, part
    assert len(list(read_trace(tmp_path / "trace.jsonl")[1])) >= 5
