"""Which quirks make up which broker."""

from __future__ import annotations

from reference_broker.quirks.model import Profile

PROFILES = (
    Profile(
        name="mosquitto-2.0",
        what="Eclipse Mosquitto 2.0.11",
        quirks=(
            "pingreq-flags-ignored",
            "pingreq-body-ignored",
            "server-packets-ignored",
            "acknowledgement-flags-ignored",
            "qos-0-dup-taken",
            "authentication-data-alone",
            "takeover-in-silence",
            "takeover-loses-will",
            "disconnect-with-error-deletes-will",
            "undefined-disconnect-code-is-normal",
            "second-connect-loses-will",
            "will-delay-outlasts-connection",
            "subscription-identifier-ignored",
            "overrun-refused-by-pubrec",
            "second-repetition-refused",
            "fixed-header-not-counted",
            "too-large-holds-quota",
            "puback-brings-two",
            "expiry-ends-begun-qos-2",
            "malformed-share-granted",
            "shared-no-local-granted",
            "overlap-takes-first-filter",
        ),
    ),
    Profile(
        name="aedes-1.2",
        what="aedes 1.2.0",
        quirks=(
            "empty-id-keeps-session",
            "password-alone-taken",
            "trailing-fields-taken",
            "will-qos-3-taken",
            "unknown-level-unanswered",
            "ill-formed-text-taken",
            "identifier-0-taken",
            "unsubscribe-from-nothing-answered",
            "misplaced-wildcards-granted",
            "overlap-takes-hash-first",
            "qos-0-dup-taken",
            "resent-without-dup",
            "dup-passed-on",
            "session-needs-subscriptions",
        ),
    ),
)
