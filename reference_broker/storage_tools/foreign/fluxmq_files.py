"""FluxMQ's files besides its logs: where the logs are, queue configuration, consumer groups, consumer state.

Two generations of its data directory are read. The earlier one, which this broker's follows, has
``queues/<queue>/partitions/<id>/``; the later one has no partitions: ``queues/<queue>/segments/``. Queue names may hold
``/`` and then make nested folders. JSON written by Go has the field names of its structs, and durations in nanoseconds.
Unknown fields are ignored, since they differ between versions; what is known must be of the right type and make sense.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from enum import IntEnum
from typing import TypeVar

import msgspec

from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.trace.described import described

GROUPS_FOLDER = "groups"
CONFIG_PATH = "config/queues.json"
STATE_NAME = "state.json"
OPERATIONS_NAME = "ops.log"
MAX_JSON_BYTES = 256 * 1024 * 1024
MAX_OPERATIONS_BYTES = 1024 * 1024 * 1024
_MAX_CONFIG_VERSION = 2
_MAX_GROUP_VERSION = 2
_MAX_DEPTH = 32
_MAX_FOLDERS = 200_000
_Decoded = TypeVar("_Decoded")


class FluxMQFileError(ValueError):
    """A file is not what FluxMQ writes."""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    max_retries: int = 0
    initial_backoff_ns: int = msgspec.field(name="InitialBackoff", default=0)
    max_backoff_ns: int = msgspec.field(name="MaxBackoff", default=0)
    backoff_multiplier: float = 0.0
    total_timeout_ns: int = msgspec.field(name="TotalTimeout", default=0)


class DeadLetters(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    enabled: bool = False
    topic: str = ""
    alert_webhook: str = ""


class Retention(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    retention_time_ns: int = msgspec.field(name="RetentionTime", default=0)
    retention_bytes: int = 0
    retention_messages: int = 0
    compaction_enabled: bool = False
    compaction_key: str = ""


class QueueConfiguration(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """An entry of ``config/queues.json``. Durations in ns; 0 where a version does not know the field."""

    name: str
    topics: list[str] | None = None
    reserved: bool = False
    partitions: int = 0
    ordering: str = ""
    queue_type: str = msgspec.field(name="Type", default="")
    durable: bool = True
    expires_after_ns: int = msgspec.field(name="ExpiresAfter", default=0)
    retry_policy: RetryPolicy = RetryPolicy()
    dead_letters: DeadLetters = msgspec.field(name="DLQConfig", default=DeadLetters())
    retention: Retention = Retention()
    max_message_bytes: int = msgspec.field(name="MaxMessageSize", default=0)
    max_depth: int = 0
    message_ttl_ns: int = msgspec.field(name="MessageTTL", default=0)
    delivery_timeout_ns: int = msgspec.field(name="DeliveryTimeout", default=0)
    batch_size: int = 0
    heartbeat_timeout_ns: int = msgspec.field(name="HeartbeatTimeout", default=0)

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a queue without a name")


class QueueConfigurations(msgspec.Struct, frozen=True, kw_only=True):
    """``config/queues.json``."""

    version: int
    configs: list[QueueConfiguration]
    saved_at: int = 0
    """Unix time as FluxMQ wrote it; 0 = unknown."""


class GroupCursor(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    cursor: int = 0
    """Next offset to deliver."""
    committed: int = 0
    """Least offset that is not settled."""


class GroupPending(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """A message delivered and not settled."""

    offset: int
    consumer_id: str = msgspec.field(name="ConsumerID")
    claimed_at: datetime
    delivery_count: int


class GroupConsumer(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    consumer_id: str = msgspec.field(name="ID")
    client_id: str = msgspec.field(name="ClientID", default="")
    proxy_node_id: str = msgspec.field(name="ProxyNodeID", default="")
    registered_at: datetime | None = None
    last_heartbeat: datetime | None = None


class GroupState(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """A consumer group of ``groups/<queue>/<group>.json``. Go writes null for an empty map."""

    group_id: str = msgspec.field(name="ID")
    queue_name: str
    pattern: str = ""
    mode: str = "queue"
    auto_commit: bool = True
    cursor: GroupCursor | None = None
    pending: dict[str, list[GroupPending | None] | None] | None = msgspec.field(name="PEL", default=None)
    consumers: dict[str, GroupConsumer | None] | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None

    def entries(self) -> list[GroupPending]:
        """All pending entries by offset."""
        found = [entry for entries in (self.pending or {}).values() for entry in entries or () if entry is not None]
        return sorted(found, key=lambda entry: entry.offset)


class GroupFile(msgspec.Struct, frozen=True, kw_only=True):
    """``groups/<queue>/<group>.json``."""

    version: int
    state: GroupState | None = None
    saved_at: int = 0
    """Unix ms."""


class ConsumerProgress(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """How far a group is. Times in Unix ms."""

    ack_floor: int = 0
    """Everything up to and including it is settled, once anything was delivered."""
    cursor: int = 0
    delivered: int = 0
    created_at_ms: int = msgspec.field(name="CreatedAt", default=0)
    updated_at_ms: int = msgspec.field(name="UpdatedAt", default=0)


class ConsumerStateFile(msgspec.Struct, frozen=True, kw_only=True):
    """``state.json``: one progress, or one per partition in the earlier generation."""

    version: int
    group_id: str
    state: ConsumerProgress | None = None
    partitions: dict[int, ConsumerProgress | None] | None = None
    saved_at: int = 0


class PendingShardEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of ``pel_<n>.json``. Times in Unix ms."""

    offset: int = msgspec.field(name="o")
    consumer: str = msgspec.field(name="c")
    delivered_at_ms: int = msgspec.field(name="d")
    delivery_count: int = msgspec.field(name="n")
    last_attempt_ms: int = msgspec.field(name="l")
    partition: int = msgspec.field(name="p", default=0)


class PendingShardFile(msgspec.Struct, frozen=True, kw_only=True):
    """``pel_<n>.json``: the pending entries whose offset modulo 8 is the shard."""

    version: int
    shard_id: int
    entries: dict[int, PendingShardEntry | None] | None = None
    saved_at: int = 0


class OperationKind(IntEnum):
    DELIVER = 1
    ACK = 2
    ACK_BATCH = 3
    NACK = 4
    CLAIM = 5
    CLAIM_BATCH = 6
    ADVANCE_FLOOR = 7
    SET_CURSOR = 8


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """A line of ``ops.log``. Go leaves fields out that are zero."""

    kind: OperationKind = msgspec.field(name="t")
    partition: int = msgspec.field(name="p", default=0)
    offset: int = msgspec.field(name="o", default=0)
    offsets: tuple[int, ...] = msgspec.field(name="os", default=())
    consumer: str = msgspec.field(name="c", default="")
    timestamp_ms: int = msgspec.field(name="ts")


class OperationLog(msgspec.Struct, frozen=True, kw_only=True):
    """A decoded ``ops.log``. FluxMQ itself stops at the first line that it cannot read, and so does this."""

    operations: tuple[Operation, ...]
    sound_bytes: int
    """Bytes of the lines read."""
    problem: str = ""
    """Why the rest was not read; empty when all was."""
    is_torn_tail: bool = False
    """The rest is one unfinished line: a write that did not finish. Otherwise the log is damaged."""


def decode_queue_configurations(data: bytes) -> QueueConfigurations:
    """``config/queues.json``. Raises :class:`FluxMQFileError`."""
    found = _decode(data, QueueConfigurations, "queue configuration")
    _check_version(found.version, _MAX_CONFIG_VERSION, "queue configuration")
    return found


def decode_group(data: bytes) -> GroupFile:
    """``groups/<queue>/<group>.json``. Raises :class:`FluxMQFileError`."""
    found = _decode(data, GroupFile, "consumer group")
    _check_version(found.version, _MAX_GROUP_VERSION, "consumer group")
    state = found.state
    if state is not None:
        cursor = state.cursor or GroupCursor()
        _check_natural("consumer group", cursor.cursor, cursor.committed)
        for entry in state.entries():
            _check_natural("consumer group", entry.offset, entry.delivery_count)
    return found


def decode_consumer_state(data: bytes) -> ConsumerStateFile:
    """``state.json``. Raises :class:`FluxMQFileError`."""
    found = _decode(data, ConsumerStateFile, "consumer state")
    for progress in (found.state, *(found.partitions or {}).values()):
        if progress is not None:
            _check_natural("consumer state", progress.ack_floor, progress.cursor, progress.delivered)
    return found


def decode_pending_shard(data: bytes) -> PendingShardFile:
    """``pel_<n>.json``. Raises :class:`FluxMQFileError`."""
    found = _decode(data, PendingShardFile, "pending entries")
    _check_natural("pending entries", found.shard_id)
    for offset, entry in (found.entries or {}).items():
        if entry is None:
            continue
        _check_natural("pending entries", entry.offset, entry.delivery_count, entry.partition)
        if entry.offset != offset:
            message = f"the pending entries contradict themselves: offset {entry.offset} is listed as {offset}"
            raise FluxMQFileError(message)
    return found


_OPERATION = msgspec.json.Decoder(described(Operation))


def decode_operations(data: bytes) -> OperationLog:
    """``ops.log``, up to the first line that cannot be read. Raises :class:`FluxMQFileError` when it is too large."""
    if len(data) > MAX_OPERATIONS_BYTES:
        raise FluxMQFileError(f"an operation log of {len(data)} bytes; at most {MAX_OPERATIONS_BYTES} are read")
    operations: list[Operation] = []
    at = 0
    while at < len(data):
        newline = data.find(b"\n", at)
        end = len(data) if newline < 0 else newline
        try:
            operation = _OPERATION.decode(memoryview(data)[at:end])
            _check_natural("operation", operation.partition, operation.offset, *operation.offsets)
        except (msgspec.DecodeError, UnicodeDecodeError, FluxMQFileError) as error:
            return OperationLog(
                operations=tuple(operations), sound_bytes=at, problem=str(error), is_torn_tail=newline < 0
            )
        operations.append(operation)
        at = end + 1
    return OperationLog(operations=tuple(operations), sound_bytes=len(data))


def _decode(data: bytes, kind: type[_Decoded], what: str) -> _Decoded:
    try:
        return msgspec.json.decode(data, type=described(kind))
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise FluxMQFileError(f"the {what} cannot be read: {error}") from error


def _check_version(version: int, greatest: int, what: str) -> None:
    if not 0 <= version <= greatest:
        raise FluxMQFileError(f"version {version} of the {what} is not known; up to {greatest} are")


def _check_natural(what: str, *numbers: int) -> None:
    """Go's unsigned numbers, that is."""
    for number in numbers:
        if not 0 <= number < 2**64:
            raise FluxMQFileError(f"{number} in the {what} is out of bounds")


def find_groups(disk: Disk) -> list[str]:
    """Paths of the later generation's group files, ``groups/<queue>/<group>.json``. Raises as :func:`find_logs`."""
    found: list[str] = []

    def children(path: str, names: list[str]) -> list[str]:
        files = [name for name in names if name.endswith(".json") and path != GROUPS_FOLDER]
        found.extend(f"{path}/{name}" for name in files)
        return [name for name in names if name not in files]

    _walk(disk, GROUPS_FOLDER, children)
    return sorted(found)


def _walk(disk: Disk, root: str, children: Callable[[str, list[str]], list[str]]) -> None:
    """Visit folders; ``children`` gets a path and the names in it and says which of them to visit."""
    waiting = [(root, 0)]
    visited = 0
    while waiting:
        path, depth = waiting.pop()
        visited += 1
        if visited > _MAX_FOLDERS or depth > _MAX_DEPTH:
            message = f"{path}: more than {_MAX_FOLDERS} files and folders, or nested deeper than {_MAX_DEPTH}"
            raise FluxMQFileError(message)
        names = _folder(disk, path)
        waiting += [(f"{path}/{name}", depth + 1) for name in children(path, names)] if names else []


def _folder(disk: Disk, path: str) -> list[str]:
    """Names in a folder; none when the path is a file."""
    try:
        return disk.list(path)
    except NotADirectoryError:
        return []
