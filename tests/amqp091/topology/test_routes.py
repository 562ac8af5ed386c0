"""Where messages go: each type of exchange, bindings between exchanges, alternate exchanges, more routing keys."""

from __future__ import annotations

import pytest

from assay.reference_broker.amqp091.topology import Arguments, QueueRecord, VirtualHost
from assay.reference_broker.routing.properties import Kind, Typed
from tests.amqp091.topology.topology_support import VOID, fields, host, number, refused, text, texts


def test_every_queue_is_bound_to_the_default_exchange_by_its_name() -> None:
    """queue.declare.default-binding, sec.3.1.3.1.auto-bind, exchange.default-exchange."""
    vhost = host("a.b")
    assert vhost.route("", "a.b").queues == ("a.b",)
    assert vhost.route("", "a.*").queues == ()
    assert vhost.route("", "").queues == ()
    vhost.remove_queue("a.b")
    assert vhost.route("", "a.b").queues == ()


def test_a_publish_to_no_exchange_is_refused() -> None:
    """basic.publish.exchange.must-exist."""
    vhost = host()
    code, words, rule = refused(lambda: vhost.route("x", "k"))
    assert (code, words, rule) == (404, "no exchange 'x' in vhost '/'", "basic.publish.exchange.must-exist")
    assert vhost.route_dead_letter("x", "k").queues == ()


def test_an_internal_exchange_takes_what_comes_from_others_only() -> None:
    """rmq.internal-exchange, basic.publish.exchange.02; also when its routes are known."""
    vhost = host("q")
    vhost.declare_exchange("x", "fanout", internal=True)
    vhost.bind_queue("q", "x", "")
    vhost.bind_exchange("x", "amq.direct", "k")
    assert vhost.route_dead_letter("x", "k").queues == ("q",)
    code, words, rule = refused(lambda: vhost.route("x", "k"))
    assert (code, words) == (403, "cannot publish to internal exchange 'x' in vhost '/'")
    assert rule == "basic.publish.exchange.02"
    assert vhost.route("amq.direct", "k").queues == ("q",)


def test_a_direct_exchange_looks_for_the_whole_key() -> None:
    """queue.bind.routing-key.direct-exchange-key-matching."""
    vhost = host("p", "q")
    vhost.bind_queue("q", "amq.direct", "k")
    vhost.bind_queue("p", "amq.direct", "")
    vhost.bind_queue("p", "amq.direct", "#")
    assert vhost.route("amq.direct", "k").queues == ("q",)
    assert vhost.route("amq.direct", "K").queues == ()
    assert vhost.route("amq.direct", "").queues == ("p",)


def test_a_fanout_exchange_looks_at_nothing() -> None:
    """sec.3.1.3.2.fanout."""
    vhost = host("p", "q")
    vhost.bind_queue("q", "amq.fanout", "k")
    vhost.bind_queue("p", "amq.fanout", "")
    for key in ("", "k", "other"):
        assert vhost.route("amq.fanout", key, fields(k=text("v"))).queues == ("p", "q")


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("a.b", ["a.b"], ["a", "a.b.c", "a.", ".a.b", "", "a.B"]),
        ("", [""], ["a", "."]),
        ("*", ["a", "*", "#"], ["", "a.b", ".", "a."]),
        ("#", ["", "a", "a.b", ".", "a..b", "..."], []),
        ("*.b", ["a.b", ".b"], ["b", "a.a.b", "a.b."]),
        ("a.*", ["a.b", "a."], ["a", "a.b.c", "b.a"]),
        ("a.*.c", ["a.b.c", "a..c"], ["a.c", "a.b.b.c"]),
        ("a.#", ["a", "a.b", "a.b.c", "a."], ["", "b", "b.a", "ab"]),
        ("#.a", ["a", "b.a", "a.a", ".a"], ["", "a.b", "a."]),
        ("a.#.b", ["a.b", "a.x.b", "a.x.y.b", "a..b", "a.b.b"], ["a", "b", "a.x", "a.b.x"]),
        ("#.a.#", ["a", "x.a", "a.x", "x.a.y", "a.a.a"], ["", "x", "xa.y"]),
        ("#.#", ["", "a", "a.b"], []),
        ("*.#", ["a", "a.b", ".", "a..b"], [""]),
        ("#.*", ["a", "a.b"], [""]),
        ("*.*.#", ["a.b", "a.b.c", "."], ["", "a"]),
        ("#.*.#.*", ["a.b", "a.b.c"], ["", "a"]),
        ("#.a.#.a.#", ["a.a", "x.a.y.a.z", "a.a.a"], ["a", "a.b", ""]),
        ("*.stock.#", ["usd.stock", "eur.stock.db"], ["stock.nasdaq"]),
        ("a*", ["a*"], ["ab", "a"]),
        ("a.b#", ["a.b#"], ["a.b", "a.bc"]),
    ],
)
def test_a_topic_pattern_takes_these_keys(pattern: str, matching: list[str], others: list[str]) -> None:
    """sec.3.1.3.3.topic-match; no key is no word, and empty words are words."""
    vhost = host("q")
    vhost.bind_queue("q", "amq.topic", pattern)
    assert [key for key in matching if not vhost.route("amq.topic", key).queues] == []
    assert [key for key in others if vhost.route("amq.topic", key).queues] == []
    vhost.unbind_queue("q", "amq.topic", pattern)
    assert [key for key in matching if vhost.route("amq.topic", key).queues] == []


def test_topic_patterns_that_share_words_are_unbound_one_by_one() -> None:
    vhost = host("p", "q")
    for queue, pattern in (("p", "a.b"), ("q", "a.b"), ("q", "a"), ("q", "a.b.c"), ("p", "a.#"), ("p", "a.#.#")):
        assert vhost.bind_queue(queue, "amq.topic", pattern)
    vhost.unbind_queue("q", "amq.topic", "a.b")
    assert vhost.route("amq.topic", "a.b").queues == ("p",)
    assert vhost.route("amq.topic", "a.b.c").queues == ("p", "q")
    vhost.unbind_queue("p", "amq.topic", "a.#")
    # The other of the same meaning is another binding.
    assert vhost.route("amq.topic", "a.x").queues == ("p",)
    vhost.unbind_queue("p", "amq.topic", "a.#.#")
    assert vhost.route("amq.topic", "a.x").queues == ()
    assert vhost.route("amq.topic", "a").queues == ("q",)


def table(**values: Typed) -> Typed:
    """A table in a table."""
    return Typed(Kind.MAP, tuple([each for name, value in values.items() for each in (text(name), value)]))


K1, K2 = {"k": number(1)}, {"k": number(1), "l": text("v")}


@pytest.mark.parametrize(
    ("match", "wanted", "headers", "is_taken"),
    [
        # sec.3.1.3.4.headers-all, and what no x-match means
        (None, K2, K2, True),
        (None, K2, K1, False),
        ("all", K2, K2 | {"m": number(3)}, True),
        ("all", K2, {"k": number(2), "l": text("v")}, False),
        ("all", {}, {}, True),
        ("all", {}, K1, True),
        # sec.3.1.3.4.headers-any
        ("any", K2, K1, True),
        ("any", K2, {"k": number(2), "l": text("v")}, True),
        ("any", K2, {"k": number(2)}, False),
        ("any", K2, {}, False),
        ("any", {}, K1, False),
        # sec.3.1.3.4.headers-void
        ("all", {"k": VOID}, {"k": text("whatever")}, True),
        ("all", {"k": VOID}, {"k": VOID}, True),
        ("all", {"k": VOID}, {"l": number(1)}, False),
        ("all", {"k": VOID, "l": text("v")}, K2, True),
        ("any", {"k": VOID, "l": text("w")}, K1, True),
        ("any", {"k": VOID}, {}, False),
        ("all", K1, {"k": VOID}, False),
        # The width of an integer is no part of its value, its type is.
        ("all", K1, {"k": number(1, Kind.I64)}, True),
        ("all", K1, {"k": text("1")}, False),
        ("all", K1, {"k": Typed(Kind.BOOL, True)}, False),
        ("all", K1, {"k": Typed(Kind.F64, 1.0)}, False),
        ("all", {"k": Typed(Kind.F32, 0.5)}, {"k": Typed(Kind.F64, 0.5)}, True),
        ("all", {"k": texts("a", "b")}, {"k": texts("a", "b")}, True),
        ("all", {"k": texts("a", "b")}, {"k": texts("b", "a")}, False),
        ("all", {"k": table(a=number(1), b=VOID)}, {"k": table(b=VOID, a=number(1, Kind.I64))}, True),
        ("all", {"k": table(a=number(1), b=VOID)}, {"k": table(a=number(1))}, False),
        ("all", {"k": Typed(Kind.F64, float("nan"))}, {"k": Typed(Kind.F32, -float("nan"))}, True),
        ("all", {"k": Typed(Kind.F64, float("nan"))}, {"k": Typed(Kind.F64, 0.0)}, False),
        # sec.3.1.3.4.headers-xprefix
        ("all", {"x-k": number(1)}, {}, True),
        ("all", {"x-k": number(1)} | K1, K1, True),
        ("any", {"x-k": number(1)}, {"x-k": number(1)}, False),
        ("all-with-x", {"x-k": number(1)}, {}, False),
        ("all-with-x", {"x-k": number(1)}, {"x-k": number(1)}, True),
        ("all-with-x", {"x-k": number(1)} | K1, {"x-k": number(1)}, False),
        ("any-with-x", {"x-k": number(1)} | K1, {"x-k": number(1)}, True),
        ("any-with-x", {"x-k": number(1)}, {}, False),
        ("all", {"X-k": number(1)}, {}, False),
        # What is matched by is no field itself.
        ("all-with-x", {}, {}, True),
        ("any-with-x", {}, {"x-match": text("any-with-x")}, False),
    ],
)
def test_a_headers_exchange_compares_fields(
    match: str | None, wanted: dict[str, Typed], headers: dict[str, Typed], is_taken: bool
) -> None:
    vhost = host("q")
    arguments: Arguments = (*wanted.items(), *(() if match is None else (("x-match", text(match)),)))
    vhost.bind_queue("q", "amq.headers", "", arguments)
    assert vhost.route("amq.headers", "k", tuple(headers.items())).queues == (("q",) if is_taken else ())
    vhost.unbind_queue("q", "amq.headers", "", arguments)
    assert vhost.route("amq.headers", "k", tuple(headers.items())).queues == ()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (text("some"), "Invalid x-match field value some; expected all, any, all-with-x, or any-with-x"),
        (text("ALL"), "Invalid x-match field value ALL; expected all, any, all-with-x, or any-with-x"),
        (number(1), "Invalid x-match field type signedint (value 1); expected longstr"),
    ],
)
def test_there_is_no_other_way_to_match(value: Typed, words: str) -> None:
    """sec.3.1.3.4.headers-bad-xmatch; where headers are not looked at, the field means nothing."""
    vhost = host("q")
    arguments = fields(x_match=value)
    found = refused(lambda: vhost.bind_queue("q", "amq.match", "", arguments))
    assert found == (406, words, "sec.3.1.3.4.headers-bad-xmatch")
    assert list(vhost.list_bindings(source="amq.match")) == []
    assert vhost.bind_queue("q", "amq.direct", "", arguments)


def test_of_two_fields_of_one_name_the_first_counts() -> None:
    vhost = host("q")
    vhost.bind_queue("q", "amq.match", "", fields(k=number(1)) + fields(k=number(2)))
    assert vhost.route("amq.match", "", fields(k=number(1)) + fields(k=number(3))).queues == ("q",)
    assert vhost.route("amq.match", "", fields(k=number(3)) + fields(k=number(1))).queues == ()


# -- bindings ----------------------------------------------------------------------------------------------------------


def test_a_second_binding_of_the_same_is_none() -> None:
    """queue.bind.duplicates, exchange.bind.duplicates."""
    vhost = host("q")
    arguments = fields(a=number(1), b=text("v"))
    same = fields(b=text("v"), a=number(1, Kind.I64))
    assert vhost.bind_queue("q", "amq.direct", "k", arguments) is True
    assert vhost.bind_queue("q", "amq.direct", "k", same) is False
    assert vhost.bind_queue("q", "amq.direct", "k") is True
    assert vhost.bind_exchange("amq.fanout", "amq.direct", "k") is True
    assert vhost.bind_exchange("amq.fanout", "amq.direct", "k") is False
    assert len(vhost.unbind_queue("q", "amq.direct", "k", same).bindings) == 1
    assert vhost.route("amq.direct", "k").queues == ("q",)
    vhost.unbind_queue("q", "amq.direct", "k")
    assert vhost.route("amq.direct", "k").queues == ()


def test_a_queue_gets_a_message_once_however_many_bindings_match() -> None:
    """queue.bind.unique."""
    vhost = host("q")
    for pattern in ("a.b", "a.*", "#", "#.b"):
        vhost.bind_queue("q", "amq.topic", pattern)
    vhost.bind_exchange("amq.fanout", "amq.topic", "#")
    vhost.bind_queue("q", "amq.fanout", "")
    assert vhost.route("amq.topic", "a.b").queues == ("q",)


def test_names_of_queues_are_sorted() -> None:
    names = ("b", "ü", "a", "c")
    vhost = host(*names)
    for name in names:
        vhost.bind_queue(name, "amq.fanout", "")
    assert vhost.route("amq.fanout", "").queues == tuple(sorted(names))


@pytest.mark.parametrize(
    ("queue", "exchange", "words", "rule"),
    [
        ("q", "gone", "no exchange 'gone' in vhost '/'", "queue.bind.exchange.exchange-existence"),
        ("gone", "amq.direct", "no queue 'gone' in vhost '/'", "queue.bind.queue.must-exist"),
        ("gone", "gone", "no exchange 'gone' in vhost '/'", "queue.bind.exchange.exchange-existence"),
    ],
)
def test_both_ends_of_a_binding_must_exist(queue: str, exchange: str, words: str, rule: str) -> None:
    vhost = host("q")
    assert refused(lambda: vhost.bind_queue(queue, exchange, "k")) == (404, words, rule)
    assert vhost.unbind_queue(queue, exchange, "k").bindings == ()


def test_both_ends_of_a_binding_between_exchanges_must_exist() -> None:
    """exchange.bind.source.exchange-existence, exchange.bind.destination.exchange-existence."""
    vhost = host()
    source = refused(lambda: vhost.bind_exchange("amq.topic", "x", "k"))
    destination = refused(lambda: vhost.bind_exchange("x", "amq.topic", "k"))
    assert source == (404, "no exchange 'x' in vhost '/'", "exchange.bind.source.exchange-existence")
    assert destination == (404, "no exchange 'x' in vhost '/'", "exchange.bind.destination.exchange-existence")
    assert vhost.unbind_exchange("x", "amq.topic", "k").bindings == ()
    assert vhost.unbind_exchange("amq.topic", "x", "k").bindings == ()


def test_a_queue_and_an_exchange_of_one_name_are_two_destinations() -> None:
    vhost = host("x", "q")
    vhost.declare_exchange("x", "fanout")
    vhost.bind_queue("q", "x", "")
    vhost.bind_queue("x", "amq.direct", "k")
    vhost.bind_exchange("x", "amq.direct", "k")
    assert vhost.route("amq.direct", "k").queues == ("q", "x")
    vhost.unbind_queue("x", "amq.direct", "k")
    assert vhost.route("amq.direct", "k").queues == ("q",)


# -- several exchanges -------------------------------------------------------------------------------------------------


def test_the_key_goes_through_all_exchanges() -> None:
    """rmq.exchange.bind."""
    vhost = host("q")
    vhost.bind_exchange("amq.direct", "amq.topic", "a.#")
    vhost.bind_queue("q", "amq.direct", "a.b")
    assert vhost.route("amq.topic", "a.b").queues == ("q",)
    assert vhost.route("amq.topic", "a.c").queues == ()
    assert vhost.route("amq.direct", "a.b").queues == ("q",)


def test_circles_end() -> None:
    """exchange.bind.cyclical, exchange.bind.unique."""
    vhost = host("q")
    for name in "xyz":
        vhost.declare_exchange(name, "fanout")
    for destination, source in ("xx", "yx", "zy", "xz"):
        vhost.bind_exchange(destination, source, "")
    vhost.bind_queue("q", "z", "")
    assert [vhost.route(name, "").queues for name in "xyz"] == [("q",)] * 3


def _with_alternates(*pairs: tuple[str, str | None]) -> VirtualHost:
    vhost = host("q", "p")
    for name, alternate in pairs:
        vhost.declare_exchange(
            name, "direct", arguments=() if alternate is None else fields(alternate_exchange=text(alternate))
        )
    return vhost


def test_what_matches_nothing_goes_to_the_alternate_exchange() -> None:
    """rmq.alternate-exchange, in a chain."""
    vhost = _with_alternates(("x", "y"), ("y", "z"), ("z", None))
    vhost.bind_queue("q", "x", "k")
    vhost.bind_queue("p", "z", "other")
    assert vhost.route("x", "k").queues == ("q",)
    assert vhost.route("x", "other").queues == ("p",)
    assert vhost.route("x", "none").queues == ()
    vhost.bind_queue("q", "y", "other")
    assert vhost.route("x", "other").queues == ("q",)


def test_alternates_in_a_circle_end() -> None:
    vhost = _with_alternates(("x", "y"), ("y", "x"))
    assert vhost.route("x", "k").queues == ()
    vhost.bind_queue("q", "y", "k")
    assert vhost.route("x", "k").queues == ("q",)


def test_an_alternate_exchange_counts_as_soon_as_it_is_declared() -> None:
    vhost = _with_alternates(("x", "y"))
    assert vhost.route("x", "k").queues == ()
    vhost.declare_exchange("y", "fanout")
    vhost.bind_queue("q", "y", "")
    assert vhost.route("x", "k").queues == ("q",)
    vhost.delete_exchange("y")
    assert vhost.route("x", "k").queues == ()


def test_an_alternate_exchange_without_bindings_may_be_declared_again() -> None:
    vhost = _with_alternates(("x", "y"), ("y", None))
    assert vhost.route("x", "k").queues == ()
    vhost.delete_exchange("y")
    vhost.declare_exchange("y", "fanout")
    vhost.bind_queue("q", "y", "")
    assert vhost.route("x", "k").queues == ("q",)


def test_a_binding_to_an_exchange_that_leads_nowhere_is_a_match() -> None:
    vhost = _with_alternates(("x", "amq.fanout"), ("y", None))
    vhost.bind_queue("q", "amq.fanout", "")
    vhost.bind_exchange("y", "x", "k")
    assert vhost.route("x", "k").queues == ()
    assert vhost.route("x", "other").queues == ("q",)


def test_the_alternate_of_an_exchange_in_the_middle_counts() -> None:
    vhost = _with_alternates(("x", None), ("y", "amq.fanout"))
    vhost.bind_queue("q", "amq.fanout", "")
    vhost.bind_exchange("y", "x", "k")
    assert vhost.route("x", "k").queues == ("q",)


def test_the_default_exchange_may_be_an_alternate() -> None:
    vhost = _with_alternates(("x", ""))
    assert vhost.route("x", "q").queues == ("q",)
    assert vhost.route("x", "late").queues == ()
    vhost.add_queue(QueueRecord(name="late"))
    assert vhost.route("x", "late").queues == ("late",)
    vhost.remove_queue("late")
    assert vhost.route("x", "late").queues == ()


# -- more routing keys -------------------------------------------------------------------------------------------------


def test_cc_and_bcc_add_routing_keys() -> None:
    """rmq.sender-selected."""
    vhost = host("a", "b", "c", "d")
    headers = fields(CC=texts("b", "b"), BCC=texts("c", "none"))
    assert vhost.route("", "a", headers).queues == ("a", "b", "c")
    assert vhost.route("", "a").queues == ("a",)
    assert vhost.route("", "none", fields(CC=texts("d"))).queues == ("d",)
    assert vhost.route("", "a", fields(cc=texts("b"))).queues == ("a",)
    for queue, pattern in (("a", "x.*"), ("b", "y.*"), ("d", "x.1")):
        vhost.bind_queue(queue, "amq.topic", pattern)
    assert vhost.route("amq.topic", "y.1", fields(CC=texts("x.1"))).queues == ("a", "b", "d")
    array = Typed(Kind.ARRAY, (text("b"),))
    assert vhost.route("", "a", fields(CC=array)).queues == ("a", "b")


def test_one_key_that_matches_is_enough_against_the_alternate() -> None:
    vhost = _with_alternates(("x", "amq.fanout"))
    vhost.bind_queue("q", "x", "k")
    vhost.bind_queue("p", "amq.fanout", "")
    assert vhost.route("x", "other", fields(CC=texts("k"))).queues == ("q",)
    assert vhost.route("x", "other", fields(CC=texts("more"))).queues == ("p",)


def test_keys_that_are_no_texts_are_none_and_what_is_no_list_is_refused() -> None:
    """rmq.sender-selected: RabbitMQ's answers."""
    vhost = host("a", "1")
    mixed = Typed(Kind.LIST, (number(1), text("a"), VOID))
    assert vhost.route("", "none", fields(BCC=mixed)).queues == ("a",)
    vhost.bind_queue("a", "amq.topic", "a")
    assert vhost.route("amq.topic", "none", fields(BCC=mixed)).queues == ("a",)
    for name, value, kind in (("CC", text("a"), "longstr"), ("BCC", number(1), "signedint"), ("CC", VOID, "void")):
        code, words, rule = refused(lambda name=name, value=value: vhost.route("", "a", ((name, value),)))  # type: ignore[misc]
        assert (code, rule) == (406, "rmq.sender-selected")
        assert words == f"invalid message: unacceptable type in header '{name}': {kind}"
        assert vhost.route_dead_letter("", "a", ((name, value),)).queues == ()
