"""Each verb of each resource, on a broker."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import paho.mqtt.client as mqtt
import pytest
import yaml
from typer.testing import CliRunner

from assay.cli import build_app
from assay.reference_broker.clients.http_client import HttpQueues, path
from assay.reference_broker.commands import resources
from assay.reference_broker.commands.traces import TRACE
from assay.reference_broker.commands.verbs import Resource, Verb
from assay.reference_broker.config import BrokerConfig, TracingConfig
from tests.commands.conftest import Assay
from tests.http.conftest import serve

OPENAPI = Path(__file__).resolve().parents[2] / "docs" / "openapi.json"
RESOURCES = {
    name.lower(): each for name, each in {**vars(resources), "TRACE": TRACE}.items() if isinstance(each, Resource)
}


@pytest.fixture
def queue(assay: Assay, request: pytest.FixtureRequest) -> Iterator[str]:
    """A queue of its own for each test, with a slash in its name."""
    name = f"shop/{request.node.name.removeprefix('test_')[:40]}"
    assay("queue", "create", name, "-p", "1")
    yield name
    assay("queue", "delete", name, "-y")


def _verbs() -> list[tuple[str, Verb]]:
    return [(name, verb) for name, resource in RESOURCES.items() for verb in resource.verbs]


def test_every_request_is_one_that_the_broker_documents() -> None:
    documented = msgspec.json.decode(OPENAPI.read_bytes())["paths"]
    paths = {re.sub(r"\{\w+\}", "{}", each): operations for each, operations in documented.items()}
    for _, verb in _verbs():
        if verb.run is not None:
            continue
        operation = paths["/api/v1" + re.sub(r"\{\w+\}", "{}", verb.path)][verb.method.lower()]
        sent = {each.name for each in verb.parameters if each.place == "query"}
        assert sent <= {each["name"] for each in operation["parameters"]} if sent else True, verb.name
        body = {each.name for each in verb.parameters if each.place == "body"}
        assert bool(body) == ("requestBody" in operation), verb.name
        if body:
            reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            schema = msgspec.json.decode(OPENAPI.read_bytes())["components"]["schemas"][reference.rpartition("/")[2]]
            assert body <= set(schema["properties"]), verb.name


def test_queues_are_created_listed_described_changed_and_deleted(assay: Assay, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("retry: {max_retries: 2}\nmax_depth: 9\n")
    said = assay(
        "topic",
        "create",
        "made",
        "-p",
        "2",
        "-f",
        str(file),
        "--set",
        "max_depth=7",
        "--set",
        "group.session_timeout_s=20",
        "--set",
        "retention.max_age_s=604800",
    )
    assert said == "created made\n"
    config = assay.json("queue", "describe", "made")["config"]
    assert (config["partitions"], config["max_depth"], config["retry"]["max_retries"]) == (2, 7, 2)
    assert (config["group"]["session_timeout_s"], config["retention"]["max_age_s"]) == (20, 604_800)
    assert re.search(r"^retry\.max_retries +2 *$", assay("queue", "describe", "made"), re.MULTILINE)
    assert assay("queue", "update", "made", "--set", "max_depth=8", "-p", "3") == "updated made\n"
    config = assay.json("queue", "describe", "made")["config"]
    assert (config["partitions"], config["max_depth"]) == (3, 8)
    assay("queue", "update", "made", "--unset", "max_depth")
    assert assay.json("queue", "describe", "made")["config"]["max_depth"] != 8
    assert "--set" in assay.fails(2, "queue", "update", "made")
    assert [each["queue"] for each in assay.json("queue", "list", "--prefix", "ma")] == ["made"]
    assert assay("queue", "list", "--prefix", "ma", "--names") == "made\n"
    assert assay.json("queue", "list", "--prefix", "ma", "--names") == {"queues": ["made"]}
    header, row = assay("queue", "list", "--prefix", "made", "-o", "wide").splitlines()
    assert header.split()[:2] == ["QUEUE", "READY"]
    assert "ENQUEUED" in header
    assert row.split()[:2] == ["made", "0"]
    assert yaml.safe_load(assay("queue", "stats", "made", "-o", "yaml"))["partitions"] == 3
    assert "Say so by --yes" in assay.fails(2, "queue", "delete", "made")
    assert assay("queue", "delete", "made", "--yes") == "deleted made\n"
    assert assay.json("queue", "list", "--prefix", "made") == []


def test_a_shell_offers_names_of_queues(assay: Assay, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_SERVER", str(assay.environment["ASSAY_SERVER"]))
    line = f"assay queue stats {queue[:-1]}"
    monkeypatch.setattr(sys, "argv", ["assay"])
    for name, value in (("_ASSAY_COMPLETE", "complete_bash"), ("COMP_WORDS", line), ("COMP_CWORD", "3")):
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(build_app("queue"), [], prog_name="assay", env=dict(os.environ))
    assert result.stdout.split() == [queue]
    result = CliRunner().invoke(
        build_app("queue"), [], prog_name="assay", env={**os.environ, "ASSAY_SERVER": "127.0.0.1:1"}
    )
    assert result.stdout.split() == []


def test_bindings(assay: Assay, queue: str) -> None:
    assay("queue", "bind", queue, "a/#", "b/+")
    assert assay.json("queue", "bind", queue, "b/+", "c") == {"topics": ["a/#", "b/+", "c"]}
    assay("queue", "unbind", queue, "b/+")
    assert assay("queue", "bindings", queue).split() == ["TOPIC", "a/#", "c"]


def test_messages_are_looked_at_and_purged(assay: Assay, queue: str) -> None:
    assay("produce", queue, "one", "two", "-k", "k")
    assert [each["payload"] for each in assay.json("queue", "peek", queue, "-n", "1")["messages"]] == ["one"]
    assert "two" in assay("queue", "peek", queue)
    assert assay("queue", "partitions", queue).split()[-3:] == ["0", "0", "2"]
    assert assay.json("queue", "partitions", queue)["partition_offsets"] == {"0": {"earliest": 0, "latest": 2}}
    assert assay("queue", "purge", queue, "-y") == "purged 2 messages\n"


def test_dead_letters_are_listed_replayed_and_purged(assay: Assay, queue: str) -> None:
    assay("produce", queue, "bad", "worse")
    assay("consume", queue, "-g", "g", "--settle", "reject", "--wait", "0")
    table = assay("dlq", "list", queue).splitlines()
    assert ["rejected" in line for line in table] == [False, True, True]
    letters = assay.json("dlq", "list", queue)["messages"]
    assert assay.json("dlq", "stats", queue)["current"] == 2
    said = assay("dlq", "replay", queue, "--message-id", letters[0]["message_id"])
    assert said == "replayed 1, skipped 0, refused 0\n"
    assert assay("dlq", "purge", queue, "-y") == "purged 1 dead letters\n"
    assay("queue", "delete", f"dlq/{queue}", "-y")


def test_delayed_messages_are_listed_and_cancelled(assay: Assay, queue: str) -> None:
    said = assay("produce", queue, "later", "--delay", "1h")
    delay_id = said.removeprefix("delayed as ").strip()
    assert [each["delay_id"] for each in assay.json("delayed", "list", queue)["messages"]] == [delay_id]
    assert delay_id in assay("delayed", "list", queue)
    assert assay("delayed", "cancel", queue, delay_id) == f"cancelled {delay_id}\n"
    assert "does not wait" in assay.fails(1, "delayed", "cancel", queue, delay_id)


def test_groups(assay: Assay, queue: str) -> None:
    assert assay("group", "create", queue, "g") == "created g\n"
    assay("produce", queue, "1", "2", "3")
    taken = assay("consume", queue, "-g", "g", "--settle", "release", "-o", "json", "--max", "2").splitlines()
    assert len(taken) == 2
    table = assay("group", "list", queue).splitlines()
    assert table[1].split()[:3] == ["g", "0", "1"], table
    assert queue in assay("group", "list")
    assert re.search(r"^ +0 +0 +2 +3 +1 ", assay("group", "lag", queue, "g"), re.MULTILINE)
    assert re.search(r"^groups\.0\.lag +1 *$", assay("queue", "stats", queue), re.MULTILINE)
    with HttpQueues(str(assay.environment["ASSAY_SERVER"])) as client:
        held = {"group": "g", "consumer": "stuck"}
        body = {**held, "max_messages": 3, "wait_s": 5}
        client.ask("POST", path("/queues/{queue}/consume", queue=queue), body=body, wait_s=5)
        assert ":stuck:" in assay("group", "describe", queue, "g")
        assert ":stuck:" in assay("queue", "consumers", queue)
        result = assay.run("group", "pending", queue, "g", "-n", "1")
        assert f"{queue}:0:0" in result.stdout
        assert result.stderr == "there are more: --after 0:0\n"
        entries = assay.json("group", "pending", queue, "g", "--after", "0:0")["entries"]
        assert [each["offset"] for each in entries] == [1, 2]
        assert "for 600 s (not_pending)" in assay.fails(1, "group", "claim", queue, "g", "--min-idle", "600")
        claimed = assay("group", "claim", queue, "g", "--settle", "accept", "-n", "1", "-o", "json")
        assert msgspec.json.decode(claimed)["payload"] == "1"
        assay("group", "claim", queue, "g", "--partition", "0", "--offset", "1")
        states = {each["offset"]: each["state"] for each in assay.json("group", "pending", queue, "g")["entries"]}
        assert states == {1: "waiting", 2: "delivered"}
        client.ask("POST", path("/queues/{queue}/leave", queue=queue), body=held)
    assert (
        assay("group", "reset-offsets", queue, "g", "--to", "earliest", "-y") == "g goes on from, by partition: 0: 0\n"
    )
    assert assay("consume", queue, "-g", "g", "--payloads", "--wait", "0") == "1\n2\n3\n"
    assay("group", "create", queue, "h")
    assert assay("group", "delete", queue, "h", "-y") == "deleted h\n"
    assert "assay group list QUEUE" in assay.fails(1, "group", "lag", queue, "h")


def test_schemas(assay: Assay, tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    first.write_text('{"type": "object", "properties": {"id": {"type": "integer"}}}')
    second.write_text('{"type": "object", "properties": {"id": {"type": "string"}}}')
    said = assay("schema", "register", "s-value", str(first))
    assert re.fullmatch(r"s-value has it as version 1, id \d+\n", said)
    assert "(schema_incompatible)" in assay.fails(1, "schema", "check", "s-value", str(second))
    assert assay("schema", "compatibility", "s-value", "--set", "none") == "NONE\n"
    assert assay("schema", "compatibility", "s-value") == "NONE\n"
    assert assay("schema", "compatibility") == "BACKWARD\n"
    assert assay("schema", "check", "s-value", str(second)) == "it may be the next version of s-value\n"
    assay("schema", "register", "s-value", str(second))
    assert assay.json("schema", "versions", "s-value") == [1, 2]
    assert assay("schema", "versions", "s-value").split() == ["VERSION", "1", "2"]
    assert msgspec.json.decode(assay.json("schema", "get", "s-value", "1")["schema"])["properties"]["id"] == {
        "type": "integer"
    }
    assert assay("schema", "list").split()[3:5] == ["s-value", "2"]
    assert assay.json("schema", "stats")["versions"] == 2
    assert assay("schema", "delete", "s-value", "--version", "1", "-y") == "deleted 1\n"
    assert assay("schema", "delete", "s-value", "-y") == "deleted 2\n"
    assert assay("schema", "delete", "s-value", "--permanent", "-y") == "deleted 1, 2\n"
    assert "No such file" in assay.fails(2, "schema", "register", "s-value", str(tmp_path / "none"))


def test_transactions_are_shown(assay: Assay) -> None:
    with HttpQueues(str(assay.environment["ASSAY_SERVER"])) as client:
        inited = client.ask("POST", "/producers/init", body={"transactional_id": "mine"})
        named = {"producer_id": inited["producer_id"], "epoch": inited["epoch"], "transactional_id": "mine"}
        begun = client.ask("POST", "/transactions/begin", body=named)
        assert begun["transaction_id"] in assay("transaction", "list")
        assert assay.json("transaction", "stats")["open"] == 1
        client.ask("POST", "/transactions/abort", body={**named, "transaction_id": begun["transaction_id"]})


def test_sessions_and_subscriptions_of_mqtt() -> None:
    with serve() as broker:
        assay = Assay(ASSAY_SERVER=broker.addresses[1].url)
        subscribed = []
        clients = [mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=f"c{number}") for number in range(2)]
        for client in clients:
            client.on_subscribe = lambda *_: subscribed.append(1)
            client.connect(broker.host, broker.port)
            client.subscribe("a/#", qos=1)
        while len(subscribed) < 2:
            for client in clients:
                client.loop(0.05)
        result = assay.run("session", "list", "-n", "1")
        assert "c0" in result.stdout
        assert result.stderr == "there are more: --page-token c0\n"
        assert assay.json("session", "describe", "c1")["subscriptions"][0]["filter"] == "a/#"
        assert assay("subscription", "list").split()[-3:] == ["a/#", "2", "1"]
        assert assay("subscription", "clients", "a/#", "--page-token", "c0").split()[-2:] == ["c1", "1"]
        for client in clients:
            client.disconnect()


def test_the_nodes_of_a_broker_that_is_alone() -> None:
    with serve(BrokerConfig(node="n1")) as broker:
        assay = Assay(ASSAY_SERVER=broker.addresses[1].url)
        assert assay("cluster", "nodes").splitlines()[1].split()[:3] == ["n1", "yes", "yes"]
        assert [each["id"] for each in assay.json("cluster", "nodes")["nodes"]] == ["n1"]


def test_traces_are_found_and_drawn() -> None:
    with serve(BrokerConfig(tracing=TracingConfig(enabled=True))) as broker:
        assay = Assay(ASSAY_SERVER=broker.addresses[1].url)
        ids = [f"{number:032x}" for number in (1, 2)]
        for each in ids:
            assay("produce", "traced", each, "-H", f"traceparent=00-{each}-00f067aa0ba902b7-01")
        assay("consume", "traced", "-g", "g", "-n", "1")
        assert [each["trace_id"] for each in assay.json("trace", "list")["traces"]] == ids[::-1]
        assert ids[0] in assay("trace", "list", "-o", "wide")
        (found,) = assay.json("trace", "search", "--queue", "traced", "--status", "completed")["traces"]
        assert assay("trace", "search", "--group", "nobody").split()[-1] == "SPANS"
        table = assay("trace", "show", found["trace_id"]).splitlines()
        steps = [line.split("▬")[-1].split()[0] for line in table[1:]]
        assert steps[0] == "publish.received"
        assert steps[-1] == "consume.acked"
        starts = [line.index("▬") for line in table[1:]]
        assert starts[0] == min(starts)
        assert assay.json("trace", "show", found["trace_id"]) == found
        assert assay.json("trace", "stats")["traces"] == 2
        assert "(unknown_trace)" in assay.fails(1, "trace", "show", "0" * 32)


def test_tenants_and_their_quotas(guarded: str) -> None:
    assay = Assay(ASSAY_SERVER=guarded, ASSAY_TOKEN="assay_admin")
    assert "acme" in assay("tenant", "list")
    assert re.search(r"^quotas\.max_queues +0 *$", assay("tenant", "quota", "acme"), re.MULTILINE)
    assert "there is no tenant" in assay.fails(1, "tenant", "quota", "nobody")


def test_the_configuration_is_read_again_where_there_is_a_file(assay: Assay) -> None:
    assert "not started from a configuration file" in assay.fails(1, "config", "reload")


def test_every_verb_is_in_these_tests() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    missing = [(name, verb.name) for name, verb in _verbs() if not re.search(rf'"{name}",\s*"{verb.name}"', text)]
    assert missing == []
