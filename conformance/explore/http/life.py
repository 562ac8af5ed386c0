"""The file of a finding over HTTP; what happens in a life is what happens in one of queues, and polls."""

from __future__ import annotations

from typing import Literal

from assay.conformance.explore.life import Recorded
from assay.conformance.explore.queues.life import QueueLife

REPLAY_SCHEMA: Literal["assay.explore.http/1"] = "assay.explore.http/1"


class HttpReplay(Recorded, frozen=True, kw_only=True):
    """The file of a finding."""

    schema: Literal["assay.explore.http/1"] = REPLAY_SCHEMA
    life: QueueLife
