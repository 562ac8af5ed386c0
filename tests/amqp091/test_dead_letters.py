"""Dead letters: why, where they go, what they tell, and that they do not go in circles."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.reference_broker.amqp091.dead_letters import MAX_DEATHS, deaths_of, is_cycle, with_death
from assay.reference_broker.amqp091.wire.content import BasicProperties
from assay.reference_broker.routing.properties import Kind, Typed
from assay.reference_broker.storage.memory_disk import MemoryDisk
from tests.support.amqp_client import NOW, AmqpClient, Said, make_node, table


def client(**arguments: Any) -> AmqpClient:
    """With a queue ``q`` whose letters go by ``amq.fanout`` to ``d``."""
    c = AmqpClient(make_node())
    c.open()
    c.declare("d")
    c.say(1, "queue.bind", "d", "amq.fanout", "", False, ())
    c.declare("q", arguments=table(x_dead_letter_exchange="amq.fanout", **arguments))
    return c


def death(got: Said) -> dict[str, Any]:
    assert got.properties is not None
    found = deaths_of(got.properties.headers or ())
    assert found, got
    return {name: value.value for name, value in found[0].items()}


@pytest.mark.parametrize("how", ["reject", "nack", "ttl of the queue", "ttl of the message", "length", "deliveries"])
def test_a_letter_says_why_and_where_it_died(how: str) -> None:
    arguments: dict[str, dict[str, Any]] = {
        "ttl of the queue": {"x_message_ttl": 100},
        "length": {"x_max_length": 1},
        "deliveries": {"x_delivery_limit": 0},
    }
    c = client(**arguments.get(how, {}))
    expiration = "100" if how == "ttl of the message" else None
    c.publish("q", b"x", BasicProperties(expiration=expiration, message_id="m", headers=table(a=1)))
    if how == "reject":
        c.say(1, "basic.reject", c.get("q").values[0], False)
    elif how == "nack":
        c.say(1, "basic.nack", c.get("q").values[0], False, False)
    elif how == "deliveries":
        c.say(1, "basic.reject", c.get("q").values[0], True)
    elif how == "length":
        c.publish("q", b"y")
    else:
        c.now += 5
        c.hear()
        c.get("q")
    got = c.get("d")
    assert got.body == b"x"
    assert got.values[2:4] == ("amq.fanout", "q")
    reasons = {"reject": "rejected", "nack": "rejected", "length": "maxlen", "deliveries": "delivery_limit"}
    told = death(got)
    assert (told["reason"], told["queue"], told["exchange"], told["count"]) == (reasons.get(how, "expired"), "q", "", 1)
    assert [each.value for each in told["routing-keys"]] == ["q"]
    assert told.get("original-expiration") == expiration
    assert got.properties is not None
    assert (got.properties.message_id, got.properties.expiration) == ("m", None)
    assert dict(got.properties.headers or ())["x-first-death-queue"].value == "q"
    assert dict(got.properties.headers or ())["a"].value == 1
    assert c.get("d").name == "basic.get-empty"


def test_a_letter_takes_the_routing_key_that_its_queue_says() -> None:
    c = AmqpClient(make_node())
    c.open()
    c.declare("d")
    c.declare("q", arguments=table(x_dead_letter_exchange="", x_dead_letter_routing_key="d"))
    c.publish("q", b"x")
    c.say(1, "basic.reject", c.get("q").values[0], False)
    got = c.get("d")
    assert (got.body, got.values[2:4], death(got)["reason"]) == (b"x", ("", "d"), "rejected")


def test_what_goes_nowhere_is_gone_and_a_key_alone_is_refused() -> None:
    c = AmqpClient(make_node())
    c.open()
    c.declare("q", arguments=table(x_dead_letter_exchange="not-there"))
    c.publish("q", b"x")
    c.say(1, "basic.reject", c.get("q").values[0], False)
    assert c.get("q").name == "basic.get-empty"
    assert c.declare("r", arguments=table(x_dead_letter_routing_key="d")).values[0] == 406


def test_letters_that_nobody_rejected_do_not_go_in_circles() -> None:
    c = AmqpClient(make_node())
    c.open()
    for queue, other in (("a", "b"), ("b", "a")):
        arguments = table(x_dead_letter_exchange="", x_dead_letter_routing_key=other, x_message_ttl=100)
        c.declare(queue, arguments=arguments)
    c.publish("a", b"x")
    for _ in range(10):
        c.now += 5
        c.hear()
        c.get("a")
        c.get("b")
    assert c.declare("a", passive=True).values[1] == c.declare("b", passive=True).values[1] == 0


def test_a_retry_by_way_of_a_waiting_queue_counts_its_deaths() -> None:
    c = AmqpClient(make_node())
    c.open()
    c.declare("work", arguments=table(x_dead_letter_exchange="", x_dead_letter_routing_key="wait"))
    c.declare("wait", arguments=table(x_dead_letter_exchange="", x_dead_letter_routing_key="work", x_message_ttl=100))
    c.publish("work", b"x")
    for attempt in range(1, 4):
        got = c.get("work")
        assert got.body == b"x"
        told = deaths_of(got.properties.headers or ()) if got.properties is not None else []
        counts = {(d["queue"].value, d["reason"].value): d["count"].value for d in told}
        wanted = {("work", "rejected"): attempt - 1, ("wait", "expired"): attempt - 1} if attempt > 1 else {}
        assert counts == wanted
        c.say(1, "basic.reject", got.values[0], False)
        c.now += 5
        c.hear()
        c.say(1, "basic.get", "wait", True)


def test_letters_still_go_there_after_a_restart() -> None:
    disk = MemoryDisk()
    c = AmqpClient(make_node(disk))
    c.open()
    c.declare("d")
    c.declare("q", arguments=table(x_dead_letter_exchange="", x_dead_letter_routing_key="d"))
    c.publish("q", b"x")
    c.node.close(NOW)
    c = AmqpClient(make_node(disk, now=NOW + 1), now=NOW + 1)
    c.open()
    c.say(1, "basic.reject", c.get("q").values[0], False)
    assert c.get("d").body == b"x"


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["expired", "rejected", "maxlen"])), max_size=8))
def test_deaths_are_counted_by_queue_and_reason_the_latest_first(history: list[tuple[str, str]]) -> None:
    headers = table(own=1)
    for queue, reason in history:
        headers = with_death(headers, queue, reason, "", [queue], NOW)
    deaths = deaths_of(headers)
    counted = {(d["queue"].value, d["reason"].value): d["count"].value for d in deaths}
    assert counted == {each: history.count(each) for each in set(history)}
    assert [tuple(d[name].value for name in ("queue", "reason")) for d in deaths] == list(dict.fromkeys(history[::-1]))
    for queue in "ab":
        order = [(d["queue"].value, d["reason"].value) for d in deaths]
        at = next((number for number, each in enumerate(order) if each[0] == queue), None)
        rejected = at is not None and any(reason == "rejected" for _, reason in order[: at + 1])
        assert is_cycle(queue, deaths) == (at is not None and not rejected)


def test_what_a_publisher_writes_as_deaths_harms_nobody() -> None:
    for value in (Typed(Kind.TEXT, "x"), Typed(Kind.LIST, (Typed(Kind.I8, 1), Typed(Kind.MAP, ())))):
        headers = with_death((("x-death", value),), "q", "expired", "", ["q"], NOW)
        assert len(deaths_of(headers)) == 1
    headers = ()
    for number in range(MAX_DEATHS + 9):
        headers = with_death(headers, f"q{number}", "expired", "", ["k"], NOW)
    assert len(deaths_of(headers)) == MAX_DEATHS


def test_a_queue_that_drops_its_head_refuses_nothing_while_letters_are_on_their_way() -> None:
    """Of eight published together all but the first were refused: lives found it."""
    c = client(x_max_length=1)
    c.say(1, "confirm.select", False)
    said = [each for number in range(8) for each in c.publish("q", b"%d" % number, syncs=False)] + c.hear()
    assert not [each for each in said if each.name == "basic.nack"]
    assert c.get("q").body == b"7"
    assert sorted(c.get("d").body for _ in range(7)) == [b"%d" % number for number in range(7)]


@pytest.mark.parametrize("limit", [{"x_max_length": 1}, {"x_max_length_bytes": 1}])
def test_what_a_full_queue_refuses_goes_to_its_exchange(limit: dict[str, Any]) -> None:
    c = client(x_overflow="reject-publish-dlx", **limit)
    c.say(1, "confirm.select", False)
    assert c.publish("q", b"x")[0].name == "basic.ack"
    refused = c.publish("q", b"y", BasicProperties(message_id="m"))
    assert [(each.name, each.values) for each in refused] == [("basic.nack", (2, False, False))]
    got = c.get("d")
    assert (got.body, got.values[2:4]) == (b"y", ("amq.fanout", "q"))
    assert (death(got)["reason"], death(got)["queue"]) == ("maxlen", "q")
    assert got.properties is not None
    assert got.properties.message_id == "m"
    assert c.get("q").body == b"x"
    assert c.get("d").name == "basic.get-empty"
