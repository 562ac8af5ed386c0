"""What the cases of killed brokers share: a declared promise, clients that come back, and taking what is delivered.

The standards leave it to the server what survives its own failure (3.1.1 4.1 and 5.0 4.1.1, both non-normative). So
these cases are for brokers whose target file declares ``persistence``, and judge the rules of the state by what is left
of it. All run together on one broker (:mod:`assay.conformance.cohort`): the more of them, the less each restart costs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from assay.conformance.case import CaseContext, CaseFunction, Level, case
from assay.conformance.connection import Connection
from assay.conformance.outcome import CaseFailureError
from assay.conformance.rules import Incident, Rule, StepFailureError
from assay.conformance.wire import NO_PROPERTIES, Packet, Properties, Puback, Publish, Will, describe

V5 = 5
LASTING_S = 600
_LIMIT_S = 10.0
_WINDOW = 10
SMALL_SEGMENTS: dict[str, Any] = {
    "queues": {
        "segment_bytes": 16_384,
        # Nothing may time out while one case waits for the others.
        "defaults": {"durability": "interval", "delivery_timeout_s": 3_600, "retry": {"initial_backoff_s": 0.01}},
    },
    "sessions": {"segment_bytes": 16_384},
}
"""Of a broker whose files are full, and are tidied up, within a case."""


def survives(
    slug: str,
    *,
    in_311: tuple[str, ...] = (),
    in_5: tuple[str, ...] = (),
    requires: tuple[str, ...] = (),
    mutant: str,
    kills: tuple[str, ...] = (),
    near_miss: str = "restart-record-by-record",
    level: Level = "MUST",
    together: bool = True,
    limit_s: float = _LIMIT_S,
) -> Callable[[CaseFunction], CaseFunction]:
    """Register a case for each version that has clauses. ``together`` not: it moves the clock too far."""

    def register(function: CaseFunction) -> CaseFunction:
        for spec, clauses in (("mqtt311", in_311), ("mqtt5", in_5)):
            if clauses:
                case(
                    f"{spec}/restart/{slug}",
                    clauses=tuple(f"MQTT-{clause}" for clause in clauses),
                    requires=("restart", "persistence", *requires),
                    mutant=mutant,
                    kills=kills,
                    near_miss=near_miss,
                    level=level,
                    together=together,
                    limit_s=limit_s,
                )(function)
        return function

    return register


def lasting(ctx: CaseContext, expiry_s: int = LASTING_S, receive_maximum: int | None = None) -> Properties:
    """Properties of a CONNECT whose session outlives its connection; 3.1.1 has none."""
    if ctx.case.version < V5:
        return NO_PROPERTIES
    return Properties(session_expiry_interval=expiry_s, receive_maximum=receive_maximum)


async def stay(
    ctx: CaseContext,
    name: str,
    *,
    will: Will | None = None,
    expiry_s: int = LASTING_S,
    receive_maximum: int | None = None,
) -> Connection:
    """A new client whose session lasts."""
    return await ctx.connect(name=name, clean=False, will=will, properties=lasting(ctx, expiry_s, receive_maximum))


async def come_back(
    ctx: CaseContext, before: Connection, *, name: str = "", will: Will | None = None, expiry_s: int = LASTING_S
) -> Connection:
    """The client connects again, without a clean start; that its session is there is a step that others are about."""
    back = await ctx.connect(
        client_id=before.client_id,
        clean=False,
        name=name or f"{before.name} again",
        will=will,
        properties=lasting(ctx, expiry_s),
    )
    rule = Rule.SESSION_KEPT if before.life == ctx.lives else Rule.SESSION_SURVIVES
    text = f"{back.name}: expected Session Present 1; seen {describe(back.connack)}"
    ctx.step(rule, back.connack.session_present, text)
    return back


@contextmanager
def a_step_of_restarts(ctx: CaseContext, rule: Rule, seen: Sized) -> Iterator[None]:
    """What fails here after a restart, with nothing ``seen`` at all, may be said by a plainer case."""
    try:
        yield
    except StepFailureError:
        raise
    except CaseFailureError as error:
        if seen or ctx.lives == 1:
            raise
        raise StepFailureError(Incident(rule=rule, text=str(error), soft=True)) from error


async def take(ctx: CaseContext, client: Connection, wanted: Collection[bytes], what: str) -> list[Publish]:
    """Acknowledge messages until those with the ``wanted`` payloads have come, and what a PINGREQ shows behind them.

    Any message that is not wanted, or comes a second time, fails the case.
    """
    found: list[Publish] = []
    missing = set(wanted)
    while missing:
        with a_step_of_restarts(ctx, Rule.MESSAGE_SURVIVES, found):
            packet = await client.receive(f"{what}: {len(missing)} of {len(wanted)} messages")
        found.append(await _taken(ctx, client, packet, missing, what))
    found += [await _taken(ctx, client, packet, missing, what) for packet in await client.barrier()]
    return found


async def _taken(
    ctx: CaseContext, client: Connection, packet: Packet | None, missing: set[bytes], what: str
) -> Publish:
    if not isinstance(packet, Publish) or packet.payload not in missing:
        ctx.fail(f"{client.name}: {what}: expected {_some(missing)}; seen {packet and describe(packet)}")
    missing.discard(packet.payload)
    await client.acknowledge(packet)
    return packet


def _some(payloads: Collection[bytes]) -> str:
    return ", ".join(repr(payload[:20]) for payload in sorted(payloads)[:5]) or "nothing more"


async def publish_all(ctx: CaseContext, publisher: Connection, messages: Iterable[Publish]) -> None:
    """Publish messages at QoS 1, as many at a time as any server takes without more words; each must be accepted."""
    waiting = list(messages)
    window = min(_WINDOW, publisher.connack.properties.receive_maximum or _WINDOW)
    for at in range(0, len(waiting), window):
        ids = [publisher.next_packet_id() for _ in waiting[at : at + window]]
        some = zip(waiting[at : at + window], ids, strict=True)
        publisher.send(*(replace(message, qos=1, packet_id=packet_id) for message, packet_id in some))
        answered: set[int] = set()
        while len(answered) < len(ids):
            puback = await publisher.expect(Puback)
            right = puback.packet_id in ids and puback.packet_id not in answered and puback.reason_code < 0x80
            ctx.must(right, f"{publisher.name}: expected a PUBACK for each of {ids}; seen {describe(puback)}")
            answered.add(puback.packet_id)


async def gone_for_good(ctx: CaseContext, client: Connection) -> None:
    """The client leaves by DISCONNECT, and the broker is killed behind it."""
    await client.disconnect()
    await ctx.restart()
