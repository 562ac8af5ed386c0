"""Virtual hosts side by side, and what administration is shown."""

from __future__ import annotations

from assay.reference_broker.amqp091.topology import QueueRecord, Topology, stripped
from tests.amqp091.topology.topology_support import host, refused


def test_virtual_hosts_share_nothing() -> None:
    """connection.open.virtual-host.separation."""
    topology = Topology()
    ours, theirs = topology.vhost("/"), topology.vhost("theirs")
    assert topology.vhost("/") is ours
    ours.declare_exchange("x", "direct")
    ours.add_queue(QueueRecord(name="q", exclusive_owner=1))
    ours.bind_queue("q", "amq.topic", "#", owner=1)
    assert refused(lambda: theirs.route("x", "k"))[1] == "no exchange 'x' in vhost 'theirs'"
    assert theirs.route("", "q").queues == ()
    assert theirs.route("amq.topic", "k").queues == ()
    assert theirs.queues_of(1) == ()
    theirs.add_queue(QueueRecord(name="q"))
    theirs.remove_queue("q")
    assert ours.route("amq.topic", "k").queues == ("q",)


def test_names_come_without_line_feeds() -> None:
    assert stripped("e\nxc\rhange\n\r_test\n\r") == "exchange_test"
    assert stripped("a b\t") == "a b\t"


def test_bindings_are_listed_from_both_ends() -> None:
    vhost = host("p", "q")
    vhost.declare_exchange("q", "direct")
    vhost.bind_queue("q", "amq.direct", "k")
    vhost.bind_queue("p", "amq.direct", "k")
    vhost.bind_exchange("q", "amq.topic", "#")

    def listed(**which: str) -> list[tuple[str, str, str, str]]:
        found = vhost.list_bindings(**which)  # type: ignore[arg-type]
        return sorted(
            (each.source, each.destination.kind.value, each.destination.name, each.routing_key) for each in found
        )

    implied = [("", "queue", "p", "p"), ("", "queue", "q", "q")]
    direct = [("amq.direct", "queue", "p", "k"), ("amq.direct", "queue", "q", "k")]
    between = [("amq.topic", "exchange", "q", "#")]
    assert listed() == implied + direct + between
    assert listed(source="") == implied
    assert listed(source="amq.direct") == direct
    assert listed(queue="q") == [implied[1], direct[1]]
    assert listed(exchange="q") == between
    assert listed(source="amq.direct", queue="p") == direct[:1]
    assert listed(source="", queue="p") == implied[:1]
    assert listed(source="amq.direct", exchange="q") == []
    assert listed(queue="none") == listed(source="none") == listed(exchange="none") == []
