"""Producers that number their messages: sent twice, whatever came between, a message is there once."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from assay.conformance.explore.queues import life as plan
from assay.conformance.explore.queues.asking import FIRST_FAILURE_CODE, Asking
from assay.conformance.explore.queues.books import violation
from assay.conformance.explore.queues.requests import message_of
from assay.conformance.explore.queues.rules import QueueRule
from assay.conformance.explore.queues.state import Message, Queue
from assay.conformance.wire import Puback, Publish

_REMEMBERED = 32
"""The last messages of a producer in a partition that are known again (Q-IDEM-04)."""


@dataclass(eq=False)
class _Sent:
    """A message as it was sent."""

    publish: Publish
    message: Message
    answered: Callable[[bool | None], None] | None
    """What is told the first answer, until there is one."""
    message_id: str = ""
    """As an answer told it."""


@dataclass(eq=False)
class _Numbering:
    """One epoch of a producer."""

    named: list[tuple[str, str]]
    sent: dict[tuple[Queue, int], list[_Sent]] = field(default_factory=dict)
    """By queue and partition, in the order of their sequences from 0."""


class NumberedRequests(Asking):
    """Of a player."""

    _numbers: itertools.count[int]

    def begin_numbers(self) -> None:
        self._numberings: dict[int, _Numbering] = {}
        self._fenced: dict[int, list[_Numbering]] = {}

    def forget_numbers(self, queue: Queue) -> None:
        """It is made anew: nothing was ever sent to it."""
        for numbering in (*self._numberings.values(), *itertools.chain(*self._fenced.values())):
            numbering.sent = {place: sent for place, sent in numbering.sent.items() if place[0] is not queue}

    def number(self, step: plan.Numbered) -> None:
        """Send the next message, an earlier one again, or one too early."""
        queue = self._queue(step.queue)
        if queue.is_limited or queue.plan.durability == "memory" or queue.plan.max_message_bytes:
            return
        numbering = self._numberings.get(step.producer)
        if (numbering is None or step.afresh) and not self.unheard:
            numbering = self._initialise(step.producer)
        if numbering is None:
            return
        partition = step.partition % (1 if queue.is_strict else queue.plan.partitions)
        sent = numbering.sent.setdefault((queue, partition), [])
        if step.what is plan.Number.FENCED:
            self._send_fenced(step.producer, queue, partition)
            return
        is_open = bool(sent) and sent[-1].answered is not None
        if step.what is plan.Number.EARLY and not is_open:
            self._send_refused(numbering, queue, partition, len(sent) + 1, "Q-IDEM-03")
        elif is_open or (step.what is plan.Number.AGAIN and sent):
            back = 1 if is_open else 1 + step.back % min(_REMEMBERED, len(sent))
            self.oracle.sent_again(sent[-back].message)
            self._send_numbered(step.producer, sent[-back], f"sequence {len(sent) - back} once more")
        else:
            sent.append(_Sent(*self._made(numbering, queue, partition, len(sent), is_told=True)))
            self._send_numbered(step.producer, sent[-1], f"sequence {len(sent) - 1}")

    def _initialise(self, producer: int) -> _Numbering:
        name = f"{self.token}n{producer}"
        answer = self.request(self.client(f"n{producer}"), "$txn/init", [("transactional-id", name)])
        named = [(each, self._property(answer, each)) for each in ("producer-id", "producer-epoch")]
        if (older := self._numberings.get(producer)) is not None:
            self._fenced.setdefault(producer, []).append(older)
        made = self._numberings[producer] = _Numbering(named)
        return made

    def _made(
        self, numbering: _Numbering, queue: Queue, partition: int, sequence: int, *, is_told: bool
    ) -> tuple[Publish, Message, Callable[[bool | None], None]]:
        number = next(self._numbers)
        step = plan.Publish(partition=partition)
        message, properties = message_of(step, queue, number, self.oracle.serial, self.token)
        message.burst, message.client = self.oracle.round, 20
        answered = self.oracle.publish(queue, message) if is_told else lambda _accepted: None
        named = *properties.user_property, *numbering.named, ("sequence", str(sequence)), ("receipt", "1")
        publish = Publish(
            topic=message.topic, payload=message.payload, qos=1, properties=type(properties)(user_property=named)
        )
        return publish, message, answered

    def _send_numbered(self, producer: int, sent: _Sent, what: str) -> None:
        answer = self._ask_numbered(producer, sent.publish, what)
        if answer is None:
            return
        if answer.reason_code >= FIRST_FAILURE_CODE:
            raise violation(QueueRule.NUMBERED, f"{what} of producer {producer} is refused: {answer}")
        told = dict(answer.properties.user_property).get("message-id", "")
        if not told or sent.message_id not in ("", told):
            text = f"{what} of producer {producer} is told the id {told!r}, and was told {sent.message_id!r}"
            raise violation(QueueRule.NUMBERED, text, "Q-IDEM-02")
        sent.message_id = told
        if sent.answered is not None:
            sent.answered(True)
            sent.answered = None

    def _send_refused(self, numbering: _Numbering, queue: Queue, partition: int, sequence: int, clause: str) -> None:
        publish, message, _ = self._made(numbering, queue, partition, sequence, is_told=False)
        what = f"sequence {sequence} (message {message.number})"
        answer = self._ask_numbered(0, publish, what)
        if answer is not None and answer.reason_code < FIRST_FAILURE_CODE:
            raise violation(QueueRule.NUMBERED, f"{what} is accepted", clause)

    def _send_fenced(self, producer: int, queue: Queue, partition: int) -> None:
        for older in self._fenced.get(producer, [])[-1:]:
            sent = older.sent.get((queue, partition), [])
            if not sent or sent[-1].answered is None:
                self._send_refused(older, queue, partition, len(sent), "Q-IDEM-06")

    def _ask_numbered(self, producer: int, publish: Publish, what: str) -> Puback | None:
        named = publish.properties.user_property
        client = self.client(f"n{producer}")
        packet_id = self.send_request(client, publish.topic, named, publish.payload)
        if self.unheard:
            return None
        answer = self.answer(client, packet_id, what)
        assert isinstance(answer, Puback)
        return answer

    def name_what_is_not(self, step: plan.Stray) -> None:
        """Ask for what never was: in the partition behind the last one. It is refused, and changes nothing."""
        queue = self._queue(step.queue)
        group = next(iter(queue.groups.values()), None)
        if self.unheard or (group is None and step.verb):
            return
        partition = str(queue.partitions)
        named = [("partition", partition)]
        topic = f"$queue/{queue.name}"
        if step.verb == "replay":
            request = {"message_id": f"$dlq/{queue.owner}{queue.name}:{1 + step.offset % 2}:{step.offset}"}
            answer = self._ask_admin(f"queue/{queue.owner}{queue.name}/replay", request)
        else:
            if step.verb and group is not None:
                topic += f"/${step.verb}"
                named = [("message-id", f"{queue.name}:{partition}:{step.offset}")]
                if step.verb == "commit":
                    named = [("partition", partition), ("offset", str(step.offset))]
                named.append(("group-id", self._group_id(group)))
            answer = self.request(self.client("p0"), topic, named, b"of no partition")
        if answer is not None and answer.reason_code < FIRST_FAILURE_CODE:
            what = step.verb or "publish"
            text = f"{queue.name}: a {what} that names {named}, of {partition} partitions, is accepted"
            clause = "Q-PART-06" if not step.verb else "Q-LIFE-05"
            raise violation(QueueRule.REQUEST, text, clause)
