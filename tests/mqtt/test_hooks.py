"""Hooks over MQTT: what is asked, what an answer does, and that a client's packets keep their order meanwhile."""

from __future__ import annotations

import base64
import random
from typing import Any

import msgspec
import pytest

from assay.reference_broker.config import (
    AclConfig,
    AclRuleConfig,
    BrokerConfig,
    HookFailure,
    HookKind,
    HooksConfig,
    MqttConfig,
    Permission,
)
from assay.reference_broker.core.hooks import MAX_REASON, Hooks
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.queues.jobs.outbox import OutboundRequest
from tests.mqtt.conftest import Client, World

URL = "https://hooks.example/hooks"
OK, DENY = b'{"result": "ok"}', b'{"result": "deny", "reason": "not today"}'
BOTH = [p.V311, p.V5]


class Bench(World):
    """A broker with hooks, and who answers them."""

    def __init__(self, config: BrokerConfig | None = None, **settings: Any) -> None:
        hooks = HooksConfig(url=URL, **settings)
        super().__init__(msgspec.structs.replace(config or BrokerConfig(), hooks=hooks))

    @property
    def hooks(self) -> Hooks:
        hooks = self.node.state.hooks
        assert hooks is not None
        return hooks

    def asked(self) -> list[OutboundRequest]:
        return self.hooks.outbox.take(self.now)

    def answer(self, *bodies: bytes | None) -> list[dict[str, Any]]:
        """Answer so many questions in turn; returns what was asked."""
        found: list[dict[str, Any]] = []
        for body in bodies:
            (request,) = self.asked()
            found.append(msgspec.json.decode(request.body))
            self.hooks.outbox.done(request, accepted=body is not None, now=self.now, answer=body or b"")
            self.turn()
        return found


def publish(payload: bytes = b"x", topic: str = "t/1", qos: int = 1, packet_id: int = 1, **more: Any) -> p.Publish:
    return p.Publish(topic=topic, payload=payload, qos=qos, packet_id=packet_id if qos else 0, **more)


def subscribe(*filters: str, packet_id: int = 9) -> p.Subscribe:
    requests = tuple(p.SubscriptionRequest(topic_filter=each, qos=1) for each in filters)
    return p.Subscribe(packet_id=packet_id, requests=requests)


def subscriber(bench: Bench, topic_filter: str = "#") -> Client:
    client = bench.connect("listener")
    client.send(subscribe(topic_filter))
    if bench.hooks.asks(HookKind.SUBSCRIBE, topic_filter):
        bench.answer(OK)
    client.take()
    return client


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_packets_behind_one_that_is_asked_about_keep_their_order(version: int, qos: int) -> None:
    bench = Bench()
    listener = subscriber(bench)
    client = bench.connect("c", version)
    client.take()
    came = client.send(publish(b"a", qos=qos), publish(b"b", qos=0), p.Pingreq())
    assert came == []
    assert client.connection.wants_pause
    first, second = bench.answer(OK, OK)
    assert [base64.b64decode(each["payload"]) for each in (first, second)] == [b"a", b"b"]
    kinds = [type(each) for each in client.inbox]
    assert kinds == [p.Acknowledgement] * (qos > 0) + [p.Pingresp]
    assert [each.payload for each in listener.publishes()] == [b"a", b"b"]


def test_what_is_asked() -> None:
    bench = Bench(token="t0ken")
    client = bench.connect("c")
    properties = p.Properties(user_property=(("k", "v"),))
    client.send(publish(b"\xff", qos=2, retain=True, properties=properties), subscribe("a/+"))
    (request,) = bench.asked()
    assert (request.url, request.timeout_s) == (URL, 0.5)
    assert request.headers == (("Authorization", "Bearer t0ken"),)
    assert msgspec.json.decode(request.body) == {
        "hook": "auth_on_publish",
        "client_id": "c",
        "external_id": "",
        "username": None,
        "protocol": "mqtt",
        "topic": "t/1",
        "payload": "/w==",
        "qos": 2,
        "retain": True,
        "properties": {"k": "v"},
    }
    bench.hooks.outbox.done(request, accepted=True, now=bench.now, answer=OK)
    bench.turn()
    (second,) = bench.answer(OK)
    assert (second["hook"], second["topic"], second["qos"]) == ("auth_on_subscribe", "a/+", 1)


def test_who_is_refused_is_told_and_goes_on() -> None:
    bench = Bench()
    listener = subscriber(bench)
    client = bench.connect("c")
    client.take()
    traffic = bench.node.state.traffic
    before = traffic.publishes_received, traffic.payload_bytes_received
    client.send(publish(qos=0), publish(packet_id=1), publish(qos=2, packet_id=2), publish(b"yy", packet_id=3))
    bench.answer(DENY, DENY, DENY, OK)
    assert (traffic.publishes_received - before[0], traffic.payload_bytes_received - before[1]) == (4, 5), "all came"
    first, second, third = client.inbox
    assert isinstance(first, p.Acknowledgement)
    assert (first.packet_id, first.reason, first.properties.reason_string) == (1, 0x87, "not today")
    assert isinstance(second, p.Acknowledgement)
    assert (second.type, second.reason) == (p.PacketType.PUBREC, 0x87)
    assert isinstance(third, p.Acknowledgement)
    assert (third.packet_id, third.reason) == (3, 0)
    assert [each.payload for each in listener.publishes()] == [b"yy"]
    assert client.connection.session is not None
    assert client.connection.session.inbound_qos2 == {}, "the id is free again"


def test_a_refused_publish_of_qos_2_needs_a_place_as_any_other() -> None:
    bench = Bench(BrokerConfig(mqtt=MqttConfig(receive_maximum=2)))
    client = bench.connect("c")
    client.send(*(publish(qos=2, packet_id=number) for number in (1, 2)), publish(packet_id=3))
    bench.answer(OK, OK, DENY)
    assert not client.closed, "one of QoS 1 is answered at once"
    client.take()
    client.send(publish(qos=2, packet_id=4))
    bench.answer(DENY)
    assert [each.reason for each in client.inbox if isinstance(each, p.Disconnect)] == [0x93]


def test_a_reason_is_bounded() -> None:
    bench = Bench()
    client = bench.connect("c")
    client.take()
    client.send(publish())
    bench.answer(msgspec.json.encode({"result": "deny", "reason": "no" * MAX_REASON}))
    (answer,) = client.inbox
    assert isinstance(answer, p.Acknowledgement)
    assert answer.properties.reason_string == "no" * (MAX_REASON // 2)


def test_311_cannot_say_it_and_ends() -> None:
    bench = Bench()
    client = bench.connect("c", p.V311)
    client.send(publish())
    bench.answer(DENY)
    assert client.closed


def test_an_answer_changes_a_message() -> None:
    bench = Bench()
    listener = subscriber(bench)
    client = bench.connect("c")
    alias = p.Properties(topic_alias=1)
    client.send(publish(qos=2, properties=alias), publish(b"z", topic="", qos=0, properties=alias))
    changed = {"result": "ok", "topic": "moved", "payload": "eQ==", "retain": True, "properties": {"by": "hook"}}
    second = bench.answer(msgspec.json.encode(changed), b'{"result": "ok", "payload_set": true}')[1]
    assert second["topic"] == "t/1", "the alias stands for what the client said"
    one, two = listener.publishes()
    assert (one.topic, one.payload, one.properties.user_property) == ("moved", b"y", (("by", "hook"),))
    assert (two.topic, two.payload) == ("t/1", b"")
    late = bench.connect("late")
    late.send(subscribe("moved"))
    bench.answer(OK)
    assert [each.retain for each in late.publishes()] == [True]


def test_an_answer_that_leads_where_the_client_may_not_publish_is_a_refusal() -> None:
    rule = AclRuleConfig(topic="t/#", access=Permission.READWRITE)
    bench = Bench(BrokerConfig(acl=AclConfig(rules=(rule,))))
    client = bench.connect("c")
    client.take()
    client.send(publish(), publish(topic="elsewhere", packet_id=2))
    bench.answer(b'{"result": "ok", "topic": "elsewhere"}')
    assert bench.asked() == [], "nobody is asked about what the rules refuse"
    assert [each.reason for each in client.inbox if isinstance(each, p.Acknowledgement)] == [0x87, 0x87]


def test_each_filter_of_a_subscription_is_asked_about() -> None:
    bench = Bench()
    client = bench.connect("c")
    client.take()
    assert client.send(subscribe("a", "$share/g/b", "c"), p.Pingreq()) == []
    asked = bench.answer(OK, DENY, b'{"result": "ok", "qos": 0, "qos_set": true}')
    assert [each["topic"] for each in asked] == ["a", "b", "c"]
    suback, pong = client.inbox
    assert isinstance(suback, p.Suback)
    assert suback.reasons == (1, 0x87, 0)
    assert isinstance(pong, p.Pingresp)


def test_a_queue_is_asked_about_but_not_what_settles() -> None:
    bench = Bench()
    client = bench.connect("c")
    client.send(subscribe("$queue/jobs"))
    bench.answer(OK)
    client.take()
    client.send(publish(topic="$queue/jobs"))
    assert bench.answer(OK)[0]["topic"] == "$queue/jobs"
    (delivery,) = client.publishes()
    ids = tuple(pair for pair in delivery.properties.user_property if pair[0] == "message-id")
    properties = p.Properties(user_property=ids)
    client.send(publish(b"", topic="$queue/jobs/$ack", packet_id=2, properties=properties))
    assert bench.asked() == []
    assert bench.node.engine.stats("jobs").groups[0].acked == 1


@pytest.mark.parametrize(
    "body",
    [
        None,
        b"no JSON",
        b"{}",
        b'{"result": "perhaps"}',
        b'{"result": "ok", "topic": "a/#"}',
        b'{"result": "ok", "qos": 0}',
        b'{"result": "ok", "properties": {"a": "\\u0000"}}',
        b'{"result": "ok", "payload": "?"}',
    ],
)
@pytest.mark.parametrize("fail", HookFailure)
def test_without_an_answer_it_is_as_configured(body: bytes | None, fail: HookFailure) -> None:
    bench = Bench(fail=fail, breaker_failures=0)
    client = bench.connect("c")
    client.take()
    client.send(publish())
    bench.answer(body)
    (answer,) = client.inbox
    assert isinstance(answer, p.Acknowledgement)
    assert answer.reason == (0x87 if fail is HookFailure.DENY else 0x10)
    assert bench.hooks.undecided == 1


def test_nobody_waits_while_nobody_answers() -> None:
    bench = Bench(fail=HookFailure.ALLOW, breaker_failures=2, breaker_pause_s=10.0)
    client = bench.connect("c")
    client.take()
    client.send(*[publish(packet_id=number) for number in range(1, 6)])
    bench.answer(None, None)
    assert len(client.inbox) == 5, "the others are not asked about"
    assert bench.asked() == []
    bench.now += 10.0
    client.send(publish())
    bench.answer(OK)
    assert len(client.inbox) == 6


def test_questions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.reference_broker.core.callouts.MAX_CALLOUTS", 3)
    bench = Bench(fail=HookFailure.DENY)
    clients = [bench.connect(f"c{number}") for number in range(5)]
    for client in clients:
        client.take()
        client.send(publish())
    assert [len(client.inbox) for client in clients] == [0, 0, 0, 1, 1]
    assert bench.hooks.undecided == 2


def test_questions_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.reference_broker.core.hooks.MAX_ASKED_BYTES", 1_000)
    bench = Bench(fail=HookFailure.ALLOW)
    first, second = bench.connect("a"), bench.connect("b")
    first.send(publish(bytes(600)))
    second.take()
    second.send(publish(bytes(600)))
    assert len(second.inbox) == 1
    bench.answer(OK)
    first.send(publish(bytes(600)))
    assert len(bench.asked()) == 1, "there is room again"


def test_some_topics_alone() -> None:
    bench = Bench(topics=("secret/#",), kinds=(HookKind.PUBLISH, HookKind.SUBSCRIBE))
    client = bench.connect("c")
    client.send(publish(), subscribe("public/#"))
    assert bench.asked() == []
    client.send(publish(topic="secret/1"))
    bench.answer(OK)
    client.send(subscribe("+/1"))
    assert bench.answer(OK)[0]["topic"] == "+/1", "it has a topic of these"


def test_a_client_that_went_meanwhile() -> None:
    bench = Bench()
    listener = subscriber(bench)
    client = bench.connect("c")
    client.send(publish(b"a", qos=0), publish(b"b", qos=0))
    client.lose()
    bench.answer(OK, OK)
    assert [each.payload for each in listener.publishes()] == [b"a", b"b"], "what came before it went is handled"
    taken_over = bench.connect("d")
    taken_over.send(publish(b"c", qos=0))
    bench.connect("d")
    bench.answer(OK)
    assert taken_over.closed
    assert len(listener.publishes()) == 2
    assert bench.node.state.traffic.waiting_bytes == 0


@pytest.mark.parametrize("version", BOTH)
def test_a_will_is_asked_about_before_its_client_is_let_in(version: int) -> None:
    bench = Bench()
    listener = subscriber(bench)
    will = p.WillFields(topic="gone", payload=b"w")
    allowed, refused = bench.open(version), bench.open(version)
    assert allowed.send(p.Connect(version=version, client_id="a", will=will), p.Pingreq()) == []
    (asked,) = bench.answer(OK)
    assert (asked["topic"], asked["client_id"], asked["payload"]) == ("gone", "a", "dw==")
    assert [type(each) for each in allowed.inbox] == [p.Connack, p.Pingresp]
    allowed.lose()
    assert [each.payload for each in listener.publishes()] == [b"w"]
    refused.send(p.Connect(version=version, client_id="b", will=will))
    bench.answer(DENY)
    (connack,) = refused.inbox
    assert isinstance(connack, p.Connack)
    assert connack.reason == (0x87 if version == p.V5 else 5)
    assert refused.closed


def test_lives_with_slow_hooks_end_as_without() -> None:
    """Packets of several clients, in any chunks, answered in any order: each client's keep theirs."""
    seed = random.randrange(1 << 32)
    print("seed:", seed)
    rng = random.Random(seed)
    bench = Bench(breaker_failures=0)
    listener = subscriber(bench)
    clients = [bench.connect(f"c{number}") for number in range(3)]
    sent: dict[int, list[bytes]] = {}
    for index, client in enumerate(clients):
        client.take()
        packets = [
            publish(f"{index}:{n}".encode(), topic=f"t/{n % 2}", qos=rng.randrange(3), packet_id=n + 1)
            for n in range(rng.randrange(20))
        ]
        sent[index] = [each.payload for each in packets]
        client.send(*packets)
    waiting: list[OutboundRequest] = []
    refused: set[bytes] = set()
    while waiting := waiting + bench.asked():
        request = waiting.pop(rng.randrange(len(waiting)))
        deny = rng.random() < 0.2
        if deny:
            refused.add(base64.b64decode(msgspec.json.decode(request.body)["payload"]))
        bench.hooks.outbox.done(request, accepted=True, now=bench.now, answer=DENY if deny else OK)
        bench.turn()
    got = [each.payload for each in listener.publishes()]
    for index in sent:
        own = [payload for payload in got if payload.startswith(f"{index}:".encode())]
        assert own == [payload for payload in sent[index] if payload not in refused]
