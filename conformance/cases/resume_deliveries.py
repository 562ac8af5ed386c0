"""Resume matrix, server to client: what the server still owes, for every way to lose a connection and to come back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import product

import msgspec

from assay.conformance.case import CaseContext
from assay.conformance.cases.mqtt5.support import SILENCE_S, meanwhile, publish_all, subscribe_at
from assay.conformance.cases.resume_cells import Cell, Plan, conclude, cut_and_come_back, each, matrix
from assay.conformance.outcome import CaseFailureError
from assay.conformance.wire import Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel, describe

V5 = 5
_OPEN, _NEXT, _MARKER = b"open", b"next", b"marker"
_AT_ONCE = 16
"""Of a publisher: what a server does with more is not what the matrix is about, and 3.1.1 states no limit."""


class Owed(Enum):
    """What the server sends on resuming."""

    NOTHING = "nothing"
    PUBLISH = "PUBLISH"
    PUBREL = "PUBREL"


class Step(Enum):
    """How far the client gets with a delivery that it has received."""

    RECEIVED = "received"
    PUBACK_SENT = "PUBACK sent"
    PUBREC_SENT = "PUBREC sent"
    PUBREL_READ = "PUBREL read"
    PUBCOMP_SENT = "PUBCOMP sent"


class DeliveryState(msgspec.Struct, frozen=True, kw_only=True):
    """A state of a delivery when the connection is cut."""

    qos: int
    step: Step
    owed: Owed
    """If the server has received all that the client sent."""
    owed_if_lost: Owed
    """If the client's last packet was lost with the connection."""

    def allowed(self, plan: Plan) -> set[Owed]:
        """What may be owed in a session that is kept."""
        return {self.owed} if plan.surely_received else {self.owed, self.owed_if_lost}


QOS1_RECEIVED = DeliveryState(qos=1, step=Step.RECEIVED, owed=Owed.PUBLISH, owed_if_lost=Owed.PUBLISH)
QOS1_PUBACK_SENT = DeliveryState(qos=1, step=Step.PUBACK_SENT, owed=Owed.NOTHING, owed_if_lost=Owed.PUBLISH)
QOS2_RECEIVED = DeliveryState(qos=2, step=Step.RECEIVED, owed=Owed.PUBLISH, owed_if_lost=Owed.PUBLISH)
QOS2_PUBREC_SENT = DeliveryState(qos=2, step=Step.PUBREC_SENT, owed=Owed.PUBREL, owed_if_lost=Owed.PUBLISH)
QOS2_PUBREL_READ = DeliveryState(qos=2, step=Step.PUBREL_READ, owed=Owed.PUBREL, owed_if_lost=Owed.PUBREL)
QOS2_PUBCOMP_SENT = DeliveryState(qos=2, step=Step.PUBCOMP_SENT, owed=Owed.NOTHING, owed_if_lost=Owed.PUBREL)


class _DeliveryCell(Cell):
    """A subscriber that is cut off."""

    def __init__(self, ctx: CaseContext, plan: Plan, number: int, state: DeliveryState) -> None:
        super().__init__(ctx, plan, number)
        self.state = state
        self.marker = ctx.topic(f"marker/{number}")
        self.sent: Publish

    async def subscribe(self) -> None:
        await self.connect()
        await subscribe_at(self.ctx, self.first, self.topic, qos=self.state.qos)

    async def reach(self) -> None:
        """Receive the message and answer as far as the state says."""
        self.sent = await self.first.expect_publish(self.topic, _OPEN, qos=self.state.qos, dup=False, ack=False)
        packet_id, step = self.sent.packet_id, self.state.step
        if step is Step.PUBACK_SENT:
            self.first.send(Puback(packet_id=packet_id))
        elif step is not Step.RECEIVED:
            self.first.send(Pubrec(packet_id=packet_id))
        if step in (Step.PUBREL_READ, Step.PUBCOMP_SENT):
            await self.first.expect(Pubrel)
        if step is Step.PUBCOMP_SENT:
            self.first.send(Pubcomp(packet_id=packet_id))

    async def prepare_marker(self) -> None:
        if not self.kept:
            await self.back.subscribe(self.marker, qos=self.state.qos)

    async def judge(self) -> None:
        """What came on the second connection, before and with the message that followed."""
        if not self.kept:
            message = await self.back.expect_publish(self.marker, _MARKER)
            self.back.check_flag(message, dup=False)
            await self._expect_the_end(message)
            return
        allowed = self.state.allowed(self.plan)
        resent, following = await self._collect(allowed)
        owed = self._owed(resent)
        wanted = " or ".join(sorted(item.value for item in allowed))
        self.must(owed in allowed, f"expected {wanted} of the open delivery on resuming; seen {_shown(resent)}")
        in_use = following is not None and owed is not Owed.NOTHING and following.packet_id == self.sent.packet_id
        self.must(not in_use, f"expected another identifier than {self.sent.packet_id}; seen {following}")
        for packet in resent[:1]:
            if isinstance(packet, Publish):
                await self.back.acknowledge(packet)
            else:
                self.back.send(Pubcomp(packet_id=self.sent.packet_id))
        if following is None:
            following = await self.back.expect_publish(self.topic, _NEXT, dup=False, ack=False)
        await self.back.acknowledge(following)
        await self._expect_the_end(following, *resent)

    def _may_repeat(self, packet: Packet, again: Sequence[Packet]) -> bool:
        """Only 5.0 (4.4.0-1) forbids to send again while the connection lasts."""
        return self.ctx.case.version < V5 and all(other == packet for other in again)

    async def _expect_the_end(self, *before: Packet) -> None:
        """Nothing more may come but, in 3.1.1, a PUBREL of what has just been settled once more."""
        known = {packet.packet_id for packet in before if isinstance(packet, Publish | Pubrel)}
        for packet in await self.back.barrier():
            repeated = self.ctx.case.version < V5 and isinstance(packet, Pubrel) and packet.packet_id in known
            self.must(repeated, f"expected nothing; seen {describe(packet)}")

    async def _collect(self, allowed: set[Owed]) -> tuple[list[Packet], Publish | None]:
        """What is sent again, and the new message; they may come in either order.

        The new message may be missing: a server may have one at a time under way, and wait for the answer to the open
        one.
        """
        resent: list[Packet] = []
        following: Publish | None = None
        while following is None or not (resent or Owed.NOTHING in allowed):
            try:
                packet = await self.back.receive(
                    "what is owed, and a new message for the subscription", within_s=SILENCE_S if resent else None
                )
            except CaseFailureError:
                if not resent:
                    raise
                break
            if packet is None:
                self.ctx.fail("expected the session to go on; the broker ended the connection")
            if isinstance(packet, Publish) and packet.payload == _NEXT and following is None:
                following = packet
            else:
                resent.append(packet)
        for packet in await self.back.barrier():
            if isinstance(packet, Publish) and packet.payload == _NEXT and following is None:
                following = packet
            else:
                resent.append(packet)
        return resent, following

    def _owed(self, resent: list[Packet]) -> Owed | None:
        """Which debt these packets are; None if they are no right form of one."""
        match resent:
            case []:
                return Owed.NOTHING
            case [Publish() as message]:
                same = (message.topic, message.payload, message.qos, message.packet_id)
                wanted = (self.topic, _OPEN, self.state.qos, self.sent.packet_id)
                self.back.check_flag(message, dup=True)
                return Owed.PUBLISH if same == wanted else None
            case [Pubrel() as pubrel, *again] if not again or self._may_repeat(pubrel, again):
                return Owed.PUBREL if pubrel.packet_id == self.sent.packet_id else None
        return None


def _shown(packets: Iterable[Packet]) -> str:
    return "; ".join(map(describe, packets)) or "nothing"


STATES = (QOS1_RECEIVED, QOS1_PUBACK_SENT, QOS2_RECEIVED, QOS2_PUBREC_SENT, QOS2_PUBREL_READ, QOS2_PUBCOMP_SENT)


async def walk_deliveries(ctx: CaseContext, *states: DeliveryState, plans: Sequence[Plan] | None = None) -> None:
    """Walk all cells of deliveries in these states and fail with those in which the server owes something else.

    ``plans`` are the cells of each state; without them, the whole matrix.
    """
    chosen = product(states, matrix(ctx.case.version) if plans is None else plans)
    cells = [_DeliveryCell(ctx, plan, number, state) for number, (state, plan) in enumerate(chosen)]
    publisher = await ctx.connect(name="publisher")
    await each(cells, _DeliveryCell.subscribe)
    opened = [Publish(topic=cell.topic, payload=_OPEN, qos=cell.state.qos) for cell in cells]
    async with meanwhile(publish_all(publisher, opened, at_once=_AT_ONCE)):
        await each(cells, _DeliveryCell.reach)
    await cut_and_come_back(ctx, cells)
    await each(cells, _DeliveryCell.prepare_marker)
    following = [Publish(topic=cell.topic, payload=_NEXT, qos=cell.state.qos) for cell in cells]
    following += [
        Publish(topic=cell.marker, payload=_MARKER, qos=cell.state.qos)
        for cell in cells
        if not cell.kept and not cell.failure
    ]
    async with meanwhile(publish_all(publisher, following, at_once=_AT_ONCE)):
        await each(cells, _DeliveryCell.judge)
    conclude(ctx, cells)
