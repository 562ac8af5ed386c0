"""The resume matrix as data: how a session can be cut off, how long it lasts, how its client comes back.

One case walks all cells of one state of a QoS exchange at the same time (``resume_deliveries``, ``resume_publishes``);
each cell has a client and topics of its own, and a failure names the cells.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from itertools import product
from typing import TypeVar

import msgspec

from assay.conformance.case import CaseContext
from assay.conformance.cases.mqtt5.support import pass_time
from assay.conformance.connection import Connection
from assay.conformance.outcome import CaseFailureError
from assay.conformance.rules import Incident, Rule, StepFailureError
from assay.conformance.stall import Stopwatch
from assay.conformance.wire import Disconnect, Properties, Publish, Subscription, Will

_V5 = 5
_DISCONNECT_WITH_WILL = 0x04
_LONG_S = 60
_SHORT_S = 3
_SHORT_IS_SURE_S = 1.9
"""A broker that counts whole seconds may end a session of 3 s after 2 s."""
_SHOWN_FAILURES = 4
_WILLS_WITHIN_S = 2.0


class Cut(Enum):
    """How the first connection ends."""

    RESET = "reset"
    HALF_CLOSE = "half-close"
    DISCONNECT = "DISCONNECT"
    DISCONNECT_WITH_WILL = "DISCONNECT 0x04"
    TAKEOVER = "takeover"
    UNNOTICED = "an end that the broker may not have noticed"


class Lifetime(Enum):
    """How long the session outlives that connection."""

    NONE = "no expiry"
    SHORT = "expiry of 3 s"
    LONG = "expiry of 60 s"
    OVER = "expiry of 1 s, which has passed"


_EXPIRY_S = {Lifetime.NONE: 0, Lifetime.SHORT: _SHORT_S, Lifetime.LONG: _LONG_S, Lifetime.OVER: 1}
_ENOUGH_S = 3.0
"""After this a broker that counts whole seconds, too, has ended a session of 1 s."""
_PROVES_RECEIPT = frozenset({Cut.DISCONNECT, Cut.DISCONNECT_WITH_WILL})
"""A broker that acts on DISCONNECT has received what came before it; after another end that is open."""


class Presence(Enum):
    """What the CONNACK on coming back must say of the session."""

    KEPT = "1"
    GONE = "0"
    EITHER = "0 or 1"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One cell of the matrix."""

    version: int
    cut: Cut
    lifetime: Lifetime
    clean_start: bool
    """How the client comes back: Clean Start in 5.0, Clean Session in 3.1.1."""

    @property
    def name(self) -> str:
        lasting = self.lifetime.value if self.version >= _V5 else f"clean session {int(self.lifetime is Lifetime.NONE)}"
        return f"{self.cut.value}, {lasting}, back with clean {int(self.clean_start)}"

    @property
    def surely_received(self) -> bool:
        """Whether the broker must have received all that was sent before the cut."""
        return self.cut in _PROVES_RECEIPT

    def presence(self, elapsed_s: float) -> Presence:
        """``elapsed_s`` is an upper bound of the time between the cut and the return.

        Where a connection whose session has no expiry is taken over with Clean Start 0, the standards differ: 3.1.1
        lets no other session reuse the state (3.1.2-6), in 5.0 the server may go on with the session or end it first.
        Where it may not have noticed the end, the client takes over the connection, or its session has expired.
        """
        if self.clean_start:
            return Presence.GONE
        match self.lifetime:
            case Lifetime.OVER:
                return Presence.EITHER if self.cut is Cut.UNNOTICED else Presence.GONE
            case Lifetime.NONE:
                is_taken = self.version >= _V5 and self.cut in (Cut.TAKEOVER, Cut.UNNOTICED)
                return Presence.EITHER if is_taken else Presence.GONE
            case Lifetime.SHORT:
                may_be_over = self.cut is not Cut.TAKEOVER and elapsed_s >= _SHORT_IS_SURE_S
                return Presence.EITHER if may_be_over else Presence.KEPT
            case Lifetime.LONG:
                return Presence.KEPT


def matrix(version: int) -> list[Plan]:
    """All cells: 30 in 5.0, 16 in 3.1.1, which has no 0x04 and no expiry in seconds."""
    five = version >= _V5
    without = (Cut.UNNOTICED,) if five else (Cut.UNNOTICED, Cut.DISCONNECT_WITH_WILL)
    cuts = [cut for cut in Cut if cut not in without]
    lifetimes = (Lifetime.NONE, Lifetime.SHORT, Lifetime.LONG) if five else (Lifetime.NONE, Lifetime.LONG)
    return [
        Plan(version=version, cut=cut, lifetime=lifetime, clean_start=clean)
        for cut, lifetime, clean in product(cuts, lifetimes, (False, True))
    ]


def expired() -> list[Plan]:
    """Sessions whose expiry passes while their client is away (5.0)."""
    cuts = (Cut.RESET, Cut.HALF_CLOSE, Cut.DISCONNECT, Cut.DISCONNECT_WITH_WILL)
    return [Plan(version=_V5, cut=cut, lifetime=Lifetime.OVER, clean_start=False) for cut in cuts]


class Cell:
    """One cell while it is walked: its client's connections, what was seen, and why it failed."""

    def __init__(self, ctx: CaseContext, plan: Plan, number: int) -> None:
        self.ctx, self.plan, self.number = ctx, plan, number
        self.topic = ctx.topic(f"cell/{number}")
        self.will_topic = ctx.topic(f"will/{number}")
        self.first: Connection
        self.back: Connection
        self.kept = False
        """The broker said that the session is present."""
        self.failure = ""
        self.incident: Incident | None = None
        """Why the cell could not be walked: a step that the matrix is not about."""

    def must(self, condition: bool, text: str) -> None:
        """Fail this cell alone."""
        if not condition:
            raise CaseFailureError(text)

    async def connect(self) -> None:
        """The first connection; its will tells when the broker has noticed a reset."""
        plan = self.plan
        will = Will(topic=self.will_topic, payload=b"gone") if plan.cut is Cut.RESET else None
        name = f"{self.number} first"
        if plan.version >= _V5:
            properties = Properties(session_expiry_interval=_EXPIRY_S[plan.lifetime])
            self.first = await self.ctx.connect(name=name, will=will, properties=properties)
        else:
            self.first = await self.ctx.connect(name=name, will=will, clean=plan.lifetime is Lifetime.NONE)

    async def cut(self) -> None:
        """End the first connection; a takeover comes with the second."""
        plan = self.plan
        match plan.cut:
            case Cut.RESET:
                self.first.abort()
            case Cut.HALF_CLOSE:
                self.first.end_stream()
                with contextlib.suppress(CaseFailureError):
                    while await self.first.receive("the end of the connection", within_s=_WILLS_WITHIN_S) is not None:
                        pass
                if not self.first.closed:
                    # Nothing says that a server must end its half, too: the client takes over what is left.
                    self.plan = msgspec.structs.replace(plan, cut=Cut.UNNOTICED)
            case Cut.DISCONNECT:
                await self.first.disconnect()
            case Cut.DISCONNECT_WITH_WILL:
                await self.first.disconnect(Disconnect(reason_code=_DISCONNECT_WITH_WILL))
            case Cut.TAKEOVER | Cut.UNNOTICED:
                pass

    async def come_back(self, watch: Stopwatch) -> None:
        """The second connection, whose CONNACK must say what became of the session."""
        plan = self.plan
        properties = Properties(session_expiry_interval=_LONG_S) if plan.version >= _V5 else Properties()
        self.back = await self.ctx.connect(
            client_id=self.first.client_id, clean=plan.clean_start, properties=properties, name=f"{self.number} back"
        )
        self.kept = self.back.connack.session_present
        wanted = plan.presence(watch.elapsed_s)
        seen = Presence.KEPT if self.kept else Presence.GONE
        rule = Rule.SESSION_NEW if self.kept else Rule.SESSION_KEPT
        text = f"expected Session Present {wanted.value}; seen {seen.value}"
        self.ctx.step(rule, wanted in (seen, Presence.EITHER), text)


_C = TypeVar("_C", bound=Cell)


async def each(cells: Sequence[_C], step: Callable[[_C], Awaitable[None]]) -> None:
    """Do a step in all cells that have not failed, at the same time."""

    async def one(cell: _C) -> None:
        try:
            await step(cell)
        except StepFailureError as error:
            cell.failure, cell.incident = str(error), error.incident
        except CaseFailureError as error:
            cell.failure = str(error)

    await asyncio.gather(*(one(cell) for cell in cells if not cell.failure))


async def cut_and_come_back(ctx: CaseContext, cells: Sequence[_C]) -> None:
    """Cut all cells off, wait until the broker knows (and sessions have expired), and let all clients come back."""
    watcher = await ctx.connect(name="watcher")
    resets = {cell.will_topic: cell for cell in cells if cell.plan.cut is Cut.RESET and not cell.failure}
    if resets:
        await watcher.subscribe(*resets)
    watch = Stopwatch()
    await each(cells, Cell.cut)
    for cell in await _unnoticed(watcher, resets):
        cell.plan = msgspec.structs.replace(cell.plan, cut=Cut.UNNOTICED)
    if any(cell.plan.lifetime is Lifetime.OVER for cell in cells):
        await pass_time(ctx, _ENOUGH_S)
    await each(cells, lambda cell: cell.come_back(watch))


async def _unnoticed(watcher: Connection, resets: dict[str, _C]) -> list[_C]:
    """The cells whose wills do not come soon, by ``will_topic``: their clients take over what the broker still holds.

    Whether a will comes, and when, is for other cases to judge.
    """
    waiting = dict(resets)
    while waiting:
        try:
            message = await watcher.receive(f"the wills of {len(waiting)} clients", within_s=_WILLS_WITHIN_S)
        except CaseFailureError:
            watcher.ctx.note(f"{len(waiting)} wills have not come: those clients take over their old connections")
            break
        if message is None:
            break
        if isinstance(message, Publish):
            waiting.pop(message.topic, None)
    return list(waiting.values())


def conclude(ctx: CaseContext, cells: Sequence[Cell]) -> None:
    """Fail if a cell has failed, with the names of all that have; those stopped by other steps count if all were."""
    failed = [cell for cell in cells if cell.failure]
    if decided := [cell for cell in failed if cell.incident is None]:
        failed = decided
    if failed:
        shown = "; ".join(f"[{cell.plan.name}] {cell.failure}" for cell in failed[:_SHOWN_FAILURES])
        more = f"; and {len(failed) - _SHOWN_FAILURES} cells more" if len(failed) > _SHOWN_FAILURES else ""
        text = f"{len(failed)} of {len(cells)} cells: {shown}{more}"
        if failed[0].incident is not None:
            raise StepFailureError(msgspec.structs.replace(failed[0].incident, text=text))
        ctx.fail(text)


async def subscribe_each(ctx: CaseContext, watcher: Connection, topics: Sequence[str], qos: int) -> None:
    """Subscribe one connection to the topics of all cells."""
    granted = await watcher.subscribe(*(Subscription(filter=topic, qos=qos) for topic in topics))
    if min(granted) < qos:
        ctx.unsupported(f"the broker grants QoS {min(granted)} where QoS {qos} is asked for")
