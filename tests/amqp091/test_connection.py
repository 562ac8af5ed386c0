"""The handshake, frames, heartbeats and the end of connections."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from assay.reference_broker.amqp091.connection import MAX_UNCONFIRMED, Phase
from assay.reference_broker.amqp091.wire.content import NONE, BasicProperties, encode_header
from assay.reference_broker.amqp091.wire.fields import table as table_bytes
from assay.reference_broker.amqp091.wire.frames import (
    HEARTBEAT,
    PROTOCOL_HEADER,
    FrameType,
    content_frames,
    frame,
    read_frame,
)
from assay.reference_broker.amqp091.wire.methods import BY_NAME, encode_method
from assay.reference_broker.auth import hash_password
from assay.reference_broker.config import (
    AclConfig,
    AclRuleConfig,
    AuthConfig,
    ListenerConfig,
    ListenerProtocol,
    MqttConfig,
    Permission,
    QueuesConfig,
    UserConfig,
)
from assay.reference_broker.config_amqp091 import Amqp091Config
from assay.reference_broker.routing.properties import Kind, Typed
from tests.support.amqp_client import NOW, AmqpClient, Said, make_node, table, turn

PASSWORD = hash_password(b"right")
SECURED: dict[str, Any] = {"auth": AuthConfig(users=(UserConfig(username="u", password_hash=PASSWORD),))}


def started(**config: Any) -> AmqpClient:
    """A client that is to say start-ok."""
    c = AmqpClient(make_node(**config), connected=False)
    c.send_raw(PROTOCOL_HEADER)
    assert [said.name for said in c.hear()] == ["connection.start"]
    return c


def start_ok(c: AmqpClient, mechanism: str, response: bytes, *capabilities: str) -> list[Said]:
    pairs = [(Typed(Kind.TEXT, name), Typed(Kind.BOOL, True)) for name in capabilities]
    can = Typed(Kind.MAP, tuple(part for pair in pairs for part in pair))
    return c.say(0, "connection.start-ok", (("capabilities", can),), mechanism, response, "en_US")


@pytest.mark.parametrize("header", [b"HTTP/1.1", b"AMQP\x00\x02\x00\x00", b"AMQP\x03\x01\x00\x00", b"GET / HT"])
def test_another_protocol_is_told_what_is_spoken_here(header: bytes) -> None:
    c = AmqpClient(make_node(), connected=False)
    c.send_raw(header)
    assert c.hear() == [Said(0, "header", (PROTOCOL_HEADER,))]
    assert c.end.may_close


def test_a_handshake_may_come_byte_by_byte() -> None:
    c = AmqpClient(make_node(), connected=False)
    for byte in PROTOCOL_HEADER:
        c.send_raw(bytes((byte,)))
    start = c.only(c.hear())
    assert start.values[:2] == (0, 9)
    assert start.values[3] == b"PLAIN AMQPLAIN"
    method = encode_method(BY_NAME["connection.start-ok"], (), "PLAIN", b"\0guest\0guest", "en_US")
    for byte in frame(FrameType.METHOD, 0, method):
        c.send_raw(bytes((byte,)))
    assert c.only(c.hear()).name == "connection.tune"


@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN"])
@pytest.mark.parametrize("password", ["right", "wrong"])
def test_a_password_decides(mechanism: str, password: str) -> None:
    c = started(**SECURED)
    plain = f"\0u\0{password}".encode()
    response = plain if mechanism == "PLAIN" else table_bytes(table(LOGIN="u", PASSWORD=password))[4:]
    said = start_ok(c, mechanism, response, "authentication_failure_close")
    if password == "right":
        assert c.only(said).name == "connection.tune"
    else:
        assert (c.only(said).name, said[0].values[0]) == ("connection.close", 403)


def test_who_does_not_understand_a_refusal_is_cut_without_a_word() -> None:
    c = started(**SECURED)
    assert start_ok(c, "PLAIN", b"\0u\0wrong") == []
    assert c.end.may_close
    c = started()
    assert start_ok(c, "NTLM", b"") == []
    assert c.end.may_close


def test_what_waited_for_a_login_counts_no_more_behind_it() -> None:
    c = started(**SECURED)
    partial = c.node.state.partial_packets
    frames = (
        encode_method(BY_NAME["connection.start-ok"], (), "PLAIN", b"\0u\0right", "en_US"),
        encode_method(BY_NAME["connection.tune-ok"], 10, 4_096, 0),
        encode_method(BY_NAME["connection.open"], "/"),
    )
    c.send_raw(b"".join(frame(FrameType.METHOD, 0, each) for each in frames))
    assert partial.used_bytes == sum(len(each) + 8 for each in frames[1:]), "they wait for the password to be checked"
    assert [said.name for said in c.hear()] == ["connection.tune", "connection.open-ok"]
    assert partial.used_bytes == 0


@pytest.mark.parametrize(
    "response", [b"", b"guest", b"\0\0guest", b"other\0guest\0guest", b"\0\xff\0x", b"\0guest\0guest\0"]
)
def test_a_response_that_is_none_is_refused(response: bytes) -> None:
    c = started()
    said = start_ok(c, "PLAIN", response, "authentication_failure_close")
    assert said[-1].values[0] == 403


@pytest.mark.parametrize(
    ("channel_max", "frame_max"), [(2_048, 131_072), (0, 131_072), (2_047, 131_073), (2_047, 0), (2_047, 4_095)]
)
def test_what_was_not_offered_ends_the_connection_without_a_close(channel_max: int, frame_max: int) -> None:
    c = started()
    start_ok(c, "PLAIN", b"\0guest\0guest")
    assert c.say(0, "connection.tune-ok", channel_max, frame_max, 0) == []
    assert c.end.may_close


def test_an_unknown_virtual_host_is_refused() -> None:
    c = started()
    start_ok(c, "PLAIN", b"\0guest\0guest")
    c.say(0, "connection.tune-ok", 2_047, 131_072, 0)
    said = c.only(c.say(0, "connection.open", "/other"))
    assert (said.name, said.values[0]) == ("connection.close", 530)


def test_the_negotiated_frame_size_and_channel_number_hold() -> None:
    c = started()
    start_ok(c, "PLAIN", b"\0guest\0guest")
    c.say(0, "connection.tune-ok", 10, 4_096, 0)
    c.say(0, "connection.open", "/")
    c.open(10)
    c.declare("q", channel=10)
    method = encode_method(BY_NAME["basic.publish"], "", "q", False, False)
    content = content_frames(10, encode_header(10_000, NONE), bytes(10_000), 4_096)
    c.send_raw(frame(FrameType.METHOD, 10, method) + content)
    c.hear()
    c.send_raw(frame(FrameType.METHOD, 10, encode_method(BY_NAME["basic.get"], "q", True)))
    turn(c.node)
    data, at, sizes = c.end.take_output(), 0, []
    while (found := read_frame(data, at, 4_096)) is not None:
        sizes.append(len(found[0].payload))
        at = found[1]
    assert sizes[2:] == [4_088, 4_088, 10_000 - 2 * 4_088]
    assert c.only(c.say(11, "channel.open")).values[0] == 504


def test_a_frame_larger_than_agreed_ends_the_connection() -> None:
    c = AmqpClient(make_node())
    c.send_raw(b"\x01\x00\x00\x00\x02\x00\x00")
    assert c.only(c.hear()).values[0] == 501


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(FrameType.HEADER, 0, b""), 505),
        (frame(FrameType.HEARTBEAT, 1, b""), 501),
        (frame(FrameType.BODY, 1, b"x"), 505),
        (frame(FrameType.HEADER, 1, bytes(14)), 505),
        (frame(FrameType.METHOD, 2, encode_method(BY_NAME["basic.qos"], 0, 1, False)), 504),
        (frame(FrameType.METHOD, 1, encode_method(BY_NAME["connection.open"], "/")), 503),
        (frame(FrameType.METHOD, 0, encode_method(BY_NAME["channel.open"])), 503),
        (frame(FrameType.METHOD, 0, encode_method(BY_NAME["connection.open"], "/")), 503),
        (frame(FrameType.METHOD, 1, b"\x00\x4d\x00\x0a"), 540),
        (b"\x04\x00\x00\x00\x00\x00\x00\xce", 501),
    ],
    ids=[
        "content on channel 0",
        "heartbeat on a channel",
        "body without method",
        "header without method",
        "a channel that is not open",
        "a connection's method on a channel",
        "a channel's method on channel 0",
        "open twice",
        "an unknown class",
        "an unknown frame",
    ],
)
def test_a_frame_that_does_not_belong_there_ends_the_connection(sent: bytes, code: int) -> None:
    c = AmqpClient(make_node())
    c.open(1)
    c.send_raw(sent)
    said = c.only(c.hear())
    assert (said.name, said.values[0]) == ("connection.close", code)
    assert c.say(1, "basic.qos", 0, 1, False) == [], "connection.close.stability"
    assert c.say(0, "connection.close-ok") == []
    assert c.end.may_close


def test_a_method_within_content_ends_the_connection() -> None:
    c = AmqpClient(make_node())
    c.open()
    c.declare("q")
    publish = frame(FrameType.METHOD, 1, encode_method(BY_NAME["basic.publish"], "", "q", False, False))
    c.send_raw(publish + publish)
    assert c.only(c.hear()).values[0] == 505


def test_a_body_of_more_than_was_announced_ends_the_connection() -> None:
    c = AmqpClient(make_node())
    c.open()
    publish = frame(FrameType.METHOD, 1, encode_method(BY_NAME["basic.publish"], "", "q", False, False))
    header = frame(FrameType.HEADER, 1, b"\x00\x3c\x00\x00" + (1).to_bytes(8, "big") + b"\x00\x00")
    c.send_raw(publish + header + frame(FrameType.BODY, 1, b"xy"))
    assert c.only(c.hear()).values[0] == 501
    assert c.end.content_bytes == 0, "nothing of it was taken (fuzzing: more was given back than was counted)"


def test_a_message_larger_than_the_broker_takes_closes_the_channel_from_its_header() -> None:
    c = AmqpClient(make_node())
    c.open()
    publish = frame(FrameType.METHOD, 1, encode_method(BY_NAME["basic.publish"], "", "q", False, False))
    header = frame(FrameType.HEADER, 1, b"\x00\x3c\x00\x00" + (1 << 40).to_bytes(8, "big") + b"\x00\x00")
    c.send_raw(publish + header)
    said = c.only(c.hear())
    assert (said.name, said.values[0]) == ("channel.close", 311)
    c.say(1, "channel.close-ok")
    c.open()


def test_a_client_closes_and_is_answered() -> None:
    c = AmqpClient(make_node())
    assert c.only(c.say(0, "connection.close", 200, "bye", 0, 0)).name == "connection.close-ok"
    assert c.end.may_close


def connected_with_heartbeat(seconds: int) -> AmqpClient:
    c = started()
    start_ok(c, "PLAIN", b"\0guest\0guest")
    c.say(0, "connection.tune-ok", 2_047, 131_072, seconds)
    c.say(0, "connection.open", "/")
    return c


def test_heartbeats_are_sent_and_a_silent_client_is_cut_after_two() -> None:
    c = connected_with_heartbeat(10)
    beats = 0
    while not c.end.is_over:
        c.now += 1
        beats += sum(said.name == "heartbeat" for said in c.hear())
        assert c.now < NOW + 60
    assert 20 <= c.now - NOW <= 26
    assert beats >= 3
    assert c.end.cut


def test_a_client_that_only_beats_stays() -> None:
    c = connected_with_heartbeat(10)
    for _ in range(20):
        c.now += 9
        c.send_raw(HEARTBEAT)
        c.hear()
    assert not c.end.is_over


def test_without_heartbeats_silence_is_allowed() -> None:
    c = connected_with_heartbeat(0)
    c.now += 10_000
    assert c.hear() == []
    assert not c.end.is_over


def test_a_handshake_has_its_time() -> None:
    c = started()
    c.now += 11
    turn(c.node, c.now)
    assert c.end.is_over


def test_who_is_read_no_more_waits_for_the_disk() -> None:
    c = AmqpClient(make_node())
    c.open()
    c.declare("q")
    publish = frame(FrameType.METHOD, 1, encode_method(BY_NAME["basic.publish"], "", "q", False, False))
    header = frame(FrameType.HEADER, 1, b"\x00\x3c\x00\x00" + bytes(8) + b"\x00\x00")
    while c.end.unconfirmed <= MAX_UNCONFIRMED:
        c.send_raw((publish + header) * 256)
        c.node.take_dirty(c.now)
    assert c.end.wants_pause
    c.hear()
    assert not c.end.wants_pause


def test_a_turn_handles_a_bounded_number_of_frames() -> None:
    c = AmqpClient(make_node())
    c.open()
    many = frame(FrameType.METHOD, 1, encode_method(BY_NAME["basic.qos"], 0, 1, False)) * 3_000
    c.send_raw(many)
    assert c.end.take_output().count(b"\x00\x3c\x00\x0b") == 1_024
    assert c.end.wants_pause
    turn(c.node, c.now)
    assert c.end.take_output().count(b"\x00\x3c\x00\x0b") == 3_000 - 1_024
    assert not c.end.wants_pause


def test_access_rules_decide_about_queues_and_exchanges() -> None:
    rules = (
        AclRuleConfig(topic="$queue/mine", access=Permission.READWRITE),
        AclRuleConfig(topic="$exchange/news", access=Permission.WRITE),
    )
    acl = AclConfig(rules=rules)
    c = AmqpClient(make_node(acl=acl))
    for name, values, code in (
        ("queue.declare", ("other", False, True, False, False, False, ()), 403),
        ("basic.get", ("other", False), 403),
        ("exchange.declare", ("other", "direct", False, True, False, False, False, ()), 403),
        ("queue.declare", ("mine", False, True, False, False, False, ()), 0),
        ("exchange.declare", ("news", "direct", False, True, False, False, False, ()), 0),
        ("queue.bind", ("mine", "news", "k", False, ()), 403),
    ):
        c.open()
        said = c.only(c.say(1, name, *values))
        assert (said.values[0] if said.name == "channel.close" else 0) == code, (name, said)
        c.say(1, "channel.close-ok" if code else "channel.close", *(() if code else (0, "", 0, 0)))


def test_a_listener_has_the_port_of_its_protocol() -> None:
    assert ListenerConfig().port == 1_883
    assert ListenerConfig(protocols=(ListenerProtocol.AMQP091,)).port == 5_672
    assert ListenerConfig(protocols=(ListenerProtocol.AMQP091,), port=1_883).port == 1_883


def test_everything_ends_with_the_broker() -> None:
    c = AmqpClient(make_node(queues=QueuesConfig()))
    c.open()
    c.node.close(NOW)
    c.node.take_dirty(NOW)
    assert c.end.phase is Phase.OVER
    assert c.end.may_close


def test_further_routing_keys_lead_nowhere_that_the_client_may_not_write() -> None:
    acl = AclConfig(rules=(AclRuleConfig(topic="$queue/mine", access=Permission.READWRITE),))
    c = AmqpClient(make_node(acl=acl))
    c.open()
    c.declare("mine")
    c.node.engine.create_queue("other", {}, NOW)
    for name in ("CC", "BCC"):
        keys = Typed(Kind.LIST, (Typed(Kind.TEXT, "other"),))
        said = c.publish("mine", b"x", BasicProperties(headers=((name, keys),)))
        assert (said[-1].name, said[-1].values[0]) == ("channel.close", 403)
        c.say(1, "channel.close-ok")
        c.open()
    assert c.get("mine").name == "basic.get-empty"


def test_further_routing_keys_find_queues_of_mqtt_and_are_not_all_told() -> None:
    c = AmqpClient(make_node())
    c.open()
    c.declare("q")
    c.node.engine.create_queue("other", {"partitions": 1}, NOW)
    keys = Typed(Kind.LIST, (Typed(Kind.TEXT, "other"),))
    c.publish("q", b"x", BasicProperties(headers=(("BCC", keys),)))
    got = [c.get("q"), c.get("other")]
    assert [(each.body, each.values[2:4]) for each in got] == [(b"x", ("", "q"))] * 2
    assert all(each.properties is not None and each.properties.headers is None for each in got)


def content_of(size: int, sent: int) -> bytes:
    """The beginning of a publish."""
    publish = frame(FrameType.METHOD, 1, encode_method(BY_NAME["basic.publish"], "", "q", False, False))
    header = frame(FrameType.HEADER, 1, b"\x00\x3c\x00\x00" + size.to_bytes(8, "big") + b"\x00\x00")
    return publish + header + frame(FrameType.BODY, 1, bytes(sent))


def test_messages_that_have_begun_are_bounded_over_all_connections() -> None:
    node = make_node(mqtt=MqttConfig(max_partial_bytes=100_000))
    slow, other = AmqpClient(node), AmqpClient(node)
    for c in (slow, other):
        c.open()
    slow.send_raw(content_of(1_000_000, 60_000))
    other.now += 1
    other.send_raw(content_of(1_000_000, 30_000))
    assert not slow.end.is_over
    other.send_raw(frame(FrameType.BODY, 1, bytes(30_000)))
    assert slow.end.is_over
    assert not other.end.is_over
    other.send_raw(b"\x01\x00\x01")
    assert node.state.partial_packets.used_bytes == 60_003
    other.say(0, "connection.close", 200, "", 0, 0)
    assert node.state.partial_packets.used_bytes == 0


def test_what_a_whole_message_took_counts_no_more() -> None:
    c = AmqpClient(make_node())
    c.open()
    c.declare("q")
    c.send_raw(content_of(1_000, 400))
    assert c.node.state.partial_packets.used_bytes == 400
    c.send_raw(frame(FrameType.BODY, 1, bytes(600)))
    assert c.node.state.partial_packets.used_bytes == 0
    c.send_raw(content_of(1_000, 400))
    c.say(1, "channel.close", 0, "", 0, 0)
    assert c.end.phase is Phase.CLOSING, "a method where content belongs"
    assert c.end.content_bytes == 0


def test_consumers_of_a_connection_are_bounded() -> None:
    c = AmqpClient(make_node(amqp091=Amqp091Config(max_consumers=3)))
    c.open()
    c.declare("q")
    c.get("q")
    c.consume("q", "a")
    c.open(2)
    c.consume("q", "b", channel=2)
    c.get("q")
    said = c.consume("q", "c", channel=2)
    assert (said[-1].name, said[-1].values[0]) == ("connection.close", 506)


@pytest.mark.parametrize("change", ["user", "rules"])
def test_a_reload_holds_for_who_is_connected(change: str) -> None:
    rules = (
        AclRuleConfig(topic="#", access=Permission.READWRITE),
        AclRuleConfig(topic="$queue/#", access=Permission.READWRITE),
    )
    c = started(**SECURED, acl=AclConfig(rules=rules))
    start_ok(c, "PLAIN", b"\0u\0right")
    c.say(0, "connection.tune-ok", 2_047, 131_072, 0)
    c.say(0, "connection.open", "/")
    c.open()
    c.declare("q")
    c.consume("q")
    config = c.node.config
    if change == "user":
        other = UserConfig(username="u", password_hash=hash_password(b"another"))
        config = msgspec.structs.replace(config, auth=AuthConfig(users=(other,)))
    else:
        config = msgspec.structs.replace(config, acl=AclConfig(rules=rules[:1]))
    c.node.reload(config, c.now)
    said = c.only(c.hear())
    assert (said.name, said.values[0]) == (("connection.close", 320) if change == "user" else ("channel.close", 403))
    if change == "rules":
        c.say(1, "channel.close-ok")
        c.open()
        assert c.publish("q", b"x")[-1].values[0] == 403
