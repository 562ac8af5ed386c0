"""What a topology costs and holds at most: by counts, not by clocks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from assay.reference_broker.amqp091.topology import Arguments, Exchange, QueueRecord, Topology, TopologyLimits
from assay.reference_broker.amqp091.topology.tables import DirectTable, HeadersTable, TopicTable
from assay.reference_broker.amqp091.wire.replies import AmqpError
from assay.reference_broker.routing.properties import Kind, Typed
from tests.amqp091.topology.topology_support import VOID, fields, host, number, refused, text, texts


def steps_of(exchange: Exchange) -> int:
    assert isinstance(exchange.table, TopicTable | HeadersTable)
    return exchange.table.steps


def test_a_topic_costs_by_its_words_and_not_by_how_many_patterns_there_are() -> None:
    vhost = host(*[f"q{place}" for place in range(100)])
    for place in range(10_000):
        vhost.bind_queue(f"q{place % 100}", "amq.topic", f"site.{place}.*.temperature")
    vhost.bind_queue("q1", "amq.topic", "site.*.kitchen.#")
    vhost.bind_queue("q2", "amq.topic", "#")
    exchange = vhost.exchanges["amq.topic"]
    assert vhost.route("amq.topic", "site.4711.kitchen.temperature").queues == ("q1", "q11", "q2")
    # Four words, at three places at most: as in one of the patterns, in the one for all sites, and in "#".
    assert steps_of(exchange) <= 4 * 5
    assert vhost.route("amq.topic", "nowhere").queues == ("q2",)


def test_patterns_that_may_go_on_in_many_ways_cost_each_place_once() -> None:
    """Naively, twenty times any number of words are as many ways as there are words to the power of twenty."""
    vhost = host("q")
    pattern = ".".join(["#.a"] * 20)
    vhost.bind_queue("q", "amq.topic", pattern)
    assert vhost.route("amq.topic", ".".join("a" * 100)).queues == ("q",)
    assert vhost.route("amq.topic", ".".join("a" * 19)).queues == ()
    assert steps_of(vhost.exchanges["amq.topic"]) <= 120 * 41


def test_a_message_with_headers_looks_at_bindings_that_wait_for_its_fields_only() -> None:
    vhost = host("q")
    for place in range(5_000):
        for match in ("all", "any"):
            wanted = fields(kind=text("order"), serial=number(place), x_match=text(match))
            arguments = wanted if match == "all" else wanted[1:]
            vhost.bind_queue("q", "amq.match", "", arguments)
    exchange = vhost.exchanges["amq.match"]
    assert vhost.route("amq.match", "", fields(kind=text("order"), serial=number(17))).queues == ("q",)
    # Those that wait for the kind are as many as those that waited nowhere else when they came.
    assert steps_of(exchange) <= 5


def test_routes_are_remembered_until_something_on_their_way_changes() -> None:
    vhost = host("q", "p")
    vhost.bind_exchange("amq.topic", "amq.direct", "a.b")
    vhost.bind_queue("q", "amq.topic", "a.*")
    exchange = vhost.exchanges["amq.topic"]
    first = vhost.route("amq.direct", "a.b")
    steps = steps_of(exchange)
    assert vhost.route("amq.direct", "a.b", fields(k=text("v"))) is first
    assert steps_of(exchange) == steps
    # What does not lie on the way leaves it as it is.
    vhost.bind_queue("q", "amq.fanout", "")
    vhost.declare_exchange("x", "direct")
    assert vhost.route("amq.direct", "a.b") is first
    vhost.bind_queue("p", "amq.topic", "#")
    assert vhost.route("amq.direct", "a.b").queues == ("p", "q")
    vhost.remove_queue("q")
    assert vhost.route("amq.direct", "a.b").queues == ("p",)
    vhost.unbind_exchange("amq.topic", "amq.direct", "a.b")
    assert vhost.route("amq.direct", "a.b").queues == ()


def test_what_looks_at_no_key_is_remembered_once_for_all_keys() -> None:
    vhost = host("q")
    vhost.bind_queue("q", "amq.fanout", "")
    first = vhost.route("amq.fanout", "k1")
    assert vhost.route("amq.fanout", "k2") is first
    assert len(vhost.exchanges["amq.fanout"].known.answers) == 1


def test_what_looks_at_headers_is_never_remembered() -> None:
    vhost = host("q")
    vhost.bind_exchange("amq.match", "amq.fanout", "")
    vhost.bind_queue("q", "amq.match", "", fields(k=number(1)))
    assert vhost.route("amq.fanout", "", fields(k=number(1))).queues == ("q",)
    assert vhost.route("amq.fanout", "", fields(k=number(2))).queues == ()
    assert vhost.route("amq.fanout", "").queues == ()


def test_remembered_routes_take_so_much_memory_and_no_more() -> None:
    limits = TopologyLimits(max_remembered_bytes=50_000)
    topology = Topology(limits)
    vhosts = [topology.vhost(name) for name in ("/", "other")]
    for vhost in vhosts:
        vhost.add_queue(QueueRecord(name="q"))
        vhost.bind_queue("q", "amq.topic", "#")
    for place in range(1_000):
        for vhost in vhosts:
            assert vhost.route("amq.topic", f"key.{place}").queues == ("q",)
    remembered = sum(len(vhost.exchanges["amq.topic"].known.answers) for vhost in vhosts)
    assert 0 < remembered <= 50_000 // 512


def test_nothing_is_kept_of_exchanges_that_came_and_went() -> None:
    vhost = host("q")
    vhost.bind_queue("q", "amq.fanout", "")
    for place in range(50):
        vhost.declare_exchange(f"x{place}", "direct")
        vhost.bind_exchange("amq.fanout", f"x{place}", "k")
        assert vhost.route(f"x{place}", "k").queues == ("q",)
        vhost.delete_exchange(f"x{place}")
    assert len(vhost.exchanges["amq.fanout"].seen_by) == 0
    assert len(vhost.exchanges["amq.fanout"].bindings) == 1


def test_patterns_that_are_unbound_leave_no_node() -> None:
    vhost = host("q")
    table = vhost.exchanges["amq.topic"].table
    assert isinstance(table, TopicTable)
    vhost.bind_queue("q", "amq.topic", "a.b")
    for pattern in ("a.b.c.d", "a.#.#.x", "", "*.#"):
        vhost.bind_queue("q", "amq.topic", pattern)
        vhost.unbind_queue("q", "amq.topic", pattern)
    assert list(table.root.children) == ["a"]
    assert list(table.root.children["a"].children) == ["b"]
    assert table.root.children["a"].children["b"].children == {}


def test_tables_keep_nothing_of_what_is_unbound() -> None:
    vhost = host("q")
    vhost.declare_exchange("x", "direct")
    for place in range(20):
        vhost.bind_queue("q", "amq.direct", f"k{place}")
        vhost.unbind_queue("q", "amq.direct", f"k{place}")
        for match in ("all", "any"):
            arguments = fields(k=number(place), l=VOID, x_match=text(match))
            vhost.bind_queue("q", "amq.match", "", arguments)
            vhost.unbind_queue("q", "amq.match", "", arguments)
        vhost.bind_queue("q", "amq.match", "")
        vhost.unbind_queue("q", "amq.match", "")
    assert vars(vhost.exchanges["amq.direct"].table) == vars(DirectTable())
    assert vars(vhost.exchanges["amq.match"].table) == vars(HeadersTable())


# -- limits ------------------------------------------------------------------------------------------------------------


def test_so_many_exchanges_and_no_more() -> None:
    """exchange.declare.minimum."""
    vhost = host(limits=TopologyLimits(max_exchanges=2))
    vhost.declare_exchange("x", "direct")
    vhost.declare_exchange("y", "direct")
    code, words, rule = refused(lambda: vhost.declare_exchange("z", "direct"))
    assert (code, rule) == (406, "exchange.declare.minimum")
    assert words == "exchange 'z' in vhost '/' would be one more than 2"
    assert vhost.declare_exchange("y", "direct").name == "y"
    vhost.delete_exchange("x")
    assert vhost.declare_exchange("z", "direct").name == "z"


def test_so_many_bindings_and_no_more() -> None:
    vhost = host("q", limits=TopologyLimits(max_bindings=2))
    vhost.bind_queue("q", "amq.direct", "a")
    vhost.bind_exchange("amq.topic", "amq.direct", "b")
    code, words, rule = refused(lambda: vhost.bind_queue("q", "amq.direct", "c"))
    assert (code, rule) == (406, "queue.bind.binding-count")
    assert words == "the binding of queue 'q' to exchange 'amq.direct' would be one more than 2 in vhost '/'"
    assert vhost.bind_queue("q", "amq.direct", "a") is False
    vhost.unbind_queue("q", "amq.direct", "a")
    assert vhost.bind_queue("q", "amq.direct", "c") is True
    vhost.remove_queue("q")
    assert vhost.bind_exchange("amq.topic", "amq.direct", "d") is True


def test_so_much_memory_and_no_more() -> None:
    limits = TopologyLimits(max_bytes=100_000)
    vhost = host("q", limits=limits)
    arguments = fields(k=text("v" * 5_000))
    acts: dict[str, Callable[[], object]] = {
        "exchange 'x' in vhost '/'": lambda: vhost.declare_exchange("x", "direct", arguments=arguments),
        "queue 'p' in vhost '/'": lambda: vhost.check_queue("p", owner=1, arguments=arguments),
        "the binding of queue 'q' to exchange 'amq.topic'": lambda: vhost.bind_queue(
            "q", "amq.topic", "a.b", arguments
        ),
    }
    keys = [".".join("a" * count) for count in range(1, 30)]
    taken = 0
    for key in keys:
        try:
            vhost.bind_queue("q", "amq.topic", key)
        except AmqpError:
            break
        taken += 1
    assert 10 < taken < 29
    for what, act in acts.items():
        code, words, _ = refused(act)
        assert code == 406
        assert words.startswith(f"{what} takes ")
    for _ in range(3):
        # What goes makes room, each time as much as it took.
        for key in keys[:taken]:
            vhost.unbind_queue("q", "amq.topic", key)
        vhost.declare_exchange("x", "direct", auto_delete=True)
        vhost.bind_queue("q", "x", "k")
        vhost.remove_queue("q")
        vhost.add_queue(QueueRecord(name="q"))
        for key in keys[:taken]:
            vhost.bind_queue("q", "amq.topic", key)
    assert refused(lambda: vhost.bind_queue("q", "amq.topic", keys[taken]))[0] == 406


@pytest.mark.parametrize("name", ["x" * 256, "ü" * 128, "a\0b", "\ud800"])
def test_a_name_is_a_short_string(name: str) -> None:
    """sec.4.2.5.3.shortstr."""
    vhost = host("q")
    for act in (
        lambda: vhost.declare_exchange(name, "direct"),
        lambda: vhost.check_queue(name, owner="c1"),
        lambda: vhost.bind_queue("q", "amq.direct", name),
    ):
        code, words, rule = refused(act)
        assert (code, rule) == (406, "sec.4.2.5.3.shortstr")
        assert len(words) < 200


@pytest.mark.parametrize("name", ["x" * 255, "ü" * 127, "with space / and, comma"])
def test_the_longest_names_work(name: str) -> None:
    """sec.4.2.5.3.shortstr; the lexicon is not enforced (exchange.declare.exchange.syntax)."""
    vhost = host(name)
    vhost.declare_exchange(name, "direct")
    vhost.bind_queue(name, name, name)
    assert vhost.route(name, name).queues == (name,)


def nested(depth: int) -> Typed:
    value = number(1)
    for _ in range(depth):
        value = Typed(Kind.LIST, (value,))
    return value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (nested(17), "has more than 16 tables in tables"),
        (Typed(Kind.MAP, (text("k"), nested(16))), "has more than 16 tables in tables"),
        (text("x" * 70_000), "bytes; 65536 are allowed"),
        (Typed(Kind.LIST, (number(1),) * 2_000), "bytes; 65536 are allowed"),
        (Typed(Kind.I8, 128), "'128' is no i8"),
    ],
)
def test_arguments_are_so_large_and_so_deep_and_no_more(value: Typed, words: str) -> None:
    vhost = host("q")
    vhost.declare_exchange("x", "direct")
    given: Arguments = (("k", value),)
    for act in (
        lambda: vhost.declare_exchange("y", "direct", arguments=given),
        lambda: vhost.check_queue("p", owner="c1", arguments=given),
        lambda: vhost.bind_queue("q", "x", "", given),
        lambda: vhost.bind_exchange("amq.topic", "x", "", given),
        lambda: vhost.unbind_queue("q", "x", "", given),
    ):
        code, found, rule = refused(act)
        assert (code, rule) == (406, "sec.4.2.1.field-types")
        assert words in found
    assert "y" not in vhost.exchanges
    assert vhost.exchanges["x"].bindings == {}


def test_arguments_at_the_limit_are_taken() -> None:
    vhost = host("q")
    assert vhost.bind_queue("q", "amq.direct", "", (("k", nested(16)),))
    assert vhost.bind_queue("q", "amq.direct", "", (("k", Typed(Kind.MAP, (text("k"), nested(15)))),))


def test_a_message_has_so_many_routing_keys_and_no_more() -> None:
    """rmq.sender-selected."""
    vhost = host("q", limits=TopologyLimits(max_routing_keys=3))
    assert vhost.route("", "q", fields(CC=texts("a", "b"), BCC=texts("a"))).queues == ("q",)
    code, words, _ = refused(lambda: vhost.route("", "q", fields(CC=texts("a", "b"), BCC=texts("c"))))
    assert (code, words) == (406, "invalid message: more than 3 routing keys")
