"""What happens in a life: frozen structs that replay files hold as JSON.

Topics and filters are templates: ``{t}`` stands for a text that only one life uses, so that a replay disturbs nobody.
A client that is not connected connects by itself when a step asks something of it, with the fields of its
:class:`Client`; it is new in the first place, and comes back to its session (Clean Start 0) if it has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Literal

import msgspec

from assay.conformance.targets import CapabilityValue

REPLAY_SCHEMA: Literal["assay.explore/1"] = "assay.explore/1"
MAX_STEPS = 200
_DEFAULT = "MQTT 5.0, keeps no session"


TIMES_S = (100_000, 50)
"""Expiry intervals and delays that lives use: no sum of the moves of the clock is near them."""


def other_expiry_s(expiry_s: float) -> int:
    """Long for a short one, and short for a long one."""
    return TIMES_S[expiry_s > TIMES_S[1]]


def keep_alive_s(capabilities: Mapping[str, CapabilityValue]) -> int:
    """Of connections that are not about it: off where the clock is moved, and else on, since rumqttd refuses 0."""
    return 0 if capabilities.get("clock", False) else 600


class Leaving(Enum):
    """How a client goes."""

    DISCONNECT = "disconnect"
    WITH_WILL = "disconnect with will"
    """5.0: DISCONNECT 0x04; 3.1.1 has none, and the connection is reset."""
    END_SESSION = "disconnect, end the session"
    """5.0: Session Expiry Interval 0 in DISCONNECT."""
    OTHER_EXPIRY = "disconnect, another expiry"
    """5.0: a Session Expiry Interval in DISCONNECT that is not the one of CONNECT; only of a session that is kept."""
    RESET = "reset"


class Hold(Enum):
    """What a client does not send for the time being."""

    NOTHING = "nothing"
    FIRST = "PUBACK and PUBREC"
    PUBCOMP = "PUBCOMP"
    MIXED = "PUBCOMP, and all but the first of PUBACK and PUBREC"


class Cut(Enum):
    """How far a publisher gets with a PUBLISH before its connection is reset, or taken over by another of its own."""

    NOT = "not at all"
    ACK_UNREAD = "before it sees PUBACK or PUBREC"
    BEFORE_PUBREL = "before it sends PUBREL"
    TAKEOVER_UNREAD = "taken over before it sees PUBACK or PUBREC"
    TAKEOVER_BEFORE_PUBREL = "taken over before it sends PUBREL"

    @property
    def is_unread(self) -> bool:
        return self in (Cut.ACK_UNREAD, Cut.TAKEOVER_UNREAD)

    @property
    def is_before_pubrel(self) -> bool:
        return self in (Cut.BEFORE_PUBREL, Cut.TAKEOVER_BEFORE_PUBREL)

    @property
    def is_takeover(self) -> bool:
        return self in (Cut.TAKEOVER_UNREAD, Cut.TAKEOVER_BEFORE_PUBREL)


class WillPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    topic: str
    qos: int = 0
    retain: bool = False
    delay_s: int = 0
    rich: bool = False
    """5.0: with the properties that a server must hand on, and a message expiry."""


class Client(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    version: int = 5
    clean: bool = True
    """3.1.1: Clean Session. 5.0: whether it keeps no session; Session Expiry Interval 0 then, else ``expiry_s``."""
    expiry_s: int = 100_000
    keep_alive_s: int = 0
    receive_maximum: int = 0
    """0 = not sent."""
    alias_maximum: int = 0
    max_packet_bytes: int = 0
    """0 = not sent."""
    pieces: bool = False
    """Its packets come in two pieces each, and where it resets its connection one comes in part."""
    will: WillPlan | None = None

    @property
    def kept_s(self) -> float:
        """How long the session outlives a connection."""
        if self.clean:
            return 0.0
        return float(self.expiry_s) if self.version >= 5 else float("inf")


class FilterPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A filter with its options; those that the client's version lacks are left out."""

    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


class _Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="do"):
    pass


class Join(_Step, frozen=True, kw_only=True, tag="join"):
    """CONNECT; a client that is connected takes its session over from itself."""

    client: int
    afresh: bool = False
    """Clean Start (Clean Session) 1 whatever the client had."""
    like: int = -1
    """With the CONNECT of another client, but for version and Maximum Packet Size (what was sent might have become too
    large for it); -1 = its own."""


class Leave(_Step, frozen=True, kw_only=True, tag="leave"):
    client: int
    how: Leaving = Leaving.DISCONNECT


class Subscribe(_Step, frozen=True, kw_only=True, tag="subscribe"):
    client: int
    filters: tuple[FilterPlan, ...]
    identifier: int = 0
    """0 = none."""


class Unsubscribe(_Step, frozen=True, kw_only=True, tag="unsubscribe"):
    client: int
    filters: tuple[str, ...]


class Publish(_Step, frozen=True, kw_only=True, tag="publish"):
    client: int
    topic: str
    qos: int = 0
    retain: bool = False
    size_bytes: int = 8
    """At least; 0 = an empty payload."""
    expiry_s: int = 0
    """0 = none."""
    rich: bool = False
    """5.0: with the properties that a server must hand on."""
    alias: int = 0
    """5.0: topic alias, if the server takes it; used without topic once it is known."""
    again: bool = False
    """QoS 2: the PUBLISH is sent a second time, with DUP, before PUBREL."""
    cut: Cut = Cut.NOT


class Burst(_Step, frozen=True, kw_only=True, tag="burst"):
    """Publishes one behind the other, without waiting for what they cause."""

    publishes: tuple[Publish, ...]
    together: bool = False
    """Each client's in one piece, so that a broker that takes several at once does so; likewise, in all of the life,
    what clients answer to what comes in one piece."""


class Withhold(_Step, frozen=True, kw_only=True, tag="withhold"):
    client: int
    what: Hold = Hold.NOTHING


class Restart(_Step, frozen=True, kw_only=True, tag="restart"):
    """kill -9, and a start on the same data."""


class Advance(_Step, frozen=True, kw_only=True, tag="advance"):
    """The broker's clock is moved."""

    seconds: int


Step = Join | Leave | Subscribe | Unsubscribe | Publish | Burst | Withhold | Restart | Advance


class Life(msgspec.Struct, frozen=True, kw_only=True):
    clients: tuple[Client, ...]
    steps: tuple[Step, ...]


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """What the file of a finding holds, whatever lives it is of."""

    target: str
    rule: str
    version: int
    """Of the client towards which it was broken, which says whose statements ``clauses`` are."""
    clauses: tuple[str, ...]
    text: str
    seed: int


class Replay(Recorded, frozen=True, kw_only=True):
    """The file of a finding."""

    schema: Literal["assay.explore/1"] = REPLAY_SCHEMA
    life: Life


def clients_of(step: Step) -> set[int]:
    """The clients that a step is about."""
    if isinstance(step, Burst):
        return {publish.client for publish in step.publishes}
    return {number for name in ("client", "like") if (number := getattr(step, name, -1)) >= 0}


def story(life: Life) -> list[str]:
    """The life in lines for people: the clients that take part, then the steps."""
    used = sorted(set().union(*(clients_of(step) for step in life.steps))) if life.steps else []
    lines = [f"client {index}: {in_words(life.clients[index % len(life.clients)], _DEFAULT)}" for index in used]
    return lines + numbered(life.steps)


def numbered(steps: Sequence[msgspec.Struct]) -> list[str]:
    """Steps as lines for people."""
    return [f"{number}. {in_words(step)}" for number, step in enumerate(steps, 1)]


def in_words(record: msgspec.Struct, otherwise: str = "plain") -> str:
    """A step, or what a life is made of: what it is, and its fields; ``otherwise`` where there is nothing to say."""
    fields: dict[str, Any] = msgspec.to_builtins(record)
    kind = fields.pop("do", "")
    words = [*([str(kind)] if kind else []), *(f"{name}={value}" for name, value in fields.items())]
    return " ".join(words) or otherwise
