"""Requests of a life and their answers, and what comes on channels unasked."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

from assay.conformance.explore.amqp.oracle import Oracle
from assay.conformance.explore.amqp.rules import AmqpRule, violation
from assay.conformance.explore.amqp.state import NEVER, Consumer, Link, Queue
from assay.conformance.explore.amqp.topology import Exchange
from assay.conformance.explore.amqp.wires import POLL_S, AmqpClients, outcome_of
from assay.conformance.explore.rules import ViolationError
from assay.conformance.wire.amqp091 import Arrival

_SOON_S = 0.05
"""For what an eager broker sends."""
_GIVES_UP = 3
"""A broker that was not eager so often in a life is not waited for any more."""
OK = ("ok",)
UNASKED = ("basic.deliver", "basic.return", "basic.ack", "basic.nack", "basic.cancel")
_ANSWERS = {"basic.get": ("basic.get-ok", "basic.get-empty")}


class AmqpAsking(AmqpClients):
    """Keeps the oracle told of all that is asked and answered."""

    oracle: Oracle

    def begin_life(self) -> None:
        super().begin_life()
        self.oracle = Oracle()
        self.oracle.now = self.now
        self.wires = {}
        self._late = 0
        self.slowness = 1
        self.went: dict[str, None] = {}
        """Queues that went by themselves; a kill may bring them back."""
        self._leaving: dict[str, Consumer] = {}

    @property
    def now(self) -> float:
        """The broker's clock."""
        return time.monotonic() + self.ahead_s

    ahead_s = 0.0

    # Requests

    def call(
        self, link: Link, name: str, wanted: Collection[str] = OK, clause: str = "", **fields: Any
    ) -> Arrival | None:
        """The answer; None if it was an error that had to come, and the channel is closed. Raises a violation."""
        over = [] if "ok" in wanted else self.channel_goes(link)
        self.say(link, name, **fields)
        arrival = self.answer(link, name, wanted, clause)
        for queue in over:
            self.queue_is_gone(queue)
        return arrival

    def answer(self, link: Link, name: str, wanted: Collection[str] = OK, clause: str = "") -> Arrival | None:
        """What comes for what was sent."""
        self.await_(
            lambda: bool(link.answers) or link.closed_by is not None,
            lambda: violation(
                AmqpRule.UNANSWERED,
                f"channel {link.number}: {name} is not answered, expected {' or '.join(wanted)}",
                *([clause] if clause else []),
                waited=True,
            ),
        )
        arrival = link.answers.popleft() if link.answers else link.closed_by
        assert arrival is not None
        if outcome_of(arrival) not in wanted:
            text = f"channel {link.number}: {name} ends with {outcome_of(arrival)}, expected {' or '.join(wanted)}"
            raise violation(AmqpRule.OUTCOME, text, *([clause] if clause else []))
        if link.closed_by is not None:
            return None
        if arrival.name not in _ANSWERS.get(name, (f"{name}-ok",)):
            raise violation(AmqpRule.UNASKED, f"channel {link.number}: {arrival.name} for {name}")
        return arrival

    def channel_goes(self, link: Link) -> list[Queue]:
        """From now on its end may be seen. Returns the queues that go with their last consumer."""
        self._leaving |= link.consumers
        link.is_closing = True
        return self.oracle.closed(link)

    def queue_is_gone(self, queue: Queue) -> None:
        """It must go by itself: with its last consumer, its connection, its time."""
        if self.oracle.queues.get(queue.name) is not queue:
            return
        self.await_(
            lambda: self.control.is_gone("queue", queue.name),
            lambda: violation(AmqpRule.STAYS, f"the queue {queue.name} is still there", waited=True),
            POLL_S,
        )
        self.went[queue.name] = None
        for exchange in self.oracle.removed(queue):
            self.exchange_is_gone(exchange)

    def exchange_is_gone(self, exchange: Exchange) -> None:
        if self.oracle.exchanges.get(exchange.name) is not exchange:
            return
        self.await_(
            lambda: self.control.is_gone("exchange", exchange.name),
            lambda: violation(
                AmqpRule.STAYS, f"the exchange {exchange.name} is still there", "rmq.auto-delete.exchange", waited=True
            ),
            POLL_S,
        )
        for further in self.oracle.removed_exchange(exchange):
            self.exchange_is_gone(further)

    def ask_passive(self, queue: Queue) -> Arrival:
        """Of an exclusive one, on a channel of its connection, if there is one."""
        queue.looked_at = self.now
        link = next((each for each in self.oracle.links if each.connection == queue.owner), None)
        if link is None:
            return self.control.request("queue.declare", queue=queue.name, passive=True)
        answer = self.call(link, "queue.declare", queue=queue.name, passive=True)
        assert answer is not None
        return answer

    def wrong_figures(self, queue: Queue, answer: Arrival) -> str:
        """What a Declare-Ok counts otherwise than it should; empty: nothing."""
        self.tell_time()
        least, most = self.oracle.ready_range(queue)
        messages, consumers = answer["message-count"], answer["consumer-count"]
        known = len([each for each in queue.consumers if not each.told])
        if consumers != known and not queue.counts_late:
            return f"{queue.name} has {consumers} consumers, not {known}"
        return (
            ""
            if queue.counts_late or least <= messages <= most
            else f"{queue.name} has {messages} messages, not {least} to {most}"
        )

    def await_figures(self, *queues: Queue) -> None:
        """Until the broker has noticed what a client did behind its back."""
        for queue in queues:
            if self.oracle.queues.get(queue.name) is not queue:
                continue
            if queue.plan.exclusive and not any(each.connection == queue.owner for each in self.oracle.links):
                continue
            wrong = ""

            def fits(queue: Queue = queue) -> bool:
                nonlocal wrong
                answer = self.ask_passive(queue)
                if answer.name != "queue.declare-ok":
                    raise violation(AmqpRule.GONE, f"{queue.name} is gone: {outcome_of(answer)}")
                wrong = self.wrong_figures(queue, answer)
                return not wrong

            self.await_(fits, lambda queue=queue: self._miscounted(queue, wrong), POLL_S)  # type: ignore[misc]  # noqa: B023
            self.oracle.counted(queue)

    def _miscounted(self, queue: Queue, text: str) -> ViolationError:
        """What is behind a count that stays wrong."""
        late = [copy for copy in queue.ready if copy.sure and copy.sure_at == NEVER]
        kind = AmqpRule.FIGURES
        if "messages" in text and late:
            kind = AmqpRule.LETTER_LOST if late[0].deaths else AmqpRule.LOST
            kind = AmqpRule.LOST_BY_RESTART if late[0].durable else kind
        return violation(kind, text, waited=True)

    def tell_time(self) -> None:
        self.oracle.now = self.now
        self.oracle.expire()

    # Between steps

    def quiesce(self) -> None:
        """Wait until all that was sent has been handled, and what must come has come."""
        oracle = self.oracle
        for link in list(oracle.links):
            if link.touched and link.open:
                self.call(link, "exchange.declare", exchange="amq.direct", type="direct", passive=True)
                oracle.handled(link)
        self.tell_time()
        while (first := oracle.missing()) is not None:
            self.await_(lambda: self._text_of_missing() != first.text, lambda: first)
        deadline = time.monotonic() + _SOON_S
        while self._late < _GIVES_UP and oracle.is_due():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                self._late += 1
                break
            self.read(left_s)
        self.read(0.0)
        self.tell_time()
        self.await_figures(*oracle.uncounted())

    def _text_of_missing(self) -> str:
        self.tell_time()
        found = self.oracle.missing()
        return found.text if found is not None else ""

    # What comes

    def on_channel(self, link: Link, arrival: Arrival) -> None:
        oracle = self.oracle
        self.tell_time()
        if link.is_closing and arrival.name in UNASKED:
            consumer = self._leaving.get(arrival.method.values.get("consumer-tag", ""))
            if consumer is not None and arrival.name == "basic.deliver":
                oracle.swallowed(link, consumer, arrival)
            return
        match arrival.name:
            case "basic.deliver":
                consumer = link.consumers.get(arrival["consumer-tag"])
                if consumer is None:
                    text = f"channel {link.number}: a delivery to consumer {arrival['consumer-tag']!r}, which is none"
                    raise violation(AmqpRule.CANCELLED, text)
                oracle.delivered(link, consumer.queue, consumer, arrival, no_ack=consumer.no_ack)
            case "basic.return":
                oracle.returned(link, arrival)
            case "basic.ack" | "basic.nack":
                tag, accepted = arrival.tag, arrival.name == "basic.ack"
                oracle.confirmed(link, tag, multiple=arrival["multiple"], accepted=accepted)
            case "basic.cancel":
                consumer = link.consumers.get(arrival["consumer-tag"])
                if consumer is None or not (consumer.told or consumer.ends):
                    text = f"channel {link.number}: consumer {arrival['consumer-tag']!r} is cancelled"
                    raise violation(AmqpRule.UNASKED, f"{text}, and its queue is there", "rmq.consumer-cancel-notify")
                link.consumers.pop(consumer.tag)
                consumer.queue.consumers.pop(consumer, None)
            case "channel.close":
                self.say(link, "channel.close-ok")
                link.touched = False
                self.wires[link.connection].links.pop(link.channel, None)
                link.closed_by = arrival
                if not link.is_closing:
                    text = f"channel {link.number} is closed: {arrival['reply-code']} {arrival['reply-text']}"
                    raise violation(AmqpRule.CLOSED, text)
            case _:
                link.answers.append(arrival)

    def poll(self, done: Callable[[], bool], otherwise: Callable[[], ViolationError]) -> None:
        self.await_(done, otherwise, POLL_S)
