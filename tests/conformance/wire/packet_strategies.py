"""Packets of every kind, with values at their extremes."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from assay.conformance import wire as w
from assay.conformance.wire.packets import PROPERTY_RULES, PropertyKind, PropertyRule
from tests.conformance.wire.both_codecs import V5, T

LONGEST = 65_535
WITH_PROPERTIES = [kind for kind in T if kind not in (T.PINGREQ, T.PINGRESP)]


# -- strategies ------------------------------------------------------------------------------------------------------


_LETTERS = st.characters(codec="utf-8", exclude_characters="\0")
TEXT = st.one_of(
    st.text(_LETTERS, max_size=20),
    st.sampled_from(
        ["", "x" * LONGEST, "ü" * (LONGEST // 2), "\ufeff", "\U0001f600" * 100, "$share/g/a/+", "\x01\x7f"]
    ),
)
TOPIC = TEXT.filter(lambda text: text != "" and not {"+", "#"} & set(text))
BINARY = st.binary(max_size=40) | st.sampled_from([b"", b"\xff" * LONGEST])
PAYLOAD = st.binary(max_size=200) | st.sampled_from([b"", b"p" * 16_380, b"p" * 70_000, b"p" * 2_200_000])
IDS = st.integers(1, 65_535) | st.sampled_from([1, 65_535])
_HIGHEST = {
    PropertyKind.BYTE: 255,
    PropertyKind.TWO_BYTES: 65_535,
    PropertyKind.FOUR_BYTES: 2**32 - 1,
    PropertyKind.VARINT: 268_435_455,
}


def bounds_of(rule: PropertyRule) -> tuple[int, int]:
    return rule.lowest, _HIGHEST[rule.kind] if rule.highest is None else rule.highest


def values_of(rule: PropertyRule) -> st.SearchStrategy[object]:
    match rule.kind:
        case PropertyKind.STRING:
            return TEXT
        case PropertyKind.BINARY:
            return BINARY
        case PropertyKind.STRING_PAIR:
            return st.tuples(TEXT, TEXT)
    return st.integers(*bounds_of(rule)) | st.sampled_from(bounds_of(rule))


def extremes_of(rule: PropertyRule) -> list[object]:
    match rule.kind:
        case PropertyKind.STRING:
            return ["", "a", "x" * LONGEST, "\U0001f600"]
        case PropertyKind.BINARY:
            return [b"", b"\0", b"\xff" * LONGEST]
        case PropertyKind.STRING_PAIR:
            return [("", ""), ("k", ""), ("", "v"), ("k" * LONGEST, "v" * LONGEST)]
    return list(bounds_of(rule))


def rules_of(kind: w.PacketType, *, in_will: bool = False) -> list[PropertyRule]:
    return [rule for rule in PROPERTY_RULES.values() if (rule.in_will if in_will else kind in rule.packets)]


def single(rule: PropertyRule, value: object) -> dict[str, object]:
    """A property by itself, with the method that authentication data needs."""
    found: dict[str, object] = {rule.name: (value,) if rule.many else value}
    return {"authentication_method": "m", **found} if rule.name == "authentication_data" else found


@st.composite
def property_sets(draw: st.DrawFn, kind: w.PacketType, *, in_will: bool = False) -> w.Properties:
    found: dict[str, object] = {}
    for rule in draw(st.lists(st.sampled_from(rules_of(kind, in_will=in_will)), unique_by=id, max_size=6)):
        if rule.name == "subscription_identifier" and kind is T.SUBSCRIBE:
            found[rule.name] = (draw(values_of(rule)),)
        elif rule.many:
            found[rule.name] = tuple(draw(st.lists(values_of(rule), min_size=1, max_size=4)))
        else:
            found[rule.name] = draw(values_of(rule))
    if "authentication_data" in found:
        found.setdefault("authentication_method", draw(TEXT))
    return msgspec.convert(found, w.Properties)


ACKNOWLEDGEMENTS = (w.Puback, w.Pubrec, w.Pubrel, w.Pubcomp)
CODES: dict[w.PacketType, list[int]] = {
    T.CONNACK: [0, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F],
    T.PUBACK: [0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99],
    T.PUBREC: [0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99],
    T.PUBREL: [0, 0x92],
    T.PUBCOMP: [0, 0x92],
    T.SUBACK: [0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2],
    T.UNSUBACK: [0, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91],
    T.DISCONNECT: [0, 4, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, *range(0x8D, 0x91), *range(0x93, 0xA3)],
    T.AUTH: [0, 0x18, 0x19],
}
"""Reason codes as the tables of 5.0 list them packet by packet (3.2.2.2, 3.4.2.1 ... 3.15.2.1)."""
CODES_311 = {T.CONNACK: [0, 1, 2, 3, 4, 5], T.SUBACK: [0, 1, 2, 0x80]}


def codes_of(kind: w.PacketType, version: int) -> st.SearchStrategy[int]:
    return st.sampled_from((CODES if version == V5 else CODES_311).get(kind, [0]))


def optional_properties(kind: w.PacketType, version: int, *, in_will: bool = False) -> st.SearchStrategy[w.Properties]:
    return property_sets(kind, in_will=in_will) if version == V5 else st.just(w.NO_PROPERTIES)


@st.composite
def connects(draw: st.DrawFn, version: int) -> w.Packet:
    wills = st.builds(
        w.Will,
        topic=TEXT,
        payload=BINARY,
        qos=st.integers(0, 2),
        retain=st.booleans(),
        properties=optional_properties(T.PUBLISH, version, in_will=True),
    )
    username = draw(st.none() | TEXT)
    may_have_password = version == V5 or username is not None
    return w.Connect(
        version=version,
        client_id=draw(TEXT),
        clean=draw(st.booleans()),
        keep_alive_s=draw(st.integers(0, 65_535)),
        will=draw(st.none() | wills),
        username=username,
        password=draw(st.none() | BINARY) if may_have_password else None,
        properties=draw(optional_properties(T.CONNECT, version)),
    )


@st.composite
def publishes(draw: st.DrawFn, version: int) -> w.Publish:
    qos = draw(st.integers(0, 2))
    properties = draw(optional_properties(T.PUBLISH, version))
    return w.Publish(
        topic=draw(TOPIC if properties.topic_alias is None else TOPIC | st.just("")),
        payload=draw(PAYLOAD),
        qos=qos,
        packet_id=draw(IDS) if qos else 0,
        retain=draw(st.booleans()),
        dup=bool(qos) and draw(st.booleans()),
        properties=properties,
    )


@st.composite
def others(draw: st.DrawFn, version: int) -> w.Packet:
    """Every packet but CONNECT and PUBLISH."""
    five = version == V5
    kind = draw(st.sampled_from([T(number) for number in (2, *range(4, 15 + five))]))
    if kind in (T.PINGREQ, T.PINGRESP):
        return w.Pingreq() if kind is T.PINGREQ else w.Pingresp()
    properties = draw(optional_properties(kind, version))
    code, packet_id = draw(codes_of(kind, version)), draw(IDS)
    if kind is T.CONNACK:
        present = code == 0 and draw(st.booleans())
        return w.Connack(session_present=present, reason_code=code, properties=properties)
    if kind is T.SUBSCRIBE:
        options: dict[str, st.SearchStrategy[object]] = {"filter": TEXT, "qos": st.integers(0, 2)}
        if five:
            flags = dict.fromkeys(("no_local", "retain_as_published"), st.booleans())
            options |= flags | {"retain_handling": st.integers(0, 2)}
        entries = tuple(draw(st.lists(st.builds(w.Subscription, **options), min_size=1, max_size=4)))
        return w.Subscribe(packet_id=packet_id, subscriptions=entries, properties=properties)
    if kind is T.UNSUBSCRIBE:
        filters = tuple(draw(st.lists(TEXT, min_size=1, max_size=4)))
        return w.Unsubscribe(packet_id=packet_id, filters=filters, properties=properties)
    if kind in (T.SUBACK, T.UNSUBACK):
        codes = tuple(draw(st.lists(codes_of(kind, version), min_size=1, max_size=4)))
        if kind is T.SUBACK:
            return w.Suback(packet_id=packet_id, reason_codes=codes, properties=properties)
        return w.Unsuback(packet_id=packet_id, reason_codes=codes if five else (), properties=properties)
    if kind is T.DISCONNECT:
        return w.Disconnect(reason_code=code, properties=properties)
    if kind is T.AUTH:
        return w.Auth(reason_code=code, properties=properties)
    acknowledgement = next(entry for entry in ACKNOWLEDGEMENTS if entry.type is kind)
    return acknowledgement(packet_id=packet_id, reason_code=code, properties=properties)


def packets(version: int) -> st.SearchStrategy[w.Packet]:
    return st.one_of(connects(version), publishes(version), others(version), others(version))
