"""The table of quirks, and that they stay within the broker that has them."""

from __future__ import annotations

import random
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from typer.testing import CliRunner

from assay.cli import build_app
from assay.conformance.case import load_cases
from assay.conformance.registry import load_statements
from assay.reference_broker.broker import Broker
from assay.reference_broker.config import BrokerConfig, ConfigError, ListenerConfig, parse_config
from assay.reference_broker.core.routing import SubscriptionTree
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.connections.inbound import Inbound
from assay.reference_broker.mqtt.connections.outbound import Outbound
from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker
from assay.reference_broker.mqtt.sessions.session import Session
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.packets import V5, V311, Properties
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.quirks import PROFILES, QUIRKS, Quirk, find_quirks, node_classes
from assay.reference_broker.quirks.page import quirks_page
from assay.reference_broker.storage.memory_disk import MemoryDisk

if TYPE_CHECKING:
    from tests.mqtt.conftest import Client, World

ROOT = Path(__file__).resolve().parents[3]
STATEMENTS = {"3.1.1": load_statements("mqtt311"), "5.0": load_statements("mqtt5")}
CLASSES = {
    "connection": MqttConnection,
    "inbound": Inbound,
    "outbound": Outbound,
    "state": MqttBroker,
    "session": Session,
    "tree": SubscriptionTree,
}
EVERY = pytest.mark.parametrize("quirk", QUIRKS.values(), ids=lambda quirk: quirk.name)


def _anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@EVERY
def test_a_quirk_says_what_it_breaks_and_where_that_is_reported(quirk: Quirk) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", quirk.name)
    assert quirk.what.endswith(".")
    assert quirk.statements
    for statement in quirk.statements:
        version, _, number = statement.partition(" ")
        assert number in STATEMENTS[version]
    if quirk.citation.startswith("docs/"):
        page, _, anchor = quirk.citation.partition("#")
        assert not anchor or anchor in _anchors(ROOT / page)
        assert (ROOT / page).exists()
    else:
        assert re.fullmatch(r"https://github\.com/[\w-]+/[\w-]+/issues/\d+", quirk.citation)
    assert set(quirk.fails + quirk.reports) <= set(load_cases())


@EVERY
def test_a_quirk_replaces_something_and_only_what_there_is(quirk: Quirk) -> None:
    replaced = {field: kind for field in CLASSES if (kind := getattr(quirk, field)) is not None}
    assert replaced
    overrides = set()
    for field, kind in replaced.items():
        base = CLASSES[field]
        assert issubclass(kind, base)
        own = (part for part in kind.__mro__ if part not in base.__mro__)
        overrides |= {name for part in own for name in vars(part) if callable(vars(part)[name]) and hasattr(base, name)}
    assert overrides - {"__init__"}, "it overrides nothing: was a method of the broker renamed?"


def test_names_are_unique_and_profiles_name_quirks_that_exist() -> None:
    assert not set(QUIRKS) & set(PROFILES)
    assert all(quirk.name == name for name, quirk in QUIRKS.items())
    for profile in PROFILES.values():
        assert len(set(profile.quirks)) == len(profile.quirks)
        assert set(profile.quirks) <= set(QUIRKS)


def test_a_node_without_quirks_is_made_of_the_brokers_own_classes(world: World) -> None:
    client = world.subscribed("t")
    assert type(client.connection) is MqttConnection
    assert type(client.connection.inbound) is Inbound
    assert type(client.connection.outbound) is Outbound
    assert type(client.connection.session) is Session
    assert type(world.node.state) is MqttBroker
    assert type(world.node.state.tree) is SubscriptionTree


@pytest.mark.parametrize("version", [V311, V5])
def test_all_quirks_together_still_make_a_broker(make_world: type[World], version: int) -> None:
    world = make_world(BrokerConfig(quirks=tuple(QUIRKS)))
    subscriber = world.subscribed("t/a", 2, version)
    subscriber.auto_ack = True
    publisher = world.connect("p", version)
    publisher.auto_ack = True
    for qos in (0, 1, 2):
        publisher.send(
            *[p.Publish(topic="t/a", payload=b"m", qos=qos, packet_id=n + 1 if qos else 0) for n in range(9)]
        )
    # One of them knows no QoS 2, another delivers at the QoS that was granted.
    assert [(packet.payload, packet.qos) for packet in subscriber.publishes()] == [(b"m", 1)] * 27
    assert not publisher.closed


def test_profiles_and_single_quirks_add_up_without_repetition() -> None:
    alone = find_quirks(["mosquitto-2.0"])
    assert len(alone) == len(PROFILES["mosquitto-2.0"].quirks)
    more = find_quirks(["mosquitto-2.0", "pingreq-flags-ignored", "retained-only-once", "retained-only-once"])
    assert more == (*alone, QUIRKS["retained-only-once"])


# -- two brokers in one process ----------------------------------------------------------------------------------------


def _retained_twice(client: Client) -> int:
    """How often a retained message comes when its filter is subscribed to twice."""
    client.send(p.Publish(topic="r", payload=b"kept", retain=True))
    for packet_id in (1, 2):
        client.send(p.Subscribe(packet_id=packet_id, requests=(p.SubscriptionRequest(topic_filter="r", qos=0),)))
    return len(client.publishes())


def test_quirks_stay_within_their_broker(make_world: type[World]) -> None:
    """Three brokers, used in turn: what one does wrong, the others do right."""
    worlds = {
        names: make_world(BrokerConfig(quirks=names))
        for names in ((), ("retained-only-once",), ("pingreq-flags-ignored",))
    }
    for _ in range(2):
        answers = {
            names: (_pings_with_flags(world), _retained_twice(world.connect())) for names, world in worlds.items()
        }
        assert answers == {
            (): (False, 2),
            ("retained-only-once",): (False, 1),
            ("pingreq-flags-ignored",): (True, 2),
        }


def _pings_with_flags(world: World) -> bool:
    client = world.connect()
    client.send_bytes(b"\xc5\0")
    return not client.closed


def test_two_embedded_brokers_differ() -> None:
    plain = BrokerConfig(listeners=(ListenerConfig(port=0),))
    quirky = msgspec.structs.replace(plain, quirks=("mosquitto-2.0",))
    with Broker(plain) as first, Broker(quirky) as second, Broker(plain) as third:
        for broker, answered in ((first, False), (second, True), (third, False)):
            assert _answers_flagged_ping(broker) is answered


def _answers_flagged_ping(broker: Broker) -> bool:
    with socket.create_connection((broker.host, broker.port), timeout=10) as peer:
        peer.sendall(bytes.fromhex("100d00044d5154540402003c000174") + b"\xc1\0")
        data = b""
        while len(data) < 6 and (chunk := peer.recv(16)):
            data += chunk
    return data.endswith(b"\xd0\0")


# -- what no case of the suite can show --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("quirks", [(), ("retained-though-refused",)])
def test_retained_messages_of_a_refused_filter(make_world: type[World], version: int, quirks: tuple[str, ...]) -> None:
    rules = [{"topic": "open", "access": "readwrite"}, {"topic": "secret", "access": "write"}]
    world = make_world(parse_config({"quirks": quirks, "acl": {"rules": rules}}))
    client = world.connect("c", version)
    client.send(*[p.Publish(topic=topic, payload=b"kept", retain=True) for topic in ("open", "secret")])
    client.take()
    requests = tuple(p.SubscriptionRequest(topic_filter=topic, qos=0) for topic in ("open", "secret"))
    suback, *retained = client.send(p.Subscribe(packet_id=1, requests=requests))
    assert isinstance(suback, p.Suback)
    assert suback.reasons == (0, 0x87 if version == V5 else 0x80)
    topics = [packet.topic for packet in retained if isinstance(packet, p.Publish)]
    assert topics == (["open", "secret"] if quirks else ["open"])


@pytest.mark.parametrize("maximum", [20, 126, 127, 128, 200])
def test_the_uncounted_fixed_header_is_all_that_is_over(make_world: type[World], maximum: int) -> None:
    world = make_world(BrokerConfig(quirks=("fixed-header-not-counted",)))
    client = world.connect("s", properties=Properties(maximum_packet_size=maximum))
    client.send(p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter="t", qos=0),)))
    publisher = world.connect("p")
    rest = 2 + 1 + 1  # topic and property length
    publisher.send(*[p.Publish(topic="t", payload=b"x" * (size - rest)) for size in (maximum, maximum + 1)])
    assert [len(packet.payload) + rest for packet in client.publishes()] == [maximum]


# -- for people --------------------------------------------------------------------------------------------------------


def test_the_page_is_the_one_of_the_table() -> None:
    """After a change: assay quirks --markdown > docs/quirks.md"""
    assert (ROOT / "docs" / "quirks.md").read_text(encoding="utf-8") == quirks_page()


@pytest.mark.parametrize(
    ("name", "hint"),
    [("mosquitto", "mosquitto-2.0"), ("retained-only-ones", "retained-only-once"), ("zzz", "assay quirks")],
)
def test_an_unknown_name_is_refused_with_a_hint(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        node_classes([name])


def test_the_command_lists_all_or_what_is_asked_for() -> None:
    runner = CliRunner()
    everything = runner.invoke(build_app("quirks"), ["quirks"], env={"COLUMNS": "200"})
    assert everything.exit_code == 0
    assert all(name in everything.output for name in (*QUIRKS, *PROFILES))
    some = runner.invoke(build_app("quirks"), ["quirks", "retained-only-once"], env={"COLUMNS": "200"})
    assert "retained-only-once" in some.output
    assert "pingreq-flags-ignored" not in some.output
    assert runner.invoke(build_app("quirks"), ["quirks", "nonsense"]).exit_code == 2
    assert runner.invoke(build_app("quirks"), ["quirks", "--markdown"]).output == quirks_page()


@pytest.mark.parametrize(("arguments", "status"), [(["--quirk", "mosquitto-2.0"], 0), (["--quirk", "mosquitto-9"], 2)])
def test_serve_checks_the_names(arguments: list[str], status: int) -> None:
    result = CliRunner().invoke(build_app("serve"), ["serve", "--check", *arguments])
    assert result.exit_code == status


# -- over a restart ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [*((name,) for name in PROFILES), tuple(QUIRKS)], ids=lambda names: names[0])
def test_quirky_sessions_survive_a_restart(make_world: type[World], names: tuple[str, ...]) -> None:
    """The classes of quirks do not get into the way of those that write sessions down."""
    disk = MemoryDisk()
    config = BrokerConfig(quirks=names)
    lasting = Properties(session_expiry_interval=1_000)
    world = make_world(config)
    world.node = BrokerNode(config, disk, random.Random(1), world.now)
    subscriber = world.connect("s", clean_start=False, properties=lasting)
    subscriber.send(p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter="t", qos=1),)))
    world.connect("p").send(p.Publish(topic="t", payload=b"1", qos=1, packet_id=1))
    assert len(subscriber.publishes()) == 1
    subscriber.lose()
    world.node.close(world.now)
    disk.unlock()
    world.node = BrokerNode(config, disk, random.Random(2), world.now)
    world.clients.clear()
    assert "t" in world.node.state.sessions["s"].subscriptions
    back = world.connect("s", clean_start=False, properties=lasting)
    world.connect("q").send(p.Publish(topic="t", payload=b"2", qos=1, packet_id=1))
    assert [packet.payload for packet in back.publishes()][-1] == b"2"
