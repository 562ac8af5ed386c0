"""Resume matrix, client to server: a publish that is cut off is finished, or begun anew, without loss or repetition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import Enum
from itertools import product

import msgspec

from assay.conformance.case import CaseContext
from assay.conformance.cases.mqtt5.support import completion, delivered, taken
from assay.conformance.cases.resume_cells import Cell, Plan, conclude, cut_and_come_back, each, matrix, subscribe_each
from assay.conformance.connection import FIRST_FAILURE_CODE
from assay.conformance.wire import Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel

_PACKET_ID = 11
_OLD, _NEW = b"old", b"new"
_PUBCOMP_CODES = (0x00, 0x92)
"""An identifier that is not known any more may be called unknown, or not."""


class Step(Enum):
    """How far the client gets with a publish of its own."""

    PUBLISH_SENT = "PUBLISH sent"
    PUBREC_READ = "PUBREC read"
    PUBREL_SENT = "PUBREL sent"


class PublishState(msgspec.Struct, frozen=True, kw_only=True):
    """A state of a publish when the connection is cut."""

    qos: int
    step: Step

    def copies(self, plan: Plan, *, kept: bool) -> range:
        """How often the message may reach a subscriber, whether or not the client could finish the exchange."""
        if kept:
            return range(1, 3 if self.qos == 1 else 2)
        # Without its session the client gives up. What was received at QoS 1, or released at QoS 2, is delivered.
        complete = self.qos == 1 or self.step is Step.PUBREL_SENT
        return range(1 if complete and plan.surely_received else 0, 2)


QOS1_SENT = PublishState(qos=1, step=Step.PUBLISH_SENT)
QOS2_SENT = PublishState(qos=2, step=Step.PUBLISH_SENT)
QOS2_PUBREC_READ = PublishState(qos=2, step=Step.PUBREC_READ)
QOS2_PUBREL_SENT = PublishState(qos=2, step=Step.PUBREL_SENT)


class PublishCell(Cell):
    """A publisher that is cut off."""

    def __init__(self, ctx: CaseContext, plan: Plan, number: int, state: PublishState) -> None:
        super().__init__(ctx, plan, number)
        self.state = state

    def _message(self, payload: bytes, *, dup: bool = False) -> Publish:
        return Publish(topic=self.topic, payload=payload, qos=self.state.qos, packet_id=_PACKET_ID, dup=dup)

    async def reach(self) -> None:
        """Connect and publish as far as the state says."""
        await self.connect()
        # Some brokers keep no session without a subscription, which is a fault of its own.
        await self.first.subscribe(self.ctx.topic(f"own/{self.number}"), qos=1)
        self.first.send(self._message(_OLD))
        if self.state.step is not Step.PUBLISH_SENT:
            await self.first.expect(Pubrec)
        if self.state.step is Step.PUBREL_SENT:
            self.first.send(Pubrel(packet_id=_PACKET_ID))

    async def _answered(self, packet: Packet, kind: type[Puback | Pubrec | Pubcomp]) -> None:
        self.back.send(packet)
        answer = await (completion(self.ctx, self.back) if kind is Pubcomp else self.back.expect(kind))
        good = answer.reason_code < FIRST_FAILURE_CODE
        if isinstance(answer, Pubcomp) and self.state.step is Step.PUBREL_SENT:
            good = answer.reason_code in _PUBCOMP_CODES
        self.must(good and answer.packet_id == _PACKET_ID, f"expected {kind.type.name} {_PACKET_ID}; seen {answer}")

    async def finish(self) -> None:
        """With the session, finish the old message as its client must; then publish another under its identifier."""
        if self.kept and self.state.step is Step.PUBLISH_SENT:
            await self._answered(self._message(_OLD, dup=True), Puback if self.state.qos == 1 else Pubrec)
        if self.kept and self.state.qos == 2:
            await self._answered(Pubrel(packet_id=_PACKET_ID), Pubcomp)
        await self._answered(self._message(_NEW), Puback if self.state.qos == 1 else Pubrec)
        if self.state.qos == 2:
            await self._answered(Pubrel(packet_id=_PACKET_ID), Pubcomp)
        await self.back.expect_nothing()

    def judge(self, counts: Counter[tuple[str, bytes]]) -> None:
        """How often both messages have reached the witness."""
        old, new = counts[self.topic, _OLD], counts[self.topic, _NEW]
        allowed = self.state.copies(self.plan, kept=self.kept)
        wanted = " or ".join(map(str, allowed))
        if self.failure:
            return
        if old not in allowed:
            self.failure = f"expected {wanted} copies of the message that was cut off; seen {old}"
        elif new != 1:
            self.failure = f"expected 1 copy of the next message under its identifier; seen {new}"


STATES = (QOS1_SENT, QOS2_SENT, QOS2_PUBREC_READ, QOS2_PUBREL_SENT)


async def walk_publishes(ctx: CaseContext, *states: PublishState, plans: Sequence[Plan] | None = None) -> None:
    """Walk all cells of publishes in these states and fail with those in which a message is lost or repeated.

    ``plans`` are the cells of each state; without them, the whole matrix.
    """
    chosen = product(states, matrix(ctx.case.version) if plans is None else plans)
    cells = [PublishCell(ctx, plan, number, state) for number, (state, plan) in enumerate(chosen)]
    witness = await ctx.connect(name="witness")
    await subscribe_each(ctx, witness, [cell.topic for cell in cells], qos=0)
    await each(cells, PublishCell.reach)
    await cut_and_come_back(ctx, cells)
    await each(cells, PublishCell.finish)
    publisher = await ctx.connect(name="publisher")
    messages = await delivered(ctx, publisher, witness)
    awaited = {(cell.topic, _NEW) for cell in cells if not cell.failure}
    while awaited - {(message.topic, message.payload) for message in messages}:
        # The marker, on another topic, may have overtaken some.
        if not (late := await taken(witness, 1)):
            break
        messages += late
    counts = Counter((message.topic, message.payload) for message in messages)
    for cell in cells:
        cell.judge(counts)
    conclude(ctx, cells)
