"""What the model of lives of AMQP has learnt, and what it must not let pass for that: told to it without a broker."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import pytest

from assay.conformance.explore.amqp.letters import deaths_of, is_cycle, with_death
from assay.conformance.explore.amqp.life import ExchangePlan, QueuePlan
from assay.conformance.explore.amqp.oracle import MARGIN_S, Oracle
from assay.conformance.explore.amqp.rules import AmqpRule
from assay.conformance.explore.amqp.state import NEVER, Consumer, Link, Message, Queue
from assay.conformance.explore.amqp.topology import Binding, Exchange, matches_headers, matches_topic, route
from assay.conformance.explore.campaign import Campaign
from assay.conformance.explore.rules import ViolationError
from assay.conformance.wire.amqp091 import Arrival, Method


class Bench:
    """Queues of these plans, bound to nothing but the default exchange, and a broker that says what a test wants."""

    def __init__(self, *plans: QueuePlan) -> None:
        self.oracle = Oracle()
        self.queues = [Queue(number, f"q{number}", plan) for number, plan in enumerate(plans or (QueuePlan(),))]
        for queue in self.queues:
            self.oracle.queues[queue.name] = queue
            if queue.plan.letters == -1:
                queue.letters, queue.letter_key = "", f"q{queue.plan.letter_queue}"
        self.oracle.now = 1_000.0
        self.published = 0

    @property
    def queue(self) -> Queue:
        return self.queues[0]

    def link(self, mode: str = "", *, connection: int = 0) -> Link:
        link = Link(len(self.oracle.links), 1, connection, mode=mode)
        self.oracle.links.append(link)
        return link

    def publish(
        self, link: Link, queue: int = 0, *, confirmed: bool | None = None, mandatory: bool = False, **fields: Any
    ) -> Message:
        self.published += 1
        name = fields.pop("key", f"q{queue}")
        exchange = fields.pop("exchange", "")
        fields.setdefault("persistent", True)
        body = b"%d;" % self.published
        properties = fields.pop("properties", {})
        message = Message(self.published, exchange, name, (name,), properties, body, link, **fields)
        self.oracle.publish(link, message, mandatory=mandatory)
        if link.mode == "":
            self.oracle.handled(link)
        elif confirmed is not None:
            self.oracle.confirmed(link, link.published, multiple=False, accepted=confirmed)
        return message

    def consume(self, link: Link, queue: int = 0, *, no_ack: bool = False, prefetch: int = 0) -> Consumer:
        consumer = Consumer(f"t{self.oracle.moment}", link, self.queues[queue], no_ack, prefetch)
        self.oracle.consume(consumer)
        return consumer

    def arrival(self, name: str, message: Message, tag: int, redelivered: bool, more: Mapping[str, Any]) -> Arrival:
        fields: dict[str, Any] = {"exchange": message.exchange, "routing_key": message.key} | dict(more)
        properties = fields.pop("properties", message.properties)
        body = fields.pop("body", message.body)
        if name != "basic.return":
            fields |= {"delivery_tag": tag, "redelivered": redelivered}
        return Arrival(channel=1, method=Method(name, **fields), properties=properties, body=body)

    def deliver(self, consumer: Consumer, message: Message, *, redelivered: bool = False, **more: Any) -> int:
        link = consumer.link
        arrival = self.arrival("basic.deliver", message, link.last_tag + 1, redelivered, more)
        self.oracle.delivered(link, consumer.queue, consumer, arrival, no_ack=consumer.no_ack)
        return link.last_tag

    def get(self, link: Link, message: Message, queue: int = 0, *, redelivered: bool = False, **more: Any) -> int:
        arrival = self.arrival("basic.get-ok", message, link.last_tag + 1, redelivered, more)
        self.oracle.delivered(link, self.queues[queue], None, arrival, no_ack=False)
        return link.last_tag

    def settle(self, link: Link, tag: int, verb: str = "ack", *, requeue: bool = False) -> None:
        self.oracle.settle(link, [tag], verb, requeue=requeue)

    def ready(self, queue: int = 0) -> tuple[int, int]:
        return self.oracle.ready_range(self.queues[queue])


def _death(queue: str, reason: str) -> dict[str, Any]:
    return {"queue": queue, "reason": reason, "count": 1}


def accused(rule: AmqpRule) -> Any:
    class _Accused:
        def __enter__(self) -> None:
            self.raised = pytest.raises(ViolationError)
            self.info = self.raised.__enter__()

        def __exit__(self, *what: Any) -> bool | None:
            found = self.raised.__exit__(*what)
            assert self.info.value.rule is rule, self.info.value.text
            return found

    return _Accused()


# -- where messages go -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "key", "fits"),
    [
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("#", "", True),
        ("*", "", False),  # no key, no word: RabbitMQ and the reference agree
        ("", "", True),
        ("#.b", "b", True),
        ("#.b", "a.c.b", True),
        ("a.#", "a", True),
        ("*.*", "a.b.c", False),
    ],
)
def test_topics(pattern: str, key: str, fits: bool) -> None:
    assert matches_topic(pattern, key) is fits


@pytest.mark.parametrize(
    ("match", "wanted", "headers", "fits"),
    [
        ("all", {"h": "1", "i": 2}, {"h": "1"}, False),
        ("any", {"h": "1", "i": 2}, {"h": "1"}, True),
        ("any", {}, {"h": "1"}, False),
        ("all", {}, {}, True),
        ("all", {"x-h": "1"}, {}, True),
        ("all-with-x", {"x-h": "1"}, {}, False),
        ("any-with-x", {"x-h": "1"}, {"x-h": "1"}, True),
    ],
)
def test_headers(match: str, wanted: dict[str, Any], headers: dict[str, Any], fits: bool) -> None:
    binding = Binding("q", to_exchange=False, key="", match=match, wanted=tuple(wanted.items()))
    assert matches_headers(binding, headers) is fits


def test_a_circle_of_exchanges_ends_and_an_alternate_gets_only_what_nothing_took() -> None:
    first = Exchange("x", ExchangePlan(kind="fanout"), alternate="z")
    second = Exchange("y", ExchangePlan(), alternate="z")
    other = Exchange("z", ExchangePlan(kind="fanout"))
    first.bindings[Binding("y", to_exchange=True, key="")] = None
    second.bindings[Binding("x", to_exchange=True, key="k")] = None
    second.bindings[Binding("q", to_exchange=False, key="k")] = None
    other.bindings[Binding("r", to_exchange=False, key="")] = None
    exchanges = {each.name: each for each in (first, second, other)}
    assert route(exchanges, ("q", "r"), "x", ["k"], {}) == {"q"}
    assert route(exchanges, ("q", "r"), "x", ["other"], {}) == {"r"}


def test_deaths_are_counted_and_a_rejection_breaks_a_circle() -> None:
    deaths = with_death(with_death(with_death((), "q", "expired"), "r", "rejected"), "q", "expired")
    assert deaths == (("q", "expired", 2), ("r", "rejected", 1))
    assert is_cycle("q", deaths)
    assert not is_cycle("r", deaths)
    assert deaths_of({"x-death": [{"queue": "q", "reason": "expired", "count": 2}]}) == (("q", "expired", 2),)


# -- order, flags, settlements -----------------------------------------------------------------------------------------


def test_of_one_channel_the_order_is_kept_and_of_two_only_behind_a_confirm() -> None:
    bench = Bench()
    one, other, reader = bench.link(), bench.link("confirm"), bench.link()
    first, second = bench.publish(one), bench.publish(one)
    consumer = bench.consume(reader)
    with accused(AmqpRule.ORDER):
        bench.deliver(consumer, second)
        bench.deliver(consumer, first)

    bench = Bench()
    one, other, reader = bench.link(), bench.link("confirm"), bench.link()
    first, second = bench.publish(one), bench.publish(other, confirmed=True)
    consumer = bench.consume(reader)
    bench.deliver(consumer, second)  # nothing said that the first one was there before
    bench.deliver(consumer, first)

    bench = Bench()
    one, other, reader = bench.link("confirm"), bench.link("confirm"), bench.link()
    first, second = bench.publish(one, confirmed=True), bench.publish(other, confirmed=True)
    consumer = bench.consume(reader)
    bench.deliver(consumer, second)
    with accused(AmqpRule.ORDER):
        bench.deliver(consumer, first)


def test_what_came_back_may_come_at_its_place_or_behind() -> None:
    for order in ((0, 1), (1, 0)):
        bench = Bench()
        link = bench.link()
        messages = [bench.publish(link), bench.publish(link)]
        bench.settle(link, bench.get(link, messages[0]), "nack", requeue=True)
        for each in order:
            bench.get(link, messages[each], redelivered=each == 0)


def test_a_first_delivery_is_not_redelivered_and_what_was_recovered_is() -> None:
    bench = Bench()
    link = bench.link()
    message = bench.publish(link)
    with accused(AmqpRule.REDELIVERED):
        bench.get(link, message, redelivered=True)
    bench.get(link, message)
    bench.oracle.recover(link)
    with accused(AmqpRule.NOT_REDELIVERED):
        bench.get(link, message, redelivered=False)
    bench.get(link, message, redelivered=True)


def test_after_a_kill_anything_may_be_marked_as_redelivered() -> None:
    """RabbitMQ marks all that it reads at such a start."""
    bench = Bench()
    message = bench.publish(bench.link("confirm"), confirmed=True)
    bench.oracle.killed()
    bench.get(bench.link(), message, redelivered=True)


def test_an_acknowledged_message_comes_again_only_after_a_kill() -> None:
    bench = Bench()
    link = bench.link("confirm")
    message = bench.publish(link, confirmed=True)
    bench.settle(link, bench.get(link, message))
    with accused(AmqpRule.AGAIN):
        bench.get(link, message)
    bench.oracle.killed()
    assert bench.ready() == (0, 1)
    bench.get(bench.link(), message, redelivered=True)


def test_what_was_confirmed_and_persistent_outlives_a_kill() -> None:
    bench = Bench()
    link, plain = bench.link("confirm"), bench.link()
    bench.publish(link, confirmed=True)
    bench.publish(link, confirmed=True, persistent=False)
    bench.publish(plain)
    bench.oracle.killed()
    assert bench.ready() == (1, 3)


def test_nobody_is_given_what_somebody_holds() -> None:
    bench = Bench()
    link, other = bench.link(), bench.link()
    message = bench.publish(link)
    bench.get(link, message)
    with accused(AmqpRule.HELD):
        bench.get(other, message, redelivered=True)


def test_what_a_channel_held_may_go_to_others_as_soon_as_its_close_is_sent() -> None:
    bench = Bench()
    link, other = bench.link(), bench.link()
    message = bench.publish(link)
    consumer, waiting = bench.consume(link), bench.consume(other)
    bench.deliver(consumer, message)
    bench.oracle.closed(link)
    bench.deliver(waiting, message, redelivered=True)


def test_a_consumer_without_acknowledgements_may_take_messages_along_unseen() -> None:
    bench = Bench()
    link = bench.link()
    bench.publish(bench.link())
    bench.consume(link, no_ack=True)
    bench.oracle.closed(link)
    assert bench.ready() == (0, 1)


def test_a_rollback_gives_deliveries_back_to_be_acknowledged_and_sends_none_again() -> None:
    bench = Bench()
    link = bench.link("tx")
    message = bench.publish(bench.link())
    tag = bench.get(link, message)
    bench.settle(link, tag)
    dropped = bench.publish(link)
    bench.oracle.rollback(link)
    assert list(link.unsettled) == [tag]
    with accused(AmqpRule.UNROUTED):
        bench.get(bench.link(), dropped)
    with accused(AmqpRule.HELD):
        bench.get(bench.link(), message, redelivered=True)


def test_a_prefetch_counts_what_is_not_settled() -> None:
    bench = Bench()
    link = bench.link()
    messages = [bench.publish(bench.link()) for _ in range(3)]
    consumer = bench.consume(link, prefetch=1)
    tag = bench.deliver(consumer, messages[0])
    with accused(AmqpRule.PREFETCH):
        bench.deliver(consumer, messages[1])
    bench.settle(link, tag)
    bench.deliver(consumer, messages[1])


# -- what must be there ------------------------------------------------------------------------------------------------


def test_an_unconfirmed_publish_must_come_and_need_not_be_there_yet() -> None:
    """The reference writes first; quorum queues of RabbitMQ do, too."""
    bench = Bench(QueuePlan(max_priority=4))
    link = bench.link()
    low, high = bench.publish(link, priority=1), bench.publish(link, priority=4)
    assert bench.oracle.uncounted() == [bench.queue]
    bench.get(link, low)  # nobody said that the other one is there
    bench = Bench(QueuePlan(max_priority=4))
    link = bench.link("confirm")
    low, high = bench.publish(link, priority=1, confirmed=True), bench.publish(link, priority=9, confirmed=True)
    with accused(AmqpRule.PRIORITY):
        bench.get(link, low)
    bench.get(link, high)


def test_a_waiting_consumer_must_get_something() -> None:
    bench = Bench()
    link = bench.link()
    message = bench.publish(link)
    consumer = bench.consume(link, prefetch=1)
    missing = bench.oracle.missing()
    assert missing is not None
    assert missing.rule is AmqpRule.UNDELIVERED
    bench.deliver(consumer, message)
    bench.publish(link)
    assert bench.oracle.missing() is None  # it has one to acknowledge


def test_confirms_come_once_for_each_and_behind_returns() -> None:
    bench = Bench()
    link = bench.link("confirm")
    bench.publish(link, confirmed=True)
    with accused(AmqpRule.CONFIRM):
        bench.oracle.confirmed(link, 1, multiple=False, accepted=True)
    lost = bench.publish(link, key="nowhere", mandatory=True)
    with accused(AmqpRule.RETURN_LATE):
        bench.oracle.confirmed(link, 2, multiple=True, accepted=True)
    bench = Bench()
    link = bench.link("confirm")
    lost = bench.publish(link, key="nowhere", mandatory=True)
    more = {"reply_code": 312, "reply_text": "NO_ROUTE"}
    bench.oracle.returned(link, bench.arrival("basic.return", lost, 0, False, more))
    bench.oracle.confirmed(link, 1, multiple=False, accepted=True)
    with accused(AmqpRule.RETURN):
        bench.oracle.returned(link, bench.arrival("basic.return", lost, 0, False, more))


def test_a_full_queue_refuses_and_one_that_drops_does_not() -> None:
    bench = Bench(QueuePlan(max_length=1, overflow="reject-publish"))
    link = bench.link("confirm")
    bench.publish(link, confirmed=True)
    with accused(AmqpRule.REJECTED):
        bench.publish(link, confirmed=True)
    bench = Bench(QueuePlan(max_length=1))
    link = bench.link("confirm")
    first = bench.publish(link, confirmed=True)
    with accused(AmqpRule.REJECTED):
        bench.publish(link, confirmed=False)
    with accused(AmqpRule.AGAIN):
        bench.get(bench.link(), first)


@pytest.mark.parametrize("shown", ["confirm", "delivery", ""])
def test_a_queue_that_elects_after_a_start_may_refuse_until_it_has_shown_a_leader(shown: str) -> None:
    """RabbitMQ refused what was published 50 ms after its start to a quorum queue that had no leader (seed 1512)."""
    bench = Bench(QueuePlan(delivery_limit=2))
    before = bench.publish(bench.link("confirm"), confirmed=True)
    bench.oracle.killed()
    link = bench.link("confirm")
    if shown == "confirm":
        bench.publish(link, confirmed=True)
    elif shown == "delivery":
        bench.get(bench.link(), before)
    if shown:
        with accused(AmqpRule.REJECTED):
            bench.publish(link, confirmed=False)
        return
    refused = bench.publish(link, confirmed=False)
    assert [copy.sure for copy in bench.queue.copies if copy.message is refused] == [False]
    bench = Bench()
    bench.oracle.killed()
    with accused(AmqpRule.REJECTED):
        bench.publish(bench.link("confirm"), confirmed=False)


def test_what_was_held_at_a_kill_counts_for_a_length_again() -> None:
    """Either of the two may have made room for the other (reference, seed 1)."""
    bench = Bench(QueuePlan(max_length=1))
    link = bench.link("confirm")
    bench.get(link, bench.publish(link, confirmed=True))
    bench.publish(link, confirmed=True)
    bench.oracle.killed()
    assert bench.ready() == (0, 2)


def test_a_letter_from_before_a_kill_is_all_that_must_be_there() -> None:
    """What had died by then need not die again (reference, seed 1)."""
    bench = Bench(QueuePlan(letters=-1, letter_queue=1), QueuePlan())
    message = bench.publish(bench.link("confirm"), confirmed=True, ttl_s=1.0)
    bench.oracle.now += 1.1
    bench.oracle.expire()
    bench.oracle.killed()
    bench.oracle.now += 1 + MARGIN_S
    bench.oracle.expire()
    assert bench.ready(1) == (1, 2)
    headers = {"x-death": [{"queue": "q0", "reason": "expired", "count": 1}]}
    bench.get(bench.link(), message, 1, routing_key="q1", properties={"headers": headers})
    assert bench.ready(1) == (0, 1)


def test_a_letter_goes_where_a_way_leads_when_its_message_dies_not_when_it_might_have() -> None:
    """Its queue was declared in between (reference, seed 12)."""
    bench = Bench(QueuePlan(max_length=1, letters=-1, letter_queue=1), QueuePlan())
    later = bench.oracle.queues.pop("q1")
    link = bench.link("confirm")
    bench.get(link, bench.publish(link, confirmed=True))
    message = bench.publish(link, confirmed=True)
    bench.oracle.queues["q1"] = later
    bench.publish(link, confirmed=True)
    headers = {"x-death": [{"queue": "q0", "reason": "maxlen", "count": 1}]}
    bench.get(bench.link(), message, 1, routing_key="q1", properties={"headers": headers})


@pytest.mark.parametrize("unbound", [False, True])
def test_a_letter_need_not_go_where_a_way_led_before_its_message_surely_died(unbound: bool) -> None:
    """It was unbound while the death was being written (reference, seed 1, life 168)."""
    bench = Bench(QueuePlan(ttl_s=0), QueuePlan())
    exchange, way = Exchange("x", ExchangePlan(kind="fanout")), Binding("q1", to_exchange=False, key="")
    bench.oracle.exchanges["x"], bench.queue.letters = exchange, "x"
    exchange.bindings[way] = None
    bench.publish(bench.link("confirm"), confirmed=True)
    bench.oracle.expire()
    assert bench.ready(1) == (0, 1)
    if unbound:
        bench.oracle.unbind(exchange, [way])
        bench.oracle.expire()
    bench.oracle.now += 2 * MARGIN_S
    bench.oracle.expire()
    assert bench.ready(1) == (0 if unbound else 1, 1)


def test_what_a_letter_leads_to_may_have_a_way_by_then_too() -> None:
    """Likewise, two queues further (reference, seed 12)."""
    refuses = QueuePlan(max_length=1, overflow="reject-publish-dlx", letters=-1, letter_queue=2)
    bench = Bench(QueuePlan(max_length=1, letters=-1, letter_queue=1), refuses, QueuePlan())
    later = bench.oracle.queues.pop("q2")
    link = bench.link("confirm")
    bench.get(link, bench.publish(link, confirmed=True))
    message = bench.publish(link, confirmed=True)
    bench.oracle.queues["q2"] = later
    bench.publish(link, confirmed=True)
    died = [{"queue": name, "reason": "maxlen", "count": 1} for name in ("q1", "q0")]
    bench.get(bench.link(), message, 2, routing_key="q2", properties={"headers": {"x-death": died}})


def test_a_letter_may_come_late_to_a_queue_that_refuses() -> None:
    """What is published meanwhile takes its place, and it dies anew (reference, seed 12)."""
    full, letters = QueuePlan(max_length=1, overflow="reject-publish-dlx", letters=-1, letter_queue=2), QueuePlan()
    bench = Bench(QueuePlan(letters=-1, letter_queue=1), full, letters)
    link = bench.link("confirm")
    message = bench.publish(link, confirmed=True)
    bench.settle(link, bench.get(link, message), "reject")
    bench.publish(link, 1, confirmed=True)
    died = [{"queue": name, "reason": reason, "count": 1} for name, reason in (("q1", "maxlen"), ("q0", "rejected"))]
    bench.get(bench.link(), message, 2, routing_key="q2", properties={"headers": {"x-death": died}})


def test_what_is_held_may_count_for_a_limit() -> None:
    for accepted in (True, False):
        bench = Bench(QueuePlan(max_length=1, overflow="reject-publish"))
        link = bench.link("confirm")
        message = bench.publish(link, confirmed=True)
        bench.get(link, message)
        bench.publish(link, confirmed=accepted)


def test_a_letter_may_take_the_last_place_from_what_was_published_before_it() -> None:
    for accepted in (True, False):
        bench = Bench(QueuePlan(max_length=1, overflow="reject-publish"), QueuePlan(letters=-1, letter_queue=0))
        link, other = bench.link("confirm"), bench.link("confirm")
        message = bench.publish(other, 1, confirmed=True)
        tag = bench.get(other, message, 1)
        bench.publish(link)
        bench.settle(other, tag, "reject")
        bench.oracle.confirmed(link, 1, multiple=False, accepted=accepted)


def test_a_rejected_message_must_become_a_letter_that_tells_so() -> None:
    bench = Bench(QueuePlan(letters=-1, letter_queue=1), QueuePlan())
    link = bench.link("confirm")
    message = bench.publish(link, confirmed=True)
    bench.settle(link, bench.get(link, message), "reject")
    assert bench.ready(1) == (1, 1)
    told = {"headers": {"x-death": [{"queue": "q0", "reason": "rejected", "count": 1}], "x-first-death-queue": "q0"}}
    with accused(AmqpRule.LETTER):
        bench.get(link, message, 1, routing_key="q1")
    bench.get(link, message, 1, routing_key="q1", properties=told)


def test_what_expires_at_once_goes_to_who_waits_however_long_the_disk_takes() -> None:
    """Seed 20261130: a sync took a second on a busy machine, and the delivery behind it was called late."""
    bench = Bench(QueuePlan(), QueuePlan())
    link, reader = bench.link("confirm"), bench.link()
    waiting = bench.consume(reader)
    message = bench.publish(link, ttl_s=0)
    bench.oracle.now += 4 * MARGIN_S
    bench.deliver(waiting, message)

    told, untold = bench.publish(link, 1, ttl_s=0, confirmed=True), bench.publish(link, 1, ttl_s=0)
    late = bench.consume(reader, 1)
    bench.oracle.now += 4 * MARGIN_S
    for each in (told, untold):
        with accused(AmqpRule.EXPIRED):
            bench.deliver(late, each)


def test_what_is_over_before_its_confirm_comes_is_a_letter_although_a_full_queue_took_it() -> None:
    """Seed 20261132: the confirm came half a second late, and its letter was called one that nobody sent."""
    bench = Bench(QueuePlan(ttl_s=0, max_length=1, overflow="reject-publish", letters=-1, letter_queue=1), QueuePlan())
    link = bench.link("confirm")
    bench.publish(link)
    bench.publish(link)
    bench.oracle.now += 2 * MARGIN_S
    bench.oracle.expire()
    assert bench.ready(1) == (0, 2)
    for number in (1, 2):
        bench.oracle.confirmed(link, number, multiple=False, accepted=True)
    assert bench.ready(1) == (2, 2)


def test_what_expires_at_once_may_go_to_who_waits_and_is_a_letter_else() -> None:
    bench = Bench(QueuePlan(ttl_s=0, letters=-1, letter_queue=1), QueuePlan())
    link, reader = bench.link("confirm"), bench.link()
    consumer = bench.consume(reader)
    message = bench.publish(link, confirmed=True)
    bench.oracle.expire()
    assert bench.ready(1) == (0, 1)
    bench.deliver(consumer, message)
    assert bench.ready(1) == (0, 0)

    bench = Bench(QueuePlan(ttl_s=0, letters=-1, letter_queue=1), QueuePlan())
    link = bench.link("confirm")
    message = bench.publish(link, confirmed=True)
    bench.oracle.now += 2 * MARGIN_S
    bench.oracle.expire()
    assert bench.ready(1) == (1, 1)
    with accused(AmqpRule.AGAIN):
        bench.get(link, message)


def test_a_purge_leaves_letters_of_what_may_have_expired_before() -> None:
    bench = Bench(QueuePlan(ttl_s=0, letters=-1, letter_queue=1), QueuePlan())
    bench.publish(bench.link("confirm"), confirmed=True)
    bench.oracle.expire()
    bench.oracle.purged(bench.queue)
    assert bench.ready(1) == (0, 1)


def test_a_purge_may_be_ahead_of_letters() -> None:
    bench = Bench(QueuePlan(ttl_s=0, letters=-1, letter_queue=1), QueuePlan())
    bench.publish(bench.link("confirm"), confirmed=True)
    bench.oracle.expire()
    bench.oracle.purged(bench.queues[1])
    assert bench.ready(1) == (0, 1)


def test_a_letter_lives_from_its_death_on_whenever_that_was() -> None:
    bench = Bench(QueuePlan(ttl_s=0, letters=-1, letter_queue=1), QueuePlan(ttl_s=50))
    link = bench.link("confirm")
    message = bench.publish(link, confirmed=True)
    bench.oracle.expire()
    bench.oracle.now += 90
    bench.oracle.expire()
    (letter,) = bench.queues[1].copies
    assert letter.message is message
    assert letter.expires_at < bench.oracle.now < letter.expires_by < NEVER


def test_a_delivery_limit_counts_what_came_back_and_a_crash_may() -> None:
    bench = Bench(QueuePlan(delivery_limit=1))
    link = bench.link("confirm")
    message = bench.publish(link, confirmed=True)
    for redelivered in (False, True):
        bench.settle(link, bench.get(link, message, redelivered=redelivered), "nack", requeue=True)
    with accused(AmqpRule.AGAIN):
        bench.get(link, message, redelivered=True)

    bench = Bench(QueuePlan(delivery_limit=0))
    link = bench.link("confirm")
    bench.consume(link)
    bench.publish(link, confirmed=True)
    bench.oracle.killed()
    assert bench.ready() == (0, 1)  # it may have been delivered, and that may count


def test_a_delivery_whose_acknowledgement_a_kill_took_back_counts_for_a_delivery_limit() -> None:
    """What was acknowledged is back, is given to somebody again, and given back once too often (reference, seed 77)."""
    bench = Bench(QueuePlan(delivery_limit=1))
    link = bench.link("confirm")
    message = bench.publish(link, confirmed=True)
    bench.settle(link, bench.get(link, message))
    bench.oracle.killed()
    again = bench.link()
    bench.get(again, message, redelivered=True)
    bench.oracle.closed(again)
    assert bench.ready() == (0, 1)

    bench = Bench(QueuePlan(delivery_limit=1))
    message = bench.publish(bench.link("confirm"), confirmed=True)
    bench.oracle.killed()
    again = bench.link()
    bench.get(again, message)
    bench.oracle.closed(again)
    assert bench.ready() == (1, 1)  # one that nobody had been given before must be there


def test_what_a_kill_brings_back_over_its_delivery_limit_may_become_a_letter_at_once() -> None:
    bench = Bench(QueuePlan(delivery_limit=0, letters=-1, letter_queue=1), QueuePlan())
    link = bench.link("confirm")
    message = bench.publish(link, confirmed=True)
    bench.settle(link, bench.get(link, message), "reject")
    bench.oracle.killed()
    for reason in ("delivery_limit", "rejected"):  # beside the letter that had been made already
        headers = {"x-death": [_death("q0", reason)]}
        bench.get(bench.link(), message, 1, routing_key="q1", properties={"headers": headers})


def test_of_two_letters_alike_either_may_be_the_one_that_was_delivered_before() -> None:
    """One from before a kill, and what died again after it (reference, seed 77)."""
    bench = Bench(QueuePlan(delivery_limit=1), QueuePlan(letters=-1, letter_queue=0))
    message = bench.publish(bench.link("confirm"), 1, confirmed=True, ttl_s=1.0)
    letter = {"routing_key": "q0", "properties": {"headers": {"x-death": [_death("q1", "expired")]}}}

    def expire() -> None:
        bench.oracle.now += 2.0
        bench.oracle.expire()

    expire()
    bench.oracle.killed()
    expire()
    link = bench.link()
    bench.settle(link, bench.get(link, message, **letter))
    bench.oracle.killed()
    expire()
    again = bench.link()
    bench.get(again, message, redelivered=True, **letter)
    bench.oracle.closed(again)
    assert bench.ready()[0] == 0


def test_a_delivery_may_be_on_its_way_while_the_clock_is_moved() -> None:
    """And be read after that (reference, seed 77), by who had room for it."""

    def moved(bench: Bench, prefetch: int) -> tuple[Consumer, Message]:
        link = bench.link()
        consumer = bench.consume(link, prefetch=prefetch)
        held = bench.publish(link)
        message = bench.publish(link)
        bench.deliver(consumer, held)
        bench.oracle.moved_clock(bench.oracle.now + 90)
        bench.oracle.now += 90
        bench.oracle.expire()
        return consumer, message

    bench = Bench(QueuePlan(ttl_s=50))
    bench.deliver(*moved(bench, prefetch=2))

    bench = Bench(QueuePlan(ttl_s=50))
    late = moved(bench, prefetch=2)
    bench.oracle.now += 2 * MARGIN_S
    with accused(AmqpRule.EXPIRED):
        bench.deliver(*late)

    for late_s in (0.0, 2 * MARGIN_S):
        # What is for who waits may have been on its way to the disk (reference, seed 1, life 105).
        bench = Bench(QueuePlan(ttl_s=0))
        message = bench.publish(bench.link())
        bench.oracle.moved_clock(bench.oracle.now + 90)
        bench.oracle.now += 90 + late_s
        bench.oracle.expire()
        if not late_s:
            bench.deliver(bench.consume(bench.link()), message)
            continue
        with accused(AmqpRule.AGAIN):
            bench.deliver(bench.consume(bench.link()), message)

    bench = Bench(QueuePlan(ttl_s=50))
    _, message = moved(bench, prefetch=1)  # which has no room for it
    with accused(AmqpRule.AGAIN):
        bench.get(bench.link(), message)


def test_what_must_not_be_changed() -> None:
    bench = Bench()
    link = bench.link()
    message = bench.publish(link, properties={"headers": {"a": "b", "BCC": ["x"]}, "type": "kind"})
    kept = {"headers": {"a": "b"}, "type": "kind"}
    for wrong in (
        {"headers": {"a": "b"}},
        {"headers": {"a": "c"}, "type": "kind"},
        {**kept, "app-id": "mine"},
        {"headers": {"a": "b", "BCC": ["x"]}, "type": "kind"},
    ):
        with accused(AmqpRule.CHANGED):
            bench.get(link, message, properties=wrong)
    with accused(AmqpRule.CHANGED):
        bench.get(link, message, body=b"1;more", properties=kept)
    with accused(AmqpRule.ADDRESS):
        bench.get(link, message, routing_key="other", properties=kept)
    bench.get(link, message, properties={"headers": {"a": "b", "x-delivery-count": 1}, "type": "kind"})


def test_a_deleted_queue_takes_its_messages_and_its_consumers_along() -> None:
    bench = Bench()
    link = bench.link()
    message = bench.publish(link)
    consumer = bench.consume(link)
    bench.oracle.removed(bench.queue)
    missing = bench.oracle.missing()
    assert missing is not None
    assert missing.rule is AmqpRule.NO_NOTICE
    tag = bench.deliver(consumer, message)  # it was on its way
    bench.settle(link, tag)


def test_an_auto_delete_exchange_goes_with_its_last_binding() -> None:
    bench = Bench()
    exchange = Exchange("x", ExchangePlan(auto_delete=True))
    bench.oracle.exchanges["x"] = exchange
    exchange.bindings[Binding("q0", to_exchange=False, key="a")] = None
    exchange.bindings[Binding("q0", to_exchange=False, key="b")] = None
    assert not bench.oracle.unbind(exchange, [Binding("q0", to_exchange=False, key="a")])
    assert bench.oracle.removed(bench.queue) == [exchange]


def test_a_queue_that_elects_has_longer_to_answer_after_a_start_than_it_holds_a_request() -> None:
    """Seed 20261131: a purge was called unanswered after 10 s; the broker gives up after 30."""
    patience_s = inspect.signature(Campaign.__init__).parameters["patience_s"].default
    assert patience_s * Bench(QueuePlan(), QueuePlan(delivery_limit=0)).oracle.slowness > 30
    assert Bench().oracle.slowness == 1
