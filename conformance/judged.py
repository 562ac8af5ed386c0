"""What one case came to, with its evidence."""

from __future__ import annotations

import msgspec

from assay.conformance.rules import Incident
from assay.reference_broker.trace.conformance import CaseResult, WireLine


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one case with its evidence."""

    result: CaseResult
    transcript: tuple[WireLine, ...] = ()
    beside_a_death: bool = False
    """It was begun, but the broker died, and not surely of it."""
    incidents: tuple[Incident, ...] = ()
    """Steps that failed: those that the case is not about, and the one that it failed on."""
    is_no_matter_of_restarts: bool = False
    """It fails in the same way where connections are lost and the broker lives on."""

    @property
    def waits_for_others(self) -> bool:
        """Its verdict depends on how other cases end."""
        return bool(self.incidents) or self.is_no_matter_of_restarts
