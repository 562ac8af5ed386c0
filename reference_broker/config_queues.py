"""The configuration of the durable queues: defaults, limits, retry, retention, and the queues to begin with."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec

from assay.reference_broker.config_mqtt import Section
from assay.reference_broker.config_numbers import Count, Positive, Range
from assay.reference_broker.config_schemas import SchemaCheckConfig
from assay.reference_broker.config_tenants import TenantConfig
from assay.reference_broker.config_webhooks import webhook_problem

MIN_SEGMENT_BYTES = 4_096
MAX_PRIORITY_LEVELS = 256


class Durability(StrEnum):
    """When a queued message is confirmed to its publisher."""

    MEMORY = "memory"
    """At once; nothing is written to disk."""
    INTERVAL = "interval"
    """After the write; synced every ``sync_interval_s``. Survives kill -9, not power loss."""
    FSYNC = "fsync"
    """After a sync that covers it (group commit). Survives power loss."""


class Compression(StrEnum):
    """How the records of a batch are stored; what does not get smaller stays as it is."""

    NONE = "none"
    S2 = "s2"
    """Fastest to read; written as Snappy."""
    ZSTD = "zstd"
    """Smallest."""


class Ordering(StrEnum):
    NONE = "none"
    PLACE = "place"
    """All consumers of a group share all messages; what comes back at once takes its old place among them."""
    PARTITION = "partition"
    """A retried message holds back the later ones of its partition."""
    STRICT = "strict"
    """Likewise, and the queue has one partition, whatever is configured."""


class Profile(StrEnum):
    """A set of queue defaults: the seeds' systems (decisions.md)."""

    FLUXMQ = "fluxmq"
    GOQUEUE = "goqueue"
    INPROC = "inproc"
    """As an in-process broker: in memory, no time to live, at most three retries at once, no dead letters."""


class AdminTopics(StrEnum):
    """Whether queues are administered over ``$admin/queue/...``."""

    AUTO = "auto"
    """For clients that an access rule allows it to; without access rules, for those on loopback."""
    OFF = "off"


class Overflow(StrEnum):
    """What becomes of a publish to a queue that is full."""

    REJECT = "reject"
    DROP_OLDEST = "drop_oldest"
    """The oldest message that nobody was given makes room; where there is none, the publish is refused."""
    DEAD_LETTER_OLDEST = "dead_letter_oldest"
    """Likewise, and it goes to the dead-letter queue."""
    REJECT_TO_DEAD_LETTERS = "reject_to_dead_letters"
    """The publish is refused, and its message goes to the dead-letter queue."""

    @property
    def drops(self) -> bool:
        """Older messages make room."""
        return self in (Overflow.DROP_OLDEST, Overflow.DEAD_LETTER_OLDEST)


class LimitScope(StrEnum):
    """Which messages ``max_depth`` and ``max_bytes`` count."""

    UNSETTLED = "unsettled"
    """All that the slowest group has not settled."""
    READY = "ready"
    """Those among them that are with no consumer, and that none has room for. What comes back counts again."""


class RetryConfig(Section, frozen=True, kw_only=True):
    """Retry of failed deliveries: wait ``initial_backoff_s * multiplier ** (n - 1)``, capped."""

    max_retries: int = 10
    """Redeliveries after the first delivery; the next failure dead-letters."""
    initial_backoff_s: float = 5.0
    max_backoff_s: float = 300.0
    multiplier: float = 2.0
    total_timeout_s: float = 10_800.0
    """Age at which a failing message is dead-lettered whatever its count; 0 = never."""
    nack_immediately: bool = True
    """A nacked message is ready at once; otherwise it waits like a timed-out one."""


class RetentionConfig(Section, frozen=True, kw_only=True):
    """How much each partition of a queue keeps, in whole segments, oldest deleted first; 0 = no limit.

    What every group has settled is deleted anyway. The limits bound what is kept for groups to come, and with
    ``past_groups`` also what slow groups have not settled yet.
    """

    max_bytes: int = 0
    max_age_s: float = 0.0
    max_messages: int = 0
    past_groups: bool = False
    """Delete also what a group still needs."""
    keep_settled: bool = False
    """Keep what every group has settled: a stream, of which these limits alone delete anything. None of it expires."""
    segment_bytes: Annotated[int, Range(MIN_SEGMENT_BYTES, or_zero=True)] = 0
    """Of these segments; 0 = ``queues.segment_bytes``."""

    @property
    def has_limits(self) -> bool:
        return bool(self.max_bytes or self.max_age_s or self.max_messages)


class Assignor(StrEnum):
    """How the partitions of a queue are shared out among the consumers of a group."""

    RANGE = "range"
    """Contiguous ranges by consumer id."""
    ROUND_ROBIN = "round_robin"
    """One after the other, by consumer id."""
    STICKY = "sticky"
    """Even, and otherwise as it was."""


class PartitionerKind(StrEnum):
    """How a message finds its partition unless it names one."""

    FNV1A = "fnv1a"
    """FNV-1a of the partition key; without a key uniformly random."""
    MURMUR3 = "murmur3"
    """Murmur3 of the partition key; without a key in turn, like GoQueue."""
    ROUND_ROBIN = "round_robin"
    """In turn, from partition 1 on, whatever the key."""
    RANDOM = "random"
    """Uniformly random, whatever the key."""


class RebalanceProtocol(StrEnum):
    """How partitions change hands when the consumers of a group change."""

    EAGER = "eager"
    """At once; what a consumer has in flight stays its to settle."""
    COOPERATIVE = "cooperative"
    """A partition that moves is revoked first, and handed over when its consumer has settled what it holds of it."""


class GroupStart(StrEnum):
    """Where a new group begins."""

    EARLIEST = "earliest"
    LATEST = "latest"


class GroupConfig(Section, frozen=True, kw_only=True):
    """The consumer groups of a queue."""

    assignor: Assignor = Assignor.RANGE
    protocol: RebalanceProtocol = RebalanceProtocol.EAGER
    session_timeout_s: Annotated[float, Range(0.01, 86_400)] = 30.0
    """A member without connection that sends no heartbeat for so long is removed."""
    rebalance_timeout_s: Annotated[float, Range(0.01, 86_400)] = 60.0
    """Cooperative: a revoked partition waits so long for its settlements, then they are taken back."""
    auto_commit_interval_s: Annotated[float, Range(0.01, 86_400)] = 5.0
    """Consumers with automatic commit: what they received is settled this often."""
    max_consumers: Count = 10_000
    """Of one group; over it SUBSCRIBE is refused (0x97, in 3.1.1 0x80)."""
    start: GroupStart = GroupStart.EARLIEST
    max_in_flight: int = 0
    """Unsettled deliveries of all consumers of a group together; 0 = no limit but those of its consumers."""
    max_pending: Count = 100_000
    """Messages that a group has got and not settled: in flight, waiting for a retry, or becoming dead letters.

    At the limit it gets no new ones, but still those that it had before.
    """


class PriorityConfig(Section, frozen=True, kw_only=True):
    """Five lanes per partition, served by deficit round robin. A queue with strict ordering has one lane."""

    enabled: bool = True
    """False: the ``priority`` of a message is ignored."""
    weights: Annotated[tuple[int, int, int, int, int], Range(1, 1_000_000)] = (50, 25, 15, 7, 3)
    """Messages of critical, high, normal, low and background per round."""
    starvation_s: float = 30.0
    """A lane whose message waited so long without the lane being served is served next; 0 = never."""
    levels: Annotated[int, Range(0, MAX_PRIORITY_LEVELS)] = 0
    """So many exact priorities instead, up to 256, as ``x-max-priority`` of AMQP asks for them: the highest is always
    first, whatever the weights, and a message without priority has 0. Fixed for the life of a queue; 0 = the lanes."""


class DeadLetterConfig(Section, frozen=True, kw_only=True):
    """What happens beside keeping a dead letter."""

    alert_webhook: str = ""
    """Where a POST tells of every dead letter, an ``https://`` or ``http://`` URL; empty = nowhere."""
    alert_attempts: Annotated[int, Range(1, 20)] = 5
    alert_timeout_s: Annotated[float, Range(0.1, 60)] = 5.0
    """For one attempt as a whole."""


class SlowConsumerAction(StrEnum):
    """What becomes of a consumer that holds all it may and settles nothing."""

    NONE = "none"
    DISCONNECT = "disconnect"
    """Its client's connection ends."""
    DROP = "drop"
    """It leaves the group; its client stays connected and may subscribe again."""


class SlowConsumerConfig(Section, frozen=True, kw_only=True):
    """Slow consumers; what they hold goes to others."""

    action: SlowConsumerAction = SlowConsumerAction.NONE
    after_s: Positive = 60.0
    """So long at its limit of unsettled deliveries, or not reading, without settling any."""


class QueueConfig(Section, frozen=True, kw_only=True):
    """One durable queue, addressed as ``$queue/<name>``. Defaults: the ``fluxmq`` profile."""

    name: str
    partitions: Annotated[int, Range(1, 1_024)] = 10
    durability: Durability = Durability.FSYNC
    compression: Compression = Compression.NONE
    ordering: Ordering = Ordering.PARTITION
    delivery_timeout_s: Positive = 30.0
    retry: RetryConfig = RetryConfig()
    dead_letters: bool = True
    max_message_bytes: int = 1_048_576
    max_depth: int = 100_000
    max_bytes: int = 0
    """Payloads and user properties that the slowest group has not settled; 0 = no limit."""
    limits_count: LimitScope = LimitScope.UNSETTLED
    overflow: Overflow = Overflow.REJECT
    max_delayed: int = 1_000_000
    """Messages that wait for their time; they do not count against ``max_depth``."""
    message_ttl_s: float = 604_800.0
    """0 = messages do not expire."""
    expired_to_dead_letters: bool = False
    """Expired messages go to the dead-letter queue (reason TTL_EXPIRED) instead of being dropped."""
    retention: RetentionConfig = RetentionConfig()
    max_in_flight: Count = 1_000
    """Unsettled deliveries per consumer."""
    max_groups: Count = 1_000
    """Consumer groups of the queue; over it SUBSCRIBE is refused likewise."""
    group: GroupConfig = GroupConfig()
    priority: PriorityConfig = PriorityConfig()
    slow_consumer: SlowConsumerConfig = SlowConsumerConfig()
    dead_letter: DeadLetterConfig = DeadLetterConfig()
    topics: tuple[str, ...] = ()
    """Topic filters whose messages the queue gets, too: ordinary topics, and ``$queue/...`` of other queues."""
    partitioner: PartitionerKind = PartitionerKind.FNV1A
    ephemeral: bool = False
    """In memory, and deleted with all it holds when it had no consumer for ``expires_after_s``."""
    expires_after_s: Annotated[float, Range(0.01, 31_536_000)] = 300.0
    receipts: bool = False
    """Deliveries carry a handle of their own, which settles them and goes stale with the next delivery."""
    schema: SchemaCheckConfig = SchemaCheckConfig()
    declared_as: str = ""
    """What a protocol keeps of its declaration, for itself."""

    def __post_init__(self) -> None:
        if self.ordering is Ordering.STRICT:
            msgspec.structs.force_setattr(self, "partitions", 1)


class TransactionsConfig(Section, frozen=True, kw_only=True):
    """Limits of transactions and their producers."""

    timeout_s: Positive = 60.0
    """A transaction that is open so long is aborted, unless it asked for another time."""
    max_timeout_s: Positive = 900.0
    max_open: Count = 1_000
    max_open_per_user: Count = 250
    """Of one user, or of one client id where the client has no verified name."""
    max_partitions: Count = 1_000
    """Per transaction."""
    max_messages: Count = 10_000
    """Messages and acknowledgements per transaction."""
    max_bytes: int = 67_108_864
    """Bytes of messages per transaction."""
    max_transactional_ids: Count = 10_000
    max_transactional_ids_per_user: Count = 2_500
    """Those that belong to one verified user."""
    id_expiry_s: Positive = 604_800.0
    """A transactional id that was not used so long may be forgotten when there are too many."""


class QueuesConfig(Section, frozen=True, kw_only=True):
    """Queue defaults and the queues that exist from the start."""

    profile: Profile = Profile.FLUXMQ
    auto_create: bool = True
    """A publish or subscription to an unknown ``$queue/<name>`` creates it."""
    max_queues: Count = 1_000
    max_partitions: Count = 20_000
    """Of all queues together, those of dead letters included; over it no queue is created (0x97)."""
    max_groups: int = 10_000
    """Consumer groups of all queues together; over it a new one is refused (0x97)."""
    max_memory_bytes: int = 1024 * 1024 * 1024
    """What queues in memory and the cache of messages may hold; over it publishers wait. 0 = no limit."""
    defaults: dict[str, Any] = {}
    """Overrides of :class:`QueueConfig` fields for every queue that is not configured by name."""
    templates: dict[str, dict[str, Any]] = {}
    """Pattern of queue names (``*`` = any characters, ``?`` = one) -> overrides; of several, later ones win."""
    configured: tuple[QueueConfig, ...] = ()
    admin_topics: AdminTopics = AdminTopics.AUTO
    stats_interval_s: Annotated[float, Range(0.1, 86_400)] = 1.0
    """How often who subscribes to ``$admin/queue/<queue>/stats`` gets figures."""
    transactions: TransactionsConfig = TransactionsConfig()
    tenants: tuple[TenantConfig, ...] = ()
    sync_interval_s: Positive = 1.0
    retention_interval_s: Positive = 10.0
    """How often the retention limits of queues are applied."""
    segment_bytes: Count = 64 * 1024 * 1024
    """A segment file that has reached it is sealed."""
    segment_age_s: float = 3_600.0
    """So is one whose first message is that old; 0 = whatever its age."""
    alert_allow_private: bool = False
    """Alerts of dead letters may go to private, loopback and link-local addresses."""
    disk_reserve_bytes: int = 16 * 1024 * 1024
    """While the disk has less room, publishes that need some are refused: for queues, kept sessions and retained
    messages; so are filters that a kept session had not. Settlements, acknowledgements, removals and clients that come
    back are written into it, new sessions that are kept into half of it."""


MAX_TOPICS = 1_000
_NOT_BOUND = ("$dlq", "$SYS", "$share", "$admin")


def binding_problems(queue: QueueConfig) -> list[str]:
    """What is wrong with the bindings of a queue."""
    problems: list[str] = []
    if len(queue.topics) > MAX_TOPICS:
        problems.append(f"queues.{queue.name}.topics may be at most {MAX_TOPICS} filters")
    for topic_filter in queue.topics:
        levels = topic_filter.split("/")
        if not topic_filter or "\0" in topic_filter or len(topic_filter.encode("utf-8", "replace")) > 65_535:
            problem = "must be 1 to 65535 bytes long, without NUL"
        elif any(len(level) > 1 and ("+" in level or "#" in level) for level in levels) or "#" in levels[:-1]:
            problem = "'+' and '#' are whole levels, '#' the last one"
        elif levels[0] in _NOT_BOUND:
            problem = f"{levels[0]} topics cannot be bound to a queue"
        else:
            continue
        problems.append(f"queues.{queue.name}.topics: {topic_filter[:80]!r}: {problem}")
    return problems


def limit_problems(queue: QueueConfig) -> list[str]:
    """What is wrong with the limits of a queue. What is ready may be none: a message is for whoever waits for it."""
    if queue.max_depth < 1 and queue.limits_count is LimitScope.UNSETTLED:
        return [f"queues.{queue.name}.max_depth must be 1 or more"]
    return []


def dead_letter_problems(queue: QueueConfig) -> list[str]:
    """What is wrong with the dead-letter settings of a queue."""
    url = queue.dead_letter.alert_webhook
    return webhook_problem(f"queues.{queue.name}.dead_letter.alert_webhook", url) if url else []
