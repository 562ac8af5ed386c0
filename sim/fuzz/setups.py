"""Broker configurations that a life can have: small limits, so that a few packets reach them."""

from __future__ import annotations

import msgspec

from assay.reference_broker.config import (
    AclConfig,
    AclRuleConfig,
    Amqp091Config,
    AuthConfig,
    BrokerConfig,
    Durability,
    LimitsConfig,
    MqttConfig,
    Permission,
    QueuesConfig,
    SessionsConfig,
    TransactionsConfig,
    UserConfig,
)

USER, PASSWORD = "ann", "secret"
_CREDENTIALS = (
    "4096$YS1maXhlZC1zYWx0LTE2Yg==$NfpKeDAjXKdO0Rl7K2RVaX9FiUCGb"
    "XjDArXQk1BFTEI=$cgllG+ZtVfvK1PbCfmdZYG/O53dUnxwczlCHN0a052U="
)
"""SCRAM-SHA-256 credentials of that password, with few iterations and a fixed salt."""
_HASH = "scrypt$2$1$1$612d66697865642d73616c742d313662$ac0ff3486bb144b1c4598ab40bcee878d0596ff834a3d41f75c8be2f90a14e1d"
"""Its scrypt hash, with a cost that only a fuzzer may have."""
_QUEUES = QueuesConfig(
    max_queues=6, defaults={"partitions": 2, "max_depth": 40, "max_message_bytes": 2_000, "max_in_flight": 8}
)
_SMALL = MqttConfig(
    max_packet_bytes=8_192,
    receive_maximum=16,
    max_inflight_out=16,
    topic_alias_maximum=8,
    max_queued_messages=30,
    max_queued_bytes=20_000,
    max_inflight_bytes=12_000,
    max_held_bytes=200_000,
    max_retained_messages=24,
    max_retained_bytes=30_000,
    max_filter_bytes=200_000,
    max_alias_bytes=4_000,
    max_partial_bytes=24_000,
    max_topic_levels=12,
    max_subscriptions_per_client=12,
    max_unread_bytes=262_144,
)


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of life."""

    config: BrokerConfig
    weight: int
    """Share of the lives."""
    with_disk: bool = False
    """The broker has a disk, which outlives restarts."""
    traced: bool = False
    """The broker writes its trace, which takes the general way past its fast ways."""


_LESSER = msgspec.structs.replace(
    _SMALL,
    maximum_qos=1,
    retain_available=False,
    wildcard_subscription_available=False,
    subscription_identifier_available=False,
    shared_subscription_available=False,
    topic_alias_maximum=0,
    max_keep_alive_s=60,
    max_session_expiry_s=120,
)
_USERS = AuthConfig(
    anonymous=True,
    users=(UserConfig(username=USER, password_hash=_HASH, scram_sha_256=_CREDENTIALS),),
)
_RULES = AclConfig(
    rules=(
        AclRuleConfig(topic="control/#", access=Permission.READWRITE),
        AclRuleConfig(topic="a/#", access=Permission.READWRITE),
        AclRuleConfig(topic="a/b/c", access=Permission.DENY),
        AclRuleConfig(topic="client/%c/#", access=Permission.READWRITE),
        AclRuleConfig(topic="user/%u/#", access=Permission.READWRITE, user=USER),
        AclRuleConfig(topic="#", access=Permission.READ),
    )
)
SETUPS: dict[str, Setup] = {
    "plain": Setup(config=BrokerConfig(mqtt=_SMALL, queues=_QUEUES), weight=5),
    "default": Setup(config=BrokerConfig(), weight=1),
    "traced": Setup(config=BrokerConfig(mqtt=_SMALL, queues=_QUEUES), weight=2, traced=True),
    "lesser": Setup(config=BrokerConfig(mqtt=_LESSER, queues=_QUEUES), weight=2),
    "users": Setup(config=BrokerConfig(mqtt=_SMALL, queues=_QUEUES, auth=_USERS, acl=_RULES), weight=2),
    "limited": Setup(
        config=BrokerConfig(
            mqtt=_SMALL,
            queues=_QUEUES,
            limits=LimitsConfig(publish_messages_per_s=40, publish_bytes_per_s=20_000, max_payload_bytes=600),
        ),
        weight=1,
    ),
    "disk": Setup(config=BrokerConfig(mqtt=_SMALL, queues=_QUEUES), weight=2, with_disk=True),
    "synced": Setup(
        config=BrokerConfig(mqtt=_SMALL, queues=_QUEUES, sessions=SessionsConfig(durability=Durability.FSYNC)),
        weight=2,
        with_disk=True,
    ),
}
"""Name -> setup."""

_AMQP = Amqp091Config(channel_max=6, frame_max_bytes=8_192, max_message_bytes=20_000, max_consumers=12)
_AMQP_QUEUES = QueuesConfig(
    max_queues=20,
    defaults={"partitions": 1},
    transactions=TransactionsConfig(max_messages=20, max_bytes=60_000),
)
_AMQP_RULES = AclConfig(
    rules=(
        AclRuleConfig(topic="$queue/control-3f1c9d72a6", access=Permission.READWRITE),
        AclRuleConfig(topic="$queue/q1", access=Permission.READWRITE),
        AclRuleConfig(topic="$queue/q2", access=Permission.READ),
        AclRuleConfig(topic="$exchange/e1", access=Permission.READWRITE),
        AclRuleConfig(topic="$exchange/e2", access=Permission.DENY),
        AclRuleConfig(topic="#", access=Permission.READWRITE, user=USER),
        AclRuleConfig(topic="a/#", access=Permission.READWRITE),
    )
)
AMQP_SETUPS: dict[str, Setup] = {
    "amqp-plain": Setup(config=BrokerConfig(mqtt=_SMALL, queues=_AMQP_QUEUES, amqp091=_AMQP), weight=5),
    "amqp-default": Setup(config=BrokerConfig(), weight=1),
    "amqp-traced": Setup(config=BrokerConfig(mqtt=_SMALL, queues=_AMQP_QUEUES, amqp091=_AMQP), weight=2, traced=True),
    "amqp-users": Setup(
        config=BrokerConfig(mqtt=_SMALL, queues=_AMQP_QUEUES, amqp091=_AMQP, auth=_USERS, acl=_AMQP_RULES), weight=2
    ),
    "amqp-disk": Setup(config=BrokerConfig(mqtt=_SMALL, queues=_AMQP_QUEUES, amqp091=_AMQP), weight=2, with_disk=True),
    "amqp-synced": Setup(
        config=BrokerConfig(
            mqtt=_SMALL, queues=_AMQP_QUEUES, amqp091=_AMQP, sessions=SessionsConfig(durability=Durability.FSYNC)
        ),
        weight=2,
        with_disk=True,
    ),
}
"""Those of lives over AMQP 0.9.1."""
