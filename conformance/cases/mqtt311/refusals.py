"""What an MQTT 3.1.1 server does about what it does not allow, with the few words that this version has."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import qos_levels
from assay.conformance.outcome import CaseFailureError
from assay.conformance.wire import (
    Connack,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Will,
    describe,
)
from assay.conformance.wire.encode import connect_flags, connect_raw

_BAD_CREDENTIALS, _NOT_AUTHORIZED = 4, 5
_FAILURE = 0x80


@case(
    "mqtt311/connect/no-connack-where-no-code-fits",
    clauses=("MQTT-3.2.2-6", "MQTT-3.1.4-1"),
    mutant="v3-refusal-code-outside-the-table",
    near_miss="v3-refuses-names-with-code-1",
)
async def no_fitting_code(ctx: CaseContext) -> None:
    """When no return code fits, the server closes without a CONNACK.

    Three CONNECTs are not built as they must be: the reserved flag is set, the will QoS is 3, the will flag has no
    will. None of the return codes is about that, so that the connection just ends. (That a broker accepts one of them
    is judged by other cases.)
    """
    plain = ctx.connect_packet()
    with_will = ctx.connect_packet(will=Will(topic=ctx.topic("will"), payload=b"w"))
    refused = False
    for name, data in (
        ("reserved flag", connect_raw(plain, flags=connect_flags(plain) | 0x01)),
        ("will qos 3", connect_raw(with_will, flags=connect_flags(with_will) | 0x18)),
        ("no will", connect_raw(plain, flags=connect_flags(plain) | 0x04)),
    ):
        connection = await ctx.open(name=name)
        connection.send_raw(data)
        first = await connection.receive("the end of the connection")
        if not (isinstance(first, Connack) and first.reason_code == 0):
            refused = True
            ctx.must(first is None, f"{name}: expected the end without a CONNACK; seen {first and describe(first)}")
    if not refused:
        ctx.unsupported("the broker refuses none of the CONNECTs that it must refuse")


@case(
    "mqtt311/connect/refused-user-gets-a-code-and-the-end",
    clauses=("MQTT-3.2.2-4", "MQTT-3.2.2-5", "MQTT-3.1.4-5"),
    requires=("refused_username",),
    mutant="v3-refused-user-stays-connected",
    near_miss="v3-user-refused-with-code-5",
)
async def refused_user(ctx: CaseContext) -> None:
    """A user who is refused is told so by CONNACK 4 or 5, and the connection ends.

    A CONNECT names a user that the target refuses, and a PUBLISH follows in the same write. The CONNACK has Session
    Present 0; the connection ends, and the message reaches nobody.
    """
    topic = ctx.topic()
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(topic)
    refused = await ctx.open(name="refused")
    packet = ctx.connect_packet(username=str(ctx.capabilities["refused_username"]), password=b"wrong")
    refused.send(packet, Publish(topic=topic, payload=b"smuggled"))
    code = await refused.expect_refusal(_BAD_CREDENTIALS, _NOT_AUTHORIZED)
    ctx.should(code is not None, "refused: expected CONNACK with code 4 or 5; the connection just ended")
    publisher = await ctx.connect(name="publisher")
    await ctx.expect_no_message(publisher, watcher)


@case(
    "mqtt311/publish/forbidden-publish-is-acknowledged-or-ends-the-connection",
    clauses=("MQTT-3.3.5-2",),
    requires=("forbidden_topic",),
    mutant="v3-forbidden-publish-unanswered",
    near_miss="v3-forbidden-publish-acknowledged",
)
async def forbidden_publish(ctx: CaseContext) -> None:
    """A PUBLISH that the client may not make is acknowledged like a good one, or the connection is closed.

    The client publishes to a topic that the target forbids, at each QoS. At QoS 0 the connection goes on or ends; at
    QoS 1 the PUBACK comes, at QoS 2 the whole exchange, or the connection ends. It does not go on without an answer.
    """
    topic = str(ctx.capabilities["forbidden_topic"])
    for qos in qos_levels(ctx):
        connection = await ctx.connect(name=f"qos {qos}")
        packet_id = connection.next_packet_id() if qos else 0
        connection.send(Publish(topic=topic, payload=b"forbidden", qos=qos, packet_id=packet_id))
        try:
            before = await connection.barrier()
            if qos == 2:
                connection.send(Pubrel(packet_id=packet_id))
                before += await connection.barrier()
        except CaseFailureError:
            ctx.must(connection.closed, f"{connection.name}: the server answers nothing, and keeps the connection")
            continue
        wanted = {0: (), 1: (Puback,), 2: (Pubrec, Pubcomp)}[qos]
        ctx.must(
            tuple(type(packet) for packet in before) == wanted,
            f"{connection.name}: expected the acknowledgement of a good PUBLISH or the end; "
            f"seen {'; '.join(map(describe, before)) or 'neither'}",
        )


@case(
    "mqtt311/subscribe/a-refused-filter-keeps-its-place",
    clauses=("MQTT-3.8.4-5", "MQTT-3.9.3-1", "MQTT-3.9.3-2"),
    requires=("refused_topic",),
    mutant="refused-filters-left-out-of-suback",
    near_miss="v3-one-packet-at-a-time",
)
async def refused_filter(ctx: CaseContext) -> None:
    """SUBACK has a code for each filter, in order: 0x80 for the refused one and a QoS for the others.

    A SUBSCRIBE has a filter that the target refuses between two that it grants. The granted ones work.
    """
    refused = str(ctx.capabilities["refused_topic"])
    filters = (ctx.topic("first"), refused, ctx.topic("last"))
    connection = await ctx.connect()
    connection.send(Subscribe(packet_id=5, subscriptions=tuple(Subscription(filter=name) for name in filters)))
    suback = await connection.expect(Suback)
    ctx.must(suback.reason_codes == (0, _FAILURE, 0), f"expected the codes 0, 128, 0; seen {describe(suback)}")
    for topic in (filters[0], filters[2]):
        await connection.publish(topic, b"granted")
        await connection.expect_publish(topic, b"granted")


@case(
    "mqtt311/session/state-lasts-as-long-as-the-connection",
    clauses=("MQTT-4.1.0-2", "MQTT-3.1.2-6"),
    requires=("qos2",),
    mutant="v3-clean-sessions-swept-while-connected",
    near_miss="v3-one-packet-at-a-time",
)
async def lasting_state(ctx: CaseContext) -> None:
    """The state of a session is kept for as long as the client is connected, also with Clean Session 1.

    A client with Clean Session 1 subscribes, and begins a QoS 2 PUBLISH. Others connect and leave, one of them with a
    session of its own. Then the client repeats its PUBLISH: it is not published again, its exchange is completed, and
    the subscription still works.
    """
    topic = ctx.topic()
    connection = await ctx.connect(name="client", clean=True)
    await connection.subscribe(topic)
    connection.send(Publish(topic=topic, payload=b"once", qos=2, packet_id=7))
    await connection.expect(Pubrec, skipping=(Publish,))
    for clean in (True, False):
        visitor = await ctx.connect(name=f"visitor {clean:d}", clean=clean)
        await visitor.disconnect()
    connection.send(Publish(topic=topic, payload=b"once", qos=2, packet_id=7, dup=True))
    await connection.expect(Pubrec, skipping=(Publish,))
    connection.send(Pubrel(packet_id=7))
    await connection.expect(Pubcomp, skipping=(Publish,))
    await connection.publish(topic, b"after", qos=2)  # 4.6.0-6 orders messages of one QoS
    await connection.expect_publish(topic, b"once")
    await connection.expect_publish(topic, b"after")
    await connection.expect_nothing()


@case(
    "mqtt311/connect/nothing-beyond-the-standard-is-needed",
    clauses=("MQTT-7.0.0-2",),
    mutant="v3-vendor-prefix-needed",
    near_miss="v3-grants-at-most-qos-1",
)
async def bare_client(ctx: CaseContext) -> None:
    """A client that knows the standard and nothing else can do all that a client does.

    The barest client there can be: a client identifier of letters and digits that no agreement has fixed, no will,
    no topic with a meaning of its own. It connects, subscribes, publishes to itself at every QoS that the server
    takes, pings, unsubscribes and disconnects. Every step is answered as the standard says.
    """
    connection = await ctx.open()
    connection.send(ctx.connect_packet(client_id=ctx.client_id(), keep_alive_s=0))
    connack = await connection.expect(Connack)
    ctx.must(connack.reason_code == 0, f"expected to be accepted; seen {describe(connack)}")
    topic = ctx.topic()
    await connection.subscribe(topic, qos=max(qos_levels(ctx)))
    for qos in qos_levels(ctx):
        await connection.publish(topic, b"%d" % qos, qos=qos)
        await connection.expect_publish(topic, b"%d" % qos)
    await connection.expect_nothing()
    await connection.unsubscribe(topic)
    await connection.publish(topic, b"not for me")
    await connection.expect_nothing()
    await connection.disconnect()
