"""What happens in a life of queues: frozen structs that replay files hold as JSON.

Clients have names by their number: publishers, producers (of transactions), consumers. One that is not connected
connects when a step asks something of it. What a step names (a delivery that is held, a delayed message) is found among
those that there are by then, so that every part of a life is a life.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

import msgspec

from assay.conformance.explore.life import Recorded, in_words, numbered

REPLAY_SCHEMA: Literal["assay.explore.queues/1"] = "assay.explore.queues/1"
LANES = ("critical", "high", "normal", "low", "background")


class QueuePlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings of a queue; 0 = none of it."""

    partitions: int = 1
    ordering: str = "partition"
    durability: str = "interval"
    timeout_s: int = 100_000
    max_retries: int = 50
    backoff_s: int = 0
    """Of the first retry that waits; doubled up to four times that. 0: nacks do not wait, timeouts wait a little."""
    total_timeout_s: int = 0
    """What fails when it is older becomes a dead letter, whatever retries are left."""
    dead_letters: bool = True
    max_depth: int = 0
    max_bytes: int = 0
    overflow: str = "reject"
    ttl_s: int = 0
    to_letters: bool = False
    """Expired messages become dead letters."""
    max_in_flight: int = 0
    group_max_in_flight: int = 0
    max_message_bytes: int = 0
    partitioner: str = ""
    """fnv1a or murmur3; empty: nobody knows."""
    receipts: bool = False
    compression: str = ""
    """s2 or zstd; empty: what it is without a word."""


class GroupPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    queue: int = 0
    dead: bool = False
    """Of the dead letters of that queue."""
    filter: str = ""
    """Of routing keys."""
    latest: bool = False
    """It begins with what comes after it."""


class ConsumerPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    group: int = 0
    prefetch: int = 0
    receive_maximum: int = 0


class Leaving(Enum):
    DISCONNECT = "disconnect"
    RESET = "reset"
    UNSUBSCRIBE = "unsubscribe"


class Form(Enum):
    """How a settlement names deliveries."""

    IDS = "message ids"
    OFFSETS = "offsets"
    """Of one partition; runs of them as ranges."""
    RECEIPTS = "receipts"
    """Where the queue gives them; message ids elsewhere."""


class _Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="do"):
    pass


class Publish(_Step, frozen=True, kw_only=True, tag="publish"):
    client: int = 0
    queue: int = 0
    route: str = ""
    key: str = ""
    partition: int = -1
    """-1 = not named."""
    size_bytes: int = 8
    over_limit: int = -1
    """0: as large as the queue lets one message be, 1: a byte more; -1: ``size_bytes``."""
    lane: int = 2
    """0 = critical to 4 = background; 2 is not named."""
    delay_s: int = 0
    ttl_s: int = 0
    expiry_s: int = 0
    rich: bool = False
    qos: int = 1
    transaction: bool = False
    """In the open transaction of the producer ``client``, if it has one."""


class Burst(_Step, frozen=True, kw_only=True, tag="burst"):
    """Publishes one behind the other, without waiting for what they cause."""

    publishes: tuple[Publish, ...]
    together: bool = False
    """Each client's in one piece, so that a broker that takes several at once does so."""


class Join(_Step, frozen=True, kw_only=True, tag="join"):
    """A consumer that is there takes itself over."""

    consumer: int = 0


class Poll(_Step, frozen=True, kw_only=True, tag="poll"):
    """Over HTTP a consumer asks for messages, and by that joins."""

    consumer: int = 0
    most: int = 1
    waits: bool = False
    """For as long as there are none; whatever comes next in the life comes meanwhile."""


class Leave(_Step, frozen=True, kw_only=True, tag="leave"):
    consumer: int = 0
    how: Leaving = Leaving.DISCONNECT


class Settle(_Step, frozen=True, kw_only=True, tag="settle"):
    consumer: int = 0
    verb: str = "ack"
    """ack, nack, reject, extend, or over HTTP release."""
    which: tuple[int, ...] = (0,)
    """Of what it holds, by place; more than it holds: once more what it has settled."""
    form: Form = Form.IDS
    delay_s: int = 0
    """Of a nack."""
    extend_s: int = 0
    """The extension that is named, from now; 0 = none is: the delivery timeout."""
    producer: int = -1
    """An ack in the open transaction of this producer, if it has one; -1 = in none."""
    shown_by: int = -1
    """The consumer whose connection shows the receipts; -1 = its own."""
    each: bool = False
    """By a request of its own, all in one piece."""
    first_receipt: bool = False
    """The first one that was given for a message, in place of the last."""


class Withhold(_Step, frozen=True, kw_only=True, tag="withhold"):
    """PUBACKs are kept back, or no more."""

    consumer: int = 0
    on: bool = True


class Begin(_Step, frozen=True, kw_only=True, tag="begin"):
    producer: int = 0
    timeout_s: int = 900


class End(_Step, frozen=True, kw_only=True, tag="end"):
    """The transaction that it began last, also if that has ended."""

    producer: int = 0
    commit: bool = True


class Cancel(_Step, frozen=True, kw_only=True, tag="cancel"):
    queue: int = 0
    which: int = 0
    """Of all delayed messages that there were."""


class Reset(_Step, frozen=True, kw_only=True, tag="reset"):
    group: int = 0
    latest: bool = False


class Purge(_Step, frozen=True, kw_only=True, tag="purge"):
    queue: int = 0


class Delete(_Step, frozen=True, kw_only=True, tag="delete"):
    """A group; or the queue with its dead letters, which nobody reads any more, and that is made anew at once."""

    queue: int = 0
    group: int = -1
    """-1 = the queue."""


class Claim(_Step, frozen=True, kw_only=True, tag="claim"):
    """It wants what somebody of its group holds, itself included."""

    consumer: int = 0
    which: int = 0
    """Of what its group holds; more than there are: what it has settled."""
    idle_s: int = 0
    unnamed: bool = False
    """Whatever has been held for so long, where that can only be one."""


class Commit(_Step, frozen=True, kw_only=True, tag="commit"):
    consumer: int = 0
    which: int = 0
    """Behind this one of what it holds of the partition of the first; -1: before everything, -2: far beyond."""


class Grow(_Step, frozen=True, kw_only=True, tag="grow"):
    """The queue is to have so many partitions."""

    queue: int = 0
    partitions: int = 2


class Change(_Step, frozen=True, kw_only=True, tag="change"):
    """A setting of a queue in use becomes another, if it is one that lives can tell."""

    queue: int = 0
    setting: str = "max_in_flight"
    """max_in_flight, group_max_in_flight, max_retries, max_depth or max_message_bytes."""
    value: int = 1
    spoilt: bool = False
    """Together with one that is fixed for life: all of it is refused."""


class Replay(_Step, frozen=True, kw_only=True, tag="replay"):
    """The dead letters of the queue go back to it."""

    queue: int = 0


class Number(Enum):
    """What a producer sends that numbers its messages."""

    NEXT = "the next message"
    AGAIN = "an earlier one"
    EARLY = "one behind the next"
    FENCED = "the next one of its epoch before"


class Numbered(_Step, frozen=True, kw_only=True, tag="numbered"):
    """Whose last message was not answered sends that again, whatever it is to send."""

    producer: int = 0
    queue: int = 0
    partition: int = 0
    what: Number = Number.NEXT
    back: int = 0
    """Which of the earlier ones; 0 = the last."""
    afresh: bool = False
    """In a new epoch."""


class Stray(_Step, frozen=True, kw_only=True, tag="stray"):
    """A request names a message, or a partition, that never was."""

    queue: int = 0
    verb: str = ""
    """ack, nack, reject, extend, claim, commit or replay; empty: a publish."""
    offset: int = 0


class Look(_Step, frozen=True, kw_only=True, tag="look"):
    """The figures of a queue."""

    queue: int = 0


class Advance(_Step, frozen=True, kw_only=True, tag="advance"):
    """The broker's clock is moved."""

    seconds: int


class Restart(_Step, frozen=True, kw_only=True, tag="restart"):
    """kill -9, and a start on the same data."""

    amid: Publish | Settle | End | Cancel | Numbered | None = None
    """What was asked for a moment before, and whose answer nobody saw."""


Step = (
    Publish
    | Burst
    | Join
    | Poll
    | Leave
    | Settle
    | Withhold
    | Begin
    | End
    | Cancel
    | Reset
    | Purge
    | Delete
    | Claim
    | Commit
    | Grow
    | Change
    | Replay
    | Numbered
    | Stray
    | Look
    | Advance
    | Restart
)


class QueueLife(msgspec.Struct, frozen=True, kw_only=True):
    queues: tuple[QueuePlan, ...]
    groups: tuple[GroupPlan, ...]
    consumers: tuple[ConsumerPlan, ...]
    tenant: bool = False
    """All clients are of a tenant, beside whose queues there are others of the same names."""
    steps: tuple[Step, ...]


class QueueReplay(Recorded, frozen=True, kw_only=True):
    """The file of a finding."""

    schema: Literal["assay.explore.queues/1"] = REPLAY_SCHEMA
    life: QueueLife


def story(life: QueueLife) -> list[str]:
    """The life in lines for people."""
    lines = [
        f"{what} {number}: {in_words(plan, 'as it comes')}"
        for what, plans in (("queue", life.queues), ("group", life.groups), ("consumer", life.consumers))
        for number, plan in enumerate(plans)
    ]
    return lines + numbered(life.steps)
