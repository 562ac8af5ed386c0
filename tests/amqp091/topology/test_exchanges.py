"""Exchanges: declared, declared again, deleted, gone by themselves."""

from __future__ import annotations

from itertools import pairwise

import pytest

from assay.reference_broker.amqp091.topology import Arguments, ExchangeKind
from assay.reference_broker.amqp091.wire.replies import AmqpError
from assay.reference_broker.routing.properties import Kind, Typed
from tests.amqp091.topology.topology_support import fields, host, number, refused, text

PREDECLARED = {
    "": ExchangeKind.DIRECT,
    "amq.direct": ExchangeKind.DIRECT,
    "amq.fanout": ExchangeKind.FANOUT,
    "amq.topic": ExchangeKind.TOPIC,
    "amq.headers": ExchangeKind.HEADERS,
    "amq.match": ExchangeKind.HEADERS,
}


def test_every_virtual_host_begins_with_the_predeclared_exchanges() -> None:
    """exchange.required-instances, sec.3.1.3.1.direct, sec.3.1.3.3.amq-topic, sec.3.1.3.4.amq-match."""
    exchanges = host().exchanges
    assert {name: each.kind for name, each in exchanges.items()} == PREDECLARED
    assert all(each.durable and not each.auto_delete and not each.internal for each in exchanges.values())


@pytest.mark.parametrize("kind", list(ExchangeKind))
def test_each_type_can_be_declared(kind: ExchangeKind) -> None:
    """exchange.required-types, exchange.recommended-types, exchange.declare.durable.support."""
    vhost = host()
    assert vhost.declare_exchange("x", kind, durable=True) is vhost.exchanges["x"]
    assert vhost.declare_exchange("y", kind).durable is False


def test_an_unknown_type_closes_the_connection() -> None:
    """exchange.declare.type.support."""
    with pytest.raises(AmqpError, match="unknown exchange type 'x-other'") as found:
        host().declare_exchange("x", "x-other")
    assert (found.value.code, found.value.hard) == (503, True)


@pytest.mark.parametrize("name", ["amq.", "amq.mine", "amq.rabbitmq.trace"])
def test_reserved_names_are_not_for_new_exchanges(name: str) -> None:
    """exchange.declare.exchange.reserved."""
    code, words, rule = refused(lambda: host().declare_exchange(name, "direct"))
    assert (code, rule) == (403, "exchange.declare.exchange.reserved")
    assert words == f"exchange name '{name}' contains reserved prefix 'amq.*'"
    assert refused(lambda: host().declare_exchange(name, "direct", passive=True))[0] == 404


def test_a_predeclared_exchange_may_be_declared_as_it_is() -> None:
    """exchange.declare.exchange.reserved: or it exists already."""
    vhost = host()
    assert vhost.declare_exchange("amq.topic", "topic", durable=True) is vhost.exchanges["amq.topic"]
    assert vhost.declare_exchange("amq.topic", "whatever", passive=True) is vhost.exchanges["amq.topic"]
    assert refused(lambda: vhost.declare_exchange("amq.topic", "topic"))[0] == 406


def test_a_name_that_only_begins_like_a_reserved_one_is_free() -> None:
    assert host().declare_exchange("amqp", "direct").name == "amqp"


def test_the_default_exchange_is_only_for_messages() -> None:
    """exchange.default-access."""
    vhost = host("q")
    vhost.declare_exchange("x", "direct")
    for act in (
        lambda: vhost.declare_exchange("", "direct", durable=True),
        lambda: vhost.declare_exchange("", "direct", passive=True),
        lambda: vhost.delete_exchange(""),
        lambda: vhost.bind_queue("q", "", "q"),
        lambda: vhost.unbind_queue("q", "", "q"),
        lambda: vhost.bind_exchange("", "x", "k"),
        lambda: vhost.bind_exchange("x", "", "k"),
        lambda: vhost.unbind_exchange("", "x", "k"),
        lambda: vhost.unbind_exchange("x", "", "k"),
    ):
        words = "operation not permitted on the default exchange"
        assert refused(act) == (403, words, "exchange.default-access")


def test_a_passive_declare_finds_what_is_there_and_makes_nothing() -> None:
    """exchange.declare.passive.not-found."""
    vhost = host()
    code, words, rule = refused(lambda: vhost.declare_exchange("x", "direct", passive=True))
    assert (code, words, rule) == (404, "no exchange 'x' in vhost '/'", "exchange.declare.passive.not-found")
    assert "x" not in vhost.exchanges
    vhost.declare_exchange("x", "fanout", durable=True)
    assert vhost.declare_exchange("x", "direct", passive=True).kind is ExchangeKind.FANOUT


BASE: dict[str, object] = {
    "kind": "topic",
    "durable": True,
    "auto_delete": False,
    "internal": False,
    "arguments": fields(alternate_exchange=text("spare")),
}


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        ({"kind": "direct"}, "type", "received 'direct' but current is 'topic'"),
        ({"durable": False}, "durable", "received 'false' but current is 'true'"),
        ({"auto_delete": True}, "auto_delete", "received 'true' but current is 'false'"),
        ({"internal": True}, "internal", "received 'true' but current is 'false'"),
        (
            {"arguments": ()},
            "alternate-exchange",
            "received none but current is the value 'spare' of type 'longstr'",
        ),
        (
            {"arguments": fields(alternate_exchange=text("other"))},
            "alternate-exchange",
            "received the value 'other' of type 'longstr' but current is the value 'spare' of type 'longstr'",
        ),
    ],
)
def test_another_declaration_of_the_same_exchange_names_what_differs(
    change: dict[str, object], name: str, words: str
) -> None:
    """exchange.declare.passive.equivalent, exchange.declare.type.typed."""
    vhost = host()
    vhost.declare_exchange("x", **BASE)  # type: ignore[arg-type]
    code, found, rule = refused(lambda: vhost.declare_exchange("x", **{**BASE, **change}))  # type: ignore[arg-type]
    assert (code, found) == (406, f"inequivalent arg '{name}' for exchange 'x' in vhost '/': {words}")
    assert rule == ("exchange.declare.type.typed" if name == "type" else "exchange.declare.passive.equivalent")
    # In the other direction, too.
    other = host()
    other.declare_exchange("x", **{**BASE, **change})  # type: ignore[arg-type]
    assert refused(lambda: other.declare_exchange("x", **BASE))[0] == 406  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments",
    [
        BASE["arguments"],
        fields(alternate_exchange=text("spare"), unknown=number(1)),
        fields(alternate_exchange=text("spare")) + fields(alternate_exchange=text("second")),
    ],
)
def test_the_same_declaration_changes_nothing(arguments: Arguments) -> None:
    """exchange.declare.passive.equivalent; arguments that mean nothing are not compared."""
    vhost = host()
    exchange = vhost.declare_exchange("x", **BASE)  # type: ignore[arg-type]
    assert vhost.declare_exchange("x", **{**BASE, "arguments": arguments}) is exchange  # type: ignore[arg-type]
    assert exchange.arguments == BASE["arguments"]


def test_an_alternate_exchange_is_named_by_a_text() -> None:
    """rmq.alternate-exchange."""
    vhost = host()
    given = fields(alternate_exchange=Typed(Kind.BOOL, True))
    code, words, rule = refused(lambda: vhost.declare_exchange("x", "direct", arguments=given))
    assert (code, rule) == (406, "rmq.alternate-exchange")
    assert words == "invalid type 'bool' for arg 'alternate-exchange' in exchange 'x' in vhost '/'"
    assert "x" not in vhost.exchanges


def test_a_deleted_exchange_is_gone_with_its_bindings_in_both_directions() -> None:
    vhost = host("q")
    for name in "xyz":
        vhost.declare_exchange(name, "fanout")
    vhost.bind_exchange("y", "x", "")
    vhost.bind_exchange("z", "y", "")
    vhost.bind_queue("q", "z", "")
    assert vhost.route("x", "").queues == ("q",)
    removed = vhost.delete_exchange("y")
    assert removed.exchanges == ("y",)
    assert sorted((each.source, each.destination.name) for each in removed.bindings) == [("x", "y"), ("y", "z")]
    assert [(each.source, each.destination.name) for each in vhost.list_bindings() if each.source] == [("z", "q")]
    assert vhost.route("x", "").queues == ()
    vhost.declare_exchange("y", "fanout")
    assert vhost.route("x", "").queues == ()


def test_deleting_what_is_not_there_is_no_error() -> None:
    """rmq.queue.delete.idempotent, exchange.delete.exchange.exists."""
    removed = host().delete_exchange("x")
    assert (removed.exchanges, removed.bindings) == ((), ())


@pytest.mark.parametrize("name", ["amq.direct", "amq.match", "amq.none"])
def test_predeclared_exchanges_stay(name: str) -> None:
    vhost = host()
    code, words, _ = refused(lambda: vhost.delete_exchange(name))
    assert (code, words) == (403, f"deletion of system exchange '{name}' in vhost '/' not allowed")
    assert set(vhost.exchanges) == set(PREDECLARED)


def test_an_exchange_with_bindings_is_in_use() -> None:
    """exchange.delete.if-unused.in-use."""
    vhost = host("q")
    vhost.declare_exchange("x", "direct")
    vhost.bind_queue("q", "x", "k")
    code, words, rule = refused(lambda: vhost.delete_exchange("x", if_unused=True))
    assert (code, words, rule) == (406, "exchange 'x' in vhost '/' in use", "exchange.delete.if-unused.in-use")
    assert vhost.route("x", "k").queues == ("q",)
    vhost.unbind_queue("q", "x", "k")
    assert vhost.delete_exchange("x", if_unused=True).exchanges == ("x",)


def test_only_what_leads_away_uses_an_exchange() -> None:
    vhost = host()
    for name in "xy":
        vhost.declare_exchange(name, "direct")
    vhost.bind_exchange("y", "x", "k")
    assert vhost.delete_exchange("y", if_unused=True).exchanges == ("y",)


def test_an_auto_delete_exchange_goes_with_its_last_binding_and_not_before_the_first() -> None:
    """rmq.auto-delete.exchange, exchange.declare.auto-delete.amq_exchange_02."""
    vhost = host("p", "q")
    vhost.declare_exchange("x", "direct", auto_delete=True)
    assert vhost.unbind_queue("q", "x", "k").exchanges == ()
    vhost.bind_queue("p", "x", "k")
    vhost.bind_queue("q", "x", "k")
    assert vhost.unbind_queue("q", "x", "k").exchanges == ()
    assert vhost.remove_queue("p").exchanges == ("x",)
    assert refused(lambda: vhost.route("x", "k"))[0] == 404


def test_a_binding_to_an_auto_delete_exchange_does_not_keep_it() -> None:
    vhost = host("q")
    vhost.declare_exchange("x", "direct", auto_delete=True)
    vhost.bind_exchange("x", "amq.fanout", "")
    vhost.bind_queue("q", "x", "k")
    removed = vhost.unbind_queue("q", "x", "k")
    assert removed.exchanges == ("x",)
    assert [each.source for each in removed.bindings] == ["x", "amq.fanout"]


def test_auto_delete_exchanges_go_in_a_chain_of_any_length() -> None:
    vhost = host("q")
    names = [f"x{place}" for place in range(3_000)]
    for name in names:
        vhost.declare_exchange(name, "fanout", auto_delete=True)
    for source, destination in pairwise(names):
        vhost.bind_exchange(destination, source, "")
    vhost.bind_queue("q", names[-1], "")
    assert vhost.route("x0", "").queues == ("q",)
    assert vhost.remove_queue("q").exchanges == tuple(reversed(names))
    assert set(vhost.exchanges) == set(PREDECLARED)


def test_an_auto_delete_exchange_that_is_bound_to_itself_goes_once() -> None:
    vhost = host()
    vhost.declare_exchange("x", "direct", auto_delete=True)
    vhost.bind_exchange("x", "x", "k")
    removed = vhost.unbind_exchange("x", "x", "k")
    assert (removed.exchanges, len(removed.bindings)) == (("x",), 1)
    vhost.declare_exchange("x", "direct", auto_delete=True)
    vhost.bind_exchange("x", "x", "k")
    removed = vhost.delete_exchange("x")
    assert (removed.exchanges, len(removed.bindings)) == (("x",), 1)
