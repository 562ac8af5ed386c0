"""What clients of a life of queues ask for beside publishing and consuming: claims, transactions, administration."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from assay.conformance.explore.queues import life as plan
from assay.conformance.explore.queues.books import violation
from assay.conformance.explore.queues.clients import ADMIN, QueueClients
from assay.conformance.explore.queues.oracle import Oracle
from assay.conformance.explore.queues.requests import message_id, settings_of
from assay.conformance.explore.queues.rules import QueueRule
from assay.conformance.explore.queues.settlements import BEYOND
from assay.conformance.explore.queues.state import NORMAL_LANE, Copy, Fate, Group, Kind, Member, Queue, Transaction
from assay.conformance.explore.rules import ViolationError
from assay.conformance.wire import Puback, Subscribe, Subscription

FIRST_FAILURE_CODE = 0x80
_IN_A_GROUP = frozenset(
    (
        *("lag", "in_flight", "retrying", "dead_lettering"),
        *("acked", "expired", "dropped", "dead_lettered", "discarded", "purged", "unmatched", "unreadable"),
        *("skipped", "rewound"),
    )
)
"""Figures of a group: where each message is that it has had, or what became of it."""
_UNSETTLED = ("lag", "in_flight", "retrying", "dead_lettering")
_NOT_DELAYED_ANY_MORE = ("fired", "cancelled", "unreadable")
_POLL_S = 0.01
"""Between two looks at figures."""


@dataclass(eq=False)
class Producer:
    transaction: Transaction | None = None
    transaction_id: str = ""
    identity: dict[str, str] = field(default_factory=dict)


class Asking(QueueClients):
    """A player's requests."""

    _life: plan.QueueLife
    oracle: Oracle
    _producers: dict[int, Producer]
    _beside: dict[tuple[Group, int], int]
    """Group and number of kills to how many messages more it told of than had come by then."""
    _settled: dict[int, list[Copy]]
    """Consumer to what it settled, for it to be settled once more."""

    def _admin(self, operation: str, request: dict[str, Any] | None = None) -> bool | None:
        """Whether it was done; None: nobody waits for that."""
        answer = self._ask_admin(operation, request)
        return None if answer is None else answer.reason_code < FIRST_FAILURE_CODE

    def _ask_admin(self, operation: str, request: dict[str, Any] | None = None, **more: Any) -> Puback | None:
        payload = b"" if request is None else json.dumps(request).encode()
        return self.request(self.client(ADMIN), f"$admin/{operation}", payload=payload, **more)

    @staticmethod
    def _told(answer: Puback | None, answered: Callable[[bool | None], None]) -> None:
        answered(None if answer is None else answer.reason_code < FIRST_FAILURE_CODE)

    def _create(self, queue: Queue) -> None:
        request = settings_of(queue)
        if self._admin("queue/create", request) is False:
            raise violation(QueueRule.REQUEST, f"a queue with {request} is refused", "Q-ADMIN-02")

    def _queue(self, number: int) -> Queue:
        return self.oracle.queues[number % len(self.oracle.queues)]

    def _held_by(self, member: Member) -> list[Copy]:
        return [copy for copy in member.group.open_copies() if copy.may_be_held_by(member)]

    def _is_on_its_way(self, copy: Copy, member: Member) -> bool:
        return any(self.oracle.may_flow(copy, spot, [member]) for spot in copy.spots)

    def _topic(self, queue: Queue, verb: str) -> str:
        return (f"$queue/dlq/{queue.source.name}" if queue.source is not None else f"$queue/{queue.name}") + f"/${verb}"

    def _claim(self, step: plan.Claim) -> None:
        number = step.consumer % len(self._life.consumers)
        client = self.clients.get(f"c{number}")
        if client is None or not client.open or client.member is None:
            return
        group = client.member.group
        old = [copy for copy in self._settled.get(number, []) if copy.group is group and not copy.is_open]
        # Of what may be on its way nobody can tell whom a claim meets.
        there = group.open_copies()
        copies = [copy for copy in there if copy.must(Kind.FLIGHT) and copy.message.expires_at > self.oracle.now]
        if step.unnamed:
            copies = self.oracle.idle_alone(there, step.idle_s)
        chosen = copies[:1] if step.unnamed else (copies[step.which :] or old[-1:])[:1]
        for copy in chosen:
            named = [] if step.unnamed else [("message-id", message_id(group.queue, copy))]
            named += [("group-id", self._group_id(group)), ("min-idle", f"{step.idle_s}s")]
            for holder, member in group.members.items():
                if copy.is_held_by(member):
                    self._settled.setdefault(holder, []).append(copy)  # it can settle it no more
            answered = self.oracle.claim(client.member, copy, step.idle_s)
            self._told(self.request(client, self._topic(group.queue, "claim"), named), answered)

    def _commit(self, step: plan.Commit) -> None:
        client = self.clients.get(f"c{step.consumer % len(self._life.consumers)}")
        if client is None or not client.open or client.member is None:
            return
        group = client.member.group
        copies = group.open_copies()
        on_their_way = any(self._is_on_its_way(copy, member) for copy in copies for member in group.members.values())
        held = [copy.message.place for copy in self._held_by(client.member) if copy.message.place is not None]
        if on_their_way or any(copy.may(Kind.HELD) for copy in copies) or not held:
            return
        partition = held[0][0]
        offsets = sorted(offset for each, offset in held if each == partition)
        offset = {-1: 0, -2: BEYOND}.get(step.which, offsets[max(0, min(step.which, len(offsets) - 1))] + 1)
        named = [("partition", str(partition)), ("offset", str(offset)), ("group-id", self._group_id(group))]
        self._settled.setdefault(client.consumer, []).extend(self._held_by(client.member))
        answered = self.oracle.commit(client.member, partition, offset)
        self._told(self.request(client, self._topic(group.queue, "commit"), named), answered)

    def _grow(self, step: plan.Grow) -> None:
        queue = self._queue(step.queue)
        if queue.is_strict or queue.plan.durability == "memory":  # it is made anew after a restart
            return
        request = {"count": step.partitions}
        answered = self.oracle.grow(queue, step.partitions)
        answered(self._admin(f"queue/{queue.owner}{queue.name}/partitions", request))

    def _change(self, step: plan.Change) -> None:
        """What a setting made of what was asked for before is not judged: no limit becomes lower than what is there."""
        queue, settings = self._queue(step.queue), self._queue(step.queue).plan
        was = getattr(settings, step.setting)
        is_sure = {
            "max_retries": step.value >= was,
            "max_depth": was and settings.overflow != "dead_letter_oldest",
            "max_message_bytes": was,
        }.get(step.setting, True)
        if step.setting == "max_depth" and step.value < was:
            is_sure = is_sure and settings.overflow == "reject"
        copies = [copy for group in queue.groups.values() for copy in group.open_copies()]
        members = [member for group in queue.groups.values() for member in group.members.values()]
        if not is_sure or any(self._is_on_its_way(copy, member) for copy in copies for member in members):
            return
        outer = {"max_retries": "retry", "group_max_in_flight": "group"}.get(step.setting)
        named = {step.setting.removeprefix("group_"): step.value}
        request: dict[str, Any] = {outer: named} if outer else named
        if step.spoilt:
            request["ordering"] = "none" if settings.ordering != "none" else "partition"
        changed = None if step.spoilt else msgspec.structs.replace(settings, **{step.setting: step.value})
        answered = self.oracle.change(queue, changed)
        answered(self._admin(f"queue/{queue.owner}{queue.name}/config", request))

    def _replay(self, step: plan.Replay) -> None:
        """Of letters that come by themselves, as what expires, or may be there twice, nobody can tell which go back."""
        queue = self._queue(step.queue)
        letters, settings = queue.letters, queue.plan
        if letters is None or queue.is_limited or settings.ttl_s or settings.to_letters:
            return
        if settings.durability == "memory":
            return
        there = [letter for letter in letters.messages if not letter.ended]
        sources = [letter.source for letter in there if letter.source is not None and not letter.counts_before]
        is_known = all(each.message.place is not None and not each.message.expiry_s for each in sources)
        if not there or len(sources) < len(there) or not is_known or any(each.may_be_back for each in sources):
            return
        answered = self.oracle.replay(letters)
        answered(self._admin(f"queue/{queue.owner}{queue.name}/replay"))

    def _group_id(self, group: Group) -> str:
        return group.told or group.name

    # Transactions

    def _begin_transaction(self, step: plan.Begin) -> None:
        producer = self._producers.setdefault(step.producer, Producer())
        known = producer.transaction
        if known is not None and known.fate in (Fate.OPEN, Fate.EITHER):
            self._end_transaction(step.producer, commit=False)
        client = self.client(f"t{step.producer}")
        answer = self.request(client, "$txn/init", [("transactional-id", f"{self.token}t{step.producer}")])
        producer.identity = {name: self._property(answer, name) for name in ("producer-id", "producer-epoch")}
        transaction = self.oracle.begin(step.timeout_s)
        named = [*producer.identity.items(), ("timeout", f"{step.timeout_s}s")]
        answer = self.request(client, "$txn/begin", named)
        producer.transaction_id, producer.transaction = self._property(answer, "transaction-id"), transaction

    def _property(self, answer: Puback | None, name: str) -> str:
        found = dict(answer.properties.user_property).get(name, "") if answer is not None else ""
        if not found or answer is None or answer.reason_code >= FIRST_FAILURE_CODE:
            raise violation(
                QueueRule.TRANSACTION, f"a request is refused, or does not tell {name}: {answer}", "Q-TXN-11"
            )
        return found

    def _end_transaction(self, number: int, *, commit: bool) -> None:
        producer = self._producers.get(number)
        if producer is None or producer.transaction is None:
            return
        answered = self.oracle.ending(producer.transaction, commit=commit)
        named = [*producer.identity.items(), ("transaction-id", producer.transaction_id)]
        operation = "commit" if commit else "abort"
        self._told(self.request(self.client(f"t{number}"), f"$txn/{operation}", named), answered)

    # Administration and the broker

    def _reset(self, step: plan.Reset) -> None:
        number = step.group % len(self._life.groups)
        queue = self._queue(self._life.groups[number].queue)
        if self._life.groups[number].dead or f"g{number}" not in queue.groups:
            return
        group = queue.groups[f"g{number}"]
        if (group.plan.filter and not group.told) or any(
            copy in each.held for each in self.oracle.transactions for copy in group.copies.values()
        ):
            return  # nobody knows what it is called; and of what a transaction settled the specification does not say
        request = {"group": self._group_id(group), "to": "latest" if step.latest else "earliest"}
        for consumer, member in group.members.items():  # none of it can be settled any more
            self._settled.setdefault(consumer, []).extend(self._held_by(member))
        answered = self.oracle.reset(group, latest=step.latest)
        answered(self._admin(f"queue/{queue.owner}{queue.name}/reset", request))

    def _delete_group(self, number: int) -> None:
        number %= len(self._life.groups)
        queue = self._queue(self._life.groups[number].queue)
        group = queue.groups.get(f"g{number}")
        if group is None or self._life.groups[number].dead or (group.plan.filter and not group.told):
            return
        if any(copy.may_be_leaving for copy in group.copies.values()):
            return  # whether it becomes a dead letter is not said
        operation = f"queue/{queue.owner}{queue.name}/groups"
        request = {"group": self._group_id(group), "delete": True}
        answered = self.oracle.delete_group(group)
        if self.oracle.is_unused(group):  # what of it is on its way to the disk may still stand against that

            def refused() -> ViolationError:
                return violation(
                    QueueRule.REQUEST, f"the deletion of {group.name} is refused", "Q-GROUP-15", waited=True
                )

            self.await_(lambda: bool(self._admin(operation, request)), refused, _POLL_S)
            answered(True)
        else:
            answered(self._admin(operation, request))

    def _look(self, queue: Queue) -> None:
        """Figures may change behind a sync: they are asked for until they are what they may be."""
        wrong = ""

        def fits() -> bool:
            nonlocal wrong
            wrong = self._wrong_figures(queue)
            return not wrong

        self.await_(fits, lambda: violation(QueueRule.FIGURES, f"{queue.name}: {wrong}", waited=True), _POLL_S)
        self.oracle.looked_at(queue)

    def _figures(self, name: str, what: str = "stats") -> dict[str, Any]:
        client, topic = self.client(ADMIN), f"assay/{self.token}/answers"
        if not client.inbox:
            packet_id = self.next_id(client)
            entry = Subscription(filter=topic, qos=0)
            self.ask(client, Subscribe(packet_id=packet_id, subscriptions=(entry,)), packet_id, f"SUBSCRIBE {topic}")
        seen = len(client.inbox)
        answer = self._ask_admin(f"queue/{name}/{what}", response_topic=topic, correlation_data=b"figures")
        if answer is not None and answer.reason_code >= FIRST_FAILURE_CODE:
            raise violation(QueueRule.REQUEST, f"the figures of {name} are refused: {answer}")
        self.await_(
            lambda: len(client.inbox) > seen,
            lambda: violation(QueueRule.UNANSWERED, f"figures of {name} do not come", "Q-ADMIN-01", waited=True),
        )
        figures: dict[str, Any] = json.loads(client.inbox[-1].payload)
        return figures

    def _wrong_figures(self, queue: Queue) -> str:
        figures = self._figures(f"{queue.owner}{queue.name}")
        by_group = {each["group"]: each for each in figures.get("groups", [])}
        wrong = []
        for (group, name), (least, most) in self.oracle.figures(queue).items():
            told = self._group_id(queue.groups[group]) if group else ""
            found = (by_group.get(told, {}) if group else figures).get(name)
            if found is not None and not least <= found <= most:
                wrong.append(f"{name}{f' of {group}' if group else ''} {found}, not {least} to {most}")
        wrong += _at_odds(figures)
        if not self.oracle.restarts:
            wrong += _lost_delays(figures)
        wrong += self._lost_count(queue, figures)
        for members in queue.groups.values():
            floors = by_group.get(self._group_id(members), {}).get("ack_floors", ())
            wrong += [f"{place} of {members.name} is below its floor" for place in self.oracle.below(members, floors)]
        wrong += self._wrong_lanes(queue)
        return "; ".join(wrong)

    def _wrong_lanes(self, queue: Queue) -> list[str]:
        """What is told by priority, where one group alone is told of."""
        if len(queue.groups) != 1 or queue.is_strict or all(message.lane == NORMAL_LANE for message in queue.messages):
            return []
        told = self._figures(f"{queue.owner}{queue.name}", "priority")
        found = []
        for (lane, name), (least, most) in self.oracle.lanes(next(iter(queue.groups.values()))).items():
            lists = [each[name] for topic in told["topics"].values() for each in topic["partitions"].values()]
            count = sum(each[lane] for each in lists)
            if not least <= count <= most:
                found.append(f"{name} of priority {lane} {count}, not {least} to {most}")
        return found

    def _lost_count(self, queue: Queue, figures: dict[str, Any]) -> list[str]:
        """Groups of which more or fewer messages are told of than before, since they or the broker began."""
        found = []
        by_group = {each["group"]: each for each in figures.get("groups", [])}
        for group in queue.groups.values():
            told = by_group.get(self._group_id(group), {})
            if told.keys() >= _IN_A_GROUP:
                count = sum(told[name] for name in _IN_A_GROUP - {"rewound"}) - told["rewound"]
                beside = count - figures["enqueued"] + figures["aborted"]
                since = (group, self.oracle.restarts)
                if since not in self._beside and self.oracle.is_in_transaction(queue):
                    continue  # the group may begin behind what is taken back later
                known = self._beside.setdefault(since, beside)
                if beside != known:
                    found.append(f"{count} messages in {group.name} in all, not {count - beside + known}")
        return found

    def _weigh(self, queue: Queue) -> None:
        """What a group that begins, or a broker, tells of is what it will tell of."""
        self._lost_count(queue, self._figures(f"{queue.owner}{queue.name}"))

    def _look_beside(self, queue: Queue) -> None:
        """What nobody's queue of the same name holds is one message, whatever became of those of the tenant's."""
        depth = self._figures(queue.name)["depth"]
        if depth != 1:
            text = f"nobody's {queue.name}, beside {self.tenant}'s, holds {depth} messages, not one"
            raise violation(QueueRule.TENANT, text)


def _at_odds(figures: dict[str, Any]) -> list[str]:
    """What an answer says twice, and not alike: of a queue, and of its groups."""
    groups = figures.get("groups", [])
    if not all(each.keys() >= _IN_A_GROUP for each in groups):
        return []
    twice = {"consumers": sum(each["consumers"] for each in groups)}
    twice["in_flight"] = sum(each["in_flight"] for each in groups)
    if groups:
        twice["depth"] = max(sum(each[name] for name in _UNSETTLED) for each in groups)
        twice["ready"] = max(each["lag"] + each["retrying"] for each in groups)
    if "delays" in figures:
        twice["delayed"] = figures["delays"]["pending"]
    return [
        f"{name} {figures[name]}, and {count} by its parts" for name, count in twice.items() if figures[name] != count
    ]


def _lost_delays(figures: dict[str, Any]) -> list[str]:
    """Of delayed messages more or fewer are told of than came, in a broker that was not started anew."""
    told = figures.get("delays", {})
    if not told.keys() >= {"pending", *_NOT_DELAYED_ANY_MORE, "scheduled"}:
        return []
    count = told["pending"] + sum(told[name] for name in _NOT_DELAYED_ANY_MORE)
    return [] if count == told["scheduled"] else [f"{count} delayed messages in all, not {told['scheduled']}"]
