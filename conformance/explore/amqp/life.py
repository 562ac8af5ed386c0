"""What happens in a life of AMQP 0.9.1: frozen structs that replay files hold as JSON.

Exchanges, queues, channels and connections have numbers, which are taken modulo how many there are. A channel opens
when a step asks something of it, and what a step needs is declared on it if it is not there, so that every part of a
life is a life.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from assay.conformance.explore.life import Recorded, in_words, numbered

REPLAY_SCHEMA: Literal["assay.explore.amqp091/1"] = "assay.explore.amqp091/1"
DEFAULT = -1
"""In the place of an exchange: the default exchange, whose routing keys are queues."""
TABLES: tuple[dict[str, Any], ...] = (
    {},
    {"h": "1"},
    {"h": "1", "i": 2},
    {"i": 2},
    {"x-h": "1"},
    {"h": "2", "x-h": "1"},
)
"""Headers of messages, and what bindings ask of them."""
NO_LETTERS = -2


class ExchangePlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    kind: str = "direct"
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    alternate: int = -1
    """Exchange that gets what leads nowhere; -1 = none."""


class QueuePlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    named_by_server: bool = False
    ttl_s: int = -1
    """-1 = none."""
    expires_s: int = 0
    """0 = never."""
    max_length: int = 0
    """0 = not bounded."""
    overflow: str = ""
    letters: int = NO_LETTERS
    """Exchange for dead letters: -1 = the default exchange, -2 = none."""
    letter_queue: int = -1
    """The dead letters' routing key is that queue's name; -1 = none is set."""
    max_priority: int = 0
    single_active: bool = False
    delivery_limit: int = -1
    """-1 = none; a quorum queue else."""


class ChannelPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    connection: int = 0
    mode: str = ""
    """"confirm" or "tx"."""
    prefetch: int = 0
    shared: int = 0
    """Of all consumers of the channel together (basic.qos with global)."""


class _Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="do"):
    channel: int = 0


class Bind(_Step, frozen=True, kw_only=True, tag="bind"):
    exchange: int = 0
    queue: int = 0
    to_exchange: int = -1
    """In place of the queue; -1 = none."""
    key: str = ""
    match: str = ""
    """x-match of a headers exchange."""
    table: int = 0
    undo: bool = False


class Declare(_Step, frozen=True, kw_only=True, tag="declare"):
    """Of a queue, or of an exchange."""

    queue: int = 0
    exchange: int = -1
    otherwise: bool = False
    """With other properties than it has, which the server must refuse."""


class Delete(_Step, frozen=True, kw_only=True, tag="delete"):
    queue: int = 0
    exchange: int = -1
    if_unused: bool = False
    if_empty: bool = False


class Publish(_Step, frozen=True, kw_only=True, tag="publish"):
    exchange: int = DEFAULT
    queue: int = 0
    """Whose name is the routing key, where it is the default exchange."""
    key: str = ""
    mandatory: bool = False
    persistent: bool = True
    size_bytes: int = 8
    priority: int = -1
    ttl_s: int = -1
    rich: bool = False
    """With all properties."""
    table: int = 0
    cc: tuple[str, ...] = ()
    bcc: tuple[str, ...] = ()


class Burst(_Step, frozen=True, kw_only=True, tag="burst"):
    """Publishes one behind the other, without waiting for what they cause."""

    publishes: tuple[Publish, ...]


class Consume(_Step, frozen=True, kw_only=True, tag="consume"):
    queue: int = 0
    no_ack: bool = False
    exclusive: bool = False


class Cancel(_Step, frozen=True, kw_only=True, tag="cancel"):
    which: int = 0
    """Of the consumers of the channel."""


class Get(_Step, frozen=True, kw_only=True, tag="get"):
    queue: int = 0
    no_ack: bool = False


class Settle(_Step, frozen=True, kw_only=True, tag="settle"):
    verb: str = "ack"
    """ack, nack or reject."""
    which: int = 0
    """Of what is unacknowledged on the channel."""
    multiple: bool = False
    requeue: bool = False
    everything: bool = False
    """multiple with the delivery tag 0."""


class Recover(_Step, frozen=True, kw_only=True, tag="recover"):
    pass


class Qos(_Step, frozen=True, kw_only=True, tag="qos"):
    count: int = 0
    shared: bool = False


class Commit(_Step, frozen=True, kw_only=True, tag="commit"):
    pass


class Rollback(_Step, frozen=True, kw_only=True, tag="rollback"):
    pass


class Purge(_Step, frozen=True, kw_only=True, tag="purge"):
    queue: int = 0


class Look(_Step, frozen=True, kw_only=True, tag="look"):
    """A passive declaration, and what it counts."""

    queue: int = 0


class Mistake(_Step, frozen=True, kw_only=True, tag="mistake"):
    what: str = "unknown tag"
    """A key of :data:`MISTAKES`."""
    queue: int = 0


MISTAKES: dict[str, str] = {
    "unknown tag": "channel 406",
    "acknowledged twice": "channel 406",
    "publish nowhere": "channel 404",
    "get nowhere": "channel 404",
    "consume nowhere": "channel 404",
    "bind nowhere": "channel 404",
    "purge nowhere": "channel 404",
    "passive": "channel 404",
    "reserved": "channel 403",
    "internal": "channel 403",
    "commit without select": "channel 406",
    "locked": "channel 405",
}
"""What is asked for on purpose, and how it must end."""
CLAUSES: dict[str, str] = {
    "unknown tag": "basic.ack.multiple.exists",
    "acknowledged twice": "basic.ack.multiple.exists",
    "publish nowhere": "basic.publish.exchange.must-exist",
    "bind nowhere": "queue.bind.exchange.exchange-existence",
    "purge nowhere": "queue.purge.queue.must-exist",
    "passive": "queue.declare.passive.passive",
    "reserved": "queue.declare.queue.reserved",
    "internal": "rmq.internal-exchange",
    "commit without select": "tx.commit.transacted",
    "locked": "queue.declare.exclusive.exclusive",
}


class Close(_Step, frozen=True, kw_only=True, tag="close"):
    """Of the channel, or of its connection."""

    connection: bool = False
    abrupt: bool = False
    """The connection is reset."""


class Advance(_Step, frozen=True, kw_only=True, tag="advance"):
    """The broker's clock is moved."""

    seconds: int = 90


class Restart(_Step, frozen=True, kw_only=True, tag="restart"):
    """kill -9, and a start on the same data."""

    amid: Publish | Burst | Settle | None = None
    """What was sent a moment before."""


Step = (
    Bind
    | Declare
    | Delete
    | Publish
    | Burst
    | Consume
    | Cancel
    | Get
    | Settle
    | Recover
    | Qos
    | Commit
    | Rollback
    | Purge
    | Look
    | Mistake
    | Close
    | Advance
    | Restart
)


class AmqpLife(msgspec.Struct, frozen=True, kw_only=True):
    exchanges: tuple[ExchangePlan, ...] = ()
    queues: tuple[QueuePlan, ...]
    channels: tuple[ChannelPlan, ...]
    steps: tuple[Step, ...]


class AmqpReplay(Recorded, frozen=True, kw_only=True):
    """The file of a finding."""

    schema: Literal["assay.explore.amqp091/1"] = REPLAY_SCHEMA
    life: AmqpLife


def story(life: AmqpLife) -> list[str]:
    """In lines for people."""
    parts = [("exchange", life.exchanges), ("queue", life.queues), ("channel", life.channels)]
    lines = [f"{name} {index}: {in_words(each)}" for name, many in parts for index, each in enumerate(many)]
    return lines + numbered(life.steps)
