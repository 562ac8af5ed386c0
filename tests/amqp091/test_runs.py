"""Frames that are handled together are as good as frames one by one, and a turn has a bounded number of them."""

from __future__ import annotations

import itertools
import random

import pytest

from assay.reference_broker.amqp091.channel import Channel
from assay.reference_broker.amqp091.runs import PublishReader, read_acks
from assay.reference_broker.amqp091.wire.content import NONE, BasicProperties, encode_header
from assay.reference_broker.amqp091.wire.frames import FrameType, content_frames, frame
from assay.reference_broker.amqp091.wire.methods import BY_NAME, encode_method
from assay.reference_broker.config import QueuesConfig, TenantConfig, TenantQuotas
from assay.reference_broker.core.broker import MAX_WORK
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.queues import QueueAddress, QueueStats
from assay.reference_broker.queues.messages import stored_message
from assay.reference_broker.queues.messages.message_cache import MessageCache
from assay.reference_broker.queues.messages.stored_message import StoredMessage
from assay.reference_broker.queues.queue.enqueue_path import EnqueuePath
from assay.reference_broker.routing.message import MESSAGE_OVERHEAD_BYTES, Message
from assay.reference_broker.routing.properties import Kind, Typed
from assay.reference_broker.routing.remembered import SharedMemory
from assay.reference_broker.storage.memory_disk import MemoryDisk
from tests.support.amqp_client import FRAME_MAX, NOW, AmqpClient, Said, make_node, table, turn

NEAR_FRAMES = 4_096
MOST_BYTES = 1 << 20


def method(name: str, *values: object, channel: int = 1) -> bytes:
    return frame(FrameType.METHOD, channel, encode_method(BY_NAME[name], *values))


def publish(
    key: str,
    body: bytes,
    properties: BasicProperties = NONE,
    *,
    exchange: str = "",
    mandatory: bool = False,
    channel: int = 1,
    max_bytes: int = FRAME_MAX,
) -> bytes:
    content = content_frames(channel, encode_header(len(body), properties), body, max_bytes)
    return method("basic.publish", exchange, key, mandatory, False, channel=channel) + content


def ack(tag: int, *, multiple: bool = False) -> bytes:
    return method("basic.ack", tag, multiple)


def cc(*keys: str) -> Typed:
    return Typed(Kind.LIST, tuple(Typed(Kind.TEXT, key) for key in keys))


def drawn(rng: random.Random) -> bytes:
    """Any publish, one that closes the channel seldom among them."""
    properties = rng.choice(
        (
            NONE,
            NONE,
            BasicProperties(delivery_mode=2),
            BasicProperties(delivery_mode=1, content_type="text/plain", headers=table(a=1)),
            BasicProperties(message_id=f"m{rng.random()}", timestamp=5),
            BasicProperties(expiration="60000"),
            BasicProperties(headers=(("CC", cc("a", "b")),)),
            BasicProperties(headers=(("BCC", cc("c")),)),
            BasicProperties(priority=rng.randrange(10), reply_to="r+"),
            BasicProperties(correlation_id=f"c{rng.random()}", user_id="guest" if rng.random() < 0.97 else "somebody"),
        )
    )
    exchange, key = rng.choice((("", "a"), ("", "b"), ("", "c"), ("amq.direct", "k"), ("fan", ""), ("", "nobody")))
    if rng.random() < 0.01:
        exchange = "unknown"
    body = rng.randbytes(rng.choice((0, 1, 5, 100)))
    if rng.random() < 0.02:
        body = rng.randbytes(9_000)
    return publish(key, body, properties, exchange=exchange, mandatory=rng.random() < 0.3, max_bytes=NEAR_FRAMES)


def scene() -> tuple[BrokerNode, AmqpClient, list[AmqpClient]]:
    """A publisher with confirms, and consumers: with acknowledgements, without, with a small prefetch."""
    node = make_node()
    writer = AmqpClient(node)
    writer.open()
    writer.declare("a")
    writer.declare("b", durable=False)
    writer.declare("c", arguments=table(x_max_priority=4))
    writer.say(1, "exchange.declare", "fan", "fanout", False, False, False, False, False, ())
    for queue in ("a", "b"):
        writer.say(1, "queue.bind", queue, "fan", "", False, ())
        writer.say(1, "queue.bind", queue, "amq.direct", "k", False, ())
    writer.say(1, "confirm.select", False)
    readers = [AmqpClient(node) for _ in range(3)]
    for reader in readers:
        reader.open()
    readers[0].consume("a")
    readers[1].consume("b", no_ack=True)
    readers[2].say(1, "basic.qos", 0, 5, False)
    readers[2].consume("c")
    return node, writer, readers


def tenants_client(quotas: TenantQuotas) -> AmqpClient:
    """One of a tenant with these, which has a queue ``q``."""
    tenant = TenantConfig(name="acme", clients=("amqp091:*",), quotas=quotas)
    c = AmqpClient(make_node(queues=QueuesConfig(tenants=(tenant,))), connected=False)
    c.connect(vhost="acme")
    c.open()
    c.declare("q")
    return c


def without_joins(said: list[Said]) -> list[Said]:
    """Which publishes were confirmed and which refused, and all else that was said.

    Which of them are answered before a channel closes is the broker's choice.
    """
    floor, answered = 0, {}
    others = []
    for each in said:
        if each.name in ("basic.ack", "basic.nack"):
            tag, multiple = each.values[:2]
            tags = range(floor + 1, tag + 1) if multiple else (tag,)
            for one in tags:
                answered.setdefault(one, each.name)
            while floor + 1 in answered:
                floor += 1
        else:
            others.append(each)
    if others and others[-1].name == "channel.close":
        return others
    return [Said(0, name, (tag,)) for tag, name in sorted(answered.items())] + others


def cuts(rng: random.Random, data: bytes) -> list[bytes]:
    at = [0, *sorted(rng.sample(range(len(data)), min(20, len(data) - 1))), len(data)]
    return [data[begin:end] for begin, end in itertools.pairwise(at)]


def test_where_a_publish_goes_and_whether_it_may_is_asked_of_its_properties_where_its_way_is_known() -> None:
    c = AmqpClient(make_node())
    c.open()
    c.declare("q")
    c.declare("r")
    copied = BasicProperties(headers=(("CC", cc("r")),))
    c.send_raw(publish("q", b"1") + publish("q", b"2", copied) + publish("q", b"3"))
    c.hear()
    assert [c.get(queue, no_ack=True).body for queue in ("q", "q", "q", "r")] == [b"1", b"2", b"3", b"2"]
    c.send_raw(publish("q", b"4") + publish("q", b"5", BasicProperties(user_id="somebody")) + publish("q", b"6"))
    (said,) = c.hear()
    assert said.name == "channel.close"
    assert said.values[0] == 406
    c.open(2)
    assert c.get("q", channel=2, no_ack=True).body == b"4"
    assert c.get("q", channel=2).name == "basic.get-empty"


@pytest.mark.parametrize("seed", range(20))
def test_publishes_that_come_together_are_as_good_as_those_that_come_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    stream = [drawn(rng) for _ in range(rng.choice((3, 60, 250)))]
    heard = []
    for parts in (stream, [b"".join(stream)], cuts(rng, b"".join(stream))):
        _, writer, readers = scene()
        for part in parts:
            writer.send_raw(part)
        heard.append([without_joins(writer.hear()), *[reader.hear() for reader in readers]])
    assert heard[0] == heard[1]
    assert heard[0] == heard[2]


@pytest.mark.parametrize("seed", range(10))
def test_acknowledgements_that_come_together_are_as_good_as_those_that_come_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    count = 100
    stream = [ack(tag, multiple=rng.random() < 0.1) for tag in rng.sample(range(1, count + 1), 60)]
    if rng.random() < 0.5:
        stream.append(ack(7 * count))
    # One that an earlier one of several has settled closes the channel: what is behind it is passed over.
    stream += [ack(1), ack(count)]
    left: list[tuple[list[Said], QueueStats]] = []
    for parts in (stream, [b"".join(stream)], cuts(rng, b"".join(stream))):
        node = make_node()
        c, writer = AmqpClient(node), AmqpClient(node)
        for each in (c, writer):
            each.open()
        writer.declare("q")
        c.consume("q")
        writer.send_raw(b"".join(publish("q", b"%d" % number) for number in range(count)))
        assert len(c.hear()) == count
        for part in parts:
            c.send_raw(part)
        said = c.hear()
        if not said:
            c.say(1, "basic.recover", True)
        left.append((said, node.engine.stats("q")))
    assert left[0] == left[1]
    assert left[0] == left[2]


@pytest.mark.parametrize("no_ack", [False, True])
def test_gets_that_come_together_are_as_good_as_those_that_come_one_by_one(no_ack: bool) -> None:
    gets = [method("basic.get", "q", no_ack)] * 7 + [method("basic.get", "r", no_ack)] * 2
    gets += [method("basic.get", "q", no_ack)] * 2 + [method("basic.get", "nowhere", no_ack), gets[0]]
    data = b"".join(gets)
    heard = []
    for chunks in (gets, [data], [data[:50], data[50:101], data[101:]]):
        c = AmqpClient(make_node())
        c.open()
        c.declare("q")
        c.declare("r")
        c.send_raw(b"".join(publish("q", b"%d" % number) for number in range(5)) + publish("r", b"r"))
        c.hear()
        for chunk in chunks:
            c.send_raw(chunk)
        # Those that wait for another one take a turn each.
        for _ in gets:
            turn(c.node)
        heard.append(c.hear())
    assert heard[0] == heard[1] == heard[2]
    names = ["basic.get-ok"] * 5 + ["basic.get-empty"] * 2 + ["basic.get-ok"] + ["basic.get-empty"] * 3
    assert [said.name for said in heard[0]] == [*names, "channel.close"]
    assert [said.values[-1] for said in heard[0][:5]] == [4, 3, 2, 1, 0]


def test_gets_whose_queue_goes_are_answered_each() -> None:
    node = make_node()
    c, other = AmqpClient(node), AmqpClient(node)
    for each in (c, other):
        each.open()
    c.declare("q")
    c.send_raw(method("basic.get", "q", True) * 3)
    other.send_raw(method("queue.delete", "q", False, False, False))
    assert [said.name for said in c.hear()] == ["basic.get-empty"] * 3


def test_runs_of_two_queues_are_told_apart() -> None:
    """By gets of one channel, and by a consumer that takes up the tag of another."""
    c = AmqpClient(make_node())
    c.open()
    for queue in ("a", "b"):
        c.declare(queue)
        c.send_raw(publish(queue, b"x") * 10)
    c.hear()
    c.send_raw(method("basic.get", "a", True) * 5 + method("basic.get", "b", True) * 5)
    assert [said.values[3] for said in c.hear()] == ["a"] * 5 + ["b"] * 5
    keys = []
    for queue in ("a", "b"):
        said = c.consume(queue, no_ack=True)
        keys += [each.values[4] for each in said if each.name == "basic.deliver"]
        c.say(1, "basic.cancel", "t", False)
    assert keys == ["a"] * 5 + ["b"] * 5


def test_a_full_queue_refuses_the_last_of_a_run() -> None:
    c = AmqpClient(make_node())
    c.open()
    c.declare("q", arguments=table(x_max_length=5, x_overflow="reject-publish"))
    c.say(1, "confirm.select", False)
    c.send_raw(b"".join(publish("q", b"x") for _ in range(8)))
    assert [(*said.values[:1], said.name) for said in without_joins(c.hear())] == [
        *[(tag, "basic.ack") for tag in range(1, 6)],
        *[(tag, "basic.nack") for tag in range(6, 9)],
    ]


@pytest.mark.parametrize(
    "quotas",
    [
        TenantQuotas(publish_messages_per_s=40.0),
        TenantQuotas(publish_bytes_per_s=2_000.0),
        TenantQuotas(publish_bytes_per_s=30.0),
        TenantQuotas(max_message_bytes=60),
        TenantQuotas(max_storage_bytes=1_500),
    ],
)
def test_a_tenant_pays_for_a_run_as_for_its_messages(quotas: TenantQuotas) -> None:
    rng = random.Random(3)
    for count in (3, 60):
        stream = [publish("q", rng.randbytes(rng.randrange(100))) for _ in range(count)] * 2
        heard = []
        for parts in (stream, [b"".join(stream)], cuts(rng, b"".join(stream))):
            c = tenants_client(quotas)
            c.say(1, "confirm.select", False)
            for part in parts:
                c.send_raw(part)
            heard.append(without_joins(c.hear()))
        assert len(heard[0]) == 2 * count
        assert heard[0] == heard[1] == heard[2]


@pytest.mark.parametrize("no_ack", [True, False])
@pytest.mark.parametrize("quotas", [TenantQuotas(consume_messages_per_s=2.0), TenantQuotas(consume_bytes_per_s=8.0)])
def test_a_tenants_consumers_and_gets_pay_for_what_they_get(quotas: TenantQuotas, no_ack: bool) -> None:
    """Two messages of four bytes a second; a get waits for its message, and is not told that there is none."""
    c = tenants_client(quotas)
    for number in range(9):
        c.publish("q", b"%4d" % number)
    said = c.consume("q", no_ack=no_ack)
    assert [each.name for each in said] == ["basic.consume-ok", "basic.deliver", "basic.deliver"]
    c.now += 0.5
    assert [each.name for each in c.hear()] == ["basic.deliver"]
    c.say(1, "basic.cancel", "t", False)
    assert c.say(1, "basic.get", "q", no_ack) == []
    c.now += 0.5
    said = c.hear()
    assert [(each.name, each.body) for each in said] == [("basic.get-ok", b"   3")]
    c.say(1, "queue.purge", "q", False)
    assert c.get("q").name == "basic.get-empty"


def test_a_get_that_waits_for_its_quota_ends_with_its_queue() -> None:
    c = tenants_client(TenantQuotas(consume_messages_per_s=1.0))
    c.open(2)
    for _ in range(2):
        c.publish("q", b"x")
    assert c.get("q").name == "basic.get-ok"
    assert c.say(1, "basic.get", "q", True) == []
    said = c.say(2, "queue.delete", "q", False, False, False)
    assert sorted(each.name for each in said) == ["basic.get-empty", "queue.delete-ok"]
    assert c.node.engine.next_deadline() is None or c.node.engine.next_deadline() > c.now, "nothing is left to do"


def test_a_run_of_a_tenant_is_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    c = tenants_client(TenantQuotas(publish_messages_per_s=1_000.0))
    monkeypatch.setattr(EnqueuePath, "publish", None)
    c.send_raw(publish("q", b"x") * 10)
    c.hear()
    assert c.declare("q", passive=True).values == ("q", 10, 0)


def test_what_is_before_a_refused_publish_is_kept_and_what_is_behind_it_is_not() -> None:
    c = AmqpClient(make_node())
    c.open()
    c.declare("q")
    run = [publish("q", b"1"), publish("q", b"2"), publish("q", b"3", exchange="nowhere"), publish("q", b"4")]
    c.send_raw(b"".join(run))
    assert [said.values[0] for said in c.hear()] == [404]
    c.open(2)
    assert c.declare("q", channel=2, passive=True).values == ("q", 2, 0)


def test_what_is_remembered_of_a_run_holds_until_something_changes() -> None:
    node = make_node()
    c, other = AmqpClient(node), AmqpClient(node)
    for each in (c, other):
        each.open()
    other.say(1, "exchange.declare", "e", "topic", False, False, False, False, False, ())
    run = publish("k", b"x", exchange="e", mandatory=True) * 3

    def arrived() -> dict[str, int]:
        c.send_raw(run)
        returned = len([said for said in c.hear() if said.name == "basic.return"])
        names = [name for name in ("q", "r") if node.engine.exists(name)]
        return {"": returned, **{name: node.engine.stats(name).depth for name in names}}

    assert arrived() == {"": 3}
    other.declare("q")
    assert arrived() == {"": 3, "q": 0}
    other.say(1, "queue.bind", "q", "e", "#", False, ())
    assert arrived() == {"": 0, "q": 3}
    other.declare("r")
    other.say(1, "queue.bind", "r", "e", "k", False, ())
    assert arrived() == {"": 0, "q": 6, "r": 3}
    other.say(1, "queue.unbind", "q", "e", "#", ())
    assert arrived() == {"": 0, "q": 6, "r": 6}
    # Over another protocol.
    node.engine.delete_queue("r", c.now)
    turn(node)
    assert arrived() == {"": 3, "q": 6}
    other.say(1, "exchange.delete", "e", False, False)
    c.send_raw(run)
    assert [said.values[0] for said in c.hear()] == [404]


def test_what_is_taken_for_good_is_gone_over_a_restart() -> None:
    disk = MemoryDisk()
    node = make_node(disk)
    c, writer = AmqpClient(node), AmqpClient(node)
    for each in (c, writer):
        each.open()
    writer.declare("q")
    c.consume("q", no_ack=True)
    writer.send_raw(b"".join(publish("q", b"x", BasicProperties(delivery_mode=2)) for _ in range(50)))
    assert len(c.hear()) == 50
    stats = node.engine.stats("q")
    assert (stats.depth, stats.groups[0].acked, stats.groups[0].delivered) == (0, 50, 50)
    writer.send_raw(publish("q", b"last"))
    node.connection_lost(c.end, c.now)
    turn(node)
    node.close(c.now)
    again = AmqpClient(make_node(disk))
    again.open()
    assert again.declare("q", passive=True).values[1] <= 1


def test_a_fan_out_takes_turns() -> None:
    node = make_node()
    c = AmqpClient(node)
    c.open()
    c.say(1, "exchange.declare", "fan", "fanout", False, False, False, False, False, ())
    queues = 128
    for number in range(queues):
        c.declare(f"q{number}")
        c.say(1, "queue.bind", f"q{number}", "fan", "", False, ())
    c.send_raw(publish("", b"x", exchange="fan") * 300)
    stored = sum(node.engine.stats(f"q{number}").depth for number in range(queues))
    assert queues <= stored <= 2 * MAX_WORK + queues
    assert c.end.wants_pause
    node.take_dirty(c.now)
    stored_then = sum(node.engine.stats(f"q{number}").depth for number in range(queues))
    assert stored < stored_then <= stored + 2 * MAX_WORK + queues
    for _ in range(60):
        turn(node)
    assert node.engine.stats("q0").depth == 300
    assert not c.end.wants_pause


@pytest.mark.parametrize("what", ["basic.ack", "basic.nack", "basic.recover"])
def test_what_many_deliveries_become_takes_turns(what: str) -> None:
    count = 20_000
    node = make_node()
    c, writer = AmqpClient(node), AmqpClient(node)
    for each in (c, writer):
        each.open()
    writer.declare("q", durable=False)
    c.consume("q")
    for _ in range(count // 500):
        writer.send_raw(publish("q", b"x") * 500)
        for _ in range(5):
            turn(node)
        c.end.take_output()
    values = {"basic.ack": (0, True), "basic.nack": (0, True, False), "basic.recover": (True,)}[what]

    def settled() -> int:
        group = node.engine.stats("q").groups[0]
        return group.acked + group.nacked + group.rejected

    assert node.engine.stats("q").groups[0].in_flight == count
    c.send_raw(method(what, *values) + method("basic.qos", 0, 7, False))
    seen = [0, settled()]
    while seen[-1] < count:
        node.take_dirty(c.now)
        seen.append(settled())
    most = 9 * MAX_WORK if what == "basic.ack" else 2 * MAX_WORK
    assert all(0 < after - before <= most for before, after in itertools.pairwise(seen))
    names = [said.name for said in c.hear() if said.name != "basic.deliver"]
    assert names == (["basic.recover-ok", "basic.qos-ok"] if what == "basic.recover" else ["basic.qos-ok"])


def test_a_turn_takes_a_bounded_number_of_publishes() -> None:
    node = make_node()
    c = AmqpClient(node)
    c.open()
    c.declare("q")
    c.send_raw(publish("q", b"x") * 1_000)
    assert 300 < node.engine.stats("q").depth < 350
    c.hear()
    assert node.engine.stats("q").depth == 1_000


@pytest.mark.parametrize(
    "properties",
    [
        NONE,
        BasicProperties(delivery_mode=2, content_type="text/plain", headers=table(a=1)),
        BasicProperties(delivery_mode=2, message_id="m", correlation_id="c", timestamp=5, expiration="600000"),
        BasicProperties(headers=table(a="long" * 100), priority=3, app_id="x", kind="k", reply_to="r"),
    ],
)
def test_properties_are_the_same_from_memory_and_from_the_disk(properties: BasicProperties) -> None:
    """Here they are passed on as they were written, if that is short, there they are written anew."""
    disk = MemoryDisk()
    node = make_node(disk)
    c = AmqpClient(node)
    c.open()
    c.declare("q", durable=True)
    run = publish("q", b"x", properties) * 12
    c.send_raw(run)
    c.send_raw(publish("q", b"x", properties))
    c.hear()
    found = [c.get("q").properties]
    c.send_raw(method("basic.get", "q", False) * 6)
    found += [said.properties for said in c.hear()]
    turn(node)
    node.close(NOW)
    again = AmqpClient(make_node(disk))
    again.open()
    again.send_raw(method("basic.get", "q", True) * 10)
    said = again.hear()
    assert found + [each.properties for each in said] == [properties] * 17
    assert [each.values[4] for each in said] == list(range(12, 2, -1))


def reader() -> PublishReader:
    return PublishReader(SharedMemory(1 << 20))


def test_publishes_are_read_up_to_what_is_not_all_there() -> None:
    whole = [publish("q", b"1"), publish("q", b""), publish("r", b"22", BasicProperties(app_id="a"))]
    data = b"".join(whole)
    for cut in range(11, len(data) + 1):
        run = reader().read(data[:cut], 0, FRAME_MAX, MOST_BYTES, 1_024)
        count = sum(len(b"".join(whole[: number + 1])) <= cut for number in range(3))
        assert run.bodies == [b"1", b"", b"22"][:count]
        ends = [len(b"".join(whole[: number + 1])) for number in range(3)]
        assert run.ends == ends[:count]
        is_awaited = count in (0, 2) and cut >= ends[count] - 1 - len(b"1" if not count else b"22")
        assert run.awaited == (ends[count] if is_awaited else 0), cut
    run = reader().read(data, 0, FRAME_MAX, MOST_BYTES, 1_024)
    assert [head.way.routing_key for head in run.heads] == ["q", "q", "r"]
    assert run.heads[2].properties.app_id == "a"
    assert reader().read(data, 0, FRAME_MAX, MOST_BYTES, 5).bodies == [b"1"]
    assert reader().read(data, 0, FRAME_MAX, 1, 1_024).bodies == [b"1", b""]


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_publish_that_is_cut_in_its_body_is_handled_once_that_is_whole(
    monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    alone: list[int] = []
    handle = Channel.handle_frame
    monkeypatch.setattr(
        Channel, "handle_frame", lambda self, kind, *rest: alone.append(kind) or handle(self, kind, *rest)
    )
    body = bytes(range(100))
    data = publish("q", b"first") + publish("q", body, exchange="none" if is_refused else "")
    for cut in range(len(data) - len(body) - 1, len(data)):
        c = AmqpClient(make_node())
        c.open()
        c.declare("q")
        c.consume("q", no_ack=True)
        alone.clear()
        c.send_raw(data[:cut])
        assert [said.body for said in c.hear()] == [b"first"]
        c.send_raw(data[cut:])
        assert [said.values[0] if is_refused else said.body for said in c.hear()] == [404 if is_refused else body]
        assert not alone


def test_a_damaged_byte_ends_a_run_unless_it_is_of_what_is_said() -> None:
    first, second = publish("q", b"1"), publish("qu", b"\0" * 4, BasicProperties(app_id="a"))
    data = first + second + second
    known = reader()
    known.read(data, 0, FRAME_MAX, MOST_BYTES, 1_024)
    for at in range(len(first), len(first) + len(second)):
        for change in (1, 0x80):
            damaged = bytearray(data)
            damaged[at] ^= change
            found = known.read(bytes(damaged), 0, FRAME_MAX, MOST_BYTES, 1_024)
            fresh = reader().read(bytes(damaged), 0, FRAME_MAX, MOST_BYTES, 1_024)
            assert found.bodies == fresh.bodies
            assert found.ends == fresh.ends
            assert found.bodies[:1] == [b"1"], at


def test_acknowledgements_are_read_up_to_what_is_none() -> None:
    run = ack(1) + ack(2, multiple=True) + ack(3)
    assert read_acks(run, 0, 10) == ([(1, 0), (2, 1), (3, 0)], len(run))
    assert read_acks(run, 0, 2) == ([(1, 0), (2, 1)], 42)
    assert read_acks(run[:-1], 0, 10) == ([(1, 0), (2, 1)], 42)
    assert read_acks(run + method("basic.reject", 4, False), 0, 10)[1] == len(run)
    assert read_acks(run[:-1] + b"\0", 0, 10) == ([], 0)
    assert read_acks(ack(1)[:20], 0, 10) == ([], 0)


def test_what_is_delivered_for_good_leaves_the_cache_and_stays_in_the_log() -> None:
    c = AmqpClient(make_node())
    c.open()
    c.declare("q", durable=False)
    c.consume("q", no_ack=True)
    for _ in range(3):
        c.send_raw(publish("q", b"x") * 50)
        assert len(c.hear()) == 50
    (partition,) = c.node.engine._queues["q"].partitions
    assert not partition.cached
    assert [record.value for record in partition.log.read(0, 200)] == [b"x"] * 150
    stored = partition.get(7)
    assert stored is not None
    assert (stored.message.payload, len(partition.cached)) == (b"x", 128)


def test_of_a_message_in_memory_no_record_is_made_before_it_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Message] = []
    headers_of = stored_message._headers
    monkeypatch.setattr(
        stored_message, "_headers", lambda message, *rest: made.append(message) or headers_of(message, *rest)
    )
    c = AmqpClient(make_node())
    c.open()
    c.declare("q", durable=False)
    properties = [BasicProperties(app_id="a", message_id=f"{number}", delivery_mode=1) for number in range(3)]
    c.send_raw(b"".join([publish("q", b"x", each) for each in properties]))
    c.node.engine.publish(QueueAddress(queue="q"), Message(topic="", payload=b"y", content_type="t"), NOW)
    c.hear()
    assert not made
    (partition,) = c.node.engine._queues["q"].partitions
    partition.cached.clear()
    c.send_raw(method("basic.get", "q", True) * 4)
    assert [said.body for said in c.hear()] == [b"x"] * 3 + [b"y"]
    assert len(made) == 4


def test_a_cache_passes_over_what_was_let_go() -> None:
    cache, gone, part = MessageCache(2_000), dict[int, StoredMessage](), dict[int, StoredMessage]()
    stored = StoredMessage(Message(topic="", payload=b"x"), "", "", 0.0, 0.0, 1)
    cache.put_run(gone, 0, [stored] * 2, 2)
    gone.clear()
    cache.put_run(part, 0, [stored] * 2, 2)
    del part[1]
    cache.put_run(part, 2, [stored] * 2, 2)
    assert list(part) == [2, 3]
    assert cache.stored_bytes == 2 * (1 + MESSAGE_OVERHEAD_BYTES)


def test_the_queues_of_a_fan_out_hold_the_same_messages_which_leave_each_of_them_by_itself() -> None:
    """One object a message would do for all, but what is gone in one queue stays in the others, as its expiry does."""
    node = make_node()
    c = AmqpClient(node)
    c.open()
    c.say(1, "exchange.declare", "fan", "fanout", False, False, False, False, False, ())
    for queue, arguments in (("one", ()), ("two", ()), ("short", table(**{"x-message-ttl": 60_000}))):
        c.declare(queue, durable=False, arguments=arguments)
        c.say(1, "queue.bind", queue, "fan", "", False, ())
    c.send_raw(b"".join([publish("", b"%d" % number, exchange="fan") for number in range(5)]))
    c.hear()
    one, two, short = [node.engine._queues[queue].partitions[0] for queue in ("one", "two", "short")]
    assert [one.cached[at] for at in range(5)] == [two.cached[at] for at in range(5)]
    assert [short.cached[at].expires_at - NOW for at in range(5)] == pytest.approx([60] * 5, abs=0.01)
    one.mark_gone(2)
    one.mark_gone(3)
    for queue, wanted in (("one", [b"0", b"1", b"4"]), ("two", [b"0", b"1", b"2", b"3", b"4"])):
        found = [stored for _, stored in node.engine.browse(queue, 10)]
        assert [stored.message.payload for stored in found] == wanted
        assert {stored.topic_in(queue) for stored in found} == {f"$queue/{queue}"}
        said = c.consume(queue, queue, no_ack=True)
        assert [each.body for each in said if each.name == "basic.deliver"] == wanted
