"""The order of the fields of CONNECT (section 3.1.3 of both versions). The case is there once for each version."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.wire import Connect, Publish, Will, describe
from assay.conformance.wire.encode import binary, connect_flags, connect_raw, property_block, string

_NO_TEXT = b"\xff\xfe\xfd"
"""Bytes that are no UTF-8: fine as will payload, never as a user name."""


def _swapped(packet: Connect, username: str) -> bytes:
    """The CONNECT with its user name in front of the will."""
    assert packet.will is not None
    will = property_block(packet.will.properties) if packet.version >= 5 else b""
    will += string(packet.will.topic) + binary(packet.will.payload)
    payload = string(packet.client_id) + string(username) + will
    return connect_raw(packet, flags=connect_flags(packet) | 0x80, payload=payload)


@case(
    "mqtt311/connect/fields-are-read-in-their-order",
    clauses=("MQTT-3.1.3-1", "MQTT-3.1.4-1"),
    mutant="connect-fields-in-any-order",
    near_miss="v3-late-keep-alive",
)
@case(
    "mqtt5/connect/fields-are-read-in-their-order",
    clauses=("MQTT-3.1.3-1", "MQTT-3.1.4-1"),
    mutant="connect-fields-in-any-order",
    near_miss="v5-closes-silently",
)
async def field_order(ctx: CaseContext) -> None:
    """Client identifier, will and user name come in this order, and are read so.

    A CONNECT has its user name in front of the will, whose payload is no UTF-8. Read in the order of the standard, the
    will payload stands where the user name belongs and is no valid string, so the CONNECT is not accepted. A broker
    that does not look at the characters of a user name (other cases are about that) shows by the will which field it
    took for the topic. With the fields in their places, a will with the same payload is accepted, and published to its
    topic when the client is cut off.
    """
    topic, misread = ctx.topic("will"), ctx.topic("user")
    will = Will(topic=topic, payload=_NO_TEXT)
    packet = ctx.connect_packet(will=will, username=None, password=None)
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(topic, misread)
    swapped = await ctx.open(name="swapped")
    swapped.send_raw(_swapped(packet, misread))
    if await swapped.is_accepted():
        swapped.abort()
        message = await watcher.expect(Publish)
        read = f"swapped: expected the first text behind the client identifier as will topic; seen {describe(message)}"
        ctx.must(message.topic == misread, read)
    control = await ctx.connect(will=will, name="control")
    control.abort()
    await watcher.expect_publish(topic, _NO_TEXT)
