"""Requests drawn from the OpenAPI document, valid and not: whatever comes back is what the document says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.reference_broker.api.problems import Problem
from assay.reference_broker.config import BrokerConfig, QueueConfig, QueuesConfig
from assay.reference_broker.http.app import AREAS, create_app
from tests.http.conftest import Served, serve

DOCUMENT: dict[str, Any] = create_app(None).state.document
DECLARED = {name: each for area in AREAS for name, each in area.declared.items()}
NAMES = st.sampled_from(["one", "two", "a/b", "one.dlq", "dlq/one", "nobody", "x y", "é", "a//b", "$x", "%2F", "0"])
WILD = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=4,
)
AT_ONCE = {"wait_s": st.just(0), "timeout": st.sampled_from(["0", "1ms", "x"])}
"""By the name of a field: nobody waits here."""
OPERATIONS = sorted(
    (method, path, operation["operationId"])
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
    if operation["operationId"] not in ("stream_messages", "watch_topics")
)


@pytest.fixture(scope="module")
def small() -> Iterator[Served]:
    """A broker on which nothing grows large."""
    queues = tuple(QueueConfig(name=name, partitions=2) for name in ("one", "a/b"))
    config = BrokerConfig(queues=QueuesConfig(configured=queues, max_queues=20, max_partitions=60))
    with serve(config, max_poll_s=0.01) as broker:
        served = Served(broker)
        yield served
        served.close()


def _strategy(schema: dict[str, Any], name: str = "", depth: int = 0) -> st.SearchStrategy[Any]:
    """Values of a schema of the kinds that the document has."""
    if name in AT_ONCE:
        return AT_ONCE[name]
    if "$ref" in schema:
        return _strategy(DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]], name, depth + 1)
    if "anyOf" in schema:
        return st.one_of([_strategy(each, name, depth + 1) for each in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = schema.get("type")
    if kind == "string":
        return NAMES | st.sampled_from(["", "earliest", "1", "30s", "bm8="]) | st.text(max_size=20)
    if kind == "integer":
        return st.integers(0, 3) | st.integers(-1, 2**64)
    if kind == "number":
        return st.floats(0, 3) | st.floats(allow_nan=False)
    if kind == "boolean":
        return st.booleans()
    if kind == "null":
        return st.none()
    if kind == "array" and depth < 6:
        return st.lists(_strategy(schema.get("items", {}), name, depth + 1), max_size=3)
    if kind == "object" and depth < 6:
        needed = schema.get("required", ())
        fields = {field: _strategy(each, field, depth + 1) for field, each in schema.get("properties", {}).items()}
        if not fields:
            return st.dictionaries(NAMES, WILD, max_size=2)
        return st.fixed_dictionaries(
            {field: fields[field] for field in needed},
            optional={field: each for field, each in fields.items() if field not in needed},
        )
    return WILD


def _problem_codes(operation: dict[str, Any], status: str) -> set[str]:
    """What the document says of a refusal with a status."""
    described = operation["responses"][status]
    if "$ref" in described:
        described = DOCUMENT["components"]["responses"][described["$ref"].rpartition("/")[2]]
    return set(described["description"].replace("`", "").split(", "))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(data=st.data())
def test_whatever_comes_back_is_in_the_document(small: Served, data: st.DataObject) -> None:
    method, path, name = data.draw(st.sampled_from(OPERATIONS))
    operation = DOCUMENT["paths"][path][method]
    query: dict[str, Any] = {}
    for parameter in operation.get("parameters", ()):
        key = parameter["name"]
        if parameter["in"] == "path":
            drawn = NAMES if parameter["schema"]["type"] == "string" else st.integers(-1, 9)
            value = str(data.draw(drawn, label=key)).encode()
            path = path.replace(f"{{{key}}}", "".join(f"%{each:02X}" for each in value))
        elif parameter["required"] or data.draw(st.booleans()):
            drawn_value = data.draw(_strategy(parameter["schema"], key), label=key)
            query[key] = drawn_value if isinstance(drawn_value, str | bool) else msgspec.json.encode(drawn_value)
    content = None
    headers = {"content-type": "application/json"}
    if "requestBody" in operation:
        (schema,) = (each["schema"] for each in operation["requestBody"]["content"].values())
        body = data.draw(_strategy(schema) | WILD, label="body")
        content = data.draw(st.just(msgspec.json.encode(body)) | st.binary(max_size=5), label="content")
    answer = small.client().request(method, path, params=query, content=content, headers=headers)
    status = str(answer.status_code)
    assert status in operation["responses"], (method, path, status, answer.text)
    declared = DECLARED[name]
    if answer.headers["content-type"] == "application/problem+json":
        problem = msgspec.json.decode(answer.content, type=Problem)
        assert problem.status == answer.status_code
        assert problem.code in _problem_codes(operation, status), (method, path, answer.text)
    elif declared.media_type == "application/json":
        msgspec.json.decode(answer.content, type=declared.answer)
