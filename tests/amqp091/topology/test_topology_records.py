"""What of a topology outlives the broker, and what it leaves in the log."""

from __future__ import annotations

import pytest

from assay.reference_broker.amqp091.topology import DestinationKind, QueueRecord, Topology, VirtualHost
from assay.reference_broker.amqp091.topology.records import RECORD_PREFIX, StoredBinding, binding_key, encode
from assay.reference_broker.routing.properties import Kind, Typed
from tests.amqp091.topology.topology_support import VOID, fields, number, text, texts

Log = dict[bytes, bytes]


def write(topology: Topology, log: Log) -> int:
    """Apply the changes of a turn. Returns how many there were."""
    changes = topology.take_changes()
    for key, value in changes:
        assert key.startswith(RECORD_PREFIX)
        if value is None:
            del log[key]
        else:
            log.pop(key, None)
            log[key] = value
    return len(changes)


def restarted(log: Log, *problems: str) -> Topology:
    """A topology from a log, with just these problems."""
    topology = Topology()
    found: list[str] = []
    topology.restore(log, found.append)
    assert len(found) == len(problems), found
    assert all(words in each for words, each in zip(problems, found, strict=True)), found
    return topology


def shown(vhost: VirtualHost) -> list[object]:
    """All that can be asked for."""
    return [
        [
            (each.name, each.kind, each.durable, each.auto_delete, each.internal, each.arguments, each.alternate)
            for each in vhost.exchanges.values()
        ],
        list(vhost.queues.values()),
        sorted(
            [(each.source, each.destination, each.routing_key, each.arguments) for each in vhost.list_bindings()],
            key=str,
        ),
    ]


EVERY_KIND = fields(
    a=number(-1, Kind.I8),
    b=Typed(Kind.BOOL, False),
    c=VOID,
    d=texts("x", "y"),
    e=Typed(Kind.MAP, (text("k"), Typed(Kind.BYTES, b"\0\xff"))),
    f=Typed(Kind.F64, 0.1),
    g=Typed(Kind.DECIMAL, (number(2, Kind.U8), number(-314, Kind.I32))),
    h=Typed(Kind.SECONDS, 1 << 40),
)


def test_all_that_is_durable_comes_back_as_it_was() -> None:
    """queue.declare.durable.persistence, queue.bind.durable-exchange."""
    topology = Topology()
    for name in ("/", "tenant"):
        vhost = topology.vhost(name)
        vhost.declare_exchange("x", "headers", durable=True, internal=True, arguments=EVERY_KIND)
        vhost.declare_exchange(
            "ü y", "topic", durable=True, auto_delete=True, arguments=fields(alternate_exchange=text("x"))
        )
        vhost.add_queue(QueueRecord(name="q", durable=True, auto_delete=True, arguments=EVERY_KIND))
        vhost.bind_queue("q", "ü y", "a.#", EVERY_KIND)
        vhost.bind_exchange("x", "ü y", "k")
        vhost.bind_exchange("x", "x", "", fields(k=VOID, x_match=text("any")))
        vhost.bind_queue("q", "amq.match", "", fields(k=VOID))
    log: Log = {}
    write(topology, log)
    again = restarted(log)
    assert set(again.vhosts) == {"/", "tenant"}
    for name in ("/", "tenant"):
        assert shown(again.vhost(name)) == shown(topology.vhost(name))
        assert again.vhost(name).route("ü y", "a.b", fields(k=number(1))).queues == ("q",)
    assert again.take_changes() == []


def test_what_is_transient_leaves_nothing() -> None:
    topology = Topology()
    vhost = topology.vhost("/")
    vhost.declare_exchange("t", "fanout")
    vhost.declare_exchange("d", "fanout", durable=True)
    vhost.add_queue(QueueRecord(name="transient"))
    vhost.add_queue(QueueRecord(name="exclusive", durable=True, exclusive_owner="c1"))
    vhost.add_queue(QueueRecord(name="durable", durable=True))
    vhost.bind_queue("transient", "d", "")
    vhost.bind_queue("exclusive", "d", "", owner="c1")
    vhost.bind_queue("durable", "t", "")
    vhost.bind_exchange("t", "d", "")
    vhost.bind_exchange("d", "t", "")
    log: Log = {}
    assert write(topology, log) == 2
    again = restarted(log).vhost("/")
    assert [each for each in again.exchanges if not each.startswith("amq.")] == ["", "d"]
    assert list(again.queues) == ["durable"]
    assert [each for each in again.list_bindings() if each.source] == []


def test_what_came_and_went_in_one_turn_is_not_written() -> None:
    topology = Topology()
    vhost = topology.vhost("/")
    for _ in range(3):
        vhost.declare_exchange("x", "direct", durable=True)
        vhost.add_queue(QueueRecord(name="q", durable=True))
        vhost.bind_queue("q", "x", "k")
        vhost.unbind_queue("q", "x", "k")
        vhost.remove_queue("q")
        vhost.delete_exchange("x")
    assert topology.take_changes() == []
    # Nor where one of the same name was written and deleted before.
    vhost.add_queue(QueueRecord(name="q", durable=True))
    topology.take_changes()
    vhost.remove_queue("q")
    assert topology.take_changes() == [(b"aq/\0q", None)]
    vhost.add_queue(QueueRecord(name="q", durable=True))
    vhost.remove_queue("q")
    assert topology.take_changes() == []


def test_each_end_of_a_durable_binding_takes_its_record_along() -> None:
    for end in ("exchange", "queue", "binding"):
        topology = Topology()
        vhost = topology.vhost("/")
        vhost.declare_exchange("x", "direct", durable=True)
        vhost.add_queue(QueueRecord(name="q", durable=True))
        vhost.bind_queue("q", "x", "k")
        log: Log = {}
        write(topology, log)
        assert len(log) == 3
        if end == "exchange":
            vhost.delete_exchange("x")
        elif end == "queue":
            vhost.remove_queue("q")
        else:
            vhost.unbind_queue("q", "x", "k")
        write(topology, log)
        assert (
            sorted(key[:2] for key in log)
            == {
                "exchange": [b"aq"],
                "queue": [b"ae"],
                "binding": [b"ae", b"aq"],
            }[end]
        )


def test_a_queue_that_was_deleted_and_declared_again_in_one_turn_has_its_new_attributes() -> None:
    topology = Topology()
    vhost = topology.vhost("/")
    vhost.add_queue(QueueRecord(name="q", durable=True))
    log: Log = {}
    write(topology, log)
    vhost.remove_queue("q")
    vhost.add_queue(QueueRecord(name="q", durable=True, arguments=fields(x_expires=number(1))))
    write(topology, log)
    assert restarted(log).vhost("/").queues["q"].arguments == fields(x_expires=number(1))
    vhost.remove_queue("q")
    vhost.add_queue(QueueRecord(name="q"))
    write(topology, log)
    assert log == {}


def test_bindings_after_a_restart_take_no_record_of_others() -> None:
    topology = Topology()
    vhost = topology.vhost("/")
    vhost.add_queue(QueueRecord(name="q", durable=True))
    for key in "abc":
        vhost.bind_queue("q", "amq.direct", key)
    vhost.unbind_queue("q", "amq.direct", "a")
    log: Log = {}
    write(topology, log)
    # Whatever the order is in which the log gives them back.
    again = restarted(dict(reversed(log.items())))
    again.vhost("/").bind_queue("q", "amq.direct", "d")
    again.vhost("/").unbind_queue("q", "amq.direct", "b")
    write(again, log)
    found = restarted(log).vhost("/")
    assert sorted(each.routing_key for each in found.list_bindings(source="amq.direct")) == ["c", "d"]


def test_an_auto_delete_exchange_whose_bindings_did_not_survive_goes_as_well() -> None:
    """rmq.auto-delete.exchange: in a chain, and not one that never had a binding."""
    topology = Topology()
    vhost = topology.vhost("/")
    vhost.add_queue(QueueRecord(name="q"))
    vhost.add_queue(QueueRecord(name="d", durable=True))
    for name in ("new", "used", "before", "kept"):
        vhost.declare_exchange(name, "fanout", durable=True, auto_delete=True)
    vhost.bind_queue("q", "used", "")
    vhost.bind_exchange("used", "before", "")
    vhost.bind_queue("q", "kept", "")
    vhost.bind_queue("d", "kept", "")
    log: Log = {}
    write(topology, log)
    again = restarted(log)
    names = [name for name in again.vhost("/").exchanges if name and not name.startswith("amq.")]
    assert names == ["new", "kept"]
    write(again, log)
    assert sorted(key[:2] for key in log) == [b"ab", b"ae", b"ae", b"aq"]
    # And one that had bindings still goes with the last of them.
    assert again.vhost("/").remove_queue("d").exchanges == ("kept",)


@pytest.fixture
def written() -> Log:
    """An exchange, a queue, two bindings."""
    topology = Topology()
    vhost = topology.vhost("/")
    vhost.declare_exchange("x", "direct", durable=True)
    vhost.add_queue(QueueRecord(name="q", durable=True))
    vhost.bind_queue("q", "x", "k")
    vhost.bind_exchange("amq.topic", "x", "k")
    log: Log = {}
    write(topology, log)
    return log


@pytest.mark.parametrize("damage", [b"", b"\x01", b"\x02\x90", b"\x01\xff\xff", b"\x01\x96\x01\x02\x03\x04\x05\x06"])
@pytest.mark.parametrize("place", range(4))
def test_a_record_that_is_not_understood_is_reported_and_left_out(written: Log, place: int, damage: bytes) -> None:
    """With what needs it; it stays where it is, since another version may understand it."""
    keys = [b"ae/\0x", b"aq/\0q", binding_key(1), binding_key(2)]
    log = written | {keys[place]: damage}
    gone = {0: ["exchange 'x' is gone"] * 2, 1: ["queue 'q' is gone"], 2: [], 3: []}[place]
    topology = restarted(log, "is not understood, and is left out", *gone)
    write(topology, log)
    assert len(log) == 4 - len(gone)
    assert log[keys[place]] == damage
    # A second start has one problem less for each that was deleted.
    restarted(log, "is not understood, and is left out")


def test_a_binding_of_what_is_gone_does_not_come_to_life_with_the_next_of_its_name(written: Log) -> None:
    """sec.3.1.5.bindings-die."""
    del written[b"aq/\0q"]
    topology = restarted(written, "is left out, and deleted: queue 'q' is gone")
    write(topology, written)
    topology.vhost("/").add_queue(QueueRecord(name="q", durable=True))
    assert topology.vhost("/").route("x", "k").queues == ()
    write(topology, written)
    assert restarted(written).vhost("/").route("x", "k").queues == ()


def test_a_queue_without_its_messages_is_left_out_with_its_bindings(written: Log) -> None:
    topology, problems = Topology(), list[str]()
    asked: list[tuple[str, str]] = []
    topology.restore(written, problems.append, has_queue=lambda *names: bool(asked.append(names)))  # type: ignore[func-returns-value]
    assert asked == [("/", "q")]
    assert [each.rpartition(": ")[2] for each in problems] == ["queue 'q' in vhost '/' is gone", "queue 'q' is gone"]
    write(topology, written)
    assert sorted(written) == [binding_key(2), b"ae/\0x"]


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (b"az", "of an unknown kind"),
        (b"a", "of an unknown kind"),
        (b"ae/x", "its key is no virtual host and name"),
        (b"aq/\0q\0", "its key is no virtual host and name"),
        (b"ae\xff\0x", "codec can't decode"),
        (b"ab\0", "its key is no number of a binding"),
        (binding_key(0), "its key is no number of a binding"),
        (b"ae/\0amq.topic", "it is predeclared"),
        (b"ae/\0", "it is predeclared"),
    ],
)
def test_a_key_that_is_none_is_reported(written: Log, key: bytes, words: str) -> None:
    value = written[{b"aq": b"aq/\0q", b"ab": binding_key(1)}.get(key[:2], b"ae/\0x")]
    assert restarted(written | {key: value}, words).vhost("/").route("x", "k").queues == ("q",)


@pytest.mark.parametrize(
    ("source", "kind", "destination", "words"),
    [
        ("", "queue", "q", "exchange '' is gone"),
        ("x", "exchange", "", "exchange '' is gone"),
        ("x", "exchange", "q", "exchange 'q' is gone"),
        ("x", "queue", "x", "queue 'x' is gone"),
    ],
)
def test_a_binding_that_nobody_could_have_made_is_left_out(
    written: Log, source: str, kind: str, destination: str, words: str
) -> None:
    stored = StoredBinding(
        vhost="/",
        source=source,
        kind=DestinationKind(kind),
        destination=destination,
        routing_key="k",
        arguments=b"",
    )
    topology = restarted(written | {binding_key(7): encode(stored)}, words)
    assert topology.take_changes() == [(binding_key(7), None)]


def test_a_binding_that_is_there_twice_is_deleted_once(written: Log) -> None:
    written[binding_key(9)] = written[binding_key(1)]
    topology = restarted(written, "it is there twice")
    write(topology, written)
    assert sorted(written) == [binding_key(1), binding_key(2), b"ae/\0x", b"aq/\0q"]
    topology.vhost("/").bind_queue("q", "x", "other")
    write(topology, written)
    assert binding_key(10) in written


def test_records_of_others_are_passed_over(written: Log) -> None:
    restarted(written | {b"sclient": b"\xff", b"v": b"1"})
