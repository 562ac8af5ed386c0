"""Slips where two or three states meet, each a few words of one function: for lives to find."""

from __future__ import annotations

from assay.conformance.mutants import Patch, mutant
from assay.reference_broker.core import filter_changes, routing
from assay.reference_broker.core.broker import Broker
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.connections.inbound import Inbound
from assay.reference_broker.mqtt.connections.outbound import Outbound
from assay.reference_broker.mqtt.sessions import session_restore
from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker
from assay.reference_broker.mqtt.sessions.retained import RetainedStore
from assay.reference_broker.mqtt.sessions.retained_sends import RetainedSends
from assay.reference_broker.mqtt.sessions.session import Session
from assay.reference_broker.mqtt.sessions.session_journal import KeptSession
from assay.reference_broker.routing.filter_tree import FilterTree


def _slip(name: str, what: str, owner: object, function: str, old: str, new: str) -> None:
    """In a function, one text stands for another."""

    def apply(patch: Patch) -> None:
        patch.rewrite(owner, function, old, new)  # type: ignore[arg-type]

    mutant(f"cross-{name}", what)(apply)


# -- restarts --------------------------------------------------------------------------------------------------------

_slip(
    "retain-as-published-of-qos-0-lost",
    "a subscription at QoS 0 has no Retain As Published after a restart",
    session_restore,
    "restored_subscription",
    "getattr(stored, name) for",
    "getattr(stored, name) if name != 'retain_as_published' or stored.qos else False for",
)
_slip(
    "will-delay-begins-anew",
    "the delay of a will begins anew with each start",
    session_restore.SessionRestore,
    "session",
    "head.disconnected_at or now",
    "now if head.will is not None else head.disconnected_at or now",
)
_slip(
    "released-identifiers-come-back",
    "that a QoS 2 publish was released is not written down: after a restart its identifier is taken",
    KeptSession,
    "collect_rest",
    "changes.append((self._inbound_key(packet_id), None))",
    "pass",
)
_slip(
    "retained-expiry-lost",
    "a retained message has no expiry any more after a restart",
    session_restore,
    "restored_message",
    '"properties": properties}',
    '"properties": properties, "expires_at": 0.0 if stored.retain else stored.expires_at}',
)
_slip(
    "removal-at-qos-0-not-written",
    "that a retained message was removed by a publish at QoS 0 is not written down",
    RetainedStore,
    "store",
    "        self.delete(message.topic)\n        return True",
    "        keep, self.on_change = self.on_change, self.on_change if message.qos else None\n"
    "        self.delete(message.topic)\n        self.on_change = keep\n        return True",
)
_slip(
    "retained-again-after-a-start",
    "who resumes after a restart is sent retained messages again",
    session_restore.SessionRestore,
    "session",
    "        if stored.retained_due:\n"
    "            session.retained = session.retained or RetainedSends()\n"
    "            session.retained.add(subscription, self._due[client_id, topic_filter])",
    "        if stored.retained_due or (not stored.retain_handling and not stored.share_name and stored.qos == 1):\n"
    "            session.retained = session.retained or RetainedSends()\n"
    "            session.retained.add(subscription, broker.retained.newest)",
)
_slip(
    "walk-of-an-unsubscribed-filter-goes-to-the-next",
    "what a filter that was left was still to bring comes in place of what the next one brings",
    RetainedSends,
    "cancel",
    "self.walk = self.ahead = None",
    "self.ahead = None",
)
_slip(
    "walk-of-a-replaced-subscription-is-the-first",
    "a subscription that is replaced while its retained messages are being sent brings the rest of them alone",
    RetainedSends,
    "add",
    "    self._waiting.setdefault(subscription.topic_filter, deque())",
    "    if subscription.topic_filter in self._waiting:\n        return\n"
    "    self._waiting.setdefault(subscription.topic_filter, deque())",
)
_slip(
    "walk-of-a-replaced-subscription-is-the-last",
    "a subscription that is replaced while its retained messages are being sent brings them again as the first one",
    RetainedSends,
    "add",
    "    self._waiting.setdefault(subscription.topic_filter, deque())",
    "    if subscription.topic_filter in self._waiting:\n"
    "        subscription = self._waiting[subscription.topic_filter][0][0]\n"
    "    self._waiting.setdefault(subscription.topic_filter, deque())",
)
_slip(
    "expiry-in-disconnect-not-written",
    "a session expiry that DISCONNECT names is forgotten by a restart, but of clients with a will",
    MqttBroker,
    "detach",
    "    self.write_down(session)",
    "    if session.will is not None:\n        self.write_down(session)",
)
_slip(
    "sent-from-the-queue-not-written",
    "that a message which waited was sent is not written down: after a restart it is new",
    KeptSession,
    "collect_in_flight",
    "        entry.packet_id = packet_id\n        self._progress(entry, changes)",
    "        entry.packet_id = packet_id",
)

# -- subscriptions ---------------------------------------------------------------------------------------------------

_slip(
    "identifiers-of-the-highest-qos-only",
    "of overlapping subscriptions only those at the highest QoS have their identifiers passed on",
    routing.RouteEntry,
    "__init__",
    "for subscription in subscriptions if subscription.identifier)",
    "for subscription in subscriptions if subscription.identifier and subscription.qos == self.qos)",
)
_slip(
    "leaving-one-share-leaves-all",
    "who leaves a share leaves all shares of that filter",
    routing.RouteNode,
    "remove",
    "        group.remove(subscriber)\n        if not group.members:\n            del self.groups[share_name]",
    "        for name, each in list(self.groups.items()):\n            each.remove(subscriber)\n"
    "            if not each.members:\n                del self.groups[name]",
)
_slip(
    "share-skips-its-publisher",
    "a share of which the publisher is a member does not get what it publishes",
    Broker,
    "fan_out",
    "        self.share(group, message)",
    "        if publisher not in group.members:\n            self.share(group, message)",
)
_slip(
    "dollar-retained-by-wildcards",
    "a leading wildcard brings what is retained below $",
    RetainedStore,
    "walk",
    "_Siblings.ALL if level is not self._root else _Siblings.BUT_DOLLAR",
    "_Siblings.ALL",
)
_slip(
    "plus-misses-empty-level",
    "+ does not match an empty level",
    FilterTree,
    "walk",
    'if (any_level := children.get("+")) is not None:',
    'if level and (any_level := children.get("+")) is not None:',
)
_slip(
    "plus-misses-empty-level-of-retained",
    "+ at the end of a filter does not bring what is retained on an empty level",
    RetainedStore,
    "walk",
    "            found = level.message\n        elif levels",
    '            found = level.message if level.name or levels[-1] != "+" else None\n        elif levels',
)
_slip(
    "parent-keeps-its-receivers",
    "who gets x is not found out anew when x/# comes or goes",
    filter_changes,
    "may_match",
    "            return True\n        if",
    "            return index < len(topic_levels)\n        if",
)

# -- what is under way -----------------------------------------------------------------------------------------------

_slip(
    "expiry-not-counted-down-when-resent",
    "what is sent again tells more of its expiry interval than is left",
    Outbound,
    "send_publish",
    "self._broker.now)",
    "self._broker.now - 60 * dup)",
)
_slip(
    "retain-lost-when-resent",
    "what is sent again has RETAIN 0",
    Session,
    "resend",
    "outgoing.retain, True",
    "False, True",
)
_slip(
    "one-more-at-resume",
    "one delivery more than Receive Maximum is sent again at once",
    Session,
    "resume",
    "room = self.receive_maximum -",
    "room = self.receive_maximum + 1 -",
)
_slip(
    "new-overtakes-what-waits",
    "a message overtakes those that wait for the window",
    Session,
    "deliver",
    "        and not self.queued\n",
    "",
)
_slip(
    "expired-sent-beside-others",
    "what has expired while it waited is sent while something is in flight",
    Session,
    "send_queued",
    "if expires_at and expires_at <= now:",
    "if expires_at and expires_at <= now and not self.in_flight:",
)
_slip(
    "alias-not-replaced",
    "a topic alias keeps the first topic that it was given",
    Inbound,
    "set_alias",
    "    if known == topic:",
    "    if known is not None:",
)

# -- wills and time --------------------------------------------------------------------------------------------------

_slip(
    "will-not-sent-at-the-end",
    "a will whose delay is longer than its session lives is not sent",
    MqttBroker,
    "end_session",
    "    self.send_will(session, now)",
    "    if session.will is None or not session.disconnected_at or session.will.delay_s < session.expiry_s:\n"
    "        self.send_will(session, now)",
)
_slip(
    "delayed-will-not-retained",
    "a will with a delay is not retained",
    MqttBroker,
    "send_will",
    "if message.retain and not self.config.mqtt.retain_available:",
    "if message.retain and will.delay_s:",
)
_slip(
    "will-of-earlier-connection-goes-on",
    "a client that is back with another will has the earlier one",
    MqttBroker,
    "connect",
    "session.will = request.will",
    "session.will = request.will if not present or request.will is None else session.will or request.will",
)
_slip(
    "keep-alive-of-two",
    "a silent client goes after 2.5 times its keep alive",
    MqttConnection,
    "check_keep_alive",
    "1.5 * self.keep_alive_s",
    "2.5 * self.keep_alive_s",
)
