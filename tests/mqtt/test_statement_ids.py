"""Every protocol error names a statement that exists in the version spoken: in the source, and as clients meet it."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from assay.conformance.registry import load_statements
from assay.reference_broker.config import parse_config
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import encode_packet
from assay.reference_broker.mqtt.wire.errors import MalformedPacketError, ProtocolError, Reason
from assay.reference_broker.mqtt.wire.packets import V5, V311, PacketType, Properties

if TYPE_CHECKING:
    from tests.mqtt.conftest import Client, World

ROOT = Path(__file__).resolve().parents[2] / "reference_broker"
STATEMENTS = {V311: frozenset(load_statements("mqtt311")), V5: frozenset(load_statements("mqtt5"))}
EITHER = STATEMENTS[V311] | STATEMENTS[V5]
# Position of the statement ids among the arguments, and the versions they belong to.
RAISERS: dict[str, tuple[tuple[int, frozenset[str]], ...]] = {
    "ProtocolError": ((1, EITHER),),
    "MalformedPacketError": ((1, EITHER),),
    "TopicError": ((1, EITHER),),
    "malformed": ((2, STATEMENTS[V311]), (3, STATEMENTS[V5])),
    "rule_id": ((1, STATEMENTS[V311]), (2, STATEMENTS[V5])),
    "_refusal": ((3, STATEMENTS[V5]), (4, STATEMENTS[V311])),
}


def _calls() -> Iterator[tuple[str, str, list[ast.expr]]]:
    """(place, function, arguments) of every call that states an id."""
    for path in sorted([*(ROOT / "mqtt").rglob("*.py"), *(ROOT / "core").glob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in RAISERS:
                yield f"{path.name}:{node.lineno}", node.func.id, node.args


def test_the_source_names_only_statements_that_exist() -> None:
    checked = 0
    for place, function, arguments in _calls():
        for position, known in RAISERS[function]:
            if position >= len(arguments):
                continue
            value = arguments[position]
            # "" stands for the version that cannot meet the error; a name was made by one of the others.
            if isinstance(value, ast.Constant) and value.value != "":
                checked += 1
                assert value.value in known, f"{place}: {function} cites {value.value}"
    assert checked > 60


def test_every_id_in_the_source_exists() -> None:
    found = set()
    for path in ROOT.rglob("*.py"):
        found |= set(re.findall(r'"(MQTT-[^"]*)"', path.read_text(encoding="utf-8")))
    assert len(found) > 50
    assert found <= EITHER


# -- as clients meet it ------------------------------------------------------------------------------------------

LESSER = {
    "mqtt": {
        "maximum_qos": 1,
        "retain_available": False,
        "wildcard_subscription_available": False,
        "subscription_identifier_available": False,
        "shared_subscription_available": False,
        "topic_alias_maximum": 2,
        "max_packet_bytes": 400,
        "max_client_id_bytes": 23,
        "max_topic_levels": 5,
    },
    "limits": {"max_payload_bytes": 200},
    "acl": {"default": "deny", "rules": [{"topic": "t/#", "access": "readwrite"}]},
}
CONFIGS = pytest.mark.parametrize("config", [{}, LESSER], ids=["full", "lesser"])
VERSIONS = pytest.mark.parametrize("version", [V311, V5])
ROUNDS = 1_500
SEED = 5


def _connects(version: int) -> list[p.Connect]:
    five = version == V5
    will = p.WillFields(topic="t/w", payload=b"w", qos=1, retain=True, properties=Properties())
    more = (
        Properties(session_expiry_interval=9, receive_maximum=3, user_property=(("a", "b"),)) if five else Properties()
    )
    return [
        p.Connect(version=version, client_id="c"),
        p.Connect(version=version, client_id="c", clean_start=False, will=will, username="u", password=b"p"),
        p.Connect(version=version, client_id="x" * 30, keep_alive_s=5, properties=more),
        p.Connect(version=version, client_id="", clean_start=False),
    ]


def _packets(version: int) -> list[p.Packet]:
    """One of everything a client may send."""
    five = version == V5
    message = Properties(topic_alias=1, content_type="x", response_topic="t/r") if five else Properties()
    listed = Properties(subscription_identifier=(3,)) if five else Properties()
    requests = tuple(p.SubscriptionRequest(topic_filter=name, qos=2) for name in ("t/#", "$share/g/t", "t/+/a", "u"))
    ids: list[p.Packet] = [
        p.Acknowledgement(type=kind, packet_id=1)
        for kind in (PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP)
    ]
    return [
        p.Subscribe(packet_id=1, requests=requests[:1], properties=listed),
        p.Subscribe(packet_id=1, requests=requests),
        p.Unsubscribe(packet_id=2, topic_filters=("t/#", "a")),
        p.Publish(topic="t/a", payload=b"x"),
        p.Publish(topic="t/a", payload=b"x", qos=1, packet_id=5, properties=message),
        p.Publish(topic="t/a", payload=b"x", qos=2, packet_id=6, retain=True),
        p.Publish(topic="a/b/c/d/e/f", payload=b"x" * 300, qos=1, packet_id=7),
        *ids,
        p.Pingreq(),
        p.Disconnect(reason=4 if five else 0),
        *([p.Auth(reason=0x18)] if five else []),
    ]


def _damage(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randrange(3)):
        at = rng.randrange(len(out))
        choice = rng.randrange(4)
        if choice == 0:
            out[at] = rng.choice((0, 1, 2, 3, 4, 0x23, 0x2B, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif choice == 1:
            out[at] ^= 1 << rng.randrange(8)
        elif choice == 2 and len(out) > 2:
            del out[at]
            out[1] = max(0, out[1] - 1)
        else:
            out.insert(at, rng.randrange(256))
            out[1] = (out[1] + 1) & 0x7F
    return bytes(out)


def _provoked(world: World, version: int, rng: random.Random) -> Client:
    """A client that said something, most likely something wrong."""
    client = world.open(version)
    connect = encode_packet(rng.choice(_connects(version)), version)
    if rng.random() < 0.4:
        connect = _damage(connect, rng)
    # What a client of another version than it says, or a broken one, is sent is not this test's business.
    connection = client.connection
    world.clients[connection].flush = connection.take_output  # type: ignore[method-assign, assignment]
    client.send_bytes(connect)
    for _ in range(rng.randrange(1, 4)):
        client.send_bytes(_damage(encode_packet(rng.choice(_packets(version)), version), rng))
    return client


@VERSIONS
@CONFIGS
def test_whatever_a_client_sends_the_error_names_a_statement_of_its_version(
    make_world: type[World], config: dict[str, object], version: int
) -> None:
    rng = random.Random(SEED)
    world = make_world(parse_config(config))
    met: set[str] = set()
    for number in range(ROUNDS):
        client = _provoked(world, version, rng)
        error = client.connection.error
        if error is not None:
            said = client.connection.version
            assert error.statement in STATEMENTS[said], f"round {number} of seed {SEED}: {error} in version {said}"
            met.add(error.statement)
        client.lose()
    assert len(met) >= 20, f"the input is too tame: it met only {sorted(met)}"


def test_a_malformed_connect_is_judged_by_the_version_it_names(world: World) -> None:
    """The reserved connect flag is 3.1.2-3 in both; a truncated one is 4.8.0-1 in 3.1.1 and 4.13.1-1 in 5.0."""
    for version, statement in ((V311, "MQTT-4.8.0-1"), (V5, "MQTT-4.13.1-1")):
        client = world.open(version)
        client.send_bytes(bytes.fromhex("100a00044d515454") + bytes((version,)) + bytes.fromhex("0200000009"))
        assert client.connection.error is not None
        assert client.connection.error.statement == statement


@VERSIONS
def test_what_is_not_the_clients_fault_cites_its_version_too(world: World, version: int) -> None:
    for index, end in enumerate(
        (
            lambda connection: connection.abandon_output(OSError("full"), world.now),
            lambda connection: connection.transport_stalled(world.now),
        )
    ):
        client = world.connect(str(index), version)
        end(client.connection)
        assert client.connection.error is not None
        assert client.connection.error.statement == ("MQTT-4.13.2-1" if version == V5 else "MQTT-4.8.0-2")


# -- as clients are told ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem_information", "maximum", "told"),
    [(None, None, True), (1, None, True), (0, None, False), (None, 20, False)],
)
@pytest.mark.parametrize("when", ["connect", "later"])
def test_the_reason_string_cites_the_statement_unless_unwanted_or_too_long(
    world: World, problem_information: int | None, maximum: int | None, told: bool, when: str
) -> None:
    will = p.WillFields(topic="t/#", payload=b"", qos=0, retain=False, properties=Properties())
    properties = Properties(request_problem_information=problem_information, maximum_packet_size=maximum)
    client = world.open()
    connect = p.Connect(version=V5, client_id="c", properties=properties, will=will if when == "connect" else None)
    client.send(connect)
    if when == "later":
        client.send(p.Publish(topic="t/#", payload=b""))
    last = client.inbox[-1]
    assert isinstance(last, p.Connack | p.Disconnect)
    assert last.reason == Reason.TOPIC_NAME_INVALID
    assert client.closed
    text = last.properties.reason_string
    assert (text is not None and "[MQTT-3.3.2-2]" in text) if told else text is None


def test_an_error_shows_its_statement() -> None:
    assert str(ProtocolError("no", "MQTT-1.2.3-4")) == "no [MQTT-1.2.3-4]"
    assert str(MalformedPacketError("no", "MQTT-1.2.3-4")) == "no [MQTT-1.2.3-4]"
