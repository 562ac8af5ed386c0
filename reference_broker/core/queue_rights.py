"""Who may do what to queues: one row for each thing that a client can ask for. The rows drive the checks.

Every row says which right is needed, and on what, in the names that the client writes. A tenant's client names its own
queues only, whatever it writes; any other reaches the queues of tenants only if it may administer. A refusal is
``NOT_ALLOWED``, 0x87 in MQTT 5, and leaves everything as it was. A producer, and what belongs to it, is its user's.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec


class Right(Enum):
    """What access rules grant."""

    READ = "read"
    WRITE = "write"
    ADMINISTER = "administer"
    """On the administration topic; without access rules, whoever came over a listener on loopback has it."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """What an operation needs."""

    right: Right
    """On the topic or filter as it is written; for a verb, on the queue topic in front of it."""
    named_queue: Right | None = None
    """Also needed, on the queue that the user property ``queue`` names."""
    tenants: bool = True
    """Clients of tenants have it."""
    creates: bool = False
    """It may create the queue that it names."""


def _settlement() -> Rule:
    return Rule(right=Right.READ)


def _administration(*, creates: bool = False) -> Rule:
    return Rule(right=Right.ADMINISTER, tenants=False, creates=creates)


RULES: Final[dict[str, Rule]] = {
    "publish": Rule(right=Right.WRITE, creates=True),
    "will": Rule(right=Right.WRITE, creates=True),
    "subscribe": Rule(right=Right.READ, creates=True),
    "$ack": _settlement(),
    "$nack": _settlement(),
    "$reject": _settlement(),
    "$extend": _settlement(),
    "$commit": _settlement(),
    "$claim": _settlement(),
    # Who may enqueue may take back what waits.
    "$cancel": Rule(right=Right.WRITE),
    "$txn/init": Rule(right=Right.WRITE),
    "$txn/begin": Rule(right=Right.WRITE),
    "$txn/add": Rule(right=Right.WRITE, named_queue=Right.WRITE, creates=True),
    "$txn/commit": Rule(right=Right.WRITE),
    "$txn/abort": Rule(right=Right.WRITE),
    # Of the client's own producers, and of those that are nobody's; who may administer sees all.
    "$txn/describe": Rule(right=Right.WRITE, tenants=False),
    "$txn/list": Rule(right=Right.WRITE, tenants=False),
    "$admin/create": _administration(creates=True),
    "$admin/list": _administration(),
    "$admin/config": _administration(),
    "$admin/groups": _administration(),
    "$admin/reset": _administration(),
    "$admin/delete": _administration(),
    "$admin/partitions": _administration(),
    "$admin/purge": _administration(),
    "$admin/priority": _administration(),
    "$admin/stats": _administration(),
    "$admin/replay": _administration(),
    "$admin/dead-letters": _administration(),
    "$admin/delays": _administration(),
    # A filter that reaches administration topics: the stream of figures.
    "$admin/subscribe": _administration(),
}
"""By operation: a verb, the request's topic without the queue, or what is no request. A test walks them."""
_VERBS = {name: rule for name, rule in RULES.items() if name.startswith("$") and "/" not in name}
READING_VERBS: Final = tuple(name for name, rule in _VERBS.items() if rule.right is Right.READ)
WRITING_VERBS: Final = tuple(name for name, rule in _VERBS.items() if rule.right is Right.WRITE)
