"""Whether a copy is of the message that was published, and what is wrong with it if it is not. Pure."""

from __future__ import annotations

from assay.conformance.explore.claims import Copy, Message, Objection, Subscription
from assay.conformance.explore.rules import Rule
from assay.conformance.explore.topics import matches
from assay.conformance.explore.wanted import MARGIN_S
from assay.conformance.wire import Publish

_HANDED_ON = ("payload_format_indicator", "content_type", "response_topic", "correlation_data", "user_property")


def is_alike(message: Message, copy: Copy) -> bool:
    """Of messages with one content, whether a copy may be of this one: a limit that the server sets is no finding."""
    limits = (message.properties.message_expiry_interval, copy.packet.properties.message_expiry_interval)
    differs = copy.version >= 5 and (limits[0] is None) is not (limits[1] is None)
    return not differs and copy.came_at <= message.expires_at + MARGIN_S and changed(message, copy) is None


def changed(message: Message, copy: Copy) -> Objection | None:
    """What a server did to the properties of a message that it must not; 3.1.1 has none."""
    before, after = message.properties, copy.packet.properties
    if copy.version < 5:
        return None
    for name in _HANDED_ON:
        sent, seen = getattr(before, name), getattr(after, name)
        if sent != seen and (sent or seen):
            return Rule.PROPERTIES, f"{name} was {sent!r}"
    interval_s, seen_s = before.message_expiry_interval, after.message_expiry_interval
    if interval_s is not None:
        # What is sent again when its time is over, since its delivery had begun, has none left.
        ages_s = [copy.came_at - at for at in (message.sent_at, *message.again_at)]
        if copy.sent_before is not None and copy.sent_before >= message.sent_at:
            ages_s.append(copy.sent_before - message.sent_at)
        lefts_s = [max(0.0, interval_s - age_s) for age_s in ages_s]
        if message.any_time:
            lefts_s = [float(min(seen_s or 0, interval_s))]
        if seen_s is None or not any(left - MARGIN_S <= seen_s <= min(interval_s, left + MARGIN_S) for left in lefts_s):
            expected = " or ".join(f"{left:.0f} s" for left in lefts_s)
            return Rule.EXPIRY_INTERVAL, f"expiry interval {seen_s}, expected about {expected}"
    return None


def is_kept_away(entry: Subscription, packet: Publish, known: list[Message], client: int) -> bool:
    """No Local must keep the client's own message away, and this looks as if it came by that subscription."""
    own = known[-1].publisher == client and not packet.retain
    seen = frozenset(packet.properties.subscription_identifier)
    return own and entry.no_local and matches(entry.filter, known[-1].topic) and entry.identifiers == seen


def objections_of(message: Message, copy: Copy) -> list[Objection | None]:
    """Of each slot of the client, that of the copy which must come first; None: it would fit, but there is no room."""
    return [slot.objection(copy) for slot in sorted(message.slots_of(copy.client), key=lambda slot: not slot.main)]
