"""Which quirks make up which broker."""

from __future__ import annotations

from assay.reference_broker.quirks.model import Profile

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
            "qos-2-beyond-twenty-forgotten",
            "fixed-header-not-counted",
            "too-large-holds-quota",
            "puback-brings-two",
            "expiry-ends-begun-qos-2",
            "malformed-share-granted",
            "shared-no-local-granted",
            "overlap-takes-first-filter",
            "retain-as-published-kept",
        ),
        missing=(
            "Its silence in places where DISCONNECT should say why; what it lets through where the standard only "
            "recommends to refuse it (undefined reason codes in acknowledgements, lengths in more bytes than needed, "
            "Payload Format Indicator 2, response topics with wildcards); what a restart loses."
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
            "ill-formed-name-taken",
            "identifier-0-taken",
            "unsubscribe-from-nothing-answered",
            "misplaced-wildcards-granted",
            "overlap-takes-hash-first",
            "qos-0-dup-taken",
            "resent-without-dup",
            "dup-passed-on",
            "dup-passed-on-at-qos-0",
            "session-needs-subscriptions",
        ),
        missing=(
            "It speaks 3.1.1 alone; resends under new packet identifiers; a client "
            "that does not read delays the publishers."
        ),
    ),
    Profile(
        name="nats-2",
        what="NATS server 2.15.1 with its MQTT gateway",
        quirks=(
            "trailing-fields-taken",
            "spaces-refused",
            "misplaced-wildcards-granted",
            "identifiers-outlive-session",
            "takeover-loses-will",
        ),
        missing="It speaks 3.1.1 alone; resends after a time in place of at the next connection.",
    ),
    Profile(
        name="rabbitmq-3.10",
        what="RabbitMQ 3.10.8 with its MQTT plugin",
        quirks=(
            "connect-header-flags-ignored",
            "reserved-connect-flag-ignored",
            "second-connect-answered",
            "unknown-level-unanswered",
            "will-retain-alone-taken",
            "will-qos-3-taken",
            "ill-formed-text-taken",
            "pingreq-flags-ignored",
            "subscribe-flags-ignored",
            "disconnect-flags-ignored",
            "reserved-types-ignored",
            "server-packets-ignored",
            "connack-ignored",
            "empty-topic-taken",
            "wildcard-topic-taken",
            "identifier-0-taken",
            "qos-2-taken-as-1",
            "dup-passed-on",
            "subscription-options-masked",
            "subscribe-to-nothing-answered",
            "misplaced-wildcards-granted",
            "empty-filter-granted",
            "dollar-topics-shown",
            "resubscribe-keeps-qos",
            "retained-not-for-wildcards",
            "session-needs-qos-1",
            "takeover-loses-will",
        ),
        missing=(
            "It speaks 3.1.1 alone; drops clients that come back at once; sends messages twice after a change of QoS; "
            "takes lengths of more than four bytes; drops wills after some violations."
        ),
    ),
    Profile(
        name="amqtt-0.12",
        what="amqtt 0.12.1",
        quirks=(
            "opening-ignored",
            "trailing-fields-taken",
            "will-retain-alone-taken",
            "will-qos-3-taken",
            "ill-formed-text-taken",
            "ill-formed-name-taken",
            "connect-header-flags-ignored",
            "pingreq-flags-ignored",
            "acknowledgement-flags-ignored",
            "subscribe-flags-ignored",
            "disconnect-flags-ignored",
            "server-packets-ignored",
            "connack-ignored",
            "silence-tolerated",
            "takeover-keeps-both",
            "clean-session-kept",
            "offline-messages-lost",
            "in-flight-lost",
            "empty-topic-taken",
            "wildcard-topic-taken",
            "qos-3-publish-ignored",
            "identifier-0-taken",
            "delivered-at-granted-qos",
            "qos-3-granted",
            "subscribe-to-nothing-answered",
            "empty-filter-granted",
            "resubscribe-keeps-qos",
        ),
        missing=(
            "It speaks 3.1.1 alone; hands retained messages to clients that did not ask for them; forgets the state of "
            "incoming QoS 2; hangs on some malformed packets."
        ),
    ),
)
