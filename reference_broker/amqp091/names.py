"""Names of queues on both sides, and of the protocol.

What AMQP allows and a topic could not hold is escaped with ``%``, as in URLs.
"""

from __future__ import annotations

import re
from typing import Final

from assay.reference_broker.routing.remembered import remember

AMQP091: Final = "amqp091"
"""The protocol, as the broker calls it."""
DEFAULT_VHOST: Final = "/"
GROUP: Final = "amqp"
"""The group by which a queue is consumed over AMQP: one for all consumers, whatever the protocol, that share its
messages."""
_NOT_IN_NAMES: Final = re.compile(r"[%+#\x00]|^\$|(?<=/)\$|^/|/$|(?<=/)/|^dlq(?=/|$)")
_ESCAPE: Final = re.compile(r"%([0-9A-F]{2})")
_CACHED: Final = 4_096
_KNOWN: dict[str, str] = {}


def _escaped(match: re.Match[str]) -> str:
    return "".join([f"%{ord(each):02X}" for each in match.group()])


def engine_name(name: str) -> str:
    """The engine's name for a queue of AMQP."""
    known = _KNOWN.get(name)
    if known is None:
        known = remember(_KNOWN, name, _NOT_IN_NAMES.sub(_escaped, name), len(name), _CACHED)
    return known


def amqp_name(name: str) -> str:
    """The opposite."""
    return _ESCAPE.sub(lambda match: chr(int(match.group(1), 16)), name) if "%" in name else name
