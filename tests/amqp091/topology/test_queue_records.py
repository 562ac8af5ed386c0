"""Queues by their names: declared, declared again, exclusive, removed."""

from __future__ import annotations

import pytest

from assay.reference_broker.amqp091.topology import Arguments, QueueRecord
from assay.reference_broker.routing.properties import Kind, Typed
from tests.amqp091.topology.topology_support import fields, host, number, refused, text

BASE: dict[str, object] = {
    "durable": True,
    "exclusive": False,
    "auto_delete": False,
    "arguments": fields(x_message_ttl=number(60_000), x_queue_type=text("classic")),
}


def _declared(declaration: dict[str, object]) -> QueueRecord:
    values = dict(declaration)
    owner = "c1" if values.pop("exclusive") else None
    return QueueRecord(name="q", exclusive_owner=owner, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"durable": False}, 406, "inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false'"),
        ({"auto_delete": True}, 406, "inequivalent arg 'auto_delete' for queue 'q' in vhost '/': received 'true'"),
        ({"exclusive": True}, 405, "cannot obtain exclusive access to locked queue 'q' in vhost '/'."),
        ({"arguments": ()}, 406, "inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received none but"),
        (
            {"arguments": fields(x_message_ttl=number(60_001))},
            406,
            "received the value '60001' of type 'signedint' but current is the value '60000' of type 'signedint'",
        ),
        ({"arguments": fields(x_message_ttl=text("60000"))}, 406, "inequivalent arg 'x-message-ttl'"),
        (
            {"arguments": fields(x_message_ttl=number(60_000), x_expires=number(1))},
            406,
            "inequivalent arg 'x-expires' for queue 'q' in vhost '/': received the value '1' of type 'signedint' but",
        ),
        (
            {"arguments": fields(x_message_ttl=number(60_000), x_queue_type=text("quorum"))},
            406,
            "inequivalent arg 'x-queue-type'",
        ),
    ],
)
def test_another_declaration_of_the_same_queue_names_what_differs(
    change: dict[str, object], code: int, words: str
) -> None:
    """queue.declare.passive.equivalent."""
    for first, second in ((BASE, {**BASE, **change}), ({**BASE, **change}, BASE)):
        vhost = host()
        vhost.add_queue(_declared(first))
        found = refused(lambda second=second, vhost=vhost: vhost.check_queue("q", owner="c1", **second))  # type: ignore[misc]
        assert found[0] == code
        if first is BASE:
            assert words in found[1]
        assert found[2] == ("queue.declare.exclusive.exclusive" if code == 405 else "queue.declare.passive.equivalent")


@pytest.mark.parametrize(
    "arguments",
    [
        BASE["arguments"],
        fields(x_queue_type=text("classic"), x_message_ttl=number(60_000)),
        fields(x_message_ttl=number(60_000, Kind.I64), x_queue_type=text("classic")),
        fields(x_message_ttl=number(60_000, Kind.U16)),
    ],
)
def test_the_same_declaration_finds_the_queue(arguments: Arguments) -> None:
    """Neither the order of arguments nor the width of an integer nor a default that is said makes another queue."""
    vhost = host()
    vhost.add_queue(_declared(BASE))
    found = vhost.check_queue("q", owner="c2", **{**BASE, "arguments": arguments})  # type: ignore[arg-type]
    assert found is vhost.queues["q"]


def test_a_truth_is_no_integer() -> None:
    vhost = host()
    vhost.add_queue(QueueRecord(name="q", arguments=fields(x_a=Typed(Kind.BOOL, True))))
    assert refused(lambda: vhost.check_queue("q", owner=None, arguments=fields(x_a=number(1))))[0] == 406


def test_passive_declares_find_what_is_there() -> None:
    """queue.declare.passive.passive."""
    vhost = host("q")
    code, words, rule = refused(lambda: vhost.check_queue("p", owner="c1", passive=True))
    assert (code, words, rule) == (404, "no queue 'p' in vhost '/'", "queue.declare.passive.passive")
    assert vhost.check_queue("q", owner="c1", passive=True, durable=True) is vhost.queues["q"]
    assert "p" not in vhost.queues


def test_reserved_names_are_for_the_server() -> None:
    """queue.declare.queue.reserved: and the client may declare what exists."""
    vhost = host()
    code, words, rule = refused(lambda: vhost.check_queue("amq.gen-1", owner="c1"))
    assert (code, rule) == (403, "queue.declare.queue.reserved")
    assert words == "queue name 'amq.gen-1' contains reserved prefix 'amq.*'"
    assert vhost.check_queue("amq.gen-1", owner="c1", is_named_by_server=True) is None
    vhost.add_queue(QueueRecord(name="amq.gen-1"))
    assert vhost.check_queue("amq.gen-1", owner="c1") is vhost.queues["amq.gen-1"]


def test_an_exclusive_queue_is_nobody_elses() -> None:
    """rmq.exclusive.scope, queue.declare.exclusive.exclusive; also before its equivalence is looked at (errata 8)."""
    vhost = host()
    vhost.add_queue(QueueRecord(name="q", exclusive_owner="c1", durable=True))
    vhost.declare_exchange("x", "direct")
    vhost.bind_queue("q", "x", "k", owner="c1")
    for act in (
        lambda: vhost.check_queue("q", owner="c2", passive=True),
        lambda: vhost.check_queue("q", owner="c2", durable=True, arguments=fields(x_a=number(1))),
        lambda: vhost.find_queue("q", owner="c2"),
        lambda: vhost.bind_queue("q", "x", "k", owner="c2"),
        lambda: vhost.unbind_queue("q", "x", "k", owner="c2"),
        lambda: vhost.unbind_queue("q", "x", "other", owner="c2"),
    ):
        assert refused(act)[0] == 405
    assert vhost.find_queue("q", owner="c1") is vhost.queues["q"]
    assert vhost.route("x", "k").queues == ("q",)


def test_an_exclusive_queue_is_not_durable_whatever_was_asked_for() -> None:
    """queue.declare.exclusive.types (errata 30)."""
    vhost = host()
    vhost.add_queue(QueueRecord(name="q", exclusive_owner="c1", durable=True))
    assert vhost.queues["q"].durable is False
    assert vhost.check_queue("q", owner="c1", durable=True, exclusive=True) is vhost.queues["q"]


def test_an_exclusive_queue_must_be_asked_for_as_one() -> None:
    vhost = host()
    vhost.add_queue(QueueRecord(name="q", exclusive_owner="c1"))
    assert refused(lambda: vhost.check_queue("q", owner="c1"))[0] == 405


def test_an_owner_has_its_queues_until_they_are_removed() -> None:
    """sec.4.5.exclusive-delete."""
    vhost = host("shared")
    for name, owner in (("b", 1), ("a", 1), ("c", 2)):
        vhost.add_queue(QueueRecord(name=name, exclusive_owner=owner))
    assert vhost.queues_of(1) == ("b", "a")
    vhost.remove_queue("b")
    assert vhost.queues_of(1) == ("a",)
    vhost.remove_queue("a")
    assert vhost.queues_of(1) == ()
    assert vhost.queues_of(2) == ("c",)
    vhost.remove_queue("c")
    assert not vhost._owned  # Connections come and go for years.


def test_a_removed_queue_takes_its_bindings_along() -> None:
    """sec.3.1.5.bindings-die: another of the same name begins without them."""
    vhost = host("q")
    vhost.declare_exchange("x", "direct", auto_delete=True)
    vhost.bind_queue("q", "x", "k")
    vhost.bind_queue("q", "amq.topic", "#")
    removed = vhost.remove_queue("q")
    assert (removed.queues, removed.exchanges) == (("q",), ("x",))
    assert [each.source for each in removed.bindings] == ["x", "amq.topic"]
    vhost.add_queue(QueueRecord(name="q"))
    assert vhost.route("amq.topic", "k").queues == ()
    assert vhost.route("", "q").queues == ("q",)
    assert vhost.remove_queue("none").queues == ()
