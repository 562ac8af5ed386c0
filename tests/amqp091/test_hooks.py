"""Hooks over AMQP: publishes, consumers and gets wait for the answer, and what is behind them on their channel."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from assay.reference_broker.amqp091.wire.content import BasicProperties
from assay.reference_broker.config import AclConfig, AclRuleConfig, HooksConfig, Permission
from assay.reference_broker.routing.properties import Kind, Typed
from tests.support.amqp_client import AmqpClient, Said, make_node

OK, DENY = b'{"result": "ok"}', b'{"result": "deny", "reason": "not today"}'


class Bench(AmqpClient):
    """A client of a broker with hooks, and who answers them."""

    def __init__(self, acl: AclConfig | None = None, **settings: Any) -> None:
        super().__init__(make_node(acl=acl, hooks=HooksConfig(url="https://hooks.example/", **settings)))
        self.open()
        self.declare("q")

    def answer(self, *bodies: bytes) -> tuple[list[dict[str, Any]], list[Said]]:
        """Answer so many questions in turn; what was asked, and what is heard then."""
        hooks = self.node.state.hooks
        assert hooks is not None
        asked: list[dict[str, Any]] = []
        said: list[Said] = []
        for body in bodies:
            (request,) = hooks.outbox.take(self.now)
            asked.append(msgspec.json.decode(request.body))
            hooks.outbox.done(request, accepted=True, now=self.now, answer=body)
            said += self.hear()
        assert hooks.outbox.take(self.now) == []
        return asked, said


def test_what_is_behind_a_publish_waits() -> None:
    bench = Bench()
    bench.say(1, "confirm.select", False)
    assert bench.publish("q", b"one") == []
    assert bench.publish("q", b"two") == []
    assert bench.say(1, "basic.get", "q", True) == []
    bench.open(2)
    assert bench.declare("other", channel=2).name == "queue.declare-ok", "another channel does not wait"
    asked, said = bench.answer(OK, OK, OK)
    assert [(each["hook"], each["topic"], each["protocol"]) for each in asked] == [
        ("auth_on_publish", "$queue/q", "amqp091"),
        ("auth_on_publish", "$queue/q", "amqp091"),
        ("auth_on_subscribe", "$queue/q", "amqp091"),
    ]
    assert [each.name for each in said] == ["basic.ack", "basic.ack", "basic.get-ok"]
    assert said[2].body == b"one"


def test_who_is_refused_loses_the_channel() -> None:
    bench = Bench()
    bench.publish("q", b"one")
    bench.publish("q", b"two")
    _, (closed,) = bench.answer(DENY)
    assert (closed.name, closed.values[0]) == ("channel.close", 403)
    assert "not today" in closed.values[1]
    assert bench.say(1, "channel.close-ok") == []
    bench.open()
    assert bench.declare("q", passive=True).values[1] == 0


@pytest.mark.parametrize("method", ["consume", "get"])
def test_reading_is_asked_about(method: str) -> None:
    bench = Bench()
    assert (bench.consume("q") if method == "consume" else bench.say(1, "basic.get", "q", True)) == []
    _, (closed,) = bench.answer(DENY)
    assert (closed.name, closed.values[0]) == ("channel.close", 403)


@pytest.mark.parametrize("what", ["publish", "copies", "exchange", "consume", "get"])
def test_nobody_is_asked_about_what_the_client_has_no_right_to(what: str) -> None:
    bench = Bench(AclConfig(rules=(AclRuleConfig(topic="$queue/q", access=Permission.WRITE),)))
    if what == "publish":
        said = bench.publish("other", b"one")
    elif what == "copies":
        others = Typed(Kind.ARRAY, (Typed(Kind.TEXT, "other"),))
        said = bench.publish("q", b"one", BasicProperties(headers=(("CC", others),)))
    elif what == "exchange":
        said = bench.publish("q", b"one", exchange="amq.direct")
    else:
        said = bench.consume("q") if what == "consume" else bench.say(1, "basic.get", "q", True)
    method = (60, {"consume": 20, "get": 70}.get(what, 40))
    assert [(each.name, each.values[0], each.values[2:]) for each in said] == [("channel.close", 403, method)]
    assert bench.answer() == ([], [])
    bench.say(1, "channel.close-ok")
    bench.open()
    bench.publish("q", b"two")
    assert len(bench.answer(OK)[0]) == 1, "what it has the right to is asked about"


def test_a_consumer_that_is_allowed_consumes() -> None:
    bench = Bench(kinds=("auth_on_subscribe",))
    bench.publish("q", b"one")
    assert bench.consume("q", no_ack=True) == []
    _, said = bench.answer(OK)
    assert [each.name for each in said] == ["basic.consume-ok", "basic.deliver"]


def test_each_key_of_a_publish_is_asked_about_and_its_payload_may_change() -> None:
    bench = Bench()
    copies = Typed(Kind.ARRAY, (Typed(Kind.TEXT, "q"),))
    headers = (("CC", copies), ("who", Typed(Kind.TEXT, "me")))
    bench.publish("nowhere", b"one", BasicProperties(headers=headers))
    asked, _ = bench.answer(b'{"result": "ok", "payload": "eQ=="}', OK)
    assert [(each["topic"], each["payload"], each["properties"]) for each in asked] == [
        ("$queue/nowhere", "b25l", {"who": "me"}),
        ("$queue/q", "eQ==", {"who": "me"}),
    ]
    bench.say(1, "basic.get", "q", True)
    _, (got,) = bench.answer(OK)
    assert got.body == b"y"


def test_a_transaction_waits_for_all_that_is_in_it() -> None:
    bench = Bench()
    bench.say(1, "tx.select")
    bench.publish("q", b"one")
    assert bench.say(1, "tx.commit") == []
    _, (committed,) = bench.answer(OK)
    assert committed.name == "tx.commit-ok"


def test_a_client_that_went_meanwhile() -> None:
    bench = Bench()
    bench.publish("q", b"one")
    bench.publish("q", b"two")
    bench.node.connection_lost(bench.end, bench.now)
    bench.answer(OK)
    assert bench.node.connection_count == 0
    assert bench.node.state.partial_packets.used_bytes == 0


def test_what_waited_counts_no_more_behind_the_answer() -> None:
    bench = Bench()
    bench.publish("q", b"one")
    bench.publish("q", b"two")
    partial = bench.node.state.partial_packets
    assert partial.used_bytes > 0, "the second waits"
    bench.answer(OK, OK)
    assert partial.used_bytes == 0
