"""Bugs of rights that change: somebody or something goes on by what held before."""

from __future__ import annotations

from assay.conformance.mutants.amqp091 import Row, register_rewrites
from assay.reference_broker.mqtt.connections import login
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.sessions.access_review import AccessReview
from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker
from assay.reference_broker.mqtt.sessions.session import Session

_REWRITES: dict[str, Row] = {
    "access-changed-rules-spare-sessions-away": (
        "when rules change, sessions of clients that are gone are not looked at",
        AccessReview,
        "begin",
        "self._left.extend(session for session in sessions if session.connection is None)",
        "[setattr(each, 'reviewed', self.version) for each in sessions if each.connection is None]",
    ),
    "access-rules-of-a-start-spare-sessions": (
        "sessions of another life are not held against the rules of this one",
        AccessReview,
        "start",
        "self._left = deque(self._state.sessions.values())",
        "self._left = deque()",
    ),
    "access-changed-rules-spare-messages": (
        "what waits on topics that may not be read any more is sent all the same",
        Session,
        "drop_unreadable",
        "if any(not may_read(outgoing.message.topic) for outgoing in self.queued):",
        "if False:",
    ),
    "access-changed-rules-forget-what-is-released": (
        "when rules change, what is between PUBREC and PUBCOMP is dropped as well",
        Session,
        "drop_unreadable",
        "isinstance(in_flight, Released) or",
        "not self.finish(packet_id) if isinstance(in_flight, Released) else",
    ),
    "access-changed-rules-forget-what-was-sent": (
        "when rules change, what a connected client was sent is dropped as if it were to be sent again",
        AccessReview,
        "review",
        "session.drop_unreadable(may_read, resend=resend)",
        "session.drop_unreadable(may_read, resend=True)",
    ),
    "access-changed-rules-drop-shares": (
        "what a member of a share may not be sent any more is dropped",
        AccessReview,
        "review",
        "self._state.pass_on(moving, now)",
        "pass",
    ),
    "access-changed-rules-spare-wills": (
        "a will is sent though its client may not publish there any more",
        MqttBroker,
        "may_send_will",
        "return self.access is None or",
        "return True or",
    ),
    "access-plans-outlive-rules": (
        "a client that publishes goes on by the rules of its first publish",
        AccessReview,
        "go_on",
        "self._state.tree.invalidate_plans()",
        "pass",
    ),
    "access-grants-outlive-rules": (
        "a client that is connected publishes by the rules of its CONNECT",
        MqttConnection,
        "ask_again",
        "self.grants = None if access is None else access.grants(self.username, self.client_id)",
        "pass",
    ),
    "access-who-is-gone-stays": (
        "a client stays whose user is taken out",
        login,
        "may_stay",
        "return authenticator.user(connection.username) == connection.login",
        "return authenticator.user(connection.username) in (connection.login, None)",
    ),
    "access-logins-outlive-passwords": (
        "a client stays whose user has another password",
        login,
        "may_stay",
        "return authenticator.user(connection.username) == connection.login",
        "return authenticator.user(connection.username) is not None",
    ),
    "access-logins-under-way-outlive-users": (
        "a client that was logging in when users changed goes on",
        MqttConnection,
        "interrupt_login",
        "if self.phase in (Phase.VERIFYING, Phase.AUTHENTICATING):",
        "if self.phase is Phase.VERIFYING:",
    ),
    "access-tenants-keep-whom-they-lost": (
        "a client that belongs to another tenant stays",
        MqttBroker,
        "has_moved",
        "is not session.tenant",
        "is None",
    ),
}

register_rewrites(_REWRITES)
