"""What an MQTT 5.0 server does about what a client is not allowed to do."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import LASTING
from assay.conformance.connection import FIRST_FAILURE_CODE
from assay.conformance.wire import (
    Disconnect,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    describe,
)

_BAD_CREDENTIALS, _NOT_AUTHORIZED, _BANNED = 0x86, 0x87, 0x8A


@case(
    "mqtt5/connect/refused-user-gets-a-code-and-the-end",
    clauses=("MQTT-3.1.4-2", "MQTT-3.1.4-6", "MQTT-3.2.2-6", "MQTT-3.2.2-7"),
    requires=("refused_username",),
    mutant="v5-refused-user-stays-connected",
    near_miss="v5-closes-silently",
)
async def refused_user(ctx: CaseContext) -> None:
    """A user who is refused may be told so by CONNACK, and the connection ends.

    A CONNECT names a user that the target refuses, and a PUBLISH follows in the same write. The connection ends; a
    CONNACK before the end refuses, should say 0x86 or 0x87, and has Session Present 0. The message reaches nobody.
    """
    topic = ctx.topic()
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(topic)
    refused = await ctx.open(name="refused")
    name = str(ctx.capabilities["refused_username"])
    packet = ctx.connect_packet(username=name, password=b"wrong", clean=False, properties=LASTING)
    refused.send(packet, Publish(topic=topic, payload=b"smuggled"))
    code = await refused.expect_refusal()
    fitting = code in (_BAD_CREDENTIALS, _NOT_AUTHORIZED, _BANNED)
    ctx.should(fitting, f"refused: expected CONNACK 0x86 or 0x87; seen {code if code is None else hex(code)}")
    publisher = await ctx.connect(name="publisher")
    await ctx.expect_no_message(publisher, watcher)


@case(
    "mqtt5/qos/a-refusing-pubrec-frees-the-identifier",
    clauses=("MQTT-4.3.3-9",),
    requires=("forbidden_topic", "qos2"),
    mutant="v5-refused-identifier-kept",
    near_miss="v5-pubcomp-0x00-for-unknown",
)
async def refused_pubrec(ctx: CaseContext) -> None:
    """After a PUBREC of 0x80 or more, a PUBLISH under the same identifier is a new message.

    A QoS 2 PUBLISH to a topic that the target forbids is refused by PUBREC. Under the same identifier, without DUP, a
    PUBLISH to another topic follows: it gets PUBREC below 0x80, and after PUBREL its message is delivered.
    """
    topic = ctx.topic()
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(topic)
    connection = await ctx.connect(name="client")
    forbidden = str(ctx.capabilities["forbidden_topic"])
    connection.send(Publish(topic=forbidden, payload=b"forbidden", qos=2, packet_id=9))
    answer = await connection.receive("PUBREC with a code of 0x80 or more")
    if answer is None or isinstance(answer, Disconnect):
        ctx.unsupported("the server ends the connection of a client that publishes to the forbidden topic")
    if not isinstance(answer, Pubrec) or answer.reason_code < FIRST_FAILURE_CODE:
        ctx.unsupported(f"the server does not refuse by PUBREC: {describe(answer)}")
    connection.send(Publish(topic=topic, payload=b"new", qos=2, packet_id=9))
    accepted = await connection.expect(Pubrec)
    ctx.must(
        accepted.packet_id == 9 and accepted.reason_code < FIRST_FAILURE_CODE,
        f"client: expected PUBREC for a new message; seen {describe(accepted)}",
    )
    connection.send(Pubrel(packet_id=9))
    await connection.expect(Pubcomp)
    await watcher.expect_publish(topic, b"new")


@case(
    "mqtt5/publish/forbidden-publish-reaches-nobody",
    clauses=("MQTT-3.4.2-1", "MQTT-2.2.1-5"),
    requires=("forbidden_topic", "qos1"),
    mutant="v5-forbidden-publish-refused-with-0x95",
    near_miss="v5-no-reason-texts",
)
async def forbidden_publish(ctx: CaseContext) -> None:
    """A PUBLISH that the client may not make is refused by a code that PUBACK has.

    A QoS 1 PUBLISH to a topic that the target forbids gets a PUBACK with its identifier and a code that is defined
    for PUBACK (0x87 is the fitting one, but a server may hide the refusal behind a good code), or ends the connection.
    """
    connection = await ctx.connect()
    forbidden = str(ctx.capabilities["forbidden_topic"])
    connection.send(Publish(topic=forbidden, payload=b"forbidden", qos=1, packet_id=300))
    answer = await connection.receive("PUBACK or the end of the connection")
    if answer is None or isinstance(answer, Disconnect):
        return
    if not isinstance(answer, Puback):
        ctx.fail(f"expected PUBACK or the end of the connection; seen {describe(answer)}")
    ctx.must(answer.packet_id == 300, f"expected PUBACK for packet identifier 300; seen {describe(answer)}")


@case(
    "mqtt5/subscribe/a-refused-filter-keeps-its-place",
    clauses=("MQTT-3.8.4-6", "MQTT-3.9.3-1", "MQTT-3.9.3-2"),
    requires=("refused_topic",),
    mutant="refused-filters-left-out-of-suback",
    near_miss="v5-reason-texts-everywhere",
)
async def refused_filter(ctx: CaseContext) -> None:
    """SUBACK has a code for each filter, in order: a failure code for the refused one and a QoS for the others.

    A SUBSCRIBE has a filter that the target refuses between two that it grants. The granted ones work.
    """
    refused = str(ctx.capabilities["refused_topic"])
    filters = (ctx.topic("first"), refused, ctx.topic("last"))
    connection = await ctx.connect(properties=Properties(request_problem_information=1))
    connection.send(Subscribe(packet_id=5, subscriptions=tuple(Subscription(filter=name) for name in filters)))
    suback = await connection.expect(Suback)
    codes = suback.reason_codes
    ctx.must(
        len(codes) == 3 and codes[0] == codes[2] == 0 and codes[1] >= FIRST_FAILURE_CODE,
        f"expected the codes 0, a failure, 0; seen {describe(suback)}",
    )
    ctx.should(codes[1] == _NOT_AUTHORIZED, f"expected the code 0x87 for the refused filter; seen {describe(suback)}")
    for topic in (filters[0], filters[2]):
        await connection.publish(topic, b"granted")
        await connection.expect_publish(topic, b"granted")
