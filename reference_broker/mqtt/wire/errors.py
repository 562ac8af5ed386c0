"""Reason codes, and the error that a peer's violation becomes."""

from __future__ import annotations

from enum import IntEnum


class Reason(IntEnum):
    """MQTT 5.0 reason codes (section 2.4)."""

    SUCCESS = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


class ProtocolError(Exception):
    """The peer broke a rule: ``reason`` is the code to answer with, ``statement`` the id of the rule."""

    def __init__(self, text: str, statement: str, reason: Reason = Reason.PROTOCOL_ERROR) -> None:
        super().__init__(text)
        self.text = text
        self.statement = statement
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.text} [{self.statement}]"

    def forget_frames(self) -> None:
        """Let go of the calls that raised it: they hold the connection that holds this error."""
        self.__traceback__ = self.__cause__ = self.__context__ = None


class MalformedPacketError(ProtocolError):
    """The bytes are not a packet."""

    def __init__(self, text: str, statement: str) -> None:
        super().__init__(text, statement, Reason.MALFORMED_PACKET)


def rule_id(version: int, in_311: str, in_5: str) -> str:
    """The id of a rule in the version spoken: the two number differently, and reuse each other's ids."""
    return in_5 if version == 5 else in_311


def malformed(text: str, version: int, statement_311: str, statement_5: str) -> MalformedPacketError:
    """The error with the statement id of the version spoken."""
    return MalformedPacketError(text, rule_id(version, statement_311, statement_5))
