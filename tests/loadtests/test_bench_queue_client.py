"""The queue client of the bench: its blocks of frames against frames made and read one by one."""

from __future__ import annotations

import socket
import struct

import numpy as np
import pytest

from assay.conformance.wire.decode import decode_packet
from assay.conformance.wire.packets import Publish
from assay.loadtests.bench import amqp
from assay.loadtests.bench.frames import PACKET_IDS, PublishFrames
from assay.loadtests.bench.queue_flow import KEYS, QueueFlow, queue_stream
from assay.loadtests.bench.queue_frames import AckFrames, DeliveryReader, acknowledgements, key_of, key_sections
from assay.loadtests.bench.shape import Shape
from assay.loadtests.bench.workload import BenchError
from assay.loadtests.packets import (
    PUBACK,
    acknowledgement,
    property_section,
    publish_frame,
    split_frames,
    user_property,
)

PAYLOAD_BYTES = 20
TOPIC = b"$queue/jobs"


def delivery(
    number: int,
    *,
    offset: int | None = None,
    partition: int = 3,
    group: bytes = b"g",
    dup: bool = False,
    key: bytes | None = None,
    last: bytes = b"delivery-count",
) -> bytes:
    place = (b"%d" % partition, b"%d" % (number if offset is None else offset))
    pairs = (
        (b"message-id", b"jobs:" + b":".join(place)),
        (b"group-id", group),
        (b"partition", place[0]),
        (b"offset", place[1]),
        (b"delivery-count", b"1"),
        *([] if key is None else [(b"partition-key", key)]),
    )
    section = property_section(b"".join(user_property(*pair) for pair in sorted(pairs, key=lambda p: p[0] == last)), 5)
    payload = number.to_bytes(8, "big") + b"&" * (PAYLOAD_BYTES - 8)
    made = publish_frame(1, TOPIC, number % PACKET_IDS + 1, section, payload)
    return bytes((made[0] | 8,)) + made[1:] if dup else made


def confirm(number: int) -> bytes:
    return acknowledgement(PUBACK, (number % PACKET_IDS + 1).to_bytes(2, "big"))


@pytest.mark.parametrize("last", [b"message-id", b"group-id", b"partition", b"offset", b"delivery-count"])
def test_deliveries_and_confirms_are_read_wherever_the_stream_is_cut(last: bytes) -> None:
    numbers = [0, 1, 9, 10, 0x4001, 12_345_678]  # one packet id looks like a PUBACK's start
    stream = b"".join(delivery(number, partition=number % 12, last=last) + confirm(number) for number in numbers)
    for cut in range(len(stream) + 1):
        reader = DeliveryReader(PAYLOAD_BYTES)
        first = reader.read(stream[:cut])
        second = reader.read(stream[first.used :])
        assert second.used == len(stream) - first.used
        assert [*first.sequences, *second.sequences] == numbers
        assert first.names + second.names == [b"jobs:%d:%d" % (number % 12, number) for number in numbers]
        assert first.ids + second.ids == b"".join((number % PACKET_IDS + 1).to_bytes(2, "big") for number in numbers)
        assert first.confirms + second.confirms == len(numbers)
        assert reader.group == b"g"


@pytest.mark.parametrize(
    "stranger",
    [
        b"\x40\x03\x00\x01\x97",
        b"\xd0\x00",
        b"\xe0\x01\x8b",
        delivery(2, group=b"other"),
        delivery(2, dup=True),
        delivery(2)[:-1] + confirm(1),
    ],
    ids=["refused", "ping", "disconnect", "group", "dup", "shifted"],
)
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_anything_else_on_the_stream_voids_the_figure(stranger: bytes, place: str) -> None:
    known = [delivery(0), delivery(1), confirm(1)]
    known.insert({"first": 0, "middle": 1, "last": 3}[place], stranger)
    reader = DeliveryReader(PAYLOAD_BYTES)
    reader.read(delivery(7))
    with pytest.raises(BenchError, match="expected a delivery like the first"):
        reader.read(b"".join(known))


@pytest.mark.parametrize("stranger", [b"\x30\x05\x00\x01a\x00x", b"\x40\x02\x00\x01", b"\x32\x06\x00\x01a\x00\x01\x00"])
def test_the_first_delivery_must_be_one(stranger: bytes) -> None:
    with pytest.raises(BenchError):
        DeliveryReader(PAYLOAD_BYTES).read(stranger)


def test_a_first_delivery_that_is_not_whole_is_waited_for() -> None:
    found = DeliveryReader(PAYLOAD_BYTES).read(delivery(0)[:-1])
    assert (found.ids, found.names, len(found.sequences), found.confirms, found.used) == (b"", [], 0, 0, 0)


def test_settlements_in_a_block_are_those_made_one_by_one() -> None:
    for names in ([b"jobs:0:7", b"jobs:0:8"], [b"jobs:0:9", b"jobs:11:10", b"jobs:0:%d" % 10**15]):
        block, single = AckFrames(TOPIC + b"/$ack"), AckFrames(TOPIC + b"/$ack")
        for acks in (block, single):
            acks._sent = PACKET_IDS - 1  # the next packet id but one starts over
        pairs = [user_property(b"message-id", name) + user_property(b"group-id", b"g") for name in names]
        assert block.each(names, b"g") == b"".join(single.one(pair) for pair in pairs)
    frames, _ = split_frames(block.each([b"jobs:0:1"] * 3, b"g"))
    assert len(frames) == 3
    packet = decode_packet(block.each([b"jobs:0:1"], b"g"), 5)
    assert isinstance(packet, Publish)
    assert packet.properties.user_property == (("message-id", "jobs:0:1"), ("group-id", "g"))
    assert acknowledgements(b"\0\1\2\3") == confirm(0) + acknowledgement(PUBACK, b"\2\3")


def test_amqp_frames_in_a_block_are_those_made_one_by_one() -> None:
    body = (5).to_bytes(8, "big") + bytes(12)
    header = amqp.frame(amqp.HEADER, 1, struct.pack(">HHQHB", 60, 0, 20, 0x1000, 2))
    content = header + amqp.frame(amqp.BODY, 1, body)
    published = amqp.method(amqp.BASIC_PUBLISH, b"\0\0\0\4jobs\0") + content
    delivered = amqp.method(amqp.BASIC_DELIVER, b"\5bench" + struct.pack(">Q", 9) + b"\0\0\4jobs") + content
    acked = amqp.method(amqp.BASIC_ACK, struct.pack(">Q", 9) + b"\1")
    assert bytes(Shape("", *amqp.publish_parts("jobs", 20)).build(2, seq=[5, 5])) == 2 * published
    assert bytes(Shape("", *amqp.ack_parts()).build(1, tag=9, multiple=1)) == acked
    found = Shape("a delivery", *amqp.delivery_parts("jobs", 20)).read(delivered * 2 + delivered[:-1])
    assert (found["tag"].tolist(), found["seq"].tolist()) == ([9, 9], [5, 5])


def test_amqp_messages_may_have_a_key_as_a_header() -> None:
    body = (5).to_bytes(8, "big") + bytes(12)
    table = b"\x0dpartition-keyS\0\0\0\6key-05"
    header = struct.pack(">HHQHI", 60, 0, 20, 0x3000, len(table)) + table + b"\2"
    content = amqp.frame(amqp.HEADER, 1, header) + amqp.frame(amqp.BODY, 1, body)
    published = amqp.method(amqp.BASIC_PUBLISH, b"\0\0\0\4jobs\0") + content
    delivered = amqp.method(amqp.BASIC_DELIVER, b"\5bench" + struct.pack(">Q", 9) + b"\0\0\4jobs") + content
    assert bytes(Shape("", *amqp.publish_parts("jobs", 20, 6)).build(2, seq=5, key=key_of(5))) == 2 * published
    found = Shape("a delivery", *amqp.delivery_parts("jobs", 20, 6)).read(delivered * 2)
    assert (found["key"].tolist(), found["seq"].tolist()) == ([b"key-05"] * 2, [5, 5])


def test_publishes_have_their_keys_in_turn_and_deliveries_show_them() -> None:
    frames = PublishFrames("$queue/jobs", 1, PAYLOAD_BYTES, sections=key_sections(KEYS))
    block = bytes(frames.block(KEYS - 1, 2))
    for number, (_, _, end) in zip((KEYS - 1, KEYS), split_frames(block)[0], strict=True):
        packet = decode_packet(block[end - frames.size : end], 5)
        assert isinstance(packet, Publish)
        assert packet.properties.user_property == (("partition-key", f"key-{number % KEYS:02}"),)
    reader = DeliveryReader(PAYLOAD_BYTES)
    numbers = [3, 7, KEYS + 8]
    found = reader.read(b"".join(delivery(number, key=key_of(number % KEYS)) + confirm(1) for number in numbers))
    assert (found.sequences.tolist(), found.keys.tolist()) == (numbers, [3, 7, 8])
    for other in (delivery(1), delivery(1, key=b"key-"), delivery(1, key=b"kex-05")):
        with pytest.raises(BenchError, match="expected a delivery like the first"):
            reader.read(other)
    assert not len(DeliveryReader(PAYLOAD_BYTES).read(delivery(1)).keys)


def test_a_shape_refuses_every_other_constant_byte() -> None:
    shape = Shape("a thing", b"ab", ("number", ">u2"), b"c")
    whole = bytes(shape.build(3, number=[1, 2, 3]))
    assert whole == b"ab\0\1cab\0\2cab\0\3c"
    for at in range(len(whole)):
        damaged = whole[:at] + bytes((whole[at] ^ 1,)) + whole[at + 1 :]
        if at % shape.size in (2, 3):
            assert len(shape.read(damaged)) == 3
        else:
            with pytest.raises(BenchError, match="expected a thing"):
                shape.read(damaged)


class _Seen(QueueFlow):
    """Only counts."""

    def __init__(self, *, keyed: bool = False) -> None:
        here, _ = socket.socketpair()
        super().__init__(queue_stream(here, PAYLOAD_BYTES), queue_stream(here, PAYLOAD_BYTES), 10, keyed=keyed)
        self._sent = 10 + 5 * KEYS * keyed

    def _block(self, first: int, count: int) -> bytes:
        raise NotImplementedError

    def _on_confirms(self, data: bytes) -> int:
        raise NotImplementedError

    def _on_deliveries(self, data: bytes) -> int:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("second", "text"),
    [
        ([3, 4], "message 3 was delivered twice"),
        ([5, 5], "message 5 was delivered twice"),
        ([10], "message 10 .* never"),
    ],
)
def test_what_comes_again_or_was_never_sent_voids_the_figure(second: list[int], text: str) -> None:
    flow = _Seen()
    flow._see(np.array([1, 3], np.uint64))
    flow._see(np.array([], np.uint64))
    assert flow._delivered == 2
    with pytest.raises(BenchError, match=text):
        flow._see(np.array(second, np.uint64))


@pytest.mark.parametrize(
    ("second", "early"),
    [
        ([1, 101, 202], None),
        ([105, 3, 201, 103], None),
        ([103, 4, 3], 3),
        ([2], 2),
        ([205, 105], 105),
    ],
)
def test_messages_of_one_key_must_come_in_order(second: list[int], early: int | None) -> None:
    flow = _Seen(keyed=True)
    flow._see(np.array([0, 102], np.uint64))
    if early is None:
        flow._see(np.array(second, np.uint64))
        return
    with pytest.raises(BenchError, match=f"message {early} was delivered behind a later one of its key"):
        flow._see(np.array(second, np.uint64))
