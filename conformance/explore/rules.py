"""What a broker can be accused of, with the statements behind it in both versions."""

from __future__ import annotations

from enum import Enum
from typing import Protocol


class AnyRule(Protocol):
    """What :class:`Rule` is, and the rules of queues are."""

    @property
    def label(self) -> str: ...

    def clauses(self, version: int, /) -> tuple[str, ...]: ...


class StatedRule(Enum):
    """Kinds of findings, each with its name in files and the statements behind it, whatever the client's version."""

    def __init__(self, label: str, *stated: str) -> None:
        self.label, self.stated = label, stated

    def clauses(self, _version: int) -> tuple[str, ...]:
        """The statements that a broker broke."""
        return self.stated


class Rule(Enum):
    """A kind of finding: its name in files, the statements of 3.1.1, and those of 5.0 (section numbers have none)."""

    CONNACK = ("connack", ("MQTT-3.1.4-4",), ("MQTT-3.1.4-5",))
    SESSION_LOST = ("session-lost", ("MQTT-3.1.2-4", "MQTT-3.2.2-2"), ("MQTT-3.1.2-5", "MQTT-3.2.2-3"))
    SESSION_LEFT = ("session-left", ("MQTT-3.1.2-6", "MQTT-3.2.2-3"), ("MQTT-4.1.0-2", "MQTT-3.2.2-3"))
    SESSION_KEPT_AT_CLEAN = ("session-kept-at-clean", ("MQTT-3.2.2-1",), ("MQTT-3.1.2-4", "MQTT-3.2.2-2"))
    TAKEOVER = ("takeover-leaves-both", ("MQTT-3.1.4-2",), ("MQTT-3.1.4-3",))
    KEEP_ALIVE = ("keep-alive", ("MQTT-3.1.2-24",), ("MQTT-3.1.2-22",))
    ENDED = ("connection-ended", ("MQTT-4.8.0-1",), ("MQTT-4.13.1-1",))
    DIED = ("broker-died", ("MQTT-4.1.0-1",), ("MQTT-4.1.0-1",))
    MALFORMED = ("malformed", ("MQTT-4.8.0-1",), ("MQTT-4.13.1-1",))
    UNASKED = ("packet-unasked", ("MQTT-2.3.1-6", "MQTT-2.3.1-7"), ("MQTT-2.2.1-5", "MQTT-2.2.1-6"))
    SUBACK = ("suback", ("MQTT-3.8.4-1", "MQTT-3.8.4-5"), ("MQTT-3.8.4-1", "MQTT-3.8.4-6"))
    UNSUBACK = ("unsuback", ("MQTT-3.10.4-4", "MQTT-3.10.4-5"), ("MQTT-3.10.4-4", "MQTT-3.10.4-5"))
    FIGURES = ("figures", ("4.7.2",), ("4.7.2",))
    UNSUBACK_CODE = ("unsuback-code", (), ("MQTT-3.11.3-1", "MQTT-3.10.4-1"))
    PINGRESP = ("pingresp", ("MQTT-3.12.4-1",), ("MQTT-3.12.4-1",))
    PUBACK = ("puback", ("MQTT-4.3.2-2",), ("MQTT-4.3.2-4",))
    PUBREC = ("pubrec", ("MQTT-4.3.3-2",), ("MQTT-4.3.3-8",))
    PUBCOMP = ("pubcomp", ("MQTT-4.3.3-2",), ("MQTT-4.3.3-11",))
    PUBREL = ("pubrel", ("MQTT-4.3.3-1",), ("MQTT-4.3.3-4",))
    UNDELIVERED = ("undelivered", ("MQTT-3.3.5-1", "MQTT-4.5.0-1"), ("MQTT-4.5.0-1", "MQTT-3.3.4-2"))
    QUEUED_LOST = ("queued-message-lost", ("MQTT-3.1.2-5",), ("MQTT-3.1.2-23", "MQTT-4.5.0-1"))
    SHARE_UNDELIVERED = ("share-undelivered", ("4.8.2",), ("MQTT-4.5.0-1", "4.8.2"))
    SHARE_TWICE = ("share-delivered-twice", ("4.8.2",), ("4.8.2",))
    RETAINED_UNSENT = ("retained-unsent", ("MQTT-3.3.1-6", "MQTT-3.8.4-3"), ("MQTT-3.3.1-9", "MQTT-3.3.1-10"))
    RETAINED_UNWANTED = (
        "retained-unwanted",
        ("MQTT-3.3.1-10", "MQTT-3.3.1-12"),
        ("MQTT-3.3.1-10", "MQTT-3.3.1-11", "MQTT-3.3.1-6"),
    )
    RETAINED_STALE = ("retained-stale", ("MQTT-3.3.1-5", "MQTT-3.3.1-10"), ("MQTT-3.3.1-5", "MQTT-3.3.1-6"))
    RETAINED_FOR_SHARE = ("retained-for-share", ("4.8.2",), ("4.8.2",))
    WILL_UNSENT = ("will-unsent", ("MQTT-3.1.2-8",), ("MQTT-3.1.2-8",))
    WILL_UNWANTED = ("will-unwanted", ("MQTT-3.14.4-3", "MQTT-3.1.2-10"), ("MQTT-3.14.4-3", "MQTT-3.1.2-10"))
    WILL_EARLY = ("will-before-its-delay", ("MQTT-3.1.2-8",), ("MQTT-3.1.3-9", "MQTT-3.1.2-8"))
    UNKNOWN_MESSAGE = ("never-published", ("MQTT-3.3.5-1",), ("MQTT-4.7.3-4", "MQTT-3.3.2-1"))
    TOPIC = ("topic-changed", ("MQTT-4.7.3-4",), ("MQTT-4.7.3-4",))
    UNMATCHED = ("filter-does-not-match", ("MQTT-3.3.2-3",), ("MQTT-3.3.2-3",))
    DOLLAR = ("wildcard-matches-dollar", ("MQTT-4.7.2-1",), ("MQTT-4.7.2-1",))
    UNSUBSCRIBED = ("after-unsubscribe", ("MQTT-3.10.4-2",), ("MQTT-3.10.4-2",))
    NO_LOCAL = ("no-local", (), ("MQTT-3.8.3-3",))
    TOO_EARLY = ("published-before-the-subscription", ("MQTT-4.5.0-1",), ("MQTT-4.5.0-1",))
    DUPLICATE = ("delivered-twice", ("MQTT-3.3.5-1", "MQTT-4.3.3-1"), ("MQTT-3.3.4-2", "MQTT-4.3.3-2"))
    RESENT = ("resent-on-the-same-connection", (), ("MQTT-4.4.0-1",))
    QOS = ("qos", ("MQTT-3.8.4-6", "MQTT-3.3.5-1"), ("MQTT-3.8.4-8", "MQTT-3.3.4-2"))
    RETAIN_FLAG = ("retain-flag", ("MQTT-3.3.1-8", "MQTT-3.3.1-9"), ("MQTT-3.3.1-12", "MQTT-3.3.1-13"))
    RETAIN_FLAG_OF_RETAINED = ("retain-flag-of-retained", ("MQTT-3.3.1-8",), ("3.3.1.3",))
    IDENTIFIERS = ("subscription-identifiers", (), ("MQTT-3.3.4-3", "MQTT-3.3.4-4", "MQTT-3.3.4-5"))
    DUP = ("dup-flag", ("MQTT-3.3.1-1", "MQTT-3.3.1-3"), ("MQTT-3.3.1-1", "MQTT-3.3.1-3"))
    NOT_RESENT = ("unacknowledged-not-resent", ("MQTT-4.4.0-1",), ("MQTT-4.4.0-1",))
    RESENT_OTHERWISE = ("resent-with-a-difference", ("MQTT-4.4.0-1",), ("MQTT-4.4.0-1",))
    AFTER_PUBREC = ("publish-after-pubrec", ("MQTT-4.3.3-1",), ("MQTT-4.3.3-6",))
    PACKET_ID = ("packet-identifier-in-use", ("MQTT-2.3.1-4",), ("MQTT-2.2.1-4",))
    ORDER = ("order", ("MQTT-4.6.0-6",), ("MQTT-4.6.0-5",))
    RECEIVE_MAXIMUM = ("receive-maximum", (), ("MQTT-3.3.4-9", "MQTT-4.9.0-2"))
    MAXIMUM_PACKET_SIZE = ("maximum-packet-size", (), ("MQTT-3.1.2-24",))
    ALIAS = ("topic-alias", (), ("MQTT-3.1.2-26", "MQTT-3.1.2-27", "MQTT-3.3.2-11"))
    EXPIRED = ("expired", (), ("MQTT-3.3.2-5",))
    EXPIRY_INTERVAL = ("expiry-interval", (), ("MQTT-3.3.2-6",))
    PROPERTIES = (
        "properties-changed",
        (),
        ("MQTT-3.3.2-4", "MQTT-3.3.2-15", "MQTT-3.3.2-16", "MQTT-3.3.2-17", "MQTT-3.3.2-18", "MQTT-3.3.2-20"),
    )

    def __init__(self, label: str, of_311: tuple[str, ...], of_5: tuple[str, ...]) -> None:
        self.label, self.of_311, self.of_5 = label, of_311, of_5

    def clauses(self, version: int) -> tuple[str, ...]:
        """The statements that a broker broke towards a client of this version."""
        return self.of_5 if version >= 5 else self.of_311


class ViolationError(Exception):
    """What was seen lies outside of what the standards allow."""

    def __init__(
        self, rule: AnyRule, version: int, text: str, clauses: tuple[str, ...] = (), *, waited: bool = False
    ) -> None:
        """``clauses`` are those of the rule that fit, where only some do; ``waited``: something did not come."""
        super().__init__(text)
        self.rule, self.version, self.text, self.waited = rule, version, text, waited
        self.clauses = clauses or rule.clauses(version)

    @property
    def key(self) -> tuple[str, int]:
        """What makes two findings the same."""
        return self.rule.label, self.version
