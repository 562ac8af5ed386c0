"""What one client has done in a turn is bounded, and grows with its bytes, whatever it sends and in whatever state.

Steps are counted, not time: lines of the broker's code that run, and bytes copied out of the chunk.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product

import pytest

from assay.reference_broker.config import BrokerConfig, QueuesConfig
from assay.reference_broker.config_mqtt import MqttConfig
from assay.reference_broker.core.broker import MAX_SLICES
from assay.reference_broker.mqtt.connections.connection import MAX_PACKETS, MqttConnection
from assay.reference_broker.mqtt.sessions.mqtt_broker import MAX_TIMERS
from tests.mqtt.turn_steps import Bench, packet, publish, subscribe, text, unsubscribe, user_property

_N = 1_200
"""Packets, or things in a packet; then twice as many."""
_MOST_PER_TURN = 620_000
"""Lines: up to 605 for each of the packets of a turn, which some answers take; about 25 ms."""
_MOST_RATIO = 2.3
_MOST_COPIES = 10
"""Bytes copied out of a chunk for each of its bytes."""

Prepared = tuple[Bench, MqttConnection]
Case = Callable[[int, int], tuple[Bench, MqttConnection, bytes]]
"""From version and count: the broker, who sends, and what."""


def _with_subscriber(version: int, *, qos: int = 1, receive_maximum: int = 0, queued: int = 10_000) -> Prepared:
    bench = Bench(BrokerConfig(mqtt=MqttConfig(max_queued_messages=queued)))
    subscriber = bench.connect("subscriber", 5 if receive_maximum else version, receive_maximum=receive_maximum)
    bench.feed(subscriber, subscribe(subscriber.version, "a", qos=qos))
    return bench, bench.connect("client", version)


def _burst(
    version: int, count: int, qos: int, topic: str = "a", properties: bytes = b"", payload: bytes = b""
) -> bytes:
    return b"".join(publish(version, topic, qos, 1 + i % 60_000, payload, 0, properties) for i in range(count))


def _window_full(version: int, count: int) -> tuple[Bench, MqttConnection, bytes]:
    return *_with_subscriber(version, receive_maximum=1), _burst(version, count, 1)


def _queue_full(version: int, count: int) -> tuple[Bench, MqttConnection, bytes]:
    return *_with_subscriber(version, receive_maximum=1, queued=10), _burst(version, count, 1)


def _qos_2_window_full(version: int, count: int) -> tuple[Bench, MqttConnection, bytes]:
    bench, client = _with_subscriber(version, qos=2, receive_maximum=1)
    return bench, client, b"".join(publish(version, "a", 2, 1 + i % 500) for i in range(count))


def _nobody(version: int, count: int) -> tuple[Bench, MqttConnection, bytes]:
    bench = Bench()
    return bench, bench.connect("client", version), _burst(version, count, 1, "nobody/here")


def _odd_ones(version: int, count: int) -> tuple[Bench, MqttConnection, bytes]:
    """Runs with packets of the same size that have properties."""
    bench, client = _with_subscriber(version)
    odd = publish(version, "a", 1, 9, b"12", 0, b"\x01\x01") if version == 5 else publish(version, "a", 1, 9, b"1234")
    plain = publish(version, "a", 1, 8, b"1234")
    assert len(odd) == len(plain)
    return bench, client, (plain * 9 + odd) * (count // 10)


def _known_ids(version: int, count: int) -> tuple[Bench, MqttConnection, bytes]:
    bench, client = _with_subscriber(version, qos=2)
    bench.feed(client, publish(version, "a", 2, 7))
    return bench, client, publish(version, "a", 2, 7) * count


def _no_packet_id(version: int, count: int) -> tuple[Bench, MqttConnection, bytes]:
    bench, client = _with_subscriber(version)
    return bench, client, _burst(version, count, 1) + publish(version, "a", 1, 0)


def _retained(version: int, count: int) -> tuple[Bench, MqttConnection, bytes]:
    bench, client = _with_subscriber(version)
    levels = "/".join("abcdefgh" * 16)
    return bench, client, b"".join(publish(version, f"{levels[:-6]}/{i}", payload=b"x", flags=1) for i in range(count))


def _retained_removed(version: int, count: int) -> tuple[Bench, MqttConnection, bytes]:
    bench, client, data = _retained(version, count)
    bench.feed(client, data)
    levels = "/".join("abcdefgh" * 16)
    return bench, client, b"".join(publish(version, f"{levels[:-6]}/{i}", flags=1) for i in range(count))


def _mixed_topics(version: int, count: int) -> tuple[Bench, MqttConnection, bytes]:
    bench, client = _with_subscriber(version)
    bench.feed(client, subscribe(version, "#"))
    return bench, client, b"".join(publish(version, f"t/{i}", i % 2, 1 + i % 60_000) for i in range(count))


def _user_properties(version: int, count: int) -> tuple[Bench, MqttConnection, bytes]:
    bench, client = _with_subscriber(version)
    return bench, client, publish(version, "a", 1, 1, properties=user_property("k", "v") * count)


def _aliases(version: int, count: int) -> tuple[Bench, MqttConnection, bytes]:
    bench, client = _with_subscriber(version)
    return bench, client, _burst(version, count, 1, properties=b"\x23\0\1")


def _overlapping(version: int, count: int) -> tuple[Bench, MqttConnection, bytes]:
    """One publish where many filters of one client match, and those of another."""
    bench, client = _with_subscriber(version)
    filters = ["/".join(levels) + "/#" for levels in product("a+", repeat=12)][:count]
    for name in ("one", "other"):
        bench.feed(bench.connect(name, version), subscribe(version, *filters, identifier=5 if version == 5 else 0))
    return bench, client, publish(version, "/".join("a" * 12) + "/end")


def fan_out(version: int, count: int) -> tuple[Bench, MqttConnection, bytes]:
    """Many publishes, each of another topic, to many receivers whose windows are full."""
    bench = Bench()
    for number in range(count // 40):
        receiver = bench.connect(f"receiver-{number}", 5, receive_maximum=1)
        bench.feed(receiver, subscribe(5, "t/#", qos=1))
    return bench, bench.connect("client", version), _burst(version, 300, 1, "t/1")


def _full_share(version: int, count: int) -> tuple[Bench, MqttConnection, bytes]:
    """Publishes for a share none of whose members has room."""
    bench = Bench(BrokerConfig(mqtt=MqttConfig(max_queued_messages=1)))
    for number in range(count // 20):
        bench.feed(bench.connect(f"m{number}", 5, receive_maximum=1), subscribe(5, "$share/g/s", qos=1))
    return bench, bench.connect("client", version), _burst(version, 600, 1, "s")


def _churn(version: int, count: int) -> tuple[Bench, MqttConnection, bytes]:
    """Subscriptions that come and go between publishes."""
    bench, client = _with_subscriber(version)
    topic = "/".join("a" * 20)
    filters = ["/".join(levels) for levels in product("a+", repeat=20)][1 : count + 1]
    pieces = [
        subscribe(version, each) + unsubscribe(version, each) + publish(version, topic)
        for each in filters[: count // 4]
    ]
    return bench, client, b"".join(pieces)


def _deep_topics(version: int, count: int) -> tuple[Bench, MqttConnection, bytes]:
    bench, client = _with_subscriber(version)
    return bench, client, _burst(version, count // 8, 1, "/" * 127)


def _too_deep(version: int, count: int) -> tuple[Bench, MqttConnection, bytes]:
    bench, client = _with_subscriber(version)
    return bench, client, publish(version, "/" * 20 * count)


def _acknowledgements(*headers: int) -> Case:
    def build(version: int, count: int) -> tuple[Bench, MqttConnection, bytes]:
        bench = Bench()
        data = b"".join(packet(headers[i % len(headers)], (1 + i % 60_000).to_bytes(2, "big")) for i in range(count))
        return bench, bench.connect("client", version), data

    return build


def _long_acknowledgements(version: int, count: int) -> tuple[Bench, MqttConnection, bytes]:
    bench = Bench()
    tail = b"\x92\0" if version == 5 else b""
    return bench, bench.connect("client", version), packet(0x62, b"\0\1" + tail) * count


def _acknowledged(version: int, count: int) -> tuple[Bench, MqttConnection, bytes]:
    """Acknowledgements that each let a message go that waits."""
    bench, client = _with_subscriber(version, receive_maximum=1)
    bench.feed(client, b"".join(publish(version, "a", 1, 1 + i % 500) for i in range(count)))
    subscriber = bench.node.state.sessions["subscriber"].connection
    assert isinstance(subscriber, MqttConnection)
    return bench, subscriber, b"".join(packet(0x40, (1 + i).to_bytes(2, "big")) for i in range(count))


def _sent_again(version: int, count: int) -> tuple[Bench, MqttConnection, bytes]:
    """Acknowledgements of what an earlier connection brought, while most of it waits to be sent again."""
    bench = Bench(BrokerConfig(mqtt=MqttConfig(max_inflight_out=65_535)))
    body = b"\0\4MQTT" + bytes((version, 0)) + b"\0\0" + (b"\x05\x11\0\0\0\x64" if version == 5 else b"")
    first = bench.node.accept("first", bench.now)
    bench.feed(first, packet(0x10, body + text("client")) + subscribe(version, "a", qos=1))
    bench.feed(bench.connect("publisher", 4), _burst(4, count, 1))
    bench.node.connection_lost(first, bench.now)
    again = bench.node.accept("again", bench.now)
    if version == 5:
        body = body[:10] + b"\x08\x21\0\1" + body[11:]
    bench.feed(again, packet(0x10, body + text("client")))
    assert again.session is not None
    assert len(again.session.in_flight) == count
    if version == 5:
        assert len(again.session.unsent) == count - 1
    return bench, again, b"".join(packet(0x40, (1 + i).to_bytes(2, "big")) + b"\xc0\0" for i in range(count))


def _pings(version: int, count: int) -> tuple[Bench, MqttConnection, bytes]:
    bench = Bench()
    return bench, bench.connect("client", version), b"\xc0\0" * count * 4


def _filters(make: Callable[[int], str], *, known: bool = False, retained: int = 0) -> Case:
    """One SUBSCRIBE of many filters."""

    def build(version: int, count: int) -> tuple[Bench, MqttConnection, bytes]:
        bench = Bench()
        client = bench.connect("client", version)
        for number in range(retained):
            bench.feed(client, publish(version, f"r/{number}", payload=b"x", flags=1))
        data = subscribe(version, *(make(number) for number in range(4 * count)))
        if known:
            bench.feed(client, data)
        return bench, client, data

    return build


def _one_by_one(version: int, count: int) -> tuple[Bench, MqttConnection, bytes]:
    bench = Bench()
    client = bench.connect("client", version)
    return bench, client, b"".join(subscribe(version, f"f/{number % 50}") for number in range(count))


def _unsubscribed(version: int, count: int) -> tuple[Bench, MqttConnection, bytes]:
    bench = Bench()
    client = bench.connect("client", version)
    filters = [f"f/{number}" for number in range(3 * count)]
    bench.feed(client, subscribe(version, *filters))
    return bench, client, unsubscribe(version, *filters)


def _closing(header: int, body: bytes = b"") -> Case:
    """A packet that ends the connection, in front of many others."""

    def build(version: int, count: int) -> tuple[Bench, MqttConnection, bytes]:
        bench = Bench()
        return bench, bench.connect("client", version), packet(header, body) + b"\xc0\0" * count

    return build


def _queue(properties: Callable[[int], bytes], topic: str = "$queue/q", consumers: int = 0) -> Case:
    def build(version: int, count: int) -> tuple[Bench, MqttConnection, bytes]:
        bench = Bench(BrokerConfig(mqtt=MqttConfig(receive_maximum=65_535)))
        for number in range(consumers):
            consumer = bench.connect(f"g-{number}", 5, receive_maximum=1)
            bench.feed(consumer, subscribe(5, "$queue/q", qos=1))
        sent = [
            publish(version, topic, 1, 1 + number, b"x", 0, properties(number) if version == 5 else b"")
            for number in range(count)
        ]
        return bench, bench.connect("client", version), b"".join(sent)

    return build


_HEADERS = {"puback": 0x40, "pubrec": 0x50, "pubrel": 0x62, "pubcomp": 0x70}
CASES: dict[str, Case] = {
    "publish, window full": _window_full,
    "publish, queue full": _queue_full,
    "publish at QoS 2, window full": _qos_2_window_full,
    "publish, nobody there": _nobody,
    "publish, odd ones in a run": _odd_ones,
    "publish, ids known": _known_ids,
    "publish, no packet id": _no_packet_id,
    "publish, retained": _retained,
    "publish, retained removed": _retained_removed,
    "publish, mixed topics": _mixed_topics,
    "publish, user properties": _user_properties,
    "publish, aliases": _aliases,
    "publish, overlapping filters": _overlapping,
    "publish, many receivers": fan_out,
    "publish, full share": _full_share,
    "publish, subscriptions come and go": _churn,
    "publish, deep topics": _deep_topics,
    "publish, too deep": _too_deep,
    **{name: _acknowledgements(header) for name, header in _HEADERS.items()},
    "acknowledgements in turn": _acknowledgements(0x40, 0x62, 0x70),
    "pubrel in its long form": _long_acknowledgements,
    "puback, messages wait": _acknowledged,
    "puback, sent again": _sent_again,
    "pingreq": _pings,
    "subscribe, equal": _filters(lambda _number: "#"),
    "subscribe, different": _filters(lambda number: f"f/{number}"),
    "subscribe, known": _filters(lambda number: f"f/{number}", known=True),
    "subscribe, shared": _filters(lambda number: f"$share/g{number}/f"),
    "subscribe, deep": _filters(lambda number: "+/" * 50 + str(number)),
    "subscribe, one by one": _one_by_one,
    "unsubscribe": _unsubscribed,
    "connect again": _closing(0x10, b"\0\4MQTT\4\2\0\0\0\1x"),
    "disconnect": _closing(0xE0),
    "auth": _closing(0xF0),
    "packet of type 0": _closing(0x00),
    "from a server": _closing(0xD0),
    "queue, plain": _queue(lambda _number: b""),
    "queue, keys": _queue(lambda number: user_property("partition-key", f"k{number % 9}")),
    "queue, an option in every third": _queue(
        lambda number: user_property("priority" if number % 3 == 2 else "somename", "high")
    ),
    "queue, other sizes in turn": _queue(lambda number: user_property("k", "v" * (number % 3))),
    "queue, full consumers": _queue(lambda _number: b"", consumers=8),
    "queue, no such queue": _queue(lambda _number: b"", topic="$queue/%/q"),
    "ack, unknown": _queue(
        lambda number: user_property("message-id", f"q:0:{1_000 + number}") + user_property("group-id", "g"),
        topic="$queue/q/$ack",
        consumers=1,
    ),
    "nack, unknown": _queue(
        lambda number: user_property("message-id", f"q:0:{number}") + user_property("group-id", "g"),
        topic="$queue/q/$nack",
        consumers=1,
    ),
    "admin, list": _queue(lambda _number: b"", topic="$admin/queue/list"),
    "transactions, begin": _queue(lambda number: user_property("producer-id", f"p{number}"), topic="$txn/begin"),
}


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("name", CASES)
def test_a_turn_is_bounded_and_what_a_client_sends_takes_time_in_proportion(name: str, version: int) -> None:
    totals: list[int] = []
    for count in (_N, 2 * _N):
        bench, client, data = CASES[name](version, count)
        total, copied = bench.measure(client, data)
        totals.append(total)
        assert bench.worst_turn <= _MOST_PER_TURN
        assert copied <= _MOST_COPIES * len(data), "slices of the chunk"
    assert totals[1] <= _MOST_RATIO * totals[0] + 2_000, f"{totals} steps for {_N} and {2 * _N}"


@pytest.mark.parametrize("seed", range(40))
def test_a_burst_has_the_effects_of_its_packets_one_by_one(seed: int) -> None:
    """Runs that are forwarded, or not, and what waits for the next turn: the same bytes for everybody."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    version = rng.choice((4, 5))
    windows = [rng.choice((1, 3, 20, 1_000)) for _ in range(rng.randint(0, 3))]
    topics = ["a", "b", "c/d"][: rng.randint(1, 3)]
    pieces: list[bytes] = []
    while len(pieces) < 2_500:
        qos, topic = rng.choice((0, 1, 1, 1, 2)), rng.choice(topics)
        properties = user_property("k", "v") if rng.random() < 0.1 else b""
        for _ in range(rng.choice((1, 2, 9, 60, 400))):
            packet_id = rng.choice((rng.randint(1, 900), len(pieces) + 1))
            pieces.append(publish(version, topic, qos, packet_id, b"x" * rng.choice((4, 4, 4, 5)), 0, properties))
        if rng.random() < 0.3:
            pieces += [packet(0x62, rng.randint(1, 900).to_bytes(2, "big")) for _ in range(rng.choice((1, 30)))]
        if rng.random() < 0.2:
            pieces.append(rng.choice((subscribe, unsubscribe))(version, rng.choice(topics)))
    heard: list[list[bytes]] = []
    for chunks in (pieces, [b"".join(pieces)]):
        bench = Bench(BrokerConfig(mqtt=MqttConfig(max_queued_messages=50, receive_maximum=3_000)))
        clients = [
            bench.connect(f"s{number}", version, receive_maximum=window if version == 5 else 0)
            for number, window in enumerate(windows)
        ]
        for client in clients:
            bench.feed(client, subscribe(version, "#", qos=2))
        clients.append(bench.connect("publisher", version))
        bench.collect(clients)
        for chunk in chunks:
            bench.feed(clients[-1], chunk)
        heard.append([bench.heard[client] for client in clients])
    assert heard[0] == heard[1]


def test_others_are_served_between_the_parts_of_a_burst() -> None:
    bench = Bench()
    busy, other = bench.connect("busy", 4), bench.connect("other", 4)
    bench.node.receive(busy, b"\xc0\0" * (3 * MAX_PACKETS), bench.now)
    assert busy.wants_pause
    assert bench.node.next_deadline() == bench.now, "the next turn is due at once"
    bench.node.receive(other, b"\xc0\0", bench.now)
    served = {each: each.take_output() for each in bench.node.take_dirty(bench.now)}
    assert served[other] == b"\xd0\0"
    assert len(served[busy]) == 2 * 2 * MAX_PACKETS, "of the turn before, and of this one"
    assert bench.settle(busy) == b"\xd0\0" * MAX_PACKETS
    assert not busy.wants_pause
    deadline = bench.node.next_deadline()
    assert deadline is None or deadline > bench.now


def test_what_arrives_behind_input_that_waits_stays_behind_it() -> None:
    bench = Bench()
    busy = bench.connect("busy", 5)
    data = b"\xc0\0" * (2 * MAX_PACKETS) + publish(5, "nobody", 1, 7) + b"\xc0\0"
    bench.node.receive(busy, data[:-5], bench.now)
    bench.node.receive(busy, data[-5:-1], bench.now)
    bench.node.receive(busy, data[-1:], bench.now)
    answer = bench.settle(busy)
    assert answer == b"\xd0\0" * (2 * MAX_PACKETS) + b"\x40\3\0\7\x10" + b"\xd0\0"


def test_a_transport_that_ends_loses_nothing_that_came_before() -> None:
    """A client may send a lot, say goodbye and be gone: its will is not published."""
    bench = Bench()
    other = bench.connect("other", 4)
    bench.feed(other, subscribe(4, "#"))
    leaving = bench.node.accept("leaving", bench.now)
    bench.feed(leaving, packet(0x10, b"\0\4MQTT\4\6\0\0" + text("leaving") + text("will") + text("gone")))
    sent = b"".join(publish(4, f"t/{number % 7 * 'x'}", payload=b"%d" % number) for number in range(3 * MAX_PACKETS))
    bench.node.receive(leaving, sent + b"\xe0\0", bench.now)
    bench.node.connection_lost(leaving, bench.now)
    assert bench.settle(other) == sent
    assert "leaving" not in bench.node.state.sessions


def test_many_busy_clients_take_turns() -> None:
    bench = Bench()
    clients = [bench.connect(f"c{number}", 4) for number in range(10)]
    waiting = bench.connect("small", 4)
    for client in clients:
        bench.node.receive(client, b"\xc0\0" * (3 * MAX_PACKETS), bench.now)
    first = {each: len(each.take_output()) for each in bench.node.take_dirty(bench.now)}
    left = sum(len(client._rest) - client._at for client in clients if client._rest is not None)
    assert bench.node.state.traffic.waiting_bytes == left > 0
    assert sum(first.values()) <= 2 * MAX_PACKETS * (1 + MAX_SLICES), "one was heard at once, four in this turn"
    bench.node.receive(waiting, b"\xc0\0", bench.now)
    assert waiting.take_output() == b"\xd0\0", "what is small is handled at once"
    bench.collect(clients)
    bench.settle(clients[0])
    assert all(first.get(each, 0) + len(bench.heard[each]) == 2 * 3 * MAX_PACKETS for each in clients)
    assert bench.node.state.traffic.waiting_bytes == 0
    for client in clients:
        bench.node.receive(client, b"\xc0\0" * (3 * MAX_PACKETS), bench.now)
        client.close_now(bench.now)
    assert bench.node.state.traffic.waiting_bytes == 0


def test_filters_beyond_what_anybody_may_have_are_refused_unseen() -> None:
    for version, refused in ((4, 0x80), (5, 0x97)):
        bench = Bench(BrokerConfig(mqtt=MqttConfig(max_subscriptions_per_client=100)))
        client = bench.connect("client", version)
        answer = bench.feed(client, subscribe(version, *("same/filter" for _ in range(5_000))))
        reasons = answer[-5_000:]
        assert reasons == bytes(100) + bytes((refused,)) * 4_900
        assert list(bench.node.state.sessions["client"].subscriptions) == ["same/filter"]
        wrong = subscribe(version, *("same/filter" for _ in range(5_000)), "")[:-3] + b"\0\1\xff\0"
        bench.feed(client, wrong)
        assert client.closing, "what is beyond is still checked"


def test_a_subscriber_that_leaves_amid_its_packet_is_gone() -> None:
    bench = Bench()
    client = bench.connect("client", 5)
    bench.node.receive(client, subscribe(5, *(f"f/{number}" for number in range(9_000))), bench.now)
    again = bench.connect("client", 5)
    assert client.closing
    assert not bench.node.state.sessions["client"].subscriptions
    assert again.session is not client.session
    assert not bench.node.state.unfinished
    assert bench.feed(bench.connect("other", 5), publish(5, "f/0", 1, 3)) == b"\x40\3\0\3\x10", "nobody has it"


def test_a_session_that_ends_is_gone_at_once_and_taken_apart_bit_by_bit() -> None:
    bench = Bench()
    filters = [f"f/{number}/+" for number in range(9_000)]
    leaving, publisher = bench.connect("leaving", 5), bench.connect("publisher", 5)
    bench.feed(leaving, subscribe(5, *filters, qos=1))
    bench.feed(leaving, subscribe(5, "$share/g/shared", qos=1))
    before = bench.node.state.traffic.subscriptions
    bench.node.connection_lost(leaving, bench.now)
    state = bench.node.state
    assert state.leaving, "not all at once"
    for topic in ("f/1/x", "f/8999/x", "shared"):
        bench.node.receive(publisher, publish(5, topic, 1, 3), bench.now)
        assert publisher.take_output() == b"\x40\3\0\3\x10", "nobody gets it"
    again = bench.node.accept("again", bench.now)
    bench.node.receive(again, packet(0x10, b"\0\4MQTT\5\0\0\0\0" + text("leaving")), bench.now)
    assert not again.take_output()[2], "no session is present"
    assert again.session is not None
    assert not again.session.subscriptions
    assert not again.session.in_flight
    bench.node.receive(again, subscribe(5, "f/1/+", qos=1), bench.now)
    assert state.leaving
    assert max(bench.measure_turns()) <= _MOST_PER_TURN
    assert not state.leaving
    assert before - state.traffic.subscriptions == 9_000
    assert list(state.tree._root.children) == ["f"]
    bench.collect([again])
    bench.feed(publisher, publish(5, "f/1/x", 1, 3))
    assert bench.heard[again] == publish(5, "f/1/x", 1, 1)


def test_many_sessions_with_many_subscriptions_end_in_small_turns() -> None:
    bench = Bench()
    for number in range(60):
        client = bench.connect(f"c{number}", 5, expiry_s=10)
        bench.feed(client, subscribe(5, *(f"{number}/{each}" for each in range(500))))
        bench.node.connection_lost(client, bench.now)
    bench.settle(client)
    bench.now += 11
    first = bench.steps.count(lambda: bench.node.tick(bench.now))
    turns = [first, *bench.measure_turns()]
    assert max(turns) <= _MOST_PER_TURN
    assert not bench.node.state.sessions
    assert not bench.node.state.tree._root.children


def test_timers_that_are_due_at_one_moment_fire_in_small_turns() -> None:
    bench = Bench()
    fired: list[int] = []
    for number in range(5_000):
        bench.node.state.timers.schedule(bench.now + 1, lambda _now, number=number: fired.append(number))
    bench.now += 2
    bench.node.tick(bench.now)
    assert len(fired) == MAX_TIMERS
    deadline = bench.node.next_deadline()
    assert deadline is not None
    assert deadline <= bench.now
    bench.measure_turns()
    assert fired == list(range(5_000))


def test_ids_left_over_from_an_earlier_connection_cost_nothing() -> None:
    """A quota that starts anew with each connection is not counted anew with each publish."""
    steps: list[int] = []
    for left_over in (10, 900):
        bench = Bench(BrokerConfig(mqtt=MqttConfig(receive_maximum=1_000)))
        first = bench.connect("client", 5, expiry_s=100)
        bench.feed(first, b"".join(publish(5, "a", 2, number + 1) for number in range(left_over)))
        bench.node.connection_lost(first, bench.now)
        again = bench.node.accept("again", bench.now)
        bench.feed(again, packet(0x10, b"\0\4MQTT\5\0\0\0\5\x11\0\0\0\x64" + text("client")))
        assert again.session is not None
        assert len(again.session.inbound_qos2) == left_over
        bench.feed(again, b"".join(packet(0x62, (number + 1).to_bytes(2, "big")) for number in range(left_over // 2)))
        assert again.inbound._unfinished(again.session) == 0
        bench.feed(again, publish(5, "a", 2, left_over))
        assert again.inbound._unfinished(again.session) == 1, "it is used again"
        data = b"".join(publish(5, "a" * (1 + number % 3), 2, 2_000 + number) for number in range(500))
        steps.append(bench.measure(again, data)[0])
        assert again.inbound._unfinished(again.session) == 501
    assert steps[1] <= 1.1 * steps[0]


@pytest.mark.parametrize("kind", ["captured", "bound"])
def test_one_message_for_many_queues_is_work_for_each_of_them(kind: str) -> None:
    bench = Bench()
    topic, topics = ("a/b", "a/#") if kind == "captured" else ("$queue/source/b", "$queue/source/#")
    for number in range(100):
        bench.node.engine.create_queue(f"q{number}", {"topics": [topics]}, bench.now)
    publisher = bench.connect("publisher", 5)
    bench.measure(publisher, b"".join(publish(5, topic, 1, 1 + number) for number in range(50)))
    assert bench.worst_turn <= _MOST_PER_TURN
    assert bench.node.engine.stats("q99").enqueued == 50


def test_a_full_queue_of_many_partitions_is_work_for_its_publisher() -> None:
    """Who is the oldest of all partitions' messages is found out for each that is dropped."""
    limits = {"partitions": 256, "max_depth": 10, "overflow": "drop_oldest"}
    bench = Bench(BrokerConfig(queues=QueuesConfig(defaults=limits)))
    bench.feed(bench.connect("group", 5, receive_maximum=1), subscribe(5, "$queue/q", qos=1))
    publisher = bench.connect("publisher", 5)
    total, _ = bench.measure(publisher, b"".join(publish(5, "$queue/q", 1, 1 + number) for number in range(200)))
    assert total > 2 * _MOST_PER_TURN
    assert bench.worst_turn <= _MOST_PER_TURN
    assert bench.node.engine.stats("q").enqueued == 200


@pytest.mark.parametrize("holds", [False, True])
def test_settlements_that_name_what_is_not_there_are_work(holds: bool) -> None:
    bench = Bench()
    client = bench.connect("client", 5)
    bench.feed(client, subscribe(5, "$queue/q", qos=1))
    if holds:
        bench.feed(bench.connect("publisher", 5), publish(5, "$queue/q", 1, 1))
    named = user_property("partition", "0") + user_property("offsets", "1-10000")
    flood = b"".join(publish(5, "$queue/q/$ack", 1, 1 + number, properties=named) for number in range(20))
    bench.measure(client, flood)
    assert bench.worst_turn <= _MOST_PER_TURN // 4


def test_many_subscription_identifiers_are_encoded_once_and_are_work() -> None:
    bench = Bench()
    subscriber = bench.connect("subscriber", 5)
    filters = ["/".join(levels) + "/#" for levels in product("a+", repeat=12)][:2_000]
    for number, topic_filter in enumerate(filters):
        bench.feed(subscriber, subscribe(5, topic_filter, identifier=1 + number))
    topic = "/".join("a" * 12)
    publisher = bench.connect("publisher", 5)
    total, _ = bench.measure(publisher, b"".join(publish(5, topic, payload=b"x" * (each % 7)) for each in range(300)))
    assert total <= 250_000
    route = bench.node.state.tree.route(topic)
    assert route.work >= len(filters) >> 5


def test_finding_out_anew_who_gets_a_topic_is_work() -> None:
    """Filters of many levels that match all but the last one of topics that are known."""
    bench = Bench()
    client, publisher = bench.connect("client", 5), bench.connect("publisher", 5)
    bench.feed(client, subscribe(5, "#"))
    topics = ["/".join("b" * 40) + f"/{number}" for number in range(100)]
    data = b"".join(publish(5, topic) for topic in topics)
    bench.feed(publisher, data)
    filters = ["/".join("b" * 30 + "".join(levels)) for levels in product("b+", repeat=10)][:1_000]
    for topic_filter in filters:
        bench.feed(client, subscribe(5, topic_filter + "/z"))
    before = bench.node.state.traffic.publishes_sent
    total, _ = bench.measure(publisher, data)
    assert total > 2 * _MOST_PER_TURN, "there is much to find out"
    assert bench.worst_turn <= _MOST_PER_TURN
    assert bench.node.state.traffic.publishes_sent == before + len(topics)
