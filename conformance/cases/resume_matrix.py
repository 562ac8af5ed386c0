"""What survives the end of a connection, state by state (3.1.1 and 5.0, sections 3.1.2, 4.1, 4.3 and 4.4).

Each case is there twice, once for each version, and walks a whole matrix: five ways to lose the connection (reset,
half-close, DISCONNECT, DISCONNECT 0x04, takeover), sessions that last not at all, briefly or long, and coming back with
and without a clean start. Where the last packet of the client may have been lost, both outcomes are right.
"""

from __future__ import annotations

from collections.abc import Callable

from assay.conformance.case import CaseContext, CaseFunction, case
from assay.conformance.cases import resume_deliveries as deliveries
from assay.conformance.cases import resume_publishes as publishes
from assay.conformance.cases.resume_cells import expired
from assay.conformance.cases.resume_deliveries import walk_deliveries
from assay.conformance.cases.resume_publishes import walk_publishes

_IN_311 = _IN_5 = ("4.4.0-1",)
"""What the server owes is what the cases are about; whether a session is there at all is a step on the way."""
_LIMIT_S = 8.0
_EXPIRY_LIMIT_S = 12.0


def _both_versions(
    slug: str,
    *,
    qos: int,
    in_311: tuple[str, ...],
    in_5: tuple[str, ...],
    mutant: str,
    near_miss: str,
    near_miss_5: str = "",
) -> Callable[[CaseFunction], CaseFunction]:
    def register(function: CaseFunction) -> CaseFunction:
        for spec, clauses in (("mqtt311", (*_IN_311, *in_311)), ("mqtt5", (*_IN_5, *in_5))):
            case(
                f"{spec}/resume/{slug}",
                clauses=tuple(f"MQTT-{clause}" for clause in clauses),
                requires=("persistent_sessions", f"qos{qos}"),
                mutant=mutant,
                near_miss=near_miss_5 if near_miss_5 and spec == "mqtt5" else near_miss,
                limit_s=_LIMIT_S,
            )(function)
        return function

    return register


@_both_versions(
    "qos1-delivery-without-puback",
    qos=1,
    in_311=("4.3.2-1", "3.3.1-1"),
    in_5=("4.3.2-3", "3.3.1-1"),
    mutant="takeover-forgets-open-deliveries",
    near_miss="reads-in-small-pieces",
    near_miss_5="takeover-goes-on-without-expiry",
)
async def qos1_received(ctx: CaseContext) -> None:
    """A QoS 1 delivery without PUBACK comes again, however the connection ended, if and only if the session lasts.

    In every cell a subscriber has received a message and not acknowledged it. A session that is kept brings PUBLISH
    with DUP 1 and the old identifier, once, and new messages under others; one that is not kept brings nothing.
    """
    await walk_deliveries(ctx, deliveries.QOS1_RECEIVED)


@_both_versions(
    "qos1-delivery-with-puback-sent",
    qos=1,
    in_311=("4.3.2-1",),
    in_5=("4.3.2-3",),
    mutant="acknowledged-before-disconnect-comes-again",
    near_miss="last-acknowledgements-lost-with-the-connection",
)
async def qos1_acknowledged(ctx: CaseContext) -> None:
    """A PUBACK that the server received ends the delivery for good.

    In every cell a subscriber sends PUBACK as its last packet but DISCONNECT. After DISCONNECT nothing comes again;
    after another end the PUBACK may have been lost, and the message may come once more with DUP 1.
    """
    await walk_deliveries(ctx, deliveries.QOS1_PUBACK_SENT)


@_both_versions(
    "qos2-delivery-unanswered",
    qos=2,
    in_311=("4.3.3-1", "3.3.1-1"),
    in_5=("4.3.3-3", "3.3.1-1"),
    mutant="disconnect-forgets-unanswered-qos2",
    near_miss="v3-one-packet-at-a-time",
)
async def qos2_received(ctx: CaseContext) -> None:
    """A QoS 2 delivery without PUBREC comes again as PUBLISH, if and only if the session lasts.

    In every cell a subscriber has received a message and not answered it. A session that is kept brings PUBLISH with
    DUP 1 and the old identifier, and the exchange can be finished; one that is not kept brings nothing.
    """
    await walk_deliveries(ctx, deliveries.QOS2_RECEIVED)


@_both_versions(
    "qos2-delivery-with-pubrec-sent",
    qos=2,
    in_311=("4.3.3-1",),
    in_5=("4.3.3-4", "4.3.3-6"),
    mutant="publish-again-after-pubrec",
    near_miss="last-acknowledgements-lost-with-the-connection",
)
async def qos2_pubrec_sent(ctx: CaseContext) -> None:
    """After a PUBREC that the server received, PUBREL is owed and PUBLISH is over.

    In every cell a subscriber answers a message by PUBREC and leaves without reading on. After DISCONNECT a session
    that is kept brings PUBREL; after another end the PUBREC may have been lost, and PUBLISH with DUP 1 is right too.
    """
    await walk_deliveries(ctx, deliveries.QOS2_PUBREC_SENT)


@_both_versions(
    "qos2-delivery-with-pubrel-read",
    qos=2,
    in_311=("4.3.3-1",),
    in_5=("4.3.3-5", "4.3.3-6"),
    mutant="owed-pubrel-survives-clean-start",
    near_miss="v3-one-packet-at-a-time",
    near_miss_5="takeover-goes-on-without-expiry",
)
async def qos2_pubrel_read(ctx: CaseContext) -> None:
    """A PUBREL without PUBCOMP is sent again, and never the PUBLISH, if and only if the session lasts.

    In every cell a subscriber has read PUBREL and not answered it. A session that is kept brings PUBREL with the old
    identifier; one that is not kept brings nothing.
    """
    await walk_deliveries(ctx, deliveries.QOS2_PUBREL_READ)


@_both_versions(
    "qos2-delivery-with-pubcomp-sent",
    qos=2,
    in_311=("4.3.3-1",),
    in_5=("4.3.3-5",),
    mutant="completed-before-disconnect-is-owed-again",
    near_miss="last-acknowledgements-lost-with-the-connection",
)
async def qos2_pubcomp_sent(ctx: CaseContext) -> None:
    """A PUBCOMP that the server received ends the delivery for good.

    In every cell a subscriber sends PUBCOMP as its last packet but DISCONNECT. After DISCONNECT nothing comes again;
    after another end the PUBCOMP may have been lost, and PUBREL may come once more.
    """
    await walk_deliveries(ctx, deliveries.QOS2_PUBCOMP_SENT)


@_both_versions(
    "qos1-publish-without-puback",
    qos=1,
    in_311=("4.3.2-2", "3.3.1-3"),
    in_5=("4.3.2-4", "4.3.2-5"),
    mutant="repeated-qos1-publish-unanswered",
    near_miss="v5-puback-0x00-without-subscribers",
)
async def qos1_sent(ctx: CaseContext) -> None:
    """A QoS 1 PUBLISH whose PUBACK was not read is acknowledged when it is repeated, and its identifier is free then.

    In every cell a publisher leaves before the PUBACK. With its session it repeats the message with DUP 1: it gets
    PUBACK, and a subscriber has one or two copies. A new message under the same identifier arrives once.
    """
    await walk_publishes(ctx, publishes.QOS1_SENT)


@_both_versions(
    "qos2-publish-without-pubrec",
    qos=2,
    in_311=("4.3.3-2",),
    in_5=("4.3.3-8", "4.3.3-10", "4.3.3-12"),
    mutant="received-qos2-kept-only-by-disconnect",
    near_miss="v3-qos-2-published-at-pubrel",
)
async def qos2_sent(ctx: CaseContext) -> None:
    """A QoS 2 PUBLISH whose PUBREC was not read may be repeated on the next connection, and arrives once.

    In every cell a publisher leaves before the PUBREC. With its session it repeats the message with DUP 1 and
    finishes the exchange: a subscriber has one copy. A new message under the same identifier arrives once, in every
    session.
    """
    await walk_publishes(ctx, publishes.QOS2_SENT)


@_both_versions(
    "qos2-publish-with-pubrec-read",
    qos=2,
    in_311=("4.3.3-2",),
    in_5=("4.3.3-10", "4.3.3-11", "4.3.3-12"),
    mutant="received-qos2-survives-clean-start",
    near_miss="v3-qos-2-published-at-pubrel",
)
async def qos2_pubrec_read(ctx: CaseContext) -> None:
    """A publisher that has PUBREC releases its message on the next connection, if its session lasts.

    In every cell a publisher leaves with the PUBREC. With its session it sends PUBREL and gets PUBCOMP: a subscriber
    has one copy. Without it, the identifier is free: a new message under it arrives once.
    """
    await walk_publishes(ctx, publishes.QOS2_PUBREC_READ)


@_both_versions(
    "qos2-publish-with-pubrel-sent",
    qos=2,
    in_311=("4.3.3-2",),
    in_5=("4.3.3-11", "4.3.3-12"),
    mutant="unknown-pubrel-ends-the-connection",
    near_miss="v5-pubcomp-0x00-for-unknown",
)
async def qos2_pubrel_sent(ctx: CaseContext) -> None:
    """A PUBREL may be repeated on the next connection, whether or not the server received it before.

    In every cell a publisher leaves before the PUBCOMP. With its session it repeats PUBREL and gets PUBCOMP, with 0x00
    or 0x92: a subscriber has one copy. A new message under the same identifier arrives once.
    """
    await walk_publishes(ctx, publishes.QOS2_PUBREL_SENT)


@case(
    "mqtt5/resume/deliveries-end-with-the-expiry",
    clauses=("MQTT-4.1.0-2", "MQTT-3.2.2-3", "MQTT-3.1.2-6"),
    requires=("persistent_sessions", "qos1", "qos2"),
    mutant="open-deliveries-survive-expiry",
    near_miss="half-closed-connections-go-on",
    limit_s=_EXPIRY_LIMIT_S,
)
async def deliveries_expire(ctx: CaseContext) -> None:
    """Once its session has expired, a server owes a client nothing, whatever the state of a delivery.

    Subscribers are cut off in every state of a QoS 1 or 2 delivery, by four ends of a connection. After 3 s, when
    their sessions of 1 s are over, they come back with Clean Start 0: nothing is sent again, nothing is subscribed.
    """
    await walk_deliveries(ctx, *deliveries.STATES, plans=expired())


@case(
    "mqtt5/resume/publishes-end-with-the-expiry",
    clauses=("MQTT-4.1.0-2", "MQTT-3.2.2-3", "MQTT-3.1.2-6", "MQTT-4.3.3-12"),
    requires=("persistent_sessions", "qos1", "qos2"),
    mutant="received-qos2-survives-expiry",
    near_miss="half-closed-connections-go-on",
    limit_s=_EXPIRY_LIMIT_S,
)
async def publishes_expire(ctx: CaseContext) -> None:
    """Once its session has expired, the identifiers of a client's begun publishes are free.

    Publishers are cut off in every state of a QoS 1 or 2 publish, by four ends of a connection. After 3 s, when their
    sessions of 1 s are over, they come back with Clean Start 0 and publish another message under the same identifier:
    it arrives once.
    """
    await walk_publishes(ctx, *publishes.STATES, plans=expired())
