"""``$SYS`` figures: who gets them, when they are built, and that they are right."""

from __future__ import annotations

import random

import pytest

from assay.reference_broker.config import BrokerConfig, SysConfig
from assay.reference_broker.core.routing import Subscription
from assay.reference_broker.mqtt.sessions.mqtt_broker import ConnectRequest, MqttBroker
from assay.reference_broker.mqtt.sessions.session import Session
from assay.reference_broker.mqtt.sessions.sys_topics import SysTopics
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.queues import Delivery
from assay.reference_broker.queues.groups.delivery_run import DeliveryRun
from assay.reference_broker.routing.message import Message

START = 1_000.0


class Inbox:
    """A session's connection that keeps what it is sent."""

    def __init__(self) -> None:
        self.received: list[tuple[Message, bool]] = []
        self.is_full = False

    def has_turn(self) -> bool:
        return True

    def send_publish(
        self, packet_id: int, message: Message, qos: int, retain: bool, dup: bool, identifiers: tuple[int, ...]
    ) -> bool:
        self.received.append((message, retain))
        return True

    def send_delivery(self, packet_id: int, delivery: Delivery) -> bool | None:
        return None

    def send_delivery_run(self, first_id: int, run: DeliveryRun) -> bool:
        return False

    def send_pubrel(self, packet_id: int) -> None:
        raise AssertionError

    def close_as_slow(self, now: float) -> None:
        raise NotImplementedError

    def go_on_publishing(self) -> None:
        raise NotImplementedError

    def close_for_takeover(self, now: float) -> None:
        pass

    def await_write(self, turn: int) -> None:
        pass

    def take(self) -> dict[str, str]:
        """Values by topic, each sent at most once."""
        taken, self.received = self.received, []
        values = {message.topic: message.payload.decode() for message, _ in taken}
        assert len(values) == len(taken)
        return values


def _state(interval_s: float = 10.0) -> MqttBroker:
    config = BrokerConfig(sys=SysConfig(interval_s=interval_s))
    return BrokerNode(config, None, random.Random(1), START).state


def _connect(state: MqttBroker, client_id: str, expiry_s: float = 0.0, now: float = START) -> tuple[Session, Inbox]:
    inbox = Inbox()
    request = ConnectRequest(client_id=client_id, clean_start=False, expiry_s=expiry_s, window=10, will=None)
    return state.connect(inbox, request, now)[0], inbox


def _is_active(state: MqttBroker) -> bool:
    return state.sys_topics.active


def _subscribe(state: MqttBroker, session: Session, topic_filter: str, now: float = START) -> None:
    """With what a protocol does after it."""
    subscription = Subscription(topic_filter=topic_filter, qos=1)
    assert state.subscribe(session, topic_filter, subscription, None, now).error is None
    state.send_retained(session, subscription, now)
    state.now = now
    state.sending.go_on(now)


def test_a_new_subscriber_gets_every_value_at_once_marked_as_retained() -> None:
    state = _state()
    session, inbox = _connect(state, "dashboard")
    _subscribe(state, session, "$SYS/#", START + 61.9)
    assert {retain for _, retain in inbox.received} == {True}
    values = inbox.take()
    assert values.pop("$SYS/broker/version").startswith("assay version ")
    assert int(values.pop("$SYS/broker/subscriptions/bytes")) > 0
    assert int(values.pop("$SYS/broker/routes/bytes")) >= 0
    assert values == {
        "$SYS/broker/uptime": "61 seconds",
        "$SYS/broker/clients/connected": "1",
        "$SYS/broker/clients/active": "1",
        "$SYS/broker/clients/disconnected": "0",
        "$SYS/broker/clients/inactive": "0",
        "$SYS/broker/clients/total": "1",
        "$SYS/broker/clients/maximum": "1",
        "$SYS/broker/subscriptions/count": "1",
        "$SYS/broker/shared_subscriptions/count": "0",
        "$SYS/broker/retained messages/count": "0",
        "$SYS/broker/publish/messages/received": "0",
        "$SYS/broker/publish/messages/sent": "0",
        "$SYS/broker/publish/messages/dropped": "0",
        "$SYS/broker/publish/bytes/received": "0",
        "$SYS/broker/publish/bytes/sent": "0",
        "$SYS/broker/bytes/received": "0",
        "$SYS/broker/bytes/sent": "0",
        "$SYS/broker/retained messages/bytes": "0",
        "$SYS/broker/topic aliases/bytes": "0",
        "$SYS/broker/partial packets/bytes": "0",
        "$SYS/broker/store/messages/bytes": "0",
        "$SYS/broker/bytes/unread": "0",
        "$SYS/broker/bytes/waiting": "0",
        "$SYS/broker/clients/connecting": "0",
        "$SYS/broker/clients/handshakes": "0",
        "$SYS/broker/queues/known/bytes": "0",
        "$SYS/broker/queues/partitions/count": "0",
        "$SYS/broker/queues/groups/count": "0",
        "$SYS/broker/queues/memory/bytes": "0",
        "$SYS/broker/queues/count": "0",
    }
    assert len(state.retained) == 0, "they are not kept"


@pytest.mark.parametrize("topic_filter", ["#", "+/broker/uptime", "+/#", "$SYSTEM/#", "/$SYS/#"])
def test_filters_outside_get_nothing(topic_filter: str) -> None:
    state = _state()
    session, inbox = _connect(state, "c")
    _subscribe(state, session, topic_filter)
    other, other_inbox = _connect(state, "d")
    _subscribe(state, other, "$SYS/broker/uptime")
    assert other_inbox.take() == {"$SYS/broker/uptime": "0 seconds"}
    state.tick(START + 10)
    assert other_inbox.take() == {"$SYS/broker/uptime": "10 seconds"}
    assert not inbox.take(), "not even while somebody else keeps the values coming"


def test_values_come_every_interval_and_only_those_somebody_gets_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    original = SysTopics._message

    def counted(self: SysTopics, name: str, now: float) -> Message:
        built.append(name)
        return original(self, name, now)

    monkeypatch.setattr(SysTopics, "_message", counted)
    state = _state(5.0)
    session, inbox = _connect(state, "c")
    _subscribe(state, session, "a/#")
    assert state.next_deadline() is None, "no timer while nobody is subscribed"
    assert not built
    _subscribe(state, session, "$SYS/broker/clients/+", START + 1)
    assert state.next_deadline() == START + 6
    inbox.take()
    built.clear()
    state.tick(START + 5.9)
    assert not built
    _connect(state, "later", now=START + 6)
    state.tick(START + 6)
    assert inbox.take()["$SYS/broker/clients/connected"] == "2"
    assert len(built) == len(set(built)) == 8
    assert all(name.startswith("clients/") for name in built)
    assert state.next_deadline() == START + 11
    state.unsubscribe(session, "$SYS/broker/clients/+", START + 7)
    assert state.next_deadline() is None
    assert not state.sys_topics.active


def test_the_refresh_ends_with_the_last_subscriber_however_it_leaves() -> None:
    state = _state()
    first, first_inbox = _connect(state, "first")
    second, _ = _connect(state, "second", expiry_s=100)
    for session in (first, second):
        _subscribe(state, session, "$SYS/#")
        _subscribe(state, session, "$SYS/#")  # again: replaces
    state.disconnect(first, first_inbox, START, publish_will=False)
    assert state.sys_topics.active
    connection = second.connection
    assert connection is not None
    state.disconnect(second, connection, START, publish_will=False)
    assert state.sys_topics.active, "the session keeps its subscription"
    state.tick(START + 10)
    assert not second.queued, "nothing piles up for who is offline"
    state.tick(START + 100)
    assert not _is_active(state)
    assert state.next_deadline() is None


def test_a_live_message_is_not_marked_as_retained_and_the_version_is_not_repeated() -> None:
    state = _state()
    session, inbox = _connect(state, "c")
    _subscribe(state, session, "$SYS/#")
    inbox.take()
    state.tick(START + 10)
    assert {retain for _, retain in inbox.received} == {False}
    values = inbox.take()
    assert "$SYS/broker/version" not in values
    assert values["$SYS/broker/uptime"] == "10 seconds"


def test_an_interval_of_0_switches_them_off() -> None:
    state = _state(0.0)
    session, inbox = _connect(state, "c")
    _subscribe(state, session, "$SYS/#")
    assert not inbox.take()
    assert state.next_deadline() is None


def test_figures_follow_what_happens() -> None:
    state = _state()
    watcher, inbox = _connect(state, "watcher")
    _subscribe(state, watcher, "$SYS/#")
    kept, kept_inbox = _connect(state, "kept", expiry_s=1_000)
    _subscribe(state, kept, "a/+")
    shared = Subscription(topic_filter="b", qos=1, share_name="g")
    state.subscribe(kept, "$share/g/b", shared, None, START)
    _connect(state, "kept", expiry_s=1_000)  # takes its own session over
    third, third_inbox = _connect(state, "third")
    state.publish(Message(topic="r", payload=b"x", retain=True), None, START)
    state.disconnect(third, third_inbox, START, publish_will=False)
    inbox.take()
    state.tick(START + 10)
    values = inbox.take()
    expected = {
        "clients/connected": "2",
        "clients/disconnected": "0",
        "clients/total": "2",
        "clients/maximum": "3",
        "subscriptions/count": "3",
        "shared_subscriptions/count": "1",
        "retained messages/count": "1",
    }
    assert {name: values[f"$SYS/broker/{name}"] for name in expected} == expected
    state.disconnect(kept, kept_inbox, START + 10, publish_will=False)  # of the old connection: ignored
    connection = kept.connection
    assert connection is not None
    state.disconnect(kept, connection, START + 10, publish_will=False)
    state.end_session(kept, START + 11)
    inbox.take()
    state.tick(START + 20)
    values = inbox.take()
    assert values["$SYS/broker/clients/total"] == "1"
    assert values["$SYS/broker/subscriptions/count"] == "1"
    assert values["$SYS/broker/shared_subscriptions/count"] == "0"
