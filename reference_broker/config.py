"""Broker configuration: typed, frozen, strict. Unknown keys are refused with the path of the key."""

from __future__ import annotations

from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from assay.reference_broker.config_amqp091 import Amqp091Config as Amqp091Config
from assay.reference_broker.config_grpc import GrpcConfig as GrpcConfig
from assay.reference_broker.config_http import HttpConfig as HttpConfig
from assay.reference_broker.config_http import Scope as Scope
from assay.reference_broker.config_http import TokenConfig as TokenConfig
from assay.reference_broker.config_listeners import CertificateConfig as CertificateConfig
from assay.reference_broker.config_listeners import ListenerConfig as ListenerConfig
from assay.reference_broker.config_listeners import ListenerProtocol as ListenerProtocol
from assay.reference_broker.config_listeners import TlsConfig as TlsConfig
from assay.reference_broker.config_listeners import TlsVersion as TlsVersion
from assay.reference_broker.config_listeners import Transport as Transport
from assay.reference_broker.config_listeners import WebSocketConfig as WebSocketConfig
from assay.reference_broker.config_listeners import is_loopback as is_loopback
from assay.reference_broker.config_listeners import listener_problems
from assay.reference_broker.config_mqtt import LARGEST_PACKET_BYTES as LARGEST_PACKET_BYTES
from assay.reference_broker.config_mqtt import MqttConfig as MqttConfig
from assay.reference_broker.config_mqtt import Section, mqtt_problems, server_reference_problems
from assay.reference_broker.config_mqtt import ServerReferenceConfig as ServerReferenceConfig
from assay.reference_broker.config_mqtt import ServerReferenceMode as ServerReferenceMode
from assay.reference_broker.config_numbers import Count, Positive, Range, number_problems
from assay.reference_broker.config_queues import MAX_PRIORITY_LEVELS as MAX_PRIORITY_LEVELS
from assay.reference_broker.config_queues import MIN_SEGMENT_BYTES as MIN_SEGMENT_BYTES
from assay.reference_broker.config_queues import AdminTopics as AdminTopics
from assay.reference_broker.config_queues import Assignor as Assignor
from assay.reference_broker.config_queues import Compression as Compression
from assay.reference_broker.config_queues import DeadLetterConfig as DeadLetterConfig
from assay.reference_broker.config_queues import Durability as Durability
from assay.reference_broker.config_queues import GroupConfig as GroupConfig
from assay.reference_broker.config_queues import GroupStart as GroupStart
from assay.reference_broker.config_queues import LimitScope as LimitScope
from assay.reference_broker.config_queues import Ordering as Ordering
from assay.reference_broker.config_queues import Overflow as Overflow
from assay.reference_broker.config_queues import PartitionerKind as PartitionerKind
from assay.reference_broker.config_queues import PriorityConfig as PriorityConfig
from assay.reference_broker.config_queues import Profile as Profile
from assay.reference_broker.config_queues import QueueConfig as QueueConfig
from assay.reference_broker.config_queues import QueuesConfig as QueuesConfig
from assay.reference_broker.config_queues import RebalanceProtocol as RebalanceProtocol
from assay.reference_broker.config_queues import RetentionConfig as RetentionConfig
from assay.reference_broker.config_queues import RetryConfig as RetryConfig
from assay.reference_broker.config_queues import SlowConsumerAction as SlowConsumerAction
from assay.reference_broker.config_queues import SlowConsumerConfig as SlowConsumerConfig
from assay.reference_broker.config_queues import TransactionsConfig as TransactionsConfig
from assay.reference_broker.config_queues import binding_problems, dead_letter_problems, limit_problems
from assay.reference_broker.config_schemas import SchemaCheckConfig as SchemaCheckConfig
from assay.reference_broker.config_schemas import SchemaMode as SchemaMode
from assay.reference_broker.config_schemas import SchemasConfig as SchemasConfig
from assay.reference_broker.config_schemas import schemas_problems
from assay.reference_broker.config_tenants import TenantConfig as TenantConfig
from assay.reference_broker.config_tenants import TenantQuotas as TenantQuotas
from assay.reference_broker.config_tenants import tenant_problems
from assay.reference_broker.config_tracing import TracingConfig as TracingConfig
from assay.reference_broker.config_tracing import tracing_problems
from assay.reference_broker.config_webhooks import AskedConfig as AskedConfig
from assay.reference_broker.config_webhooks import CalloutConfig as CalloutConfig
from assay.reference_broker.config_webhooks import EventKind as EventKind
from assay.reference_broker.config_webhooks import HookFailure as HookFailure
from assay.reference_broker.config_webhooks import HookKind as HookKind
from assay.reference_broker.config_webhooks import HooksConfig as HooksConfig
from assay.reference_broker.config_webhooks import WebhookConfig as WebhookConfig
from assay.reference_broker.config_webhooks import WebhooksConfig as WebhooksConfig
from assay.reference_broker.config_webhooks import asked_problems, webhooks_problems
from assay.reference_broker.trace.described import described
from assay.reference_broker.trace.yaml_text import YamlError, read_yaml

_T = TypeVar("_T")


class ConfigError(ValueError):
    """The configuration is wrong. ``str(error)`` names the key's path and what to do."""


class SessionsConfig(Section, frozen=True, kw_only=True):
    """What of MQTT sessions and retained messages survives a restart. Needs ``data_dir``."""

    durability: Durability = Durability.INTERVAL
    """``memory``: nothing. ``interval``: what was acknowledged survives kill -9. ``fsync``: also power loss; whatever
    depends on a change leaves the broker only once the change is on disk."""
    sync_interval_s: Positive = 1.0
    segment_bytes: Count = 16 * 1024 * 1024
    """A file that has reached it is sealed, and may be compacted."""


class UserConfig(Section, frozen=True, kw_only=True):
    """A user who logs in by password, by SCRAM-SHA-256 (enhanced authentication of MQTT 5.0), or by either."""

    username: str
    password_hash: str = ""
    """``scrypt$<n>$<r>$<p>$<salt hex>$<hash hex>``; from ``assay hash-password``. Empty = no password login."""
    scram_sha_256: str = ""
    """``<iterations>$<salt>$<stored key>$<server key>``; from ``assay hash-password --scram``. Empty = no SCRAM."""


class AuthConfig(Section, frozen=True, kw_only=True):
    """Who may connect. With no users configured, only listeners on loopback accept anonymous clients."""

    anonymous: bool | None = None
    """None = only on loopback."""
    users: tuple[UserConfig, ...] = ()
    password_file: str = ""
    """Further users, a line each: ``<user>:<what assay hash-password prints>``. Read at start and at a reload."""
    tokens: tuple[TokenConfig, ...] = ()
    """What clients of HTTP may show in place of a password."""


class Permission(StrEnum):
    """What an access rule says about the topics it names."""

    READ = "read"
    """Subscribe, and settle queue deliveries."""
    WRITE = "write"
    """Publish, wills included."""
    READWRITE = "readwrite"
    DENY = "deny"
    """Neither, whatever other rules allow."""


class DefaultAccess(StrEnum):
    """What holds for topics that no access rule names."""

    ALLOW = "allow"
    DENY = "deny"


class AclRuleConfig(Section, frozen=True, kw_only=True):
    """One access rule, for the clients that fit both ``user`` and ``client``."""

    topic: str
    """A topic filter; ``%c`` stands for the client id and ``%u`` for the user name."""
    access: Permission
    user: str | None = None
    """None = whoever it is; empty = clients without a verified user name."""
    client: str | None = None
    """A client id. Any client may call itself so: only ``user`` is verified."""


class AclConfig(Section, frozen=True, kw_only=True):
    """Access rules. Without this section, every client may publish and subscribe to everything."""

    default: DefaultAccess = DefaultAccess.DENY
    rules: tuple[AclRuleConfig, ...] = ()
    file: str = ""
    """A YAML file with a list of further rules. Read at start and at a reload."""


class SysConfig(Section, frozen=True, kw_only=True):
    """The broker's figures under ``$SYS/broker``."""

    interval_s: Annotated[float, Range(0.1, 86_400, or_zero=True)] = 10.0
    """How often subscribers get new values; 0 = there are no ``$SYS`` topics."""


class LimitsConfig(Section, frozen=True, kw_only=True):
    """What one client, or one address, may ask of the broker; 0 = no limit."""

    connects_per_s: Annotated[float, Range(1e-4, 1e6, or_zero=True)] = 0.0
    """Connections from one address to one listener in the long run; over it CONNECT is refused (0x9F)."""
    connect_burst: Count = 100
    """So many at once."""
    max_tracked_addresses: Annotated[int, Range(1, 10_000_000)] = 10_000
    """Addresses remembered for it."""
    publish_messages_per_s: Annotated[float, Range(1e-4, 1e9, or_zero=True)] = 0.0
    """PUBLISH packets of one client in the long run; over it the broker reads from the client more slowly."""
    publish_bytes_per_s: Annotated[float, Range(1, 1e12, or_zero=True)] = 0.0
    """Likewise, bytes of everything the client sends."""
    publish_burst_s: Annotated[float, Range(0.1, 3_600)] = 1.0
    """A client that was idle may send what these rates allow in this time at once."""
    max_payload_bytes: Annotated[int, Range(1, 268_435_455, or_zero=True)] = 0
    """A PUBLISH with a larger payload is refused: 0x97, or the connection closes where 3.1.1 has no code; at QoS 0 it
    is dropped."""


class TraceConfig(Section, frozen=True, kw_only=True):
    """White-box trace of every message step, for analysis; off by default because it costs throughput."""

    path: str = ""
    """JSON lines file (``.zst`` compresses); empty = off."""


class LogFormat(StrEnum):
    """How ``assay serve`` writes its log on standard error."""

    TEXT = "text"
    JSON = "json"
    """An object a line: ``time`` (RFC 3339, UTC), ``level``, ``logger``, ``message``."""


class LogLevel(StrEnum):
    """What is logged: this, and what is worse."""

    DEBUG = "debug"
    """Who comes and goes, too."""
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogConfig(Section, frozen=True, kw_only=True):
    """The log of ``assay serve``; a program that embeds a broker has its own."""

    format: LogFormat = LogFormat.TEXT
    level: LogLevel = LogLevel.INFO
    """From the start on; an administrator may change it over HTTP."""


class TestingConfig(Section, frozen=True, kw_only=True):
    """For tests of what takes time. Refused unless every listener is on loopback."""

    movable_clock: bool = False
    """A publish of seconds to ``$admin/clock/advance`` moves the broker's clock forward."""
    clock_ahead_s: Annotated[float, Range(0, 1e9)] = 0.0
    """How far ahead of the wall clock it begins: a broker that is started again goes on where it was moved to."""


class BrokerConfig(Section, frozen=True, kw_only=True):
    """Everything ``assay serve`` reads from its YAML file."""

    node: str = "broker"
    data_dir: str = ""
    """Folder of what survives a restart: queues, sessions, retained messages. Empty = all lives in memory."""
    listeners: tuple[ListenerConfig, ...] = (ListenerConfig(),)
    mqtt: MqttConfig = MqttConfig()
    amqp091: Amqp091Config = Amqp091Config()
    http: HttpConfig = HttpConfig()
    grpc: GrpcConfig = GrpcConfig()
    schemas: SchemasConfig = SchemasConfig()
    webhooks: WebhooksConfig = WebhooksConfig()
    sessions: SessionsConfig = SessionsConfig()
    server_reference: ServerReferenceConfig | None = None
    """Another server, for clients that are refused or sent away; None = there is none."""
    quirks: tuple[str, ...] = ()
    """Deviations of real brokers to imitate: profiles and single ones, as ``assay quirks`` lists them."""
    queues: QueuesConfig = QueuesConfig()
    auth: AuthConfig = AuthConfig()
    authenticate: CalloutConfig | None = None
    """Somebody else who knows users; None = nobody is asked."""
    hooks: HooksConfig | None = None
    """Somebody else who decides about publishes and subscriptions; None = nobody is asked."""
    acl: AclConfig | None = None
    """None = no access rules."""
    sys: SysConfig = SysConfig()
    limits: LimitsConfig = LimitsConfig()
    trace: TraceConfig = TraceConfig()
    tracing: TracingConfig = TracingConfig()
    log: LogConfig = LogConfig()
    testing: TestingConfig = TestingConfig()


PROFILE_DEFAULTS: dict[Profile, dict[str, Any]] = {
    Profile.FLUXMQ: {},
    Profile.GOQUEUE: {
        "partitions": 3,
        "delivery_timeout_s": 30.0,
        "max_in_flight": 1_000,
        "partitioner": "murmur3",
        "retry": {
            "max_retries": 3,
            "initial_backoff_s": 1.0,
            "max_backoff_s": 60.0,
            "multiplier": 2.0,
            "nack_immediately": False,
        },
    },
    Profile.INPROC: {
        "partitions": 1,
        "durability": "memory",
        "delivery_timeout_s": 30.0,
        "message_ttl_s": 0.0,
        "dead_letters": False,
        "retry": {"max_retries": 3, "initial_backoff_s": 0.0, "total_timeout_s": 0.0},
    },
}


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def queue_defaults(queues: QueuesConfig, name: str) -> QueueConfig:
    """The configuration of a queue that nobody configured: profile, then ``defaults``. Raises :class:`ConfigError`."""
    for queue in queues.configured:
        if queue.name == name:
            return queue
    merged = _unconfigured(queues.profile, queues.defaults, queues.templates, name)
    return _convert({**merged, "name": name}, QueueConfig, "queues.defaults or queues.templates")


def _unconfigured(
    profile: Profile, defaults: dict[str, Any], templates: dict[str, dict[str, Any]], name: str
) -> dict[str, Any]:
    """Profile, then ``defaults``, then the templates that fit the name, in their order."""
    merged = _merge(PROFILE_DEFAULTS[profile], defaults)
    for pattern, overrides in templates.items():
        if fnmatchcase(name, pattern):
            merged = _merge(merged, overrides)
    return merged


def with_settings(config: QueueConfig, settings: dict[str, Any]) -> QueueConfig:
    """A configuration with run-time settings over it, checked. Raises :class:`ConfigError`."""
    if "name" in settings:
        raise ConfigError("the name of a queue is no setting")
    changed = _convert(_merge(msgspec.to_builtins(config), settings), QueueConfig, f"settings of queue {config.name!r}")
    problems = queue_problems(changed)
    if problems:
        raise ConfigError("; ".join(problems))
    return changed


def merged_settings(settings: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Settings with changes over them; what is None in the changes is taken out (RFC 7386)."""
    merged = dict(settings)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            inner = merged.get(key)
            merged[key] = merged_settings(inner if isinstance(inner, dict) else {}, value)
        else:
            merged[key] = value
    return merged


def queue_problems(queue: QueueConfig) -> list[str]:
    """What is wrong with the configuration of a queue."""
    numbers = list(number_problems(queue, f"queues.{queue.name}"))
    return numbers or binding_problems(queue) + dead_letter_problems(queue) + limit_problems(queue)


def _convert(data: Any, kind: type[_T], where: str) -> _T:
    try:
        return msgspec.convert(data, described(kind))
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from error


def parse_config(data: Any, *, where: str = "configuration") -> BrokerConfig:
    """Turn plain data (from YAML) into a checked configuration. Raises :class:`ConfigError` naming the key."""
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: the top level must be a mapping of sections")
    queues = data.get("queues")
    if isinstance(queues, dict) and queues.get("admin_topics") is False:
        # YAML 1.1 reads a plain `off` as false.
        queues = {**queues, "admin_topics": AdminTopics.OFF.value}
        data = {**data, "queues": queues}
    if isinstance(queues, dict) and isinstance(queues.get("configured"), list):
        # Each configured queue starts from the profile and the defaults, so that it needs to name only what differs.
        shell = _convert({**queues, "configured": ()}, QueuesConfig, f"{where}: queues")
        entries = [
            _merge(_unconfigured(shell.profile, shell.defaults, shell.templates, str(entry.get("name"))), entry)
            if isinstance(entry, dict)
            else entry
            for entry in queues["configured"]
        ]
        data = {**data, "queues": {**queues, "configured": entries}}
        if not data.get("data_dir"):
            _refuse_durable_without_folder(queues["configured"], where)
    config = _convert(data, BrokerConfig, where)
    queue_defaults(config.queues, "any")
    check_config(config, where)
    return config


def _refuse_durable_without_folder(entries: list[Any], where: str) -> None:
    for index, entry in enumerate(entries):
        if isinstance(entry, dict) and entry.get("durability", Durability.MEMORY) != Durability.MEMORY:
            raise ConfigError(
                f"{where}: queues.configured[{index}].durability is {entry['durability']!r}, but data_dir is empty: "
                "set data_dir, or leave durability out to keep the queue in memory"
            )


def check_config(config: BrokerConfig, where: str = "configuration") -> None:
    """Raises :class:`ConfigError` naming every key whose value makes no sense."""
    queues = msgspec.structs.replace(config.queues, configured=())  # each queue is looked at by itself, with its name
    problems = list(number_problems(msgspec.structs.replace(config, queues=queues)))
    for queue in (*config.queues.configured, queue_defaults(config.queues, "any")):
        problems += queue_problems(queue)
    for pattern, overrides in config.queues.templates.items():
        if "name" in overrides:
            problems.append(f"queues.templates.{pattern}: the name of a queue cannot be overridden")
            continue
        merged = _merge(_merge(PROFILE_DEFAULTS[config.queues.profile], config.queues.defaults), overrides)
        problems += queue_problems(_convert({**merged, "name": pattern}, QueueConfig, f"queues.templates.{pattern}"))
    problems += tenant_problems(config.queues.tenants)
    if config.acl is not None:
        problems += rule_problems(config.acl.rules, "acl.rules")
    problems += mqtt_problems(config.mqtt)
    problems += schemas_problems(config.schemas)
    problems += tracing_problems(config.tracing)
    problems += webhooks_problems(config.webhooks)
    if config.authenticate is not None:
        problems += asked_problems(config.authenticate, "authenticate")
    if config.hooks is not None:
        problems += asked_problems(config.hooks, "hooks")
        asked = [AclRuleConfig(topic=topic, access=Permission.READ) for topic in config.hooks.topics]
        problems += rule_problems(tuple(asked), "hooks.topics")
    if config.server_reference is not None:
        problems += server_reference_problems(config.server_reference)
    problems += _testing_problems(config)
    for index, listener in enumerate(config.listeners):
        problems += [f"listeners[{index}].{problem}" for problem in listener_problems(listener)]
    if problems:
        raise ConfigError(f"{where}: " + "; ".join(problems))


def _testing_problems(config: BrokerConfig) -> list[str]:
    testing = config.testing
    if not testing.movable_clock:
        return ["testing.clock_ahead_s needs testing.movable_clock"] if testing.clock_ahead_s else []
    return [
        f"testing.movable_clock needs listeners on loopback: listeners[{index}].host is {listener.host!r}"
        for index, listener in enumerate(config.listeners)
        if not is_loopback(listener.host)
    ]


def rule_problems(rules: tuple[AclRuleConfig, ...], where: str) -> list[str]:
    """What is wrong with access rules, each with its place."""
    problems: list[str] = []
    for index, rule in enumerate(rules):
        levels = rule.topic.split("/")
        if not rule.topic or rule.topic.startswith("$share/"):
            problems.append(f"{where}[{index}].topic must be a topic filter without $share/, not {rule.topic!r}")
        elif any(len(level) > 1 and ("+" in level or "#" in level) for level in levels) or "#" in levels[:-1]:
            problems.append(f"{where}[{index}].topic {rule.topic!r}: '+' and '#' are whole levels, '#' the last one")
    return problems


def load_config(path: Path) -> BrokerConfig:
    """Read a YAML file. Raises :class:`ConfigError` for a missing file, bad YAML or a wrong key."""
    try:
        data = read_yaml(path)
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    except YamlError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    return parse_config(data, where=str(path))
