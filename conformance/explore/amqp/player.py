"""Performs a life of AMQP 0.9.1 on real sockets, and asks the oracle about all that comes."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Mapping
from typing import Any

from assay.conformance.case import CLOCK_TOPIC
from assay.conformance.explore.amqp import life as plan
from assay.conformance.explore.amqp.asking import AmqpAsking
from assay.conformance.explore.amqp.features import PROBED, probed
from assay.conformance.explore.amqp.rules import AmqpRule, violation
from assay.conformance.explore.amqp.state import NEVER, Consumer, Link, Message, Queue
from assay.conformance.explore.amqp.topology import Binding, Exchange
from assay.conformance.explore.amqp.wires import PATIENCE_S, POLL_S, AmqpControl, AmqpWire, outcome_of
from assay.conformance.explore.control import Control
from assay.conformance.explore.held import Held
from assay.conformance.outcome import TargetUnreachableError
from assay.conformance.targets import CapabilityValue, Endpoint
from assay.conformance.targets.amqp import amqp_endpoint
from assay.conformance.wire.amqp091 import Arrival, Method, encode_method

_AUDIT = 1_000
"""Number of the channel, and connection, that looks at what is left at the end."""
_MOST_LEFT = 10_000
_RICH: Mapping[str, Any] = {
    "content-type": "text/plain; ü",
    "content-encoding": "none",
    "correlation-id": "a;b",
    "reply-to": "somewhere",
    "timestamp": 1_700_000_000,
    "type": "kind",
    "app-id": "assay",
}


class AmqpPlayer(AmqpAsking):
    """Plays lives, one after the other, on a broker."""

    def __init__(
        self,
        endpoint: Endpoint,
        capabilities: dict[str, CapabilityValue],
        *,
        run_token: str,
        patience_s: float = PATIENCE_S,
        restart: Callable[[float], Endpoint] | None = None,
        clock: bool = False,
        held: Collection[str] = (),
    ) -> None:
        """``capabilities`` are told what the broker's queues and exchanges can be asked for. ``clock``: it can be moved
        over MQTT on the same port, where ``held`` is asked for, too: names for :class:`Held`."""
        super().__init__(endpoint, capabilities, patience_s)
        self.restart = restart
        self._run, self._numbers = run_token, itertools.count(1)
        self.ahead_s = 0.0
        self._mqtt, self._held = Control(self.endpoint, 5), Held(held)
        if PROBED not in capabilities:
            capabilities |= {**probed(self.control, f"assay.{run_token}.probe"), "clock": clock}

    def play(self, life: plan.AmqpLife) -> None:
        """Raises :class:`ViolationError`, :class:`TargetUnreachableError`."""
        self._life = life
        self.token = f"assay.{self._run}.{next(self._numbers)}"
        self.begin_life()
        self._messages = itertools.count(1)
        self._links: dict[int, Link] = {}
        self._queues: dict[int, Queue] = {}
        self._tags = itertools.count(1)
        self._declared: dict[tuple[str, str], None] = {}
        self._hasty = False
        self._held.begin(self._mqtt, self.patience_s)
        try:
            for number, step in enumerate(life.steps, 1):
                self.note(f"step {number}: {type(step).__name__}")
                self._perform(step)
                self.quiesce()
            self.note("the audit")
            self._audit()
        finally:
            self.end_life()
            self.wires = {}
            with contextlib.suppress(TargetUnreachableError):
                self._tidy()
        self._held.end(self._mqtt, self.patience_s)

    def _tidy(self) -> None:
        for kind, name in self._declared:
            self.control.request(f"{kind}.delete", **{kind: name})

    # Things by their numbers

    def _link(self, number: int) -> Link:
        number = number if number == _AUDIT else number % len(self._life.channels)
        link = self._links.get(number)
        if link is not None and link in self.oracle.links:
            return link
        fields = (
            plan.ChannelPlan(connection=_AUDIT, mode="confirm") if number == _AUDIT else self._life.channels[number]
        )
        wire = self.connection(fields.connection)
        link = Link(number, wire.next_channel, fields.connection)
        wire.next_channel += 1
        wire.links[link.channel] = self._links[number] = link
        self.oracle.links.append(link)
        self.call(link, "channel.open")
        if fields.mode == "confirm" and self.capabilities.get("publisher_confirms"):
            self.call(link, "confirm.select")
            link.mode = "confirm"
        elif fields.mode == "tx":
            self.call(link, "tx.select")
            link.mode = "tx"
        if fields.prefetch:
            self._qos(link, fields.prefetch, shared=False)
        if fields.shared:
            self._qos(link, fields.shared, shared=True)
        return link

    def _qos(self, link: Link, count: int, *, shared: bool) -> None:
        self.call(link, "basic.qos", prefetch_count=count, global_=shared)
        if shared:
            link.shared = count
        else:
            link.prefetch = count

    def _name_of_queue(self, number: int) -> str:
        number %= len(self._life.queues)
        known = self._queues.get(number)
        return known.name if known is not None else f"{self.token}.q{number}"

    def _name_of_exchange(self, number: int) -> str:
        if number < 0 or not self._life.exchanges:
            return ""
        return f"{self.token}.x{number % len(self._life.exchanges)}"

    def _queue(self, link: Link, number: int) -> Queue | None:
        """Declared on this channel if it is not there; None if it is another connection's."""
        number %= len(self._life.queues)
        known = self._queues.get(number)
        if known is None or known.name not in self.oracle.queues:
            return self._declare_queue(link, number)
        return None if known.plan.exclusive and known.owner != link.connection else known

    def _queue_fields(self, number: int) -> dict[str, Any]:
        fields = self._life.queues[number]
        arguments: dict[str, Any] = {}
        if fields.ttl_s >= 0:
            arguments["x-message-ttl"] = fields.ttl_s * 1_000
        if fields.expires_s:
            arguments["x-expires"] = fields.expires_s * 1_000
        if fields.max_length:
            arguments["x-max-length"] = fields.max_length
        if fields.overflow:
            arguments["x-overflow"] = fields.overflow
        if fields.letters > plan.NO_LETTERS:
            arguments["x-dead-letter-exchange"] = self._name_of_exchange(fields.letters)
            if fields.letter_queue >= 0:
                arguments["x-dead-letter-routing-key"] = self._letter_key(fields)
        if fields.max_priority:
            arguments["x-max-priority"] = fields.max_priority
        if fields.single_active:
            arguments["x-single-active-consumer"] = True
        if fields.delivery_limit >= 0:
            arguments |= {"x-delivery-limit": fields.delivery_limit, "x-queue-type": "quorum"}
        return {
            "queue": "" if fields.named_by_server else f"{self.token}.q{number}",
            "durable": fields.durable,
            "exclusive": fields.exclusive,
            "auto_delete": fields.auto_delete,
            "arguments": arguments,
        }

    def _letter_key(self, fields: plan.QueuePlan) -> str:
        return f"{self.token}.q{fields.letter_queue % len(self._life.queues)}" if fields.letter_queue >= 0 else ""

    def _declare_queue(self, link: Link, number: int) -> Queue:
        asked, fields = self._queue_fields(number), self._life.queues[number]
        answer = self.call(link, "queue.declare", **asked)
        assert answer is not None
        name = answer["queue"]
        if (asked["queue"] and name != asked["queue"]) or not name or name in self.oracle.queues:
            raise violation(AmqpRule.OUTCOME, f"the queue {asked['queue']!r} is called {name!r}", "rmq.server-named")
        self._declared["queue", name] = None
        self.went.pop(name, None)
        queue = Queue(number, name, fields, owner=link.connection if fields.exclusive else -1)
        if fields.letters > plan.NO_LETTERS:
            queue.letters, queue.letter_key = self._name_of_exchange(fields.letters), self._letter_key(fields)
        queue.used_at = self.now
        self._queues[number] = self.oracle.queues[name] = queue
        if wrong := self.wrong_figures(queue, answer):
            raise violation(AmqpRule.FIGURES, wrong)
        return queue

    def _exchange(self, link: Link, number: int) -> Exchange | None:
        """Declared on this channel if it is not there; None: it is the default exchange."""
        name = self._name_of_exchange(number)
        if not name:
            return None
        if name in self.oracle.exchanges:
            return self.oracle.exchanges[name]
        fields = self._life.exchanges[number % len(self._life.exchanges)]
        exchange = Exchange(name, fields, self._name_of_exchange(fields.alternate))
        self.call(link, "exchange.declare", **self._exchange_fields(exchange))
        self._declared["exchange", name] = None
        self.oracle.exchanges[name] = exchange
        return exchange

    def _exchange_fields(self, exchange: Exchange) -> dict[str, Any]:
        fields = exchange.plan
        return {
            "exchange": exchange.name,
            "type": fields.kind,
            "durable": fields.durable,
            "auto_delete": fields.auto_delete,
            "internal": fields.internal,
            "arguments": {"alternate-exchange": exchange.alternate} if exchange.alternate else {},
        }

    # Steps

    def _perform(self, step: plan.Step) -> None:
        match step:
            case plan.Restart():
                self._restart(step.amid)
                return
            case plan.Advance():
                self._advance(step.seconds)
                return
            case plan.Close():
                self._close(step)
                return
        link = self._link(step.channel)
        match step:
            case plan.Bind():
                self._bind(link, step)
            case plan.Declare():
                self._declare(link, step)
            case plan.Delete():
                self._delete(link, step)
            case plan.Publish():
                self._publish(link, step)
            case plan.Burst():
                for publish in step.publishes:
                    self._publish(link, publish)
            case plan.Consume():
                self._consume(link, step)
            case plan.Cancel():
                self._cancel(link, step.which)
            case plan.Get():
                if (queue := self._queue(link, step.queue)) is not None:
                    self._get(link, queue, no_ack=step.no_ack)
            case plan.Settle():
                self._settle(link, step)
            case plan.Recover():
                self._recover(link)
            # RabbitMQ takes a limit of each consumer for the end of a shared one: nothing says which of them hold.
            case plan.Qos() if self.capabilities.get("amqp-shared") if step.shared else not link.shared:
                self._qos(link, step.count, shared=step.shared)
            case plan.Commit() | plan.Rollback() if link.mode == "tx":
                self._end_transaction(link, commit=isinstance(step, plan.Commit))
            case plan.Purge():
                self._purge(link, step.queue)
            case plan.Look():
                self._look(link, step.queue)
            case plan.Mistake():
                self._mistake(link, step)

    def _bind(self, link: Link, step: plan.Bind) -> None:
        exchange = self._exchange(link, step.exchange)
        if exchange is None:
            return
        table = {**plan.TABLES[step.table % len(plan.TABLES)]} if exchange.plan.kind == "headers" else {}
        match = step.match if exchange.plan.kind == "headers" else ""
        arguments = {**table, **({"x-match": match} if match else {})}
        wanted = tuple(table.items())
        fields: dict[str, Any] = {"routing_key": step.key, "arguments": arguments}
        if step.to_exchange >= 0:
            target = self._exchange(link, step.to_exchange)
            if target is None or exchange.name not in self.oracle.exchanges:
                return
            binding = Binding(target.name, to_exchange=True, key=step.key, match=match, wanted=wanted)
            fields |= {"destination": target.name, "source": exchange.name}
        else:
            queue = self._queue(link, step.queue)
            if queue is None:
                return
            binding = Binding(queue.name, to_exchange=False, key=step.key, match=match, wanted=wanted)
            fields |= {"queue": queue.name, "exchange": exchange.name}
        kind = "exchange" if step.to_exchange >= 0 else "queue"
        if not step.undo:
            self.call(link, f"{kind}.bind", **fields)
            exchange.bindings[binding] = None
        elif binding in exchange.bindings:
            self.call(link, f"{kind}.unbind", **fields)
            if self.oracle.unbind(exchange, [binding]):
                self.exchange_is_gone(exchange)

    def _declare(self, link: Link, step: plan.Declare) -> None:
        if step.exchange >= 0:
            exchange = self._exchange(link, step.exchange)
            if exchange is None:
                return
            fields = self._exchange_fields(exchange)
            if step.otherwise:
                fields["durable"] = not fields["durable"]
            self._again(link, "exchange.declare", fields, step)
            return
        queue = self._queue(link, step.queue)
        if queue is None:
            return
        fields = {**self._queue_fields(queue.number), "queue": queue.name}
        if step.otherwise and (queue.plan.exclusive or queue.plan.named_by_server):
            return  # whether those can be durable is not said
        fields["passive"] = queue.plan.named_by_server  # its name is a reserved one
        if step.otherwise:
            fields["durable"] = not fields["durable"]
        queue.used_at = self.now
        answer = self._again(link, "queue.declare", fields, step)
        if answer is not None:
            self.await_figures(queue)

    def _again(self, link: Link, name: str, fields: dict[str, Any], step: plan.Declare) -> Arrival | None:
        wanted = ("channel 406", "channel 405") if step.otherwise else ("ok",)
        return self.call(link, name, wanted, "rmq.redeclare.equivalence", **fields)

    def _delete(self, link: Link, step: plan.Delete) -> None:
        if step.exchange >= 0:
            self._delete_exchange(link, step)
            return
        queue = self._queue(link, step.queue)
        if queue is None:
            return
        if queue.plan.delivery_limit >= 0:  # RabbitMQ's quorum queues have no such conditions
            step = plan.Delete()
        self.tell_time()
        least, most = self.oracle.ready_range(queue)
        wanted, clause = {"ok"}, ""
        if step.if_unused and queue.consumers:
            wanted, clause = {"channel 406"}, "queue.delete.if-unused.in-use"
        elif step.if_empty and least:
            wanted, clause = {"channel 406"}, "queue.delete.if-empty.not-empty"
        elif step.if_empty and queue.copies:  # those that are held may count, or not
            return
        fields: dict[str, Any] = {"queue": queue.name, "if_unused": step.if_unused, "if_empty": step.if_empty}
        held = len(queue.copies)
        for consumer in queue.consumers:
            consumer.ends = "ok" in wanted
        answer = self.call(link, "queue.delete", wanted, clause, **fields)
        if answer is None:
            return
        if not queue.counts_late and not least <= answer["message-count"] <= max(most, held):
            text = f"{queue.name} is deleted with {answer['message-count']} messages, not {least} to {max(most, held)}"
            raise violation(AmqpRule.FIGURES, text)
        for exchange in self.oracle.removed(queue):
            self.exchange_is_gone(exchange)

    def _delete_exchange(self, link: Link, step: plan.Delete) -> None:
        exchange = self._exchange(link, step.exchange)
        if exchange is None:
            return
        used = step.if_unused and bool(exchange.bindings)
        wanted, clause = (("channel 406",), "exchange.delete.if-unused.in-use") if used else (("ok",), "")
        if self.call(link, "exchange.delete", wanted, clause, exchange=exchange.name, if_unused=step.if_unused):
            for further in self.oracle.removed_exchange(exchange):
                self.exchange_is_gone(further)

    def _publish(self, link: Link, step: plan.Publish) -> None:
        exchange = self._exchange(link, step.exchange)
        if exchange is not None and exchange.plan.internal:
            return
        key = self._name_of_queue(step.queue) if exchange is None else step.key
        number = next(self._messages)
        body = b"%d;" % number
        body = b"" if not step.size_bytes else body + bytes(index % 251 for index in range(step.size_bytes - len(body)))
        headers = {**plan.TABLES[step.table % len(plan.TABLES)]}
        if step.cc:
            headers["CC"] = list(step.cc)
        if step.bcc:
            headers["BCC"] = list(step.bcc)
        properties: dict[str, Any] = dict(_RICH) if step.rich else {}
        if step.rich and self.endpoint.username:
            properties["user-id"] = self.endpoint.username
        if headers:
            properties["headers"] = headers
        if step.persistent:
            properties["delivery-mode"] = 2
        if step.priority >= 0:
            properties["priority"] = step.priority
        if step.ttl_s >= 0:
            properties["expiration"] = str(step.ttl_s * 1_000)
        if not body or step.rich:
            properties["message-id"] = str(number)
        message = Message(
            number,
            "" if exchange is None else exchange.name,
            key,
            (key, *step.cc, *step.bcc),
            properties,
            body,
            link,
            ttl_s=step.ttl_s if step.ttl_s >= 0 else NEVER,
            priority=max(0, step.priority),
            persistent=step.persistent,
        )
        self.tell_time()
        self.oracle.publish(link, message, mandatory=step.mandatory)
        method = Method("basic.publish", exchange=message.exchange, routing_key=key, mandatory=step.mandatory)
        self.say_content(link, method, body, properties)

    def _consume(self, link: Link, step: plan.Consume) -> None:
        queue = self._queue(link, step.queue)
        if queue is None or (step.exclusive and queue.plan.single_active):
            return
        is_taken = any(each.exclusive for each in queue.consumers) or (step.exclusive and bool(queue.consumers))
        fields: dict[str, Any] = {"queue": queue.name, "no_ack": step.no_ack, "exclusive": step.exclusive}
        tag = f"t{next(self._tags)}"
        if is_taken:
            self.call(link, "basic.consume", ("channel 403",), "basic.consume.exclusive.01", consumer_tag=tag, **fields)
            return
        consumer = Consumer(tag, link, queue, step.no_ack, link.prefetch, exclusive=step.exclusive)
        self.oracle.consume(consumer)
        answer = self.call(link, "basic.consume", consumer_tag=tag, **fields)
        if answer is not None and answer["consumer-tag"] != tag:
            raise violation(
                AmqpRule.OUTCOME, f"consumer {tag} is called {answer['consumer-tag']}", "sync.basic.consume"
            )

    def _cancel(self, link: Link, which: int) -> None:
        consumers = list(link.consumers.values())
        if not consumers:
            return
        consumer = consumers[which % len(consumers)]
        self.call(link, "basic.cancel", consumer_tag=consumer.tag)
        if self.oracle.cancelled(consumer):
            self.queue_is_gone(consumer.queue)

    def _get(self, link: Link, queue: Queue, *, no_ack: bool) -> bool:
        """Whether there was something; that there is nothing is asked again while something must be there."""
        found = False
        if any(each.exclusive for each in queue.consumers):
            return False  # whether others may get something then is not said

        def asked() -> bool:
            nonlocal found
            answer = self.call(link, "basic.get", queue=queue.name, no_ack=no_ack)
            assert answer is not None
            queue.used_at = self.now
            self.tell_time()
            if answer.name == "basic.get-empty":
                return not self.oracle.ready_range(queue)[0]
            found = True
            self.oracle.delivered(link, queue, None, answer, no_ack=no_ack)
            least, most = self.oracle.ready_range(queue)
            if not queue.counts_late and not least <= answer["message-count"] <= most:
                text = f"{queue.name}: Get-Ok tells of {answer['message-count']} messages more, not {least} to {most}"
                raise violation(AmqpRule.FIGURES, text, "basic.get.01")
            return True

        def missing() -> Any:
            copy = next(copy for copy in queue.ready if copy.sure)
            kind = AmqpRule.LETTER_LOST if copy.deaths else AmqpRule.EMPTY
            text = f"{queue.name} is empty, and message {copy.message.number} must be there"
            return violation(
                AmqpRule.LOST_BY_RESTART if copy.durable and self._has_restarted else kind, text, waited=True
            )

        self.await_(asked, missing, POLL_S)
        return found

    _has_restarted = False

    def _settle(self, link: Link, step: plan.Settle) -> None:
        tags = list(link.unsettled)
        if not tags:
            return
        verb = step.verb if step.verb != "nack" or self.capabilities.get("basic_nack") else "reject"
        tag = tags[step.which % len(tags)]
        multiple = (step.multiple or step.everything) and verb != "reject"
        named = (
            tags
            if multiple and step.everything
            else [each for each in tags if each == tag or (multiple and each < tag)]
        )
        # What is on its way would be settled by tag 0, too, and nobody could say whether it was (seed 77, life 577).
        is_more_coming = any(each.has_room and each.queue.ready for each in link.consumers.values())
        everything = tags[-1] if is_more_coming else 0
        fields: dict[str, Any] = {"delivery_tag": everything if multiple and step.everything else tag}
        if verb != "reject":
            fields["multiple"] = multiple
        if verb != "ack":
            fields["requeue"] = step.requeue
        self.tell_time()
        self.oracle.settle(link, named, verb, requeue=step.requeue)
        self.say(link, f"basic.{verb}", **fields)

    def _recover(self, link: Link) -> None:
        if link.given_back:
            return  # what becomes of it in a transaction is not said
        self.oracle.recover(link)
        self.call(link, "basic.recover", requeue=True)

    def _end_transaction(self, link: Link, *, commit: bool) -> None:
        self.tell_time()
        if not commit:
            self.call(link, "tx.rollback")
            self.oracle.rollback(link)
            return
        publications = self.oracle.commit(link)
        self.call(link, "tx.commit")
        self.oracle.committed(publications)

    def _purge(self, link: Link, number: int) -> None:
        queue = self._queue(link, number)
        if queue is None:
            return
        self.tell_time()
        least, most = self.oracle.ready_range(queue)
        answer = self.call(link, "queue.purge", queue=queue.name)
        assert answer is not None
        if not least <= answer["message-count"] <= most:
            text = f"{queue.name}: {answer['message-count']} messages are purged, not {least} to {most}"
            raise violation(AmqpRule.FIGURES, text)
        self.oracle.purged(queue)

    def _look(self, link: Link, number: int) -> None:
        queue = self._queues.get(number % len(self._life.queues))
        if queue is None or queue.name not in self.oracle.queues:
            return
        if queue.plan.exclusive and queue.owner != link.connection:
            return
        wrong = ""

        def fits() -> bool:
            nonlocal wrong
            queue.looked_at = self.now
            answer = self.call(link, "queue.declare", queue=queue.name, passive=True)
            assert answer is not None
            wrong = self.wrong_figures(queue, answer)
            return not wrong

        self.await_(fits, lambda: violation(AmqpRule.FIGURES, wrong, waited=True), POLL_S)

    def _mistake(self, link: Link, step: plan.Mistake) -> None:
        nowhere = f"{self.token}.nowhere"
        request: tuple[str, dict[str, Any]] | None = None
        match step.what:
            case "unknown tag":
                request = "basic.ack", {"delivery_tag": link.last_tag + 1_000}
            case "acknowledged twice" if link.settled and link.settled not in link.unsettled and link.mode != "tx":
                request = "basic.ack", {"delivery_tag": link.settled}
            case "publish nowhere":
                request = "basic.publish", {"exchange": nowhere}
            case "get nowhere":
                request = "basic.get", {"queue": nowhere}
            case "consume nowhere":
                request = "basic.consume", {"queue": nowhere}
            case "bind nowhere":
                if (queue := self._queue(link, step.queue)) is not None:
                    request = "queue.bind", {"queue": queue.name, "exchange": nowhere}
            case "purge nowhere":
                request = "queue.purge", {"queue": nowhere}
            case "passive":
                request = "queue.declare", {"queue": nowhere, "passive": True}
            case "reserved":
                request = "queue.declare", {"queue": f"amq.{self.token}"}
            case "internal":
                internal = next((each for each in self.oracle.exchanges.values() if each.plan.internal), None)
                request = ("basic.publish", {"exchange": internal.name}) if internal is not None else None
            case "commit without select" if link.mode != "tx":
                request = "tx.commit", {}
            case "locked":
                strange = [q for q in self.oracle.queues.values() if q.plan.exclusive and q.owner != link.connection]
                request = ("queue.declare", {"queue": strange[0].name, "passive": True}) if strange else None
        if request is None:
            return
        name, fields = request
        over = self.channel_goes(link)
        if name == "basic.publish":
            self.say_content(link, Method(name, **fields), b"a mistake", {})
        else:
            self.say(link, name, **fields)
        self.answer(link, name, (plan.MISTAKES[step.what],), plan.CLAUSES.get(step.what, ""))
        for queue in over:
            self.queue_is_gone(queue)

    # Ends

    def _close(self, step: plan.Close) -> None:
        link = self._links.get(step.channel % len(self._life.channels))
        if link is None or link not in self.oracle.links:
            return
        if not step.connection and not step.abrupt:
            over = self.channel_goes(link)
            self.call(link, "channel.close", reply_code=200, reply_text="bye")
            self.wires[link.connection].links.pop(link.channel, None)
            for queue in over:
                self.queue_is_gone(queue)
            return
        self._close_connection(self.wires[link.connection], abrupt=step.abrupt)

    def _close_connection(self, wire: AmqpWire, *, abrupt: bool) -> None:
        links = [link for link in self.oracle.links if link.connection == wire.number]
        held = [copy for link in links for copy in (*link.unsettled.values(), *(each[1] for each in link.given_back))]
        reading = [each for link in links for each in link.consumers.values()]
        queues = dict.fromkeys([*(copy.queue for copy in held), *(each.queue for each in reading)])
        over = [queue for link in links for queue in self.channel_goes(link)]
        for consumer in reading:
            if consumer.no_ack:  # it may have got what another channel had held
                self.oracle.unseen(consumer)
        over += [queue for queue in self.oracle.queues.values() if queue.plan.exclusive and queue.owner == wire.number]
        for queue in over:
            queue.is_going = True
        wire.ended = True
        if abrupt:
            self.drop(wire, reset=True)
            self.note(f"{wire.name}: reset")
        else:
            self.send(wire, encode_method(0, Method("connection.close", reply_code=200, reply_text="bye")))
            self.await_(
                lambda: wire.is_closed,
                lambda: violation(AmqpRule.UNANSWERED, f"{wire.name}: Close is not answered", waited=True),
            )
            if wire.open:
                self.drop(wire)
        for queue in over:
            self.queue_is_gone(queue)
        self.await_figures(*queues)

    # The broker

    def _advance(self, seconds: int) -> None:
        if not self.capabilities.get("clock", False):
            return
        self._mqtt.publish(CLOCK_TOPIC, payload=repr(float(seconds)).encode())
        self._mqtt.round_trip()
        self.ahead_s += seconds
        self.note(f"the broker's clock was moved by {seconds} s")
        self.oracle.moved_clock(self.now)
        self.tell_time()
        for queue in list(self.oracle.queues.values()):
            if not queue.plan.expires_s or queue.consumers:
                continue
            over_at = queue.used_at + queue.plan.expires_s
            if queue.looked_at + queue.plan.expires_s < self.now and over_at < self.now:
                self.queue_is_gone(queue)
            elif over_at < self.now and self.control.is_gone("queue", queue.name):
                self.queue_is_gone(queue)  # whether a look is a use is not said

    def _restart(self, amid: plan.Publish | plan.Burst | plan.Settle | None) -> None:
        if self.restart is None:
            return
        if amid is not None:
            self._link(amid.channel)
            self.quiesce()
            self._perform(amid)
        for wire in self.wires.values():
            wire.ended = True
        self.base = self.restart(self.ahead_s)
        self.endpoint = amqp_endpoint(self.base, self.capabilities)
        self.control.close()
        self.control = AmqpControl(self.endpoint)
        self._mqtt.close()
        self._mqtt = Control(self.endpoint, 5)
        self.note("the broker was killed and started again")
        for wire in self.wires.values():
            if wire.open:
                self.drop(wire)
        self._has_restarted = True
        self.oracle.killed()
        self.slowness = self.oracle.slowness
        for name in self.went:
            self.control.request("queue.delete", queue=name)
        self.went = {}
        for queue in self.oracle.queues.values():
            answer = self.ask_passive(queue)
            if answer.name != "queue.declare-ok":
                text = f"the durable queue {queue.name} is gone: {outcome_of(answer)}"
                raise violation(AmqpRule.GONE, text, "queue.declare.durable.persistence")
        self.await_figures(*self.oracle.queues.values())

    # The end

    def _audit(self) -> None:
        """Everybody leaves; then what is there must be all that should be, and exchanges lead where they should."""
        for wire in list(self.wires.values()):
            if wire.open and not wire.ended:
                self._close_connection(wire, abrupt=False)
                self.quiesce()
        link = self._link(_AUDIT)
        for number in range(len(self._life.exchanges)):
            name = self._name_of_exchange(number)
            if name in self.oracle.exchanges:
                for key in self._keys_of(self.oracle.exchanges[name]):
                    self._publish(link, plan.Publish(exchange=number, key=key, mandatory=True, table=2))
        self.quiesce()
        self._drain(link)
        self.tell_time()
        while (until := self.oracle.waits_until()) and until >= self.now:
            self.read(until - self.now + 0.01)
            self.tell_time()
        self._drain(link)
        for queue in list(self.oracle.queues.values()):
            self._look(link, queue.number)

    def _keys_of(self, exchange: Exchange) -> tuple[str, ...]:
        keys = {each.key.replace("*", "w").replace("#", "w") for each in exchange.bindings}
        return (*sorted(keys), "nowhere")

    def _drain(self, link: Link) -> None:
        for _ in range(_MOST_LEFT):
            found = [self._get(link, queue, no_ack=True) for queue in list(self.oracle.queues.values())]
            if not any(found):
                return
