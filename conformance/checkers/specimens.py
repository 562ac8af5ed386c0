"""Histories of a tiny model broker, right or with one planted anomaly: what the checkers themselves are judged by.

:func:`right_history` never breaks a rule; :func:`assay.conformance.checkers.planting.plant` takes such a history and
breaks the rule named. A checker that misses it, or that accuses the original, is wrong; SQL forms are compared on both.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import msgspec

from assay.reference_broker.trace.described import described
from assay.reference_broker.trace.schema import Contract, HistoryEvent, OpKind, OpType

QUEUE = "orders"
DLQ = f"$dlq/{QUEUE}"
TIMEOUT_S = 5.0
MAX_DELIVERIES = 4
CONTRACT = Contract(delivery_timeout_s=TIMEOUT_S, max_deliveries=MAX_DELIVERIES)
"""What the model broker promises."""
_PARTITIONS = 2
_KEYS = 3


class _Entry(msgspec.Struct, kw_only=True, eq=False):
    """One stored message as one group sees it."""

    value: str
    key: str
    producer: str
    seq: int
    partition: int
    offset: int
    group: str
    count: int = 0
    holder: str = ""


class _Settling(msgspec.Struct, kw_only=True, eq=False):
    """A settlement on its way."""

    kind: OpKind
    entry: _Entry
    process: str
    invocation: int


class _Model:
    """A right broker and its clients, driven by chance. Every step appends events."""

    def __init__(self, rng: random.Random, groups: tuple[str, ...], consumers: int) -> None:
        self.rng = rng
        self.groups = groups
        self.events: list[HistoryEvent] = []
        self.time_ns = 0
        self.incarnation: dict[str, int] = {}
        self.members = {group: [f"{group}-{number}" for number in range(consumers)] for group in groups}
        self.ready: dict[tuple[str, int], list[_Entry]] = {(g, p): [] for g in groups for p in range(_PARTITIONS)}
        self.held: list[_Entry] = []
        self.settling: list[_Settling] = []
        self.unconfirmed: list[tuple[int, dict[str, str | int]]] = []
        self.dead: list[tuple[_Entry, str]] = []
        self.next_seq: dict[str, int] = {}
        self.next_offset = [0] * _PARTITIONS

    def record(self, process: str, f: OpKind, type_: OpType, **fields: object) -> int:
        self.time_ns += self.rng.randrange(10_000, 3_000_000)
        index = len(self.events)
        data = {"index": index, "time_ns": self.time_ns, "process": process, "f": f, "type": type_, **fields}
        self.events.append(msgspec.convert(data, described(HistoryEvent)))
        return index

    def process(self, client: str) -> str:
        return f"{client}.{self.incarnation.get(client, 0)}"

    def subscribe(self, group: str, client: str) -> None:
        process = self.process(client)
        op = self.record(process, OpKind.SUBSCRIBE, OpType.INVOKE, queue=QUEUE, group=group)
        self.record(process, OpKind.SUBSCRIBE, OpType.OK, queue=QUEUE, group=group, op=op)

    def publish(self, producer: str) -> None:
        seq = self.next_seq.get(producer, 0)
        self.next_seq[producer] = seq + 1
        key = f"k{self.rng.randrange(_KEYS)}"
        value = f"{producer}-{seq}"
        fields: dict[str, str | int] = {
            "queue": QUEUE, "key": key, "value": value, "producer": producer, "seq": seq
        }  # fmt: skip
        op = self.record(producer, OpKind.PUBLISH, OpType.INVOKE, **fields)
        partition = int(key[1:]) % _PARTITIONS
        offset = self.next_offset[partition]
        self.next_offset[partition] += 1
        for group in self.groups:
            self.ready[group, partition].append(
                _Entry(
                    value=value, key=key, producer=producer, seq=seq, partition=partition, offset=offset, group=group
                )
            )
        self.unconfirmed.append((op, fields))

    def confirm(self, type_: OpType = OpType.OK) -> None:
        if self.unconfirmed:
            op, fields = self.unconfirmed.pop(0)
            self.record(str(fields["producer"]), OpKind.PUBLISH, type_, op=op, **fields)

    def deliver(self) -> None:
        choices = [place for place, entries in self.ready.items() if entries]
        if not choices:
            return
        group, partition = self.rng.choice(choices)
        entry = self.ready[group, partition].pop(0)
        members = self.members[group]
        entry.count += 1
        entry.holder = members[partition % len(members)]
        self.held.append(entry)
        self.record(
            self.process(entry.holder), OpKind.DELIVER, OpType.OK, delivery_count=entry.count,
            redelivered=entry.count > 1, producer=entry.producer, seq=entry.seq, **_identity(entry),
        )  # fmt: skip

    def settle(self, kind: OpKind) -> None:
        settling = {id(item.entry) for item in self.settling}
        free = [entry for entry in self.held if id(entry) not in settling]
        if not free:
            return
        entry = self.rng.choice(free)
        process = self.process(entry.holder)
        op = self.record(process, kind, OpType.INVOKE, **_identity(entry))
        self.settling.append(_Settling(kind=kind, entry=entry, process=process, invocation=op))

    def complete(self, type_: OpType = OpType.OK) -> None:
        if self.settling:
            item = self.settling.pop(self.rng.randrange(len(self.settling)))
            self.record(item.process, item.kind, type_, op=item.invocation, **_identity(item.entry))
            if type_ is OpType.OK or self.rng.random() < 0.5:
                self.apply(item)

    def apply(self, item: _Settling) -> None:
        entry = item.entry
        if entry not in self.held:
            return
        if item.kind is OpKind.ACK:
            self.held.remove(entry)
        elif item.kind is OpKind.REJECT:
            self.held.remove(entry)
            self.dead.append((entry, "rejected"))
        else:
            self.give_back(entry)

    def give_back(self, entry: _Entry) -> None:
        """Ready again at its place, or dead-lettered when its deliveries are used up."""
        self.held.remove(entry)
        if entry.count >= MAX_DELIVERIES:
            self.dead.append((entry, "max retries exceeded"))
            return
        entries = self.ready[entry.group, entry.partition]
        entries.append(entry)
        entries.sort(key=lambda each: each.offset)

    def end_session(self, group: str, client: str) -> None:
        process = self.process(client)
        for item in [item for item in self.settling if item.process == process]:
            self.settling.remove(item)
            self.record(process, item.kind, OpType.INFO, op=item.invocation, **_identity(item.entry))
            if self.rng.random() < 0.5:
                self.apply(item)
        self.record(process, OpKind.SESSION_END, OpType.OK)
        for entry in [entry for entry in self.held if entry.holder == client]:
            self.give_back(entry)
        self.incarnation[client] = self.incarnation.get(client, 0) + 1
        self.subscribe(group, client)

    def crash(self) -> None:
        op = self.record("faults", OpKind.FAULT, OpType.INVOKE, detail="crash broker")
        while self.unconfirmed:
            self.confirm(OpType.INFO)
        for group, members in self.members.items():
            for client in members:
                self.end_session(group, client)
        self.record("faults", OpKind.FAULT, OpType.OK, op=op, detail="crash broker")

    def time_out(self) -> None:
        """Everything held, and not being settled, comes back after the delivery timeout."""
        self.time_ns += int(TIMEOUT_S * 1e9)
        settling = {id(item.entry) for item in self.settling}
        for entry in [entry for entry in self.held if id(entry) not in settling]:
            self.give_back(entry)

    def drain(self) -> None:
        while self.unconfirmed:
            self.confirm()
        while self.settling or self.held or any(self.ready.values()):
            self.deliver()
            self.settle(OpKind.ACK)
            self.complete()
        for entry, reason in self.dead:
            self.record(
                "watch.0", OpKind.DELIVER, OpType.OK, reason=reason,
                **(_identity(entry) | {"queue": DLQ, "group": "watch", "partition": -1, "offset": -1}),
            )  # fmt: skip
        for queue in (QUEUE, DLQ):
            self.record("drain", OpKind.DRAIN, OpType.OK, queue=queue)


def _identity(entry: _Entry) -> dict[str, str | int]:
    return {
        "queue": QUEUE,
        "group": entry.group,
        "value": entry.value,
        "key": entry.key,
        "message_id": f"{entry.partition}:{entry.offset}",
        "partition": entry.partition,
        "offset": entry.offset,
    }


def right_history(
    rng: random.Random, *, messages: int = 30, groups: int = 1, consumers: int = 1, faults: bool = True
) -> list[HistoryEvent]:
    """A history in which the broker keeps :data:`CONTRACT`; with ``faults`` crashes, lost sessions and timeouts."""
    model = _Model(rng, tuple(f"g{number}" for number in range(groups)), consumers)
    for group, members in model.members.items():
        for client in members:
            model.subscribe(group, client)
    steps: list[tuple[float, Callable[[], None]]] = [
        (6, model.confirm),
        (8, model.deliver),
        (6, lambda: model.settle(OpKind.ACK)),
        (1, lambda: model.settle(OpKind.NACK)),
        (0.6, lambda: model.settle(OpKind.REJECT)),
        (7, model.complete),
    ]
    if faults:
        steps += [
            (0.1, model.crash),
            (0.3, model.time_out),
            (0.3, lambda: model.end_session(*_any_member(model))),
        ]
    remaining = messages
    steps.append((5, lambda: model.publish(f"p{rng.randrange(2)}")))
    weights = [weight for weight, _ in steps]
    while remaining > 0:
        number = rng.choices(range(len(steps)), weights)[0]
        steps[number][1]()
        remaining -= number == len(steps) - 1
    model.drain()
    return model.events


def _any_member(model: _Model) -> tuple[str, str]:
    group = model.rng.choice(model.groups)
    return group, model.rng.choice(model.members[group])


def renumber(events: Iterable[HistoryEvent]) -> list[HistoryEvent]:
    """Give consecutive indices to events that were added, moved or removed, and keep completions tied."""
    kept = list(events)
    places = {event.index: place for place, event in enumerate(kept) if event.index >= 0}
    return [
        msgspec.structs.replace(event, index=place, op=places.get(event.op, -1)) for place, event in enumerate(kept)
    ]
