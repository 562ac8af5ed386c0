"""Streams: queues whose messages stay, read from wherever a consumer asks for."""

from __future__ import annotations

from typing import Any

import pytest

from assay.reference_broker.amqp091 import queue_settings
from assay.reference_broker.amqp091.queue_settings import interval_s, parse_arguments
from assay.reference_broker.amqp091.wire.content import BasicProperties
from assay.reference_broker.amqp091.wire.fields import Table
from assay.reference_broker.amqp091.wire.replies import AmqpError
from assay.reference_broker.config import QueuesConfig
from assay.reference_broker.routing.properties import Kind, Typed
from assay.reference_broker.storage.memory_disk import MemoryDisk
from tests.support.amqp_client import NOW, AmqpClient, Said, make_node, table

STREAM = table(x_queue_type="stream")


def client(disk: MemoryDisk | None = None, **config: Any) -> AmqpClient:
    found = AmqpClient(make_node(disk, **config))
    found.open()
    return found


def streamed(count: int = 5, **more: Any) -> AmqpClient:
    """A client, and a stream ``s`` with so many messages."""
    c = client(**more)
    assert c.declare("s", arguments=STREAM).name == "queue.declare-ok"
    for number in range(count):
        c.publish("s", b"%d" % number)
    return c


def read(c: AmqpClient, *arguments: Any, channel: int = 2, prefetch: int = 100) -> list[Said]:
    """What a consumer gets on a channel of its own."""
    if channel not in c.end.channels:
        c.open(channel)
    c.say(channel, "basic.qos", 0, prefetch, False)
    said = c.consume("s", channel=channel, arguments=tuple(arguments))
    assert said[0].name == "basic.consume-ok", said
    return said[1:]


def at(value: Typed | str | int) -> tuple[str, Typed]:
    if not isinstance(value, Typed):
        value = Typed(Kind.TEXT if isinstance(value, str) else Kind.I32, value)
    return "x-stream-offset", value


def of_group(name: str) -> tuple[str, Typed]:
    return "x-consumer-group", Typed(Kind.TEXT, name)


def bodies(said: list[Said]) -> list[bytes]:
    return [each.body for each in said if each.name == "basic.deliver"]


def offsets(said: list[Said]) -> list[int]:
    return [
        dict(each.properties.headers or ())["x-stream-offset"].value for each in said if each.properties is not None
    ]


def closed(said: list[Said], code: int, what: str = "channel.close") -> None:
    assert (said[-1].name, said[-1].values[0]) == (what, code), said


def test_messages_stay_for_everybody() -> None:
    c = streamed()
    for channel in (2, 3):
        said = read(c, at("first"), channel=channel)
        assert bodies(said) == [b"0", b"1", b"2", b"3", b"4"]
        assert offsets(said) == [0, 1, 2, 3, 4]
        assert [each.values for each in said] == [("t", tag, False, "", "s") for tag in range(1, 6)]
        c.say(channel, "basic.ack", 5, True)
    assert c.declare("s", passive=True).values == ("s", 5, 2)
    assert bodies(c.publish("s", b"5")) == [b"5", b"5"]
    c.say(2, "channel.close", 200, "", 0, 0)
    assert bodies(read(c, at("first"), channel=4)) == [b"%d" % number for number in range(6)]


@pytest.mark.parametrize(
    ("argument", "wanted"),
    [
        ((), []),
        ((at("next"),), []),
        ((at("first"),), [0, 1, 2, 3, 4]),
        ((at("last"),), [4]),
        ((at(2),), [2, 3, 4]),
        ((at(99),), []),
        ((at(-1),), [0, 1, 2, 3, 4]),
        ((at("3"),), [3, 4]),
        ((at("offset=1"),), [1, 2, 3, 4]),
        ((at(Typed(Kind.SECONDS, int(NOW) + 2)),), [2, 3, 4]),
        ((at(Typed(Kind.SECONDS, int(NOW) + 60)),), []),
        ((at(f"timestamp={int(NOW) + 3}"),), [3, 4]),
        ((at(f"timestamp={(int(NOW) + 3) * 1000 + 1}"),), [4]),
        ((at("1h"),), [0, 1, 2, 3, 4]),
        ((at("3s"),), [1, 2, 3, 4]),
    ],
)
def test_a_consumer_says_where_it_begins(argument: tuple[tuple[str, Typed], ...], wanted: list[int]) -> None:
    c = streamed(0)
    for number in range(5):
        c.publish("s", b"%d" % number)
        c.now += 1
    c.now -= 1
    said = read(c, *argument)
    assert offsets(said) == wanted
    assert bodies(c.publish("s", b"new")) == [b"new"]


def test_last_of_an_empty_stream_is_what_comes_next() -> None:
    c = streamed(0)
    assert read(c, at("last")) == []
    assert bodies(c.publish("s", b"x")) == [b"x"]


def test_acknowledgements_ask_for_more() -> None:
    c = streamed()
    assert bodies(read(c, at("first"), prefetch=2)) == [b"0", b"1"]
    assert bodies(c.say(2, "basic.ack", 1, False)) == [b"2"]
    # Whatever is said of it, a message stays where it is, and does not come again.
    assert bodies(c.say(2, "basic.nack", 2, False, True)) == [b"3"]
    assert bodies(c.say(2, "basic.reject", 3, True)) == [b"4"]
    assert c.say(2, "basic.reject", 4, False) == []
    assert c.declare("s", passive=True).values[1] == 5


def test_what_is_recovered_comes_again() -> None:
    c = streamed(3)
    read(c, at("first"), prefetch=3)
    c.say(2, "basic.ack", 1, False)
    said = c.say(2, "basic.recover", True)
    assert sorted(offsets(said)) == [1, 2]
    assert all(each.values[2] for each in said if each.name == "basic.deliver")


def test_a_group_goes_on_where_it_was() -> None:
    disk = MemoryDisk()
    c = streamed(5, disk=disk)
    assert bodies(read(c, of_group("g"), prefetch=3)) == [b"0", b"1", b"2"], "a new one begins at the first message"
    c.say(2, "basic.ack", 2, True)
    c.say(2, "channel.close", 200, "", 0, 0)
    c.hear()
    again = client(disk_of(c, disk))
    said = read(again, of_group("g"), at("first"), prefetch=3)
    assert offsets(said) == [2, 3, 4], "what was not acknowledged comes again"
    assert [each.values[2] for each in said] == [True, True, True]


def disk_of(c: AmqpClient, disk: MemoryDisk) -> MemoryDisk:
    """The broker is killed."""
    del c
    disk.unlock()
    return disk


def test_a_group_shares_what_comes() -> None:
    c = streamed(0)
    for channel in (2, 3):
        assert read(c, of_group("g"), channel=channel) == []
    for number in range(4):
        c.publish("s", b"%d" % number)
    heard = [(each.channel, each.body) for each in c.hear()]
    assert heard == []
    said = [each for number in range(4, 8) for each in c.publish("s", b"%d" % number)]
    assert sorted(bodies(said)) == [b"4", b"5", b"6", b"7"]
    assert [each.channel for each in said] in ([2, 3, 2, 3], [3, 2, 3, 2])


def test_consumers_alone_leave_nothing_behind() -> None:
    disk = MemoryDisk()
    c = streamed(3, disk=disk)
    groups = c.node.engine._queues["s"].groups
    for channel in range(2, 12):
        read(c, at("first"), channel=channel)
    assert len(groups) == 10
    c.say(2, "basic.cancel", "t", False)
    assert len(groups) == 10, "it holds deliveries"
    c.say(2, "basic.ack", 0, True)
    assert len(groups) == 9
    c.say(3, "channel.close", 200, "", 0, 0)
    assert len(groups) == 8
    c.end.connection_lost(c.now)
    assert not groups
    assert disk.list("queues/s/consumers") == []


def test_streams_come_back_after_a_restart() -> None:
    disk = MemoryDisk()
    c = streamed(3, disk=disk)
    read(c, at("first"))
    c.hear()
    again = client(disk_of(c, disk))
    assert again.declare("s", arguments=STREAM).values == ("s", 3, 0)
    assert bodies(read(again, at("first"))) == [b"0", b"1", b"2"]
    closed([again.declare("s", arguments=())], 406)


def test_nothing_of_a_stream_expires() -> None:
    c = streamed(0)
    c.publish("s", b"x", BasicProperties(expiration="10"))
    c.now += 60
    said = read(c, at("first"))
    assert bodies(said) == [b"x"]
    assert said[0].properties is not None
    assert said[0].properties.expiration == "10"


def test_a_publisher_poses_for_no_offset() -> None:
    c = streamed(0)
    c.publish("s", b"x", BasicProperties(headers=table(x_stream_offset=7, a=1)))
    said = read(c, at("first"))
    assert said[0].properties is not None
    assert said[0].properties.headers == (("a", Typed(Kind.I32, 1)), ("x-stream-offset", Typed(Kind.I64, 0)))


@pytest.mark.parametrize("limits", [{"x_max_length_bytes": 20_000}, {"x_max_length": 100}, {"x_max_age": "10s"}])
def test_the_limits_of_a_stream_take_whole_segments(limits: dict[str, Any]) -> None:
    disk = MemoryDisk()
    c = client(disk)
    arguments = table(x_queue_type="stream", x_stream_max_segment_size_bytes=4_096, **limits)
    assert c.declare("s", arguments=arguments).name == "queue.declare-ok"
    for _ in range(5):
        for _ in range(40):
            c.publish("s", bytes(500), syncs=False)
        c.now += 5
        c.hear()
    c.now += 11
    c.hear()
    c.now += 11
    c.hear()
    ready = c.declare("s", passive=True).values[1]
    assert ready < 150
    if "x_max_age" not in limits:
        assert ready >= 30
    # Who was to read what is gone goes on at what is left.
    said = read(c, at(0), prefetch=1_000)
    assert len(bodies(said)) == ready
    assert not said or offsets(said)[0] == 200 - ready


def test_a_reader_that_is_too_slow_misses_what_is_gone() -> None:
    disk = MemoryDisk()
    c = client(disk)
    arguments = table(x_queue_type="stream", x_stream_max_segment_size_bytes=4_096, x_max_length_bytes=8_000)
    c.declare("s", arguments=arguments)
    c.publish("s", bytes(500))
    assert offsets(read(c, at("first"), prefetch=1)) == [0]
    for _ in range(5):
        for _ in range(20):
            c.publish("s", bytes(500), syncs=False)
        c.now += 11
        c.hear()
    said = c.say(2, "basic.ack", 1, False)
    assert offsets(said)[0] > 50


def test_what_streams_refuse() -> None:
    c = streamed(1)
    for channel, arguments in enumerate(
        (
            (at("nonsense"),),
            (at(Typed(Kind.BOOL, True)),),
            (("x-priority", Typed(Kind.I32, 1)),),
            (("x-unknown", Typed(Kind.I32, 1)),),
            (of_group(""),),
            (("x-consumer-group", Typed(Kind.I32, 1)),),
            (("x-auto-commit", Typed(Kind.I32, 1)),),
        ),
        2,
    ):
        c.open(channel)
        c.say(channel, "basic.qos", 0, 1, False)
        closed(c.consume("s", channel=channel, arguments=arguments), 406)
    c.open(20)
    closed(c.consume("s", channel=20), 406)  # without prefetch
    c.declare("q")
    c.open(21)
    closed(c.consume("q", channel=21, arguments=(at("first"),)), 406)


@pytest.mark.parametrize(
    ("method", "values"),
    [
        ("basic.get", ("s", False)),
        ("queue.purge", ("s", False)),
        ("basic.consume", ("s", "t", False, True, False, False, ())),
    ],
)
def test_what_streams_do_not_have(method: str, values: tuple[Any, ...]) -> None:
    c = streamed(1)
    c.say(1, "basic.qos", 0, 1, False)
    closed(c.say(1, method, *values), 540, "connection.close")


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        (STREAM, {"durable": False}),
        (STREAM, {"exclusive": True}),
        (STREAM, {"auto_delete": True}),
        (table(x_queue_type="stream", x_message_ttl=5), {}),
        (table(x_queue_type="stream", x_dead_letter_exchange=""), {}),
        (table(x_queue_type="stream", x_max_age="soon"), {}),
        (table(x_queue_type="stream", x_max_age="0s"), {}),
        (table(x_max_age="1h"), {}),
        (table(x_queue_type="quorum", x_stream_max_segment_size_bytes=5_000), {}),
    ],
)
def test_what_a_stream_cannot_be(arguments: Table, flags: dict[str, Any]) -> None:
    c = client()
    closed([c.declare("s", arguments=arguments, **flags)], 406)
    c.say(1, "channel.close-ok")
    c.open(2)
    assert c.declare("s", channel=2, arguments=STREAM).name == "queue.declare-ok"
    assert c.say(2, "queue.delete", "s", False, False, False)[0].name == "queue.delete-ok"


def test_intervals() -> None:
    found = {text: interval_s(text) for text in ("1Y", "2M", "3W", "4D", "5h", "6m", "7s")}
    assert list(found.values()) == [31_536_000, 5_184_000, 1_814_400, 345_600, 18_000, 360, 7]
    for text in ("", "1", "h", "1 h", "-1h", "1.5h", "1H", "9999999999s", "1h1m"):
        with pytest.raises(ValueError, match="number of"):
            interval_s(text)
    assert parse_arguments("q", table(x_queue_type="stream", x_max_age="2h")).max_age_s == 7_200
    assert parse_arguments("q", table(x_queue_type="stream", x_max_age=90)).max_age_s == 90
    with pytest.raises(AmqpError):
        parse_arguments("q", table(x_queue_type="stream", x_max_age=True))


def test_readers_in_transactions() -> None:
    c = streamed(2)
    read(c, at("first"), prefetch=1)
    c.say(2, "tx.select")
    assert c.say(2, "basic.ack", 1, False) == []
    assert sorted([each.name for each in c.say(2, "tx.commit")]) == ["basic.deliver", "tx.commit-ok"]
    c.say(2, "basic.ack", 2, False)
    c.end.connection_lost(c.now)
    c.hear()
    assert not c.node.engine._queues["s"].groups


def test_consumers_of_a_stream_are_bounded() -> None:
    c = client(queues=QueuesConfig(defaults={"max_groups": 2}))
    c.declare("s", arguments=STREAM)
    for channel in (2, 3):
        read(c, channel=channel)
    c.open(4)
    c.say(4, "basic.qos", 0, 1, False)
    closed(c.consume("s", channel=4), 406)


AUTO_OFF = ("x-auto-commit", Typed(Kind.BOOL, False))


def commit(c: AmqpClient, group: str, offset: int, channel: int = 2) -> list[Said]:
    headers = (("x-group-id", Typed(Kind.TEXT, group)), ("x-offset", Typed(Kind.I64, offset)))
    return c.publish("$queue/s/$commit", b"", BasicProperties(headers=headers), channel=channel)


def test_readers_that_commit_by_themselves() -> None:
    c = streamed(6)
    assert offsets(read(c, of_group("g"), AUTO_OFF, prefetch=2)) == [0, 1]
    assert offsets(c.say(2, "basic.ack", 2, True)) == [2, 3]
    assert offsets(c.say(2, "basic.ack", 4, True)) == [4, 5]
    c.say(2, "confirm.select", False)
    assert [(each.name, each.values) for each in commit(c, "g", 3)] == [("basic.ack", (1, False))]
    c.say(2, "channel.close", 200, "", 0, 0)
    # What was acknowledged and not committed comes again.
    assert offsets(read(c, of_group("g"), AUTO_OFF, channel=3)) == [3, 4, 5]
    commit(c, "g", 6, channel=3)
    c.say(3, "channel.close", 200, "", 0, 0)
    assert read(c, of_group("g"), AUTO_OFF, channel=4) == []
    assert bodies(c.publish("s", b"new")) == [b"new"]


def test_what_cannot_be_committed_is_refused() -> None:
    c = streamed(3)
    read(c, of_group("g"), AUTO_OFF, prefetch=2)
    c.say(2, "basic.ack", 2, True)
    commit(c, "g", 1)
    for number, (group, offset) in enumerate((("g", 0), ("g", 4), ("other", 1)), 3):
        c.open(number)
        c.say(number, "basic.qos", 0, 1, False)
        c.consume("s", channel=number, arguments=(of_group("g"), AUTO_OFF))
        closed(commit(c, group, offset, channel=number), 406)
    c.open(10)
    closed(commit(c, "g", 2, channel=10), 406)  # it consumes nothing
    c.open(11)
    closed(c.publish("$queue/s/$commit", b"", channel=11), 406)  # it says nothing
    c.open(12)
    closed(c.publish("$queue/nowhere/$commit", b"", BasicProperties(headers=_commit_headers()), channel=12), 404)
    c.declare("q")
    closed(c.publish("$queue/q/$commit", b"", BasicProperties(headers=_commit_headers())), 406)
    c.open(13)
    c.say(13, "basic.qos", 0, 1, False)
    closed(c.consume("s", channel=13, arguments=(AUTO_OFF,)), 406)


def _commit_headers() -> Table:
    return (("x-group-id", Typed(Kind.TEXT, "g")), ("x-offset", Typed(Kind.I64, 1)))


def test_a_reader_that_never_commits_gets_so_much_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_settings, "MAX_IN_FLIGHT", 4)
    c = streamed(10)
    assert offsets(read(c, of_group("g"), AUTO_OFF, prefetch=3)) == [0, 1, 2]
    assert offsets(c.say(2, "basic.ack", 3, True)) == [3]
    assert c.say(2, "basic.ack", 4, False) == []
    assert offsets(commit(c, "g", 2)) == [4, 5]
