"""What a broker with queues can be accused of, with the requirements of docs/spec behind it."""

from __future__ import annotations

from assay.conformance.explore.rules import StatedRule


class QueueRule(StatedRule):
    """A kind of finding: its name in files, and the requirements; an accusation may name fewer or others that fit."""

    REFUSED = ("publish-refused", "Q-PUBLISH-1")
    UNANSWERED = ("request-unanswered", "Q-PUBLISH-2")
    FULL = ("limit-not-kept", "Q-LIMIT-01")
    LOST = ("message-lost", "Q-PUBLISH-1", "Q-DELIVER-2", "Q-PRIO-07")
    LOST_BY_RESTART = ("message-lost-by-a-restart", "Q-DURA-01", "Q-DURA-02", "Q-DURA-08")
    NOT_AGAIN = ("unsettled-message-lost", "Q-NACK-1", "Q-LIFE-02", "Q-LIFE-03")
    LETTER_LOST = ("dead-letter-lost", "Q-REJECT-1", "Q-RETRY-10")
    LETTER_UNWANTED = ("dead-letter-unwanted", "Q-RETRY-05", "Q-DLQ-09")
    LETTER_CHANGED = ("dead-letter-tells-otherwise", "Q-DLQ-01")
    UNKNOWN = ("never-published", "Q-ADDR-07", "Q-CONTROL-1")
    CHANGED = ("message-changed", "Q-ADDR-10")
    TOPIC = ("topic-changed", "Q-ADDR-02")
    UNWANTED = ("filter-does-not-match", "Q-ADDR-04")
    TELLS = ("delivery-without-its-properties", "Q-DELIVER-1")
    HELD = ("delivered-while-held", "Q-LIFE-01", "Q-LIFE-09", "Q-DELIVER-2")
    AGAIN = ("settled-message-comes-again", "Q-ACK-1", "Q-DURA-04")
    EARLY = ("before-its-time", "Q-RETRY-03")
    COUNT = ("delivery-count", "Q-LIFE-04")
    REDELIVERED = ("redelivered-flag", "Q-SETTLE-09")
    PRIORITY = ("priority-not-told", "Q-PRIO-10")
    EXPIRED = ("expired", "Q-LIMIT-07")
    EXPIRY_INTERVAL = ("expiry-interval", "Q-LIMIT-10")
    ORDER = ("order", "Q-DELIVER-3", "Q-PRIO-06")
    OVERTAKEN = ("overtakes-a-retry", "Q-ORDER-01", "Q-PRIO-08")
    CONSUMER_LIMIT = ("consumer-holds-too-much", "Q-SETTLE-13", "Q-SETTLE-18")
    GROUP_LIMIT = ("group-holds-too-much", "Q-SETTLE-14")
    SETTLEMENT_REFUSED = ("settlement-refused", "Q-ACK-1", "Q-SETTLE-01")
    SETTLEMENT_TAKEN = ("settlement-taken", "Q-LIFE-05", "Q-LIFE-06", "Q-LIFE-07")
    NOT_PENDING = ("not-pending-not-told", "Q-SETTLE-02")
    OPEN = ("open-transaction-shows", "Q-TXN-01", "Q-TXN-04")
    HALF = ("transaction-half-done", "Q-TXN-02", "Q-TXN-05", "Q-TXN-09")
    TRANSACTION = ("transaction-state", "Q-TXN-07", "Q-TXN-08")
    NUMBERED = ("numbered-message", "Q-IDEM-01", "Q-IDEM-05", "Q-IDEM-07")
    RECEIPT = ("receipt", "Q-SETTLE-10", "Q-SETTLE-12")
    PARTITION = ("partition", "Q-PART-01", "Q-ASSIGN-01")
    CLAIM = ("claim", "Q-GROUP-06", "Q-GROUP-07", "Q-GROUP-09")
    COMMIT = ("commit", "Q-CURSOR-07", "Q-CURSOR-08", "Q-CURSOR-09")
    CANCEL = ("cancel", "Q-DELAY-09", "Q-DELAY-10")
    TENANT = ("tenant", "Q-TENANT-02", "Q-TENANT-03")
    REQUEST = ("request-refused", "Q-ADMIN-01")
    FIGURES = ("figures", "Q-ADMIN-14")
    SUBSCRIBE = ("subscription-refused", "Q-ADDR-01")
