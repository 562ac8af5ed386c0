"""Histories made of a seed, for tests: a broker that behaves, with faults planted by name, and plain chaos.

``Story`` plays a small queue workload and writes the history that its clients would see. ``chaos`` draws events from a
small vocabulary without any sense, so that each corner of the definitions is met sooner or later.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec

from assay.reference_broker.trace.files import HistoryWriter
from assay.reference_broker.trace.schema import (
    AckedMeans,
    Contract,
    DeliveryGuarantee,
    HistoryEvent,
    HistoryHeader,
    OpKind,
    OpType,
    OrderGuarantee,
)

QUEUE = "orders"
DLQ = f"$dlq/{QUEUE}"
GROUP = "workers"
STEP_NS = 1_000_000


class Story:
    """Writes events one after the other; every event takes a millisecond."""

    def __init__(self) -> None:
        self.events: list[HistoryEvent] = []
        self.sent: list[HistoryEvent] = []
        self.offset = 0
        self.now_ns = 0

    def event(self, f: OpKind, type_: OpType, process: str, **fields: Any) -> HistoryEvent:
        self.now_ns += STEP_NS
        made = HistoryEvent(index=len(self.events), time_ns=self.now_ns, process=process, f=f, type=type_, **fields)
        self.events.append(made)
        return made

    def subscribe(self, consumer: str, group: str = GROUP, queue: str = QUEUE) -> None:
        self.event(OpKind.SUBSCRIBE, OpType.OK, consumer, group=group, queue=queue)

    def publish(
        self, producer: str, seq: int, outcome: OpType | None = OpType.OK, key: str = "k", queue: str = QUEUE
    ) -> str:
        value = f"{producer}-{seq}"
        common = {"queue": queue, "key": key, "value": value, "producer": producer, "seq": seq}
        begun = self.event(OpKind.PUBLISH, OpType.INVOKE, producer, **common)
        self.sent.append(begun)
        if outcome is not None:
            self.event(OpKind.PUBLISH, outcome, producer, op=begun.index, **common)
        return value

    def deliver(self, value: str, consumer: str = "c1", **fields: Any) -> HistoryEvent:
        producer, _, seq = value.rpartition("-")
        if "offset" not in fields:
            fields |= {
                "partition": 0,
                "offset": next((n for n, sent in enumerate(self.sent) if sent.value == value), 10_000 + self.offset),
            }
        whole = {"queue": QUEUE, "group": GROUP, "value": value, "producer": producer, "delivery_count": 1, **fields}
        return self.event(OpKind.DELIVER, OpType.OK, consumer, seq=int(seq) if seq.isdigit() else -1, **whole)

    def settle(
        self, kind: OpKind, value: str, consumer: str = "c1", outcome: OpType | None = OpType.OK, group: str = GROUP
    ) -> None:
        common = {"queue": QUEUE, "group": group, "value": value}
        begun = self.event(kind, OpType.INVOKE, consumer, **common)
        if outcome is not None:
            self.event(kind, outcome, consumer, op=begun.index, **common)

    def consume(self, value: str, consumer: str = "c1", **fields: Any) -> None:
        self.deliver(value, consumer, **fields)
        self.settle(OpKind.ACK, value, consumer, group=fields.get("group", GROUP))

    def fault(self, kind: str, steps: int = 5) -> None:
        begun = self.event(OpKind.FAULT, OpType.INVOKE, "nemesis", detail=f"{kind} broker")
        self.now_ns += steps * STEP_NS
        self.event(OpKind.FAULT, OpType.OK, "nemesis", op=begun.index, detail=f"{kind} broker")

    def drain(self, outcome: OpType = OpType.OK) -> None:
        self.event(OpKind.DRAIN, outcome, "drainer", queue=QUEUE, group=GROUP)
        self.event(OpKind.DRAIN, outcome, "drainer", queue=DLQ)


def clean(messages: int = 20) -> Story:
    """A run in which nothing is wrong."""
    story = Story()
    story.subscribe("c1")
    for seq in range(messages):
        story.consume(story.publish("p", seq))
    story.drain()
    return story


def held_up() -> Story:
    """As :func:`clean`, and a delivery of before a crash came after it, when its offset was given away."""
    story = clean()
    story.subscribe("c2")
    story.publish("p", 30, OpType.INFO)
    story.fault("crash")
    story.deliver("p-30", "c2", offset=903, partition=0)
    story.event(OpKind.SESSION_END, OpType.OK, "c2")
    story.consume(story.publish("p", 31), offset=903, partition=0)
    story.drain()
    return story


def planted(anomaly: str) -> Story:
    """A run with exactly one anomaly, of the given catalogue id."""
    story = Story()
    story.subscribe("c1")
    for seq in range(5):
        story.consume(story.publish("p", seq))
    _PLANTS[anomaly](story)
    for seq in range(20, 25):
        story.consume(story.publish("p", seq))
    story.drain()
    return story


def _lost(story: Story) -> None:
    story.publish("p", 10)


def _unsettled(story: Story) -> None:
    story.deliver(story.publish("p", 10))


def _never_sent(story: Story) -> None:
    story.consume("ghost-0", offset=900, partition=0)


def _misrouted(story: Story) -> None:
    story.consume(story.publish("q", 0, queue="other"), offset=901, partition=0)


def _corrupt(story: Story) -> None:
    story.publish("p", 10, OpType.INFO)
    story.consume("corrupt:0badf00d", offset=906, partition=0)


def _early(story: Story) -> None:
    story.consume("p-10", offset=902, partition=0)
    story.publish("p", 10)


def _refused(story: Story) -> None:
    story.consume(story.publish("p", 10, OpType.FAIL))


def _one_offset(story: Story) -> None:
    story.consume(story.publish("p", 10), offset=903, partition=0)
    story.consume(story.publish("p", 11), offset=903, partition=0)


def _stored_twice(story: Story) -> None:
    value = story.publish("p", 10)
    story.deliver(value, offset=904, partition=0)
    story.settle(OpKind.NACK, value)
    story.consume(value, offset=905, partition=0, redelivered=True, delivery_count=2)


def _again(story: Story) -> None:
    value = story.publish("p", 10)
    story.deliver(value)
    story.consume(value, redelivered=True, delivery_count=2)


def _both_hold(story: Story) -> None:
    value = story.publish("p", 10)
    story.subscribe("c2")
    story.deliver(value)
    story.deliver(value, "c2", redelivered=True, delivery_count=2)
    story.settle(OpKind.ACK, value, "c2")


def _resurrected(story: Story) -> None:
    value = story.publish("p", 10)
    story.consume(value)
    story.consume(value, redelivered=True, delivery_count=2)


def _overtaken(story: Story) -> None:
    first, second = story.publish("p", 10), story.publish("p", 11)
    story.consume(second)
    story.consume(first)


def _dead_letter_lost(story: Story) -> None:
    value = story.publish("p", 10)
    story.deliver(value)
    story.settle(OpKind.REJECT, value)


def _dead_lettered(story: Story) -> None:
    value = story.publish("p", 10)
    story.deliver(value)
    story.settle(OpKind.ACK, value)
    story.deliver(value, "undertaker", queue=DLQ, group="undertakers", reason="too many deliveries")


def _miscounted(story: Story) -> None:
    value = story.publish("p", 10)
    story.deliver(value)
    story.settle(OpKind.NACK, value)
    story.consume(value, redelivered=False, delivery_count=1)


def _too_often(story: Story) -> None:
    value = story.publish("p", 10)
    for count in range(1, 7):
        story.deliver(value, redelivered=count > 1, delivery_count=count)
        story.settle(OpKind.NACK if count < 6 else OpKind.ACK, value)


_PLANTS = {
    "A1": _lost,
    "F6": _unsettled,
    "A5": _never_sent,
    "A6": _misrouted,
    "A7": _corrupt,
    "A9": _early,
    "A10": _refused,
    "C1": _one_offset,
    "B1": _stored_twice,
    "B3": _again,
    "B6": _both_hold,
    "A15": _resurrected,
    "D8": _overtaken,
    "A11": _dead_letter_lost,
    "A12": _dead_lettered,
    "B4": _miscounted,
    "B7": _too_often,
}
PLANTED = tuple(_PLANTS)
CONTRACT = Contract(max_deliveries=5)


def chaos(seed: int, events: int = 60) -> tuple[HistoryHeader, list[HistoryEvent]]:
    """A history without sense, and a contract, drawn from a seed."""
    rng = random.Random(seed)
    header = HistoryHeader(run_id=f"chaos-{seed}", seed=seed, contract=_contract(rng))
    values = [f"{producer}-{seq}" for producer in ("p", "q") for seq in range(rng.choice((1, 3, 6)))]
    queues = ["a", rng.choice(("b", "$mqtt/b")), "$dlq/a", "$dlq/b"]
    faults = ["crash", "power_loss node", "pause", "partition clients", "reset", "latency 5", ""]
    faults += rng.sample(["bit_rot node", "lying_sync node", "sync_error node", "clock_jump node", "stop", "clog"], 3)
    plain = rng.random() < 0.5  # nothing but settled queues: what has an order is rare enough there
    made: list[HistoryEvent] = []
    time_ns = 0
    index = rng.randrange(3)
    for _ in range(events):
        time_ns += rng.choice((0, 1_000, 300_000_000, 2_000_000_000))
        made.append(_random_event(rng, index, time_ns, values, queues, faults, made, plain=plain))
        index += rng.choice((1, 1, 1, 4))
    for queue in queues[:2] if rng.random() < 0.8 else []:
        for name in (queue, f"$dlq/{queue}"):
            outcome = OpType.OK if rng.random() < 0.9 else OpType.INFO
            group = rng.choice(("", "g", "h")) if rng.random() < 0.3 else ""
            made.append(
                HistoryEvent(
                    index=index,
                    time_ns=time_ns,
                    process="drainer",
                    f=OpKind.DRAIN,
                    type=outcome,
                    queue=name,
                    group=group,
                )
            )
            index += 1
    return header, made


def _contract(rng: random.Random) -> Contract:
    return Contract(
        delivery=rng.choice(list(DeliveryGuarantee)),
        order=rng.choice(list(OrderGuarantee)),
        acked_means=rng.choice(list(AckedMeans)),
        dead_letters=rng.random() < 0.7,
        max_deliveries=rng.choice((0, 1, 2, 3)),
        delivery_timeout_s=rng.choice((0.0, 0.4, 1.5, 30.0)),
        redelivery_may_reorder=rng.random() < 0.5,
    )


_KINDS = (
    [OpKind.PUBLISH] * 6
    + [OpKind.DELIVER] * 8
    + [
        OpKind.ACK,
        OpKind.ACK,
        OpKind.NACK,
        OpKind.REJECT,
        OpKind.SUBSCRIBE,
        OpKind.SESSION_END,
        OpKind.FAULT,
        OpKind.DRAIN,
        OpKind.IGNORE,
        OpKind.COMMIT,
        OpKind.CANCEL,
    ]
)


def _random_event(
    rng: random.Random,
    index: int,
    time_ns: int,
    values: list[str],
    queues: list[str],
    faults: list[str],
    before: list[HistoryEvent],
    *,
    plain: bool,
) -> HistoryEvent:
    kind = rng.choice(_KINDS[:-2] if plain else _KINDS)
    value = rng.choice(values)
    producer, _, seq = value.rpartition("-")
    common: dict[str, Any] = {"index": index, "time_ns": time_ns, "f": kind, "process": rng.choice(("c1", "c2", "c3"))}
    queue = rng.choices(queues, (8, 2, 2, 1))[0]
    group = rng.choice(("g", "g", "h"))
    invoked = [event for event in before if event.f is kind and event.type is OpType.INVOKE]
    completes = bool(invoked) and rng.random() < 0.6
    op = rng.choice(invoked[-4:]).index if completes and rng.random() < 0.95 else -1
    outcome = rng.choices((OpType.OK, OpType.FAIL, OpType.INFO), (6, 1, 1))[0]
    if kind is OpKind.PUBLISH:
        if completes:
            return HistoryEvent(**common, type=outcome, op=op, value=value)
        home = rng.choice(("a", "a", "a", "b"))
        key = "k" if plain else rng.choice(("", "k"))
        asked: dict[str, Any] = {}
        if not plain:
            common["f"] = rng.choices((OpKind.PUBLISH, OpKind.WILL), (9, 1))[0]
            asked["txn"] = rng.choice(("", "", "t1", "t2"))
            asked["delay_ns"] = rng.choices((-1, 0, 900_000_000), (8, 1, 1))[0]
            asked["lane"] = rng.choices((-1, 0, 2), (8, 1, 1))[0]
        return HistoryEvent(
            **common,
            type=OpType.INVOKE,
            queue=home,
            key=key,
            value=value,
            producer=producer,
            seq=int(seq),
            **asked,
        )
    if kind is OpKind.COMMIT:
        return HistoryEvent(**common, type=OpType.INVOKE, txn=rng.choice(("t1", "t2", "t3")))
    if kind is OpKind.CANCEL:
        if completes:
            return HistoryEvent(**common, type=outcome, op=op, value=value)
        return HistoryEvent(**common, type=OpType.INVOKE, value=value)
    if kind is OpKind.DELIVER:
        return HistoryEvent(
            **common,
            type=OpType.OK if rng.random() < 0.97 else OpType.INFO,
            queue=queue,
            group=group,
            value=value if rng.random() < 0.93 else rng.choice(("ghost-1", "corrupt:0badf00d")),
            offset=rng.choice((-1, 0, 1, 2)),
            partition=rng.choice((0, 0, 1)),
            message_id=rng.choice(("", "m1", "m2")),
            delivery_count=rng.choice((0, 1, 1, 2, 3, 4)),
            redelivered=rng.random() < 0.4,
            reason=rng.choice(("", "expired ttl", "rejected")),
        )
    if kind in (OpKind.ACK, OpKind.NACK, OpKind.REJECT):
        settled = {"queue": queue, "group": group, "value": value}
        if not plain and rng.random() < 0.3:
            settled["txn"] = rng.choice(("t1", "t2"))
        if completes:
            return HistoryEvent(**common, type=outcome, op=op, **settled)
        return HistoryEvent(**common, type=OpType.INVOKE, **settled)
    if kind is OpKind.FAULT:
        if completes:
            return HistoryEvent(**common, type=outcome, op=op, detail=rng.choice(invoked).detail)
        return HistoryEvent(**common, type=OpType.INVOKE, detail=rng.choice(faults[:-1]))
    if kind is OpKind.DRAIN:
        scope = {"queue": rng.choice((queue, "")), "group": rng.choice((group, "", ""))}
        ends = (OpType.OK, OpType.OK, OpType.INFO, OpType.FAIL, OpType.INVOKE)
        return HistoryEvent(**common, type=rng.choice(ends), **scope)
    if kind is OpKind.SUBSCRIBE:
        type_, reason = rng.choice((outcome, OpType.INVOKE)), rng.choice(("", "latest"))
        return HistoryEvent(**common, type=type_, queue=queue, group=group, reason=reason, op=op)
    if kind is OpKind.IGNORE:
        delivered = [event.index for event in before if event.f is OpKind.DELIVER]
        op = rng.choice(delivered or [-1])
        return HistoryEvent(**common, type=OpType.OK, queue=queue, group=group, value=value, op=op)
    return HistoryEvent(**common, type=OpType.OK)


_MQTT_STEPS = {
    OpKind.CONNECT: 6,
    OpKind.SESSION_END: 3,
    OpKind.WILL: 4,
    OpKind.PUBLISH: 10,
    OpKind.DELIVER: 14,
    OpKind.READ: 10,
    OpKind.SUBSCRIBE: 2,
    OpKind.DRAIN: 1,
    OpKind.FAULT: 1,
    OpKind.IGNORE: 1,
}


def mqtt_chaos(seed: int, events: int = 70) -> tuple[HistoryHeader, list[HistoryEvent]]:
    """As :func:`chaos`, of sessions, shares, retained messages and wills: some of it lawful, some not."""
    rng = random.Random(seed)
    contract = msgspec.structs.replace(_contract(rng), dead_letters=False)
    header = HistoryHeader(run_id=f"mqtt-{seed}", contract=contract)
    disks = ("disk_full broker", "write_error broker", "write_error broker segments", "sync_error broker at 2 sessions")
    faults = rng.sample(("crash", "power_loss", "partition", "latency", "clock_jump", "bit_rot", *disks), 2)
    made: list[HistoryEvent] = []
    time_ns = 0
    for index in range(events):
        time_ns += rng.choice((0, 1_000_000, 1_000_000, 300_000_000, 1_500_000_000))
        (kind,) = rng.choices(list(_MQTT_STEPS), list(_MQTT_STEPS.values()))
        invoked = [event for event in made if event.f is kind and event.type is OpType.INVOKE][-3:]
        asked = rng.choice(invoked) if invoked and rng.random() < 0.6 else None
        fields = _answer(rng, asked, made) if asked is not None else _mqtt_step(rng, kind, made, faults)
        made.append(HistoryEvent(index=index, time_ns=time_ns, f=kind, **{"process": "x", **fields}))
    if rng.random() < 0.8:
        time_ns += rng.choice((0, 6_000_000_000))
        made.append(
            HistoryEvent(
                index=events, time_ns=time_ns, process="drain", f=OpKind.DRAIN, type=OpType.OK, queue="$mqtt/s"
            )
        )
    return header, made


def _answer(rng: random.Random, asked: HistoryEvent, made: list[HistoryEvent]) -> dict[str, Any]:
    """The completion of an invocation."""
    outcome = rng.choices((OpType.OK, OpType.FAIL, OpType.INFO), (6, 2, 1))[0]
    fields: dict[str, Any] = {"type": outcome, "op": asked.index, "process": asked.process, "value": asked.value}
    if asked.f is OpKind.CONNECT:
        return {**fields, "group": asked.group, "reason": rng.choice(("present", "new"))}
    if asked.f is OpKind.FAULT:
        return {**fields, "detail": asked.detail}
    if asked.f is OpKind.READ:
        written = [event.value for event in made if event.key.startswith("s/r/0") and not event.reason]
        value = rng.choice(written) if written and rng.random() < 0.8 else rng.choice(("", "w-5"))
        return {**fields, "type": OpType.OK, "group": "s/r/0", "value": value}
    return fields


def _mqtt_step(rng: random.Random, kind: OpKind, made: list[HistoryEvent], faults: list[str]) -> dict[str, Any]:
    """Something that nobody was asked for before."""
    client, life = rng.choice(("s0", "l0")), rng.randrange(4)
    process = f"{client}.{life}"
    match kind:
        case OpKind.CONNECT:
            expiry_ns = rng.choice((-1, 0, 1_000_000_000, 2_000_000_000))
            detail = rng.choice(("MQTT 3.1.1", "MQTT 5.0"))
            return {
                "type": OpType.INVOKE,
                "process": process,
                "group": client,
                "delay_ns": expiry_ns,
                "detail": detail,
            }
        case OpKind.SESSION_END:
            return {"type": OpType.OK, "process": process, "delay_ns": rng.choice((-1, 0, 500_000_000))}
        case OpKind.WILL:
            sent = {"queue": "$mqtt/s", "value": f"l0-{life}", "producer": "l0", "seq": life, "qos": 1}
            delay_ns = rng.choice((-1, 0, 1_000_000_000))
            return {"type": OpType.INVOKE, "process": f"l0.{life}", "group": "l0", "delay_ns": delay_ns, **sent}
        case OpKind.PUBLISH if rng.random() < 0.5:
            seq, qos = rng.randrange(6), rng.choice((0, 1, 1, 2))
            sent = {"queue": "$retained/s", "key": f"s/r/{rng.randrange(5) // 4}:{qos}", "value": f"w-{seq}"}
            sent |= {"producer": "w", "seq": seq, "qos": qos, "reason": "removes" if seq % 3 == 0 else ""}
            return {"type": OpType.INVOKE, "process": "w", **sent}
        case OpKind.PUBLISH:
            seq, qos = rng.randrange(5), rng.choice((0, 1, 2, 2))
            sent = {"queue": "$mqtt/s", "key": f"s/t/0:{qos}", "value": f"p-{seq}"}
            return {"type": OpType.INVOKE, "process": "p", "producer": "p", "seq": seq, "qos": qos, **sent}
        case OpKind.DELIVER | OpKind.IGNORE:
            shared = rng.random() < 0.4
            value = f"p-{rng.randrange(5)}" if rng.random() < 0.8 else f"l0-{life}"
            delivered = [event.index for event in made if event.f is OpKind.DELIVER]
            return {
                "type": OpType.OK,
                "process": f"{rng.choice(('h0', 'h1'))}.{life % 2}" if shared else f"s0.{life}",
                "queue": "$mqtt/s",
                "group": "$share/x" if shared else rng.choice(("s0", "s0", "s1")),
                "value": value,
                "qos": rng.choice((0, 1, 1, 2)),
                "op": rng.choice(delivered or [-1]) if kind is OpKind.IGNORE else -1,
            }
        case OpKind.READ:
            return {"type": OpType.INVOKE, "process": "r.0", "queue": "$retained/s"}
        case OpKind.SUBSCRIBE:
            group = rng.choice(("s0", "s1", "$share/x"))
            return {"type": OpType.OK, "process": process, "queue": "$mqtt/s", "group": group}
        case OpKind.DRAIN:
            outcome, group = rng.choice((OpType.OK, OpType.FAIL, OpType.INFO)), rng.choice(("s0", "s1"))
            return {"type": outcome, "process": "drain", "queue": "$mqtt/s", "group": group}
        case _:
            return {"type": OpType.INVOKE, "process": "faults", "detail": rng.choice(faults)}


def write(path: Path, events: list[HistoryEvent], contract: Contract = CONTRACT, run_id: str = "test") -> Path:
    """Write a history file; returns its path."""
    with HistoryWriter(path, HistoryHeader(run_id=run_id, contract=contract)) as writer:
        for event in events:
            writer.write(event)
    return path
