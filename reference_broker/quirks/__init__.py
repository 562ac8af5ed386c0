"""Quirks: the deviations of real brokers, imitated, so that clients can be tested against them.

``quirks: [mosquitto-2.0]`` in the configuration, or the names of single quirks. A node with quirks builds its
connections, sessions and routes from classes made for it; other nodes of the process, and every node without quirks,
use the reference broker's own classes and pay nothing.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Sequence

from assay.reference_broker.config import ConfigError
from assay.reference_broker.quirks import (
    connecting,
    delivering,
    filters,
    framing,
    lenient,
    publishing,
    sessions,
    subscribing,
    wills,
)
from assay.reference_broker.quirks.model import NodeClasses, Profile, Quirk, combine
from assay.reference_broker.quirks.profiles import PROFILES as _PROFILES

__all__ = ["PROFILES", "QUIRKS", "NodeClasses", "Profile", "Quirk", "find_quirks", "node_classes"]

_MODULES = (framing, lenient, connecting, sessions, publishing, delivering, subscribing, filters, wills)
QUIRKS: dict[str, Quirk] = {
    quirk.name: quirk for quirk in itertools.chain.from_iterable(module.QUIRKS for module in _MODULES)
}
"""Every quirk by name, in the order in which they are listed."""
PROFILES: dict[str, Profile] = {profile.name: profile for profile in _PROFILES}


def find_quirks(names: Sequence[str]) -> tuple[Quirk, ...]:
    """The quirks that profiles and single names stand for, each once. Raises :class:`ConfigError` for unknown names."""
    found: dict[str, Quirk] = {}
    for name in names:
        if name in PROFILES:
            found.update((each, QUIRKS[each]) for each in PROFILES[name].quirks)
        elif name in QUIRKS:
            found[name] = QUIRKS[name]
        else:
            close = difflib.get_close_matches(name, [*PROFILES, *QUIRKS], n=3)
            hint = f"did you mean {' or '.join(close)}?" if close else "assay quirks lists them"
            raise ConfigError(f"quirks: there is no quirk or profile {name!r}; {hint}")
    return tuple(found.values())


def node_classes(names: Sequence[str]) -> NodeClasses:
    """What a node with these quirks is built from. Raises :class:`ConfigError` for unknown names."""
    return combine(find_quirks(names))
